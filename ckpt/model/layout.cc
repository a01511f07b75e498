#include "ckpt/model/layout.h"

#include "ckpt/base/digest.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/model/tensor.h"

namespace cairn {
namespace {

constexpr std::string_view kStepPrefix = "step-";

std::string Marked(int64_t step, std::string_view mark, std::string_view nonce) {
  return fmt::format("{}.{}-{}", StepDirName(step), mark, nonce);
}

bool HasNumberedForm(std::string_view name, std::string_view prefix, std::string_view suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() <= prefix.size() + suffix.size())
    return false;
  name = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  return name.find_first_not_of("0123456789-") == name.npos;
}

}  // namespace

std::string StepDirName(int64_t step) { return fmt::format("{}{:08}", kStepPrefix, step); }

std::optional<int64_t> ParseStepDirName(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const auto step = ParseNumber<int64_t>(name.substr(kStepPrefix.size()), 0);
  return step && StepDirName(*step) == name ? step : std::nullopt;
}

std::string PartialDirName(int64_t step, std::string_view nonce) { return Marked(step, "partial", nonce); }
std::string SupersededDirName(int64_t step, std::string_view nonce) {
  return Marked(step, "superseded", nonce);
}
std::string HoldName(int64_t step, std::string_view nonce) {
  return fmt::format("{}.{}", StepDirName(step), nonce);
}

std::string DeletingDirName(int64_t step, std::string_view nonce) { return Marked(step, "deleting", nonce); }

std::optional<std::string> ParseMarkedDirName(std::string_view name) {
  const size_t dot = name.find('.');
  const size_t dash = name.rfind('-');
  if (dot == std::string_view::npos || dash == std::string_view::npos || dash < dot ||
      !ParseStepDirName(name.substr(0, dot)) || !IsHex(name.substr(dash + 1)))
    return std::nullopt;
  const std::string_view mark = name.substr(dot + 1, dash - dot - 1);
  if (mark != "partial" && mark != "superseded" && mark != "deleting") return std::nullopt;
  return std::string(mark);
}

std::string LatestTempName(std::string_view nonce) { return fmt::format("{}.{}", kLatestName, nonce); }

std::string ShardName(int writer) { return fmt::format("shard-{:05}.h5", writer); }
std::string ParityName(int writer) { return fmt::format("shard-{:05}.parity", writer); }

bool IsParityName(std::string_view name) { return HasNumberedForm(name, "shard-", ".parity"); }

bool IsStepFileName(std::string_view name) {
  return name == kManifestName || name == kIndexName || IsParityName(name) ||
         HasNumberedForm(name, "shard-", ".h5") || HasNumberedForm(name, "unit-", ".done") ||
         name.starts_with("team-");
}

std::string TensorPath(const TensorEntry& entry) {
  return fmt::format("/{}/{}", Name(entry.role), entry.spec.name);
}

std::string LowHalvesPath(const TensorEntry& entry) { return fmt::format("/master_low/{}", entry.spec.name); }

std::string PiecePath(const TensorEntry& entry, const Box& box, FlatRange range) {
  if (range.size() != box.Volume()) return PackedPath(TensorPath(entry), box, range.begin);
  return fmt::format("{}@{}", TensorPath(entry), fmt::join(box.offset.begin(), box.offset.end(), ","));
}

std::string PackedPath(const std::string& path, const Box& box, uint64_t begin) {
  return fmt::format("{}@{}+{}", path, fmt::join(box.offset.begin(), box.offset.end(), ","), begin);
}

bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace cairn
