// Its three streams are files in memory, so that nothing is left behind and nobody waits for a full pipe.
#include "tools/report/gnuplot.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

extern char** environ;

namespace cairn {
namespace {

class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("gnuplot", MFD_CLOEXEC)) {}
  ~MemoryFile() {
    if (fd_ >= 0) close(fd_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int fd() const { return fd_; }

  bool Write(const std::string& bytes) const {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t put = write(fd_, bytes.data() + at, bytes.size() - at);
      if (put < 0) return false;
      at += static_cast<size_t>(put);
    }
    return lseek(fd_, 0, SEEK_SET) == 0;
  }

  std::string Read() const {
    std::string bytes;
    char part[65536];
    if (lseek(fd_, 0, SEEK_SET) != 0) return bytes;
    for (ssize_t got; (got = read(fd_, part, sizeof part)) > 0;) bytes.append(part, static_cast<size_t>(got));
    return bytes;
  }

 private:
  int fd_;
};

// Starts gnuplot on the three files; its process, or an errno as a negative number.
int Spawn(const MemoryFile& in, const MemoryFile& out, const MemoryFile& error) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.fd(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.fd(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, error.fd(), STDERR_FILENO);
  char name[] = "gnuplot";
  char* arguments[] = {name, nullptr};
  pid_t process = 0;
  const int failed = posix_spawnp(&process, name, &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  return failed ? -failed : process;
}

// gnuplot echoes the command before its complaint.
std::string Complaint(const std::string& text) {
  size_t at = text.find("line ");
  if (at == text.npos) at = 0;
  return text.substr(at, text.find('\n', at) - at).substr(0, 200);
}

}  // namespace

Result<std::string> RunGnuplot(const std::string& commands) {
  const MemoryFile in, out, error;
  if (in.fd() < 0 || out.fd() < 0 || error.fd() < 0 || !in.Write(commands))
    return IoError("no memory for a plot: {}", std::strerror(errno));
  const int process = Spawn(in, out, error);
  if (process == -ENOENT)
    return NotFound("plots need gnuplot, which is not installed: apt install gnuplot-nox");
  if (process < 0) return IoError("gnuplot does not start: {}", std::strerror(-process));
  int status = 0;
  while (waitpid(process, &status, 0) < 0)
    if (errno != EINTR) return IoError("gnuplot: {}", std::strerror(errno));
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return IoError("gnuplot failed: {}", Complaint(error.Read()));
  return out.Read();
}

std::string GnuplotString(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\' || c == '`') continue;
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

}  // namespace cairn
