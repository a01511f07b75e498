#include "tools/archive/tar/record_sums.h"

#include <algorithm>
#include <map>

#include "ckpt/base/sha256_sums.h"
#include "ckpt/base/sidecar_text.h"

namespace cairn {
namespace {

// The first line of a tree's list.
constexpr std::string_view kTreeComment = "# cairn tree, ";
constexpr std::string_view kLinksKept = "links kept, from ";
constexpr std::string_view kLinksFollowed = "links followed, from ";
constexpr std::string_view kSumsMark = ".cairn";

Status TakeComment(std::string_view text, ArchiveRecord& record) {
  record.tree->followed_links = text.starts_with(kLinksFollowed);
  const std::string_view start = record.tree->followed_links ? kLinksFollowed : kLinksKept;
  if (!text.starts_with(start)) return Corrupt("its list of SHA-256 sums begins with '{}'", text);
  CAIRN_ASSIGN_OR_RETURN(record.source, UnescapeName(UnescapeFromSums(text.substr(start.size()))));
  return OkStatus();
}

}  // namespace

std::string SumsName(const ArchiveRecord& record) {
  std::string name(kSha256SumsName);
  const auto taken = [&] {
    return std::ranges::find(record.files, name, &ArchivedFile::name) != record.files.end() ||
           (record.tree && std::ranges::find(record.tree->entries, name, &ArchivedEntry::name) !=
                               record.tree->entries.end());
  };
  while (taken()) name += kSumsMark;
  return name;
}

std::string Sha256Sums(const ArchiveRecord& record) {
  std::string text;
  if (record.tree)
    text = fmt::format("{}{}{}\n", kTreeComment, record.tree->followed_links ? kLinksFollowed : kLinksKept,
                       EscapeForSums(EscapeName(record.source)));
  for (const ArchivedFile& file : record.files) {
    text += Sha256Line(file.sha256, file.name);
  }
  return text;
}

Status TakeSha256Sums(std::string_view text, ArchiveRecord& record) {
  if (record.tree && text.starts_with(kTreeComment)) {
    const std::string_view comment = text.substr(0, text.find('\n'));
    CAIRN_RETURN_IF_ERROR(TakeComment(comment.substr(kTreeComment.size()), record));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Sha256Sum> list, ParseSha256Sums(text));
  std::map<std::string_view, const Sha256Sum*> sums;
  for (const Sha256Sum& sum : list) sums[sum.name] = &sum;
  for (ArchivedFile& file : record.files) {
    const auto sum = sums.find(file.name);
    if (sum == sums.end()) return Corrupt("{} is not in its list of SHA-256 sums", file.name);
    file.sha256 = sum->second->digest;
  }
  return OkStatus();
}

}  // namespace cairn
