// The text is one line of JSON. It is read again through the path and a new descriptor: a network file system
// shows what other hosts wrote to a file that is opened now.

#include "ckpt/io/lock_file.h"

#include <fmt/chrono.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "ckpt/base/nonce.h"
#include "ckpt/base/this_process.h"
#include "ckpt/io/directory_facts.h"
#include "ckpt/io/replace_file.h"

namespace cairn {
namespace {

constexpr size_t kMaxTextBytes = 4096;

// In which directory a lock file is: a rename keeps it, a copy differs.
std::string DirectoryOf(const std::string& path) {
  const Result<DirectoryFacts> facts = FactsOfDirectory(ParentDir(path));
  return facts.ok() ? fmt::format("{} {}", facts->inode, facts->born_unix_nanoseconds) : "";
}

// Whether it is one file with the lock of another directory, whose holder is meant. Only a holder that could
// write nothing, or an earlier version, leaves the text empty.
bool IsAnothers(const FileLock& file) {
  struct stat st;
  if (::fstat(file.fd().get(), &st) != 0 || st.st_nlink < 2) return false;
  const Result<std::string> text = file.ReadText(kMaxTextBytes);
  const std::optional<LockHolder> holder = DecodeLockHolder(text.ok() ? *text : "");
  return text.ok() && (holder ? holder->directory != DirectoryOf(file.path()) : text->empty());
}

// What a power loss left of the text counts, too.
bool IsLockText(const std::string& text) {
  return text.empty() || text[0] == '\0' || text.starts_with("{\"host\"");
}

void Empty(const FileLock& file) {
  while (::ftruncate(file.fd().get(), 0) != 0 && errno == EINTR) {
  }
}

// OK if the file at the path of `file` has this word now.
Status CheckWord(FileSystem& fs, const FileLock& file, const std::string& word) {
  CAIRN_ASSIGN_OR_RETURN(const FileLock again, fs.OpenLock(file.path(), FileLock::Missing::kError));
  CAIRN_ASSIGN_OR_RETURN(const std::string text, again.ReadText(kMaxTextBytes));
  const std::optional<LockHolder> holder = DecodeLockHolder(text);
  if (holder && holder->word == word) return OkStatus();
  return AlreadyExists(
      "{}: another process took this lock although this one holds it{}; locks of this file system do not "
      "exclude other hosts, or the file was changed: end one of the two, then start this one again",
      file.path(), holder ? ": " + holder->Text() : "");
}

}  // namespace

LockHolder LockHolder::ThisProcess() {
  return {.host = HostName(),
          .pid = ::getpid(),
          .job = BatchJob(std::getenv),
          .since = fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr))),
          .word = NewNonce() + NewNonce()};
}

std::string LockHolder::Text() const {
  return fmt::format("pid {} on {}{} since {}", pid, host, job.empty() ? "" : fmt::format(" ({})", job),
                     since);
}

std::string EncodeLockHolder(const LockHolder& holder) {
  const nlohmann::ordered_json json = {{"host", holder.host}, {"pid", holder.pid},
                                       {"job", holder.job},   {"since", holder.since},
                                       {"word", holder.word}, {"directory", holder.directory}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::optional<LockHolder> DecodeLockHolder(std::string_view text) {
  LockHolder holder;
  try {
    const auto json = nlohmann::json::parse(text);
    json.at("host").get_to(holder.host);
    json.at("pid").get_to(holder.pid);
    json.at("job").get_to(holder.job);
    json.at("since").get_to(holder.since);
    json.at("word").get_to(holder.word);
    holder.directory = json.value("directory", "");
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  return holder;
}

Result<LockFile> LockFile::Open(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(FileLock file, fs.OpenLock(path));
  if (IsAnothers(file)) {
    CAIRN_ASSIGN_OR_RETURN(const bool free,
                           file.TryLock(FileLock::How::kShared));  // or shared: they write nothing
    if (!free) CAIRN_RETURN_IF_ERROR(ReplaceSmallFile(fs, path, ""));
    CAIRN_ASSIGN_OR_RETURN(file, fs.OpenLock(path));
  }
  return LockFile(std::make_unique<Held>(fs, std::move(file)));
}

// A full disk must not keep a process from the lock: it may be the one that frees space.
Result<bool> LockFile::TryLock(FileLock::How how) {
  held_->alone = false;
  CAIRN_ASSIGN_OR_RETURN(const bool ours, held_->file.TryLock(how));
  if (!ours || how == FileLock::How::kShared) return ours;
  held_->alone = true;
  const Result<std::string> text = held_->file.ReadText(kMaxTextBytes);
  if (!text.ok() || !IsLockText(*text)) return true;
  LockHolder holder = LockHolder::ThisProcess();
  holder.directory = DirectoryOf(held_->file.path());
  const bool written = held_->file.WriteText(EncodeLockHolder(holder)).ok();
  held_->word = written ? holder.word : "";
  if (!written) Empty(held_->file);
  return true;
}

std::string LockFile::HeldBy() const {
  const Result<std::string> text = held_->file.ReadText(kMaxTextBytes);
  const std::optional<LockHolder> holder = DecodeLockHolder(text.ok() ? *text : "");
  return holder ? ": " + holder->Text() : "";
}

Status LockFile::CheckHolder() const {
  return held_->word.empty() ? OkStatus() : CheckWord(held_->fs, held_->file, held_->word);
}

// The text of another process is kept.
LockFile::Held::~Held() {
  if (alone && !word.empty() && file.IsAtItsPath() && CheckWord(fs, file, word).ok()) Empty(file);
}

}  // namespace cairn
