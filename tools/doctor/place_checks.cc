// Facts of the directory from the kernel and the site's tools. Nothing is written.
#include <algorithm>
#include <sstream>

#include "ckpt/base/child.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/io/directory_room.h"
#include "tools/archive/policy/purge_clock.h"
#include "tools/cli/human.h"
#include "tools/doctor/checks.h"

namespace cairn {
namespace {

constexpr uint64_t kFewInodes = 1000;
constexpr int kUsualSeconds = 60;  // for which NFS caches names
constexpr double kNearlyFull = 0.9, kLittleSpace = 0.02;

bool IsOneOf(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

bool IsOfThisHost(std::string_view type) {
  return IsOneOf(
      type, {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "tmpfs", "ramfs", "overlay"});
}

// The value of NAME=VALUE.
std::string OptionOf(const Mount& mount, std::string_view name, std::string otherwise) {
  for (const std::string& option : mount.options)
    if (option.starts_with(name) && option.size() > name.size() && option[name.size()] == '=')
      otherwise = option.substr(name.size() + 1);
  return otherwise;
}

uint64_t NumberIn(std::string_view text) { return TakeNumber<uint64_t>(text).value_or(0); }

std::string Percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

double ShareOf(const QuotaUse& use) {
  const auto share = [](uint64_t used, uint64_t limit) {
    return limit == 0 ? 0.0 : static_cast<double>(used) / static_cast<double>(limit);
  };
  return std::max(share(use.bytes, use.byte_limit), share(use.files, use.file_limit));
}

std::string TextOf(const QuotaUse& use) {
  std::string text;
  if (use.byte_limit > 0) text = fmt::format("{} of {}", HumanBytes(use.bytes), HumanBytes(use.byte_limit));
  if (use.file_limit > 0)
    text += fmt::format("{}{} of {} files", text.empty() ? "" : ", ", use.files, use.file_limit);
  return fmt::format("{}: {}", use.who, text.empty() ? "no limit" : text);
}

}  // namespace

std::optional<Finding> CheckFileSystem(const Examined& examined) {
  const Mount& mount = examined.mount;
  Finding row{.name = "file system",
              .found = fmt::format("{} at {}", mount.type, mount.point),
              .meaning = "may be shared by many hosts"};
  if (mount.type.empty()) return NotTold(std::move(row), "/proc/self/mountinfo does not say");
  if (IsOneOf(mount.type, {"tmpfs", "ramfs", "overlay"})) {
    Worsen(row,
           mount.type == "overlay" ? "only of this container, and lost with it"
                                   : "memory of this host only, and lost with it",
           "save into a permanent file system; node-local steps (--save-local) may be here");
  } else if (IsOfThisHost(mount.type)) {
    row.meaning = "of this host only: for its own ranks, or for node-local steps";
  }
  return row;
}

std::optional<Finding> CheckNameCaches(const Examined& examined) {
  const Mount& mount = examined.mount;
  Finding row{.name = "name caches", .found = "none", .meaning = "a new step is seen at once"};
  if (IsOfThisHost(mount.type)) return row;
  if (IsOneOf(mount.type, {"lustre", "gpfs", "ceph"})) {
    row.found = fmt::format("{} keeps them equal on all hosts", mount.type);
    return row;
  }
  row.meaning = "other hosts may see a new step late; ranks list directories, which asks again";
  if (!mount.type.starts_with("nfs"))
    return NotTold(std::move(row), fmt::format("the options of {} do not show it", mount.type));
  const std::string usual = std::to_string(kUsualSeconds);
  const uint64_t seconds =
      std::max(NumberIn(OptionOf(mount, "acdirmax", usual)), NumberIn(OptionOf(mount, "acregmax", usual)));
  if (std::ranges::find(mount.options, "noac") != mount.options.end() || seconds == 0) {
    row.meaning = "a new step is seen at once";
    return row;
  }
  row.found = fmt::format("up to {} s (acdirmax, acregmax), lookupcache={}", seconds,
                          OptionOf(mount, "lookupcache", "all"));
  if (seconds > kUsualSeconds) {
    Worsen(row, "other hosts may not see a step that exists, and resume from an older one",
           fmt::format("mount with acdirmax={0},acregmax={0} or less", usual));
  }
  return row;
}

std::optional<Finding> CheckAccessTimes(const Examined& examined) {
  const Result<AccessTimes> times = AccessTimesAt(examined.directory);
  if (!times.ok())
    return NotTold(
        {.name = "access times", .found = "", .meaning = "a purge by the last read may come sooner"},
        times.status().message());
  Finding row{
      .name = "access times", .found = std::string(Name(*times)), .meaning = "every read postpones a purge"};
  if (*times == AccessTimes::kRelative) row.meaning = "a purge may come a day before its time";
  if (*times == AccessTimes::kFrozen) {
    Worsen(row, "reading a step does not postpone its purge",
           "if the site purges by the last write, set purge_by = \"mtime\" in the archive's policy");
  }
  return row;
}

std::optional<Finding> CheckSpace(const Examined& examined) {
  Finding row{.name = "space", .found = "", .meaning = "a new step is whole before an old one goes"};
  row.measured = true;
  const Result<uint64_t> free = examined.fs.FreeBytes(examined.directory);
  if (!free.ok()) return NotTold(std::move(row), free.status().message());
  const Result<Capacity> capacity = CapacityOf(examined.directory);
  if (!capacity.ok()) return NotTold(std::move(row), capacity.status().message());
  const uint64_t total = capacity->bytes;
  row.found = fmt::format("{} of {} free", HumanBytes(*free), HumanBytes(total));
  if (static_cast<double>(*free) < kLittleSpace * static_cast<double>(total)) {
    Worsen(row, "nearly full: a save that does not fit fails; the previous step is kept",
           "free some space (cairn archive prune, --keep-last), or choose another directory");
  }
  return row;
}

std::optional<Finding> CheckInodes(const Examined& examined) {
  Finding row{.name = "inodes", .found = "", .meaning = "a step has one file per rank, and two more"};
  row.measured = true;
  const Result<Capacity> capacity = CapacityOf(examined.directory);
  if (!capacity.ok()) return NotTold(std::move(row), capacity.status().message());
  row.found = capacity->files == 0 ? "not counted"
                                   : fmt::format("{} of {} free", capacity->free_files, capacity->files);
  if (capacity->files == 0 || capacity->free_files >= kFewInodes) return row;
  row.severity = Severity::kWarning;
  row.change = "remove small files, or choose another directory";
  return row;
}

std::optional<Finding> CheckQuota(const Examined& examined) {
  Finding row{.name = "quota", .found = "", .meaning = "a save beyond it fails; the previous step is kept"};
  row.measured = true;
  double share = 0;
  Status refused;
  for (const Result<QuotaUse>& use : QuotasOf(examined.directory)) {
    if (!use.ok()) {
      refused = use.status();
      continue;
    }
    share = std::max(share, ShareOf(*use));
    row.found += (row.found.empty() ? "" : "; ") + TextOf(*use);
  }
  if (row.found.empty()) {
    row.found = refused.message();
    if (refused.kind() == StatusKind::kNotFound && refused.message() == "none is on") return row;
    row.severity = Severity::kUnknown;
    row.change = IsOfThisHost(examined.mount.type) ? "" : "ask the site's administrators (quota -s)";
  } else if (share > kNearlyFull) {
    Worsen(row, fmt::format("{} used: a save beyond it fails; the previous step is kept", Percent(share)),
           "free some space, or ask for more");
  }
  return row;
}

// The fullest object storage target: a file on it gets ENOSPC even if the others have space.
std::optional<Finding> CheckLustreTargets(const Examined& examined) {
  Finding row{.name = "Lustre", .found = "", .meaning = "a save fails if one of its targets is full"};
  row.measured = true;
  const Result<std::string> answer = Ask({"lfs", "df", examined.directory});
  if (!answer.ok()) {
    if (examined.mount.type != "lustre") return std::nullopt;
    return NotTold(std::move(row), answer.status().message());
  }
  std::istringstream lines(*answer);
  double fullest = -1;
  int targets = 0;
  for (std::string line, name; std::getline(lines, line);) {
    std::istringstream words(line);
    double total = 0, used = 0, free = 0;
    if (line.find("[OST:") == line.npos || !(words >> name >> total >> used >> free) || used + free <= 0)
      continue;
    ++targets;
    if (used / (used + free) <= fullest) continue;
    fullest = used / (used + free);
    row.found = fmt::format("{} is {} full, {} free", name, Percent(fullest),
                            HumanBytes(static_cast<uint64_t>(free) << 10));
  }
  if (targets == 0) return NotTold(std::move(row), "lfs df names no target");
  row.found = fmt::format("of {} targets {}", targets, row.found);
  if (fullest > kNearlyFull) {
    row.severity = Severity::kWarning;
    row.change = "put new steps on other targets (lfs setstripe, a pool), or free some space";
  }
  return row;
}

}  // namespace cairn
