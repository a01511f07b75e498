// A subcommand gives main its options set up on a CLI::App, and the function to run once they are
// parsed.
//
// A verb prints facts to stdout and returns an ExitCode; a Status that it returns instead becomes one line on
// stderr and exit status 2, in main.cc only.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "ckpt/base/status.h"

namespace cairn {

using Verb = std::function<Result<int>()>;

// Adds the subcommand that calls `run`. Returns it, and the options that its flags are to fill.
template <typename Options>
std::pair<CLI::App*, std::shared_ptr<Options>> AddVerb(CLI::App& parent, Verb& verb, const std::string& name,
                                                       const std::string& description,
                                                       Result<int> (*run)(const Options&)) {
  auto options = std::make_shared<Options>();
  CLI::App* command = parent.add_subcommand(name, description);
  command->callback([options, &verb, run] { verb = [options, run] { return run(*options); }; });
  return {command, std::move(options)};
}

}  // namespace cairn
