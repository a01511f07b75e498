#include "tools/archive/policy/bundle_rewrite.h"

#include <algorithm>
#include <set>

#include "tools/archive/store/bundle.h"

namespace cairn {

std::vector<BundleRewrite> PlanRewrites(const std::vector<ArchiveMember>& members,
                                        const std::vector<PruneEntry>& entries) {
  std::set<std::string> files, unwanted;
  for (const PruneEntry& entry : entries) {
    if (entry.remove) unwanted.insert(entry.tar);
    if (entry.remove && entry.rewrite) files.insert(entry.file);
  }
  std::vector<BundleRewrite> rewrites;
  for (const std::string& file : files) {
    BundleRewrite rewrite;
    BundleDraft& draft = rewrite.draft;
    draft.files = {file};
    for (const ArchiveMember& m : members) {
      if (m.file() != file) continue;
      rewrite.bundle_bytes += m.bytes;
      if (unwanted.contains(m.tar)) {
        rewrite.unwanted_bytes += m.bytes;
        continue;
      }
      draft.members.push_back(*m.record);
      draft.bytes += m.bytes;
    }
    std::ranges::sort(draft.members, {}, &ArchiveRecord::bundle_offset);
    draft.name = BundleName(draft.members);
    const double share =
        static_cast<double>(rewrite.unwanted_bytes) / static_cast<double>(rewrite.bundle_bytes);
    draft.why = fmt::format("no class asks for {:.0f} % of {}", 100 * share, file);
    rewrites.push_back(std::move(rewrite));
  }
  return rewrites;
}

}  // namespace cairn
