// A stub is recognised only by its blocks, without the tape's software. Stubs are sorted by the output of
// the stat command, digits as numbers, and recalled in batches: in the order of the tape, with few commands.
// The exit status of a recall command is not enough: a file that still looks like a stub afterwards was not
// recalled.

#include "tools/archive/tar/recall.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ckpt/base/child.h"
#include "tools/process/shell_word.h"

namespace cairn {
namespace {

constexpr uint64_t kMinStubBytes = 1 << 20;  // small files are kept on disk, or inside the inode
constexpr uint64_t kStubShare = 8;           // fewer than one byte in this many is on the disk
constexpr size_t kBatch = 256;               // files of one recall command

std::string Fill(std::string command, const std::string& mark, const std::string& words) {
  const size_t at = command.find(mark);
  if (at == command.npos) return command + " " + words;
  return command.replace(at, mark.size(), words);
}

}  // namespace

bool LooksLikeStub(const FileInfo& info) {
  return info.bytes >= kMinStubBytes && info.allocated_bytes < info.bytes / kStubShare;
}

bool IsStub(FileSystem& fs, const std::string& path) {
  const auto info = fs.Stat(path);
  return info.ok() && LooksLikeStub(*info);
}

Status CheckOnDisk(FileSystem& fs, const std::vector<std::string>& paths) {
  for (const std::string& path : paths)
    if (IsStub(fs, path))
      return IoError(
          "{}: on tape, needs recall; give cairn archive --recall CMD, or --policy with [recall] commands",
          path);
  return OkStatus();
}

Result<std::vector<std::string>> StubsInTapeOrder(FileSystem& fs, const std::vector<std::string>& paths,
                                                  const RecallCommands& commands) {
  std::vector<std::pair<std::string, std::string>> stubs;  // place, path
  for (const std::string& path : paths) {
    if (!IsStub(fs, path)) continue;
    std::string place;
    if (!commands.stat.empty()) {
      CAIRN_ASSIGN_OR_RETURN(place,
                             ChildOutput({"sh", "-c", Fill(commands.stat, "{path}", ShellWord(path))}));
    }
    stubs.emplace_back(std::move(place), path);
  }
  std::ranges::stable_sort(stubs, [](const auto& a, const auto& b) {
    return ::strverscmp(a.first.c_str(), b.first.c_str()) < 0;  // "T2 9" before "T2 10"
  });
  std::vector<std::string> ordered;
  for (auto& [place, path] : stubs) ordered.push_back(std::move(path));
  return ordered;
}

Result<std::vector<std::string>> TryRecall(FileSystem& fs, const std::vector<std::string>& paths,
                                           const RecallCommands& commands) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<std::string> stubs, StubsInTapeOrder(fs, paths, commands));
  if (commands.recall.empty()) return stubs;
  for (size_t at = 0; at < stubs.size(); at += kBatch) {
    std::string words;
    for (size_t i = at; i < std::min(stubs.size(), at + kBatch); ++i)
      words += (words.empty() ? "" : " ") + ShellWord(stubs[i]);
    const std::string command = Fill(commands.recall, "{paths}", words);
    const int result = std::system(command.c_str());
    if (!WIFEXITED(result) || WEXITSTATUS(result) != 0) return IoError("'{}' failed", command);
  }
  std::erase_if(stubs, [&](const std::string& path) { return !IsStub(fs, path); });
  return stubs;
}

Result<size_t> Recall(FileSystem& fs, const std::vector<std::string>& paths, const RecallCommands& commands) {
  const auto on_tape =
      static_cast<size_t>(std::ranges::count_if(paths, [&](const auto& path) { return IsStub(fs, path); }));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> left, TryRecall(fs, paths, commands));
  if (left.empty()) return on_tape;
  if (commands.recall.empty()) return CheckOnDisk(fs, left);
  return IoError("{}: still on tape after the recall command", left.front());
}

}  // namespace cairn
