// Random commands that make a step or files, with random failures and kills, while another user puts files
// and directories anywhere at any time, also inside what is being written and under names that look like
// leftovers. Nothing of another user is ever removed; a failed command leaves nothing of its own; leftovers
// of a killed one are removed by the next command to the same place.
//
// Runs for 4 s; CAIRN_LONG=1: 2,000 walks. A kill is a file system on which no later operation has an
// effect.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <set>

#include "convert/verbs/virtual_step.h"
#include "tests/support/file_bytes.h"
#include "tests/support/long_form.h"
#include "tests/support/make_step.h"
#include "tests/support/open_step.h"
#include "tests/support/serial_queue.h"
#include "tests/support/temp_dir.h"
#include "tests/support/transfers.h"
#include "tests/support/unsynced_file_system.h"
#include "tools/archive/store/archiver.h"
#include "tools/archive/store/restore_part.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;
using Random = std::mt19937_64;

constexpr int kCommands = 4;  // of a walk
constexpr const char* kStepName = "step-00000100";

// Another user of the same directories. Knows its own files by their content, or by a unique name.
class OtherUser {
 public:
  OtherUser(std::string place, Random& random) : place_(std::move(place)), random_(random) {}

  // Puts something somewhere below the place.
  void Act() {
    std::vector<stdfs::path> directories{place_};
    std::error_code gone;  // the command works, too
    for (stdfs::recursive_directory_iterator at(place_, gone), end; !gone && at != end; at.increment(gone))
      if (at->is_directory(gone)) directories.push_back(at->path());
    const stdfs::path where = directories[random_() % directories.size()];
    const int number = count_++;
    const std::string digits = fmt::format("{:08}", 20260000 + number);
    const std::vector<std::string> names = {fmt::format("notes-{}", number),
                                            "a.partial-" + digits,
                                            "b.partial-" + digits,
                                            fmt::format("{}.partial-{}", kStepName, digits),
                                            "a.cairn-mark",
                                            "b.cairn-mark",
                                            "latest." + digits,
                                            fmt::format("step-{:08}", 1000 + number),
                                            fmt::format("{}.deleting-{}", kStepName, digits),
                                            ".staging-" + digits,
                                            "a",
                                            "b",
                                            fmt::format("{}.partial-{}.cairn-mark", kStepName, digits)};
    const stdfs::path path = where / names[random_() % names.size()];
    if (random_() % 2 == 0) {
      Write(path, number);
    } else if (stdfs::create_directory(path, gone) && !gone) {
      directories_.insert(Identity(path));
      Write(path / (random_() % 2 == 0 ? "manifest.json" : "theirs"), number);
    }
  }

  // Empty if everything exists, under whatever name.
  std::string Missing() const {
    std::set<std::string> files;
    std::set<ino_t> directories;
    for (const auto& entry : stdfs::recursive_directory_iterator(place_)) {
      if (entry.is_directory()) directories.insert(Identity(entry.path()));
      if (entry.is_regular_file() && entry.file_size() < 100) files.insert(BytesOf(entry.path()));
    }
    for (const std::string& text : files_)
      if (!files.contains(text)) return text;
    for (const ino_t directory : directories_)
      if (!directories.contains(directory)) return fmt::format("directory {}", directory);
    return "";
  }
  bool Owns(const stdfs::path& path) const {
    if (stdfs::is_directory(path)) return directories_.contains(Identity(path));
    return stdfs::file_size(path) < 100 && files_.contains(BytesOf(path));
  }

 private:
  void Write(const stdfs::path& path, int number) {
    std::error_code error;
    if (stdfs::exists(stdfs::symlink_status(path, error))) return;
    const std::string text =
        fmt::format("number {} of another user, as {}", number, path.filename().string());
    if (std::ofstream out(path, std::ios::binary); out << text) files_.insert(text);
  }
  static ino_t Identity(const stdfs::path& path) {
    struct stat st {};
    return ::lstat(path.c_str(), &st) == 0 ? st.st_ino : 0;
  }

  const std::string place_;
  Random& random_;
  int count_ = 0;
  std::set<std::string> files_;
  std::set<ino_t> directories_;
};

// The disk under a command: the other user acts between its calls; one call may fail; a killed command does
// nothing more.
class SharedDisk final : public UnsyncedFileSystem {
 public:
  SharedDisk(OtherUser& other_user, Random& random) : other_user_(other_user), random_(random) {}
  int64_t kill_at = INT64_MAX, fail_at = INT64_MAX;
  int acts = 0;  // by the other user between its calls
  bool failed() const { return calls_ >= fail_at; }
  bool killed() const { return calls_ > kill_at; }
  std::unique_ptr<IoQueue> NewQueue(const IoQueueOptions&) override {
    return std::make_unique<SerialQueue>();
  }

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    const std::lock_guard lock(mutex_);
    if (killed()) return Aborted("killed");
    if (acts > 0 && random_() % 16 == 0) other_user_.Act(), --acts;
    using Kind = FsCall::Kind;
    // Removals do not fail: a disk that refuses one keeps the file.
    const bool may_fail = call.changes() && call.kind != Kind::kRemoveFile && call.kind != Kind::kRemoveDir;
    if (may_fail && ++calls_ > kill_at) return Aborted("killed");
    if (may_fail && calls_ == fail_at) return IoError("{}: fails here", call.path);
    return UnsyncedFileSystem::Do(call, run);
  }

 private:
  std::mutex mutex_;
  OtherUser& other_user_;
  Random& random_;
  int64_t calls_ = 0;
};

// A run and a store with its step, and a damaged copy of both. Shared by all walks, which only read them.
struct Sources {
  TempDir dir{TempDir::Place::kMemory};
  std::string run = dir / "run", store = dir / "store", bad_run = dir / "bad-run",
              bad_store = dir / "bad-store";
  std::string tar;

  Sources() {
    FileSystem& fs = FileSystem::Posix();
    const StepRecipe recipe = RecipeOf({}, {2, 1, 1, 0});
    EXPECT_TRUE(MakeStep(fs, run, recipe).ok() && MakeDirs(fs, store).ok());
    const auto step = Open(run);
    EXPECT_TRUE(StoreStep({fs, store}, *step, {}).ok());
    tar = FindMember({fs, store}, "")->tar;
    stdfs::copy(run, bad_run, stdfs::copy_options::recursive);
    stdfs::copy(store, bad_store, stdfs::copy_options::recursive);
    Damage(JoinPath(JoinPath(bad_run, kStepName), ShardName(0)));
    Damage(JoinPath(bad_store, tar));
  }

 private:
  static void Damage(const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(stdfs::file_size(path) / 2));
    file << std::string(4096, '\x5a');
  }
};

enum class Command {
  kReshape,
  kVirtual,
  kConvert,
  kStrip,
  kStripNative,
  kStep,
  kStepInRun,
  kWeights,
  kWeightsInRun,
  kTensors
};
constexpr int kCommandCount = 10;

bool MakesRun(Command command) {
  return command == Command::kReshape || command == Command::kVirtual || command == Command::kStripNative ||
         command == Command::kStepInRun || command == Command::kWeightsInRun;
}

bool ReadsAll(Command command) {
  return command == Command::kReshape || command == Command::kConvert || command == Command::kStep ||
         command == Command::kStepInRun;
}

Status Run(Command command, FileSystem& fs, const Sources& from, bool damaged, const std::string& place) {
  const auto step = Open(damaged ? from.bad_run : from.run);
  const WriterOptions writer{.jobs = 1};
  const std::string in_run = JoinPath(place, kStepName);
  const MemberRef member{{fs, damaged ? from.bad_store : from.store}, from.tar};
  const auto part = [&](const auto& restore) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const auto view, OpenMember(member));
    CAIRN_ASSIGN_OR_RETURN(const auto stored, StepReader::Open(*view, view->root()));
    return restore(*view, *stored);
  };
  const auto weights = [&](const std::string& destination) {
    return part([&](auto& view, auto& stored) { return RestoreWeights(fs, view, stored, destination); });
  };
  switch (command) {
    case Command::kReshape:
      return Reshape(fs, *step, place, {.target = {1, 1, 1, 0}, .writer = writer}).status();
    case Command::kVirtual:
      return ReshapeVirtually(fs, *step, place, {.target = {1, 1, 1, 0}, .writer = writer}).status();
    case Command::kConvert:
      return Export(fs, *step, *FindSystem("dcp"), place, {.target = {}, .writer = writer}).status();
    case Command::kStrip:
      return Strip(fs, *step, place, {.writer = writer}).status();
    case Command::kStripNative:
      return Strip(fs, *step, place, {.format = FindSystem("native"), .writer = writer}).status();
    case Command::kStep:
      return RestoreTar(member, place, {});
    case Command::kStepInRun:
      return RestoreTar(member, in_run, {});
    case Command::kWeights:
      return weights(place);
    case Command::kWeightsInRun:
      return weights(in_run);
    case Command::kTensors:
      return part([&](auto&, auto& stored) { return RestoreTensors(fs, stored, {"*"}, place, {}).status(); });
  }
  return OkStatus();
}

class Walk {
 public:
  Walk(const Sources& sources, uint64_t seed)
      : sources_(sources), random_(seed), other_user_(dir_.path(), random_) {}

  // Empty on success.
  std::string Do() {
    for (int i = 0; i < kCommands; ++i) {
      if (random_() % 2 == 0) other_user_.Act();
      if (std::string trouble = DoCommand(); !trouble.empty()) return story_ + trouble;
    }
    return "";
  }

 private:
  std::string DoCommand() {
    const auto command = static_cast<Command>(random_() % kCommandCount);
    const char* const places[] = {"a", "b", "deep/a"};
    const std::string place = dir_ / places[random_() % 3];
    const bool damaged = random_() % 4 == 0;
    SharedDisk disk(other_user_, random_);
    disk.acts = static_cast<int>(random_() % 4);
    if (random_() % 3 == 0) disk.kill_at = static_cast<int64_t>(random_() % 80);
    if (random_() % 4 == 0) disk.fail_at = static_cast<int64_t>(random_() % 80);
    const std::set<std::string> before = Own();
    const Status done = Run(command, disk, sources_, damaged, place);
    story_ += fmt::format("command {} to {}: {}{}\n", static_cast<int>(command), place,
                          disk.killed() ? "killed; " : "", done.ok() ? "done" : done.message());
    if (const std::string missing = other_user_.Missing(); !missing.empty()) return "gone: " + missing;
    if (disk.killed()) return "";
    if (damaged && done.ok() && ReadsAll(command)) return "a damaged source was accepted";
    // A disk may also fail to make a published name durable.
    const std::string target = MakesRun(command) ? JoinPath(place, kStepName) : place;
    const bool published = done.ok() || (disk.failed() && !before.contains(target) && Own().contains(target));
    std::set<std::string> own = Own();
    if (disk.failed()) std::erase_if(own, IsMarkAlone);
    const std::string left = published ? LeftOf(own, command, place) : NewSince(own, before);
    return left.empty() ? "" : "left: " + left;
  }

  // Paths of Cairn: neither the other user's nor a parent of them.
  std::set<std::string> Own() const {
    std::set<std::string> own, needed;
    for (const auto& entry : stdfs::recursive_directory_iterator(dir_.path())) {
      own.insert(entry.path());
      if (!other_user_.Owns(entry.path())) continue;
      for (stdfs::path at = entry.path(); at != dir_.path(); at = at.parent_path()) {
        needed.insert(at);
        needed.insert(MarkPath(at.string()));
        needed.insert(at / kLockName);
      }
    }
    std::erase_if(own, [&](const std::string& path) { return needed.contains(path); });
    return own;
  }

  // If the disk cannot make a removal durable, the mark stays for the next command.
  static bool IsMarkAlone(const std::string& path) {
    return path.ends_with(kMarkSuffix) && !stdfs::exists(path.substr(0, path.size() - kMarkSuffix.size()));
  }

  // An existing run directory keeps its lock.
  static std::string NewSince(const std::set<std::string>& own, const std::set<std::string>& before) {
    for (const std::string& path : own)
      if (!before.contains(path) && !(path.ends_with(kLockName) && before.contains(ParentDir(path))))
        return path;
    return "";
  }

  // Leftovers of this place, of this command or of one before it.
  static std::string LeftOf(const std::set<std::string>& own, Command command, const std::string& place) {
    const bool in_run_alone = command == Command::kStepInRun || command == Command::kWeightsInRun;
    for (const std::string& path : own) {
      const bool beside = path.starts_with(place + ".partial-") || path == MarkPath(place);
      const bool inside = path.starts_with(JoinPath(place, kStepName) + ".partial-");
      if ((beside && !in_run_alone) || (inside && MakesRun(command))) return path;
    }
    return "";
  }

  const Sources& sources_;
  Random random_;
  const TempDir dir_{TempDir::Place::kMemory};
  OtherUser other_user_;
  std::string story_;
};

TEST(RemovalWalkTest, RandomCommandsKeepForeignFilesAndLeaveNothing) {
  const Sources sources;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(4);
  uint64_t seed = 0;
  testing::internal::CaptureStderr();  // leftovers are reported there
  for (; IsLongForm() ? seed < 2000 : std::chrono::steady_clock::now() < end; ++seed) {
    const std::string trouble = Walk(sources, seed).Do();
    EXPECT_EQ(trouble, "") << "walk " << seed;
    if (!trouble.empty()) break;
  }
  (void)testing::internal::GetCapturedStderr();
  RecordProperty("walks", static_cast<int>(seed));
  EXPECT_GT(seed, 0u);
}

}  // namespace
}  // namespace cairn
