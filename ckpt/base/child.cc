// The child's three streams are files in memory, so nothing is left behind and no pipe can fill up.
#include "ckpt/base/child.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ckpt/base/backoff.h"
#include "ckpt/base/unique_fd.h"

extern char** environ;

namespace cairn {
namespace {

constexpr int kNotThere = 127, kTooLate = 124;  // exit statuses of timeout(1)
constexpr Pauses kMeanwhile{std::chrono::milliseconds(50), std::chrono::milliseconds(50)};

class MemoryFile {
 public:
  int fd() const { return fd_.get(); }

  bool Write(const std::string& bytes) const {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t put = write(fd(), bytes.data() + at, bytes.size() - at);
      if (put < 0) return false;
      at += static_cast<size_t>(put);
    }
    return lseek(fd(), 0, SEEK_SET) == 0;
  }

  std::string Read() const {
    std::string bytes;
    char part[65536];
    if (lseek(fd(), 0, SEEK_SET) != 0) return bytes;
    for (ssize_t got; (got = read(fd(), part, sizeof part)) > 0;)
      bytes.append(part, static_cast<size_t>(got));
    return bytes;
  }

 private:
  UniqueFd fd_{memfd_create("child", MFD_CLOEXEC)};
};

// Starts the program on the three files; its process, or an errno as a negative number.
int Spawn(const std::vector<std::string>& words, const MemoryFile& in, const MemoryFile& out,
          const MemoryFile& error) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.fd(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.fd(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, error.fd(), STDERR_FILENO);
  pid_t process = 0;
  const int failed =
      posix_spawnp(&process, words[0].c_str(), &actions, nullptr, Arguments(words).data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return failed ? -failed : process;
}

std::string LastLine(std::string text) {
  text.erase(text.find_last_not_of(" \n") + 1);
  return text.substr(text.rfind('\n') + 1);
}

// "srun: fatal: ...", with or without the program's name in its message.
std::string Said(const std::string& name, const std::string& line) {
  return line.starts_with(name) ? line : fmt::format("{}: {}", name, line);
}

}  // namespace

std::vector<char*> Arguments(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  return arguments;
}

int ExitStatusOf(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

Result<ChildOutcome> RunChild(const std::vector<std::string>& words, const std::string& input,
                              const std::function<void()>& meanwhile) {
  const MemoryFile in, out, error;
  if (in.fd() < 0 || out.fd() < 0 || error.fd() < 0 || !in.Write(input))
    return IoError("no memory for the input and output of {}: {}", words[0], std::strerror(errno));
  const int process = Spawn(words, in, out, error);
  if (process == -ENOENT) return NotFound("there is no program '{}' on this host", words[0]);
  if (process < 0) return IoError("{} cannot be started: {}", words[0], std::strerror(-process));
  int status = 0;
  Backoff backoff(kMeanwhile);
  for (pid_t ended = 0; ended != process;) {
    ended = waitpid(process, &status, meanwhile ? WNOHANG : 0);
    if (ended < 0 && errno != EINTR) return IoError("{}: {}", words[0], std::strerror(errno));
    if (ended != 0) continue;
    meanwhile();
    backoff.Pause();
  }
  return ChildOutcome{ExitStatusOf(status), out.Read(), error.Read()};
}

Result<std::string> ChildOutput(const std::vector<std::string>& words, const std::string& input) {
  CAIRN_ASSIGN_OR_RETURN(ChildOutcome outcome, RunChild(words, input));
  if (outcome.exit == 0) return std::move(outcome.out);
  std::string command;
  for (const std::string& word : words) command += (command.empty() ? "" : " ") + word;
  std::string said = outcome.err.empty() ? outcome.out : outcome.err;
  said.erase(said.find_last_not_of(" \n") + 1);
  return IoError("'{}' failed with exit status {}{}{}", command, outcome.exit, said.empty() ? "" : ": ",
                 said);
}

Result<std::string> Ask(std::vector<std::string> words) {
  const std::string name = words[0];
  words.insert(words.begin(), {"timeout", "10"});
  CAIRN_ASSIGN_OR_RETURN(const ChildOutcome outcome, RunChild(words));
  if (outcome.exit == kNotThere) return NotFound("{} is not installed on this host", name);
  if (outcome.exit == kTooLate) return IoError("{} does not answer within 10 s", name);
  if (outcome.exit != 0)
    return IoError("{}", Said(name, LastLine(outcome.err.empty() ? outcome.out : outcome.err)));
  return outcome.out + outcome.err;
}

}  // namespace cairn
