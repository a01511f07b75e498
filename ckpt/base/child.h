// Runs another program to its end, and returns its output. No shell reads the arguments.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

// The words as main() gets them, with a null at the end. They point into `words`.
std::vector<char*> Arguments(const std::vector<std::string>& words);
// The exit status in the status of waitpid(); 128 + the signal that ended the child.
int ExitStatusOf(int status);

struct ChildOutcome {
  int exit = 0;  // ExitStatusOf
  std::string out, err;
};

// `words[0]` is looked up in PATH; `input` is the child's standard input.
// Calls `meanwhile` several times a second until it ends. Errors: NotFound (there is no such program),
// IoError (it could not be started).
Result<ChildOutcome> RunChild(const std::vector<std::string>& words, const std::string& input = "",
                              const std::function<void()>& meanwhile = nullptr);

// The child's stdout. Errors: those of RunChild; IoError with the child's stderr if its exit status is not 0.
Result<std::string> ChildOutput(const std::vector<std::string>& words, const std::string& input = "");

// What a program of the site says, on both streams. Errors: NotFound if it is not installed; IoError if it
// does not answer within 10 s, or with its last line.
Result<std::string> Ask(std::vector<std::string> words);

}  // namespace cairn
