#include "tools/process/scratch_dir.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace cairn {

Result<ScratchDir> ScratchDir::Make() {
  const char* place = std::getenv("TMPDIR");
  if (place == nullptr || *place == '\0') place = "/tmp";
  std::string path = std::string(place) + "/cairn-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr)
    return IoError("{}: cannot make a temporary directory in it ({}); set TMPDIR to another directory", place,
                   std::strerror(errno));
  ScratchDir made(std::move(path));
  made.StartRemover();
  return made;
}

// Runs in a session of its own, so that a terminal's Ctrl-C does not reach it. Failure to start it is not an
// error.
void ScratchDir::StartRemover() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  const UniqueFd input(ends[0]);
  UniqueFd alive(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.get(), STDIN_FILENO);
  for (const int output : {STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&actions, output, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  const char* const words[] = {"sh", "-c", "cat; rm -rf -- \"$0\"", path_.c_str(), nullptr};
  const int failed =
      posix_spawnp(&remover_, words[0], &actions, &attributes, const_cast<char**>(words), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed == 0) alive_ = std::move(alive);
}

ScratchDir::~ScratchDir() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  if (alive_.get() < 0) return;
  alive_ = UniqueFd();
  while (::waitpid(remover_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace cairn
