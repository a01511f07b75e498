#include "tests/faults/failing_file_system.h"

#include "ckpt/model/layout.h"

namespace cairn {
namespace {

using CallKind = FsCall::Kind;

bool NeedsSpace(CallKind kind) {
  return kind == CallKind::kCreate || kind == CallKind::kMakeDir || kind == CallKind::kWrite ||
         kind == CallKind::kAllocate;
}

bool IsHint(const std::string& path) { return path.find("/" + LatestTempName("")) != std::string::npos; }

constexpr const char* kCallNames[] = {"open",     "create", "stat",     "list",      "mkdir",  "rename",
                                      "exchange", "unlink", "rmdir",    "fsync dir", "statfs", "set facts",
                                      "write",    "read",   "allocate", "fsync",     "close"};
static_assert(std::size(kCallNames) == static_cast<size_t>(CallKind::kClose) + 1);

}  // namespace

bool FailingFileSystem::Fails(const FsCall& call) {
  if (healed_) return false;
  const int64_t index = calls_++;
  if (index == failure_.at) return true;
  return failure_.lasting && index > failure_.at &&
         (failure_.kind != StatusKind::kNoSpace || NeedsSpace(call.kind));
}

Status FailingFileSystem::Do(const FsCall& call, const std::function<Status()>& run) {
  if (!call.path.starts_with(failure_.under)) return run();
  {
    const std::lock_guard lock(mutex_);
    if (call.kind == CallKind::kCreate) condemned_.erase(call.path);  // a new file
    if (call.kind == CallKind::kSync && condemned_.contains(call.path)) synced_again_ = call.path;
    const bool hint = in_hint_ || IsHint(call.path);
    in_hint_ = hint && call.kind != CallKind::kSyncDir;
    if (Fails(call)) {
      if (!fired_) {
        fired_ = true;
        what_ = fmt::format("{} {}", kCallNames[static_cast<int>(call.kind)], call.path);
        path_ = call.path;
        must_surface_ = call.changes() && !hint && call.kind != CallKind::kRemoveFile &&
                        call.kind != CallKind::kRemoveDir;
      }
      if (call.kind == CallKind::kSync) condemned_.insert(call.path);
      // A write that fails may have done half its work.
      if (call.kind == CallKind::kWrite && call.bytes.size() >= 2 * kPageBytes)
        (void)call.file->WriteAt(call.offset, call.bytes.first(kPageBytes));
      return {failure_.kind,
              fmt::format("{} {}: injected", kCallNames[static_cast<int>(call.kind)], call.path)};
    }
  }
  return run();
}

}  // namespace cairn
