#include "tools/archive/store/store_names.h"

#include <optional>

#include "tools/archive/store/bundle.h"
#include "tools/archive/store/removal.h"
#include "tools/archive/tar/record.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {
namespace {

constexpr std::string_view kStatusPrefix = "status.json.";
constexpr size_t kNonceDigits = 8;

bool IsNonce(std::string_view text) {
  return text.size() == kNonceDigits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

bool IsTar(std::string_view name) { return ParseTarName(name) || ParseBundleName(name); }

std::optional<std::string_view> Without(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return std::nullopt;
  name.remove_suffix(suffix.size());
  return name;
}

// What Cairn writes under NAME.partial first.
bool IsWritten(std::string_view name) {
  if (IsTar(name) || ParseTarPieceName(name)) return true;
  for (const std::string_view suffix : {std::string_view(".json"), kParitySuffix})
    if (const auto tar = Without(name, suffix); tar && IsTar(*tar)) return true;
  return name == kReadmeName || name == kUnpackName || name == kTeamName;
}

}  // namespace

Leftover LeftoverOf(std::string_view name, FileKind kind) {
  if (kind == FileKind::kDirectory)
    return name.starts_with(kStagingPrefix) && IsNonce(name.substr(kStagingPrefix.size()))
               ? Leftover::kStaging
               : Leftover::kNone;
  if (kind != FileKind::kFile) return Leftover::kNone;
  if (const auto tar = Without(name, kDeletingSuffix); tar && IsTar(*tar)) return Leftover::kRemoval;
  if (const auto written = Without(name, kPartialSuffix); written && IsWritten(*written))
    return Leftover::kPartial;
  if (name.starts_with(kStatusPrefix) && IsNonce(name.substr(kStatusPrefix.size())))
    return Leftover::kPartial;
  return Leftover::kNone;
}

bool LooksLikeLeftover(std::string_view name) {
  return name.ends_with(kPartialSuffix) || name.ends_with(kDeletingSuffix) ||
         name.starts_with(kStagingPrefix) || name.starts_with(kStatusPrefix);
}

}  // namespace cairn
