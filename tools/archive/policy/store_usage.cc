#include "tools/archive/policy/store_usage.h"

namespace cairn {
namespace {

std::string GigaText(uint64_t bytes) { return fmt::format("{:.3f} GB", static_cast<double>(bytes) / 1e9); }

}  // namespace

Result<StoreUsage> UsageOf(const Store& store) {
  StoreUsage usage;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, store.List());
  for (const std::string& name : names) {
    const std::string path = store.Path(name);
    const Result<FileInfo> info = store.fs().LinkStat(path);
    if (info.status().kind() == StatusKind::kNotFound) continue;  // gone meanwhile
    CAIRN_RETURN_IF_ERROR(info.status());
    ++usage.files;
    if (!info->is_directory()) {
      usage.bytes += info->bytes;
      continue;
    }
    const Result<StoreUsage> below = UsageOf({store.fs(), path});
    if (below.status().kind() == StatusKind::kNotFound) continue;
    CAIRN_RETURN_IF_ERROR(below.status());
    usage.bytes += below->bytes;
    usage.files += below->files;
  }
  return usage;
}

Status CheckQuota(const Policy& policy, const StoreUsage& there, const StoreUsage& more) {
  std::string text;
  if (policy.quota_bytes > 0 && there.bytes + more.bytes > policy.quota_bytes)
    text = fmt::format("the store takes {}, this would take up to {} more, but the quota is {}",
                       GigaText(there.bytes), GigaText(more.bytes), GigaText(policy.quota_bytes));
  if (policy.quota_inodes > 0 && there.files + more.files > policy.quota_inodes)
    text += fmt::format("{}the store has {} files, this would take up to {} more, but the quota is {}",
                        text.empty() ? "" : "; ", there.files, more.files, policy.quota_inodes);
  return text.empty() ? OkStatus() : NoSpace("{}", text);
}

}  // namespace cairn
