// A tensor's part of an array is a box; the bytes of the array lie in extents of its row-major order. Each
// extent is cut to the range from the box's first element to its last. How many elements of this range belong
// to the box is computed, not enumerated: CountBefore counts those before a place, one dimension after the
// other.

#include "tools/check/stored_slices.h"

#include <fmt/format.h>

#include "ckpt/base/parse_number.h"

namespace cairn {
namespace {

// The number after the last `prefix` in the name, and where it ends.
std::optional<std::pair<int, size_t>> NumberBehind(std::string_view name, std::string_view prefix) {
  const size_t at = name.rfind(prefix);
  if (at == name.npos) return std::nullopt;
  std::string_view rest = name.substr(at + prefix.size());
  const int number = TakeNumber<int>(rest).value_or(-1);
  if (number < 0) return std::nullopt;
  return std::pair(number, name.size() - rest.size());
}

// First and last element of a box of an array, in its row-major order.
FlatRange ReachOf(const Box& box, const Dims& shape) {
  Dims last = box.offset;
  for (int d = 0; d < box.rank(); ++d) last[d] += box.extent[d] - 1;
  return {FlatIndex(Box::Whole(shape), box.offset), FlatIndex(Box::Whole(shape), last) + 1};
}

// Elements of the box that come before element `end` of the array.
uint64_t CountBefore(uint64_t end, const Box& box, const Dims& shape) {
  uint64_t stride = shape.Volume(), inner = box.Volume(), count = 0;
  for (int d = 0; d < box.rank(); ++d) {
    stride /= shape[d];
    inner /= box.extent[d];
    const uint64_t at = end / stride;
    end %= stride;
    const uint64_t before = at - std::min(at, box.offset[d]);
    count += std::min(before, box.extent[d]) * inner;
    if (at < box.offset[d] || before >= box.extent[d]) return count;
  }
  return count + end;  // end is left of a number alone
}

}  // namespace

// Megatron: mp_rank_TT/, mp_rank_TT_PPP/, mp_rank_TT_EEE/ or mp_rank_TT_PPP_EEE/. DeepSpeed:
// mp_rank_MM_model_states.pt, where MM counts the tensor parallel ranks of all stages;
// zero_pp_rank_D_mp_rank_MM_...; layer_LL-model_TT-... DCP: __R_N.distcp.
FileRank RankOfFile(const std::string& file, const Topology& topology) {
  FileRank found;
  const size_t slash = file.rfind('/');
  const std::string name = slash == std::string::npos ? file : file.substr(slash + 1);
  if (const auto model = NumberBehind(name, "mp_rank_")) {
    const Topology models{.tp = topology.tp, .pp = topology.pp};
    found.tp = models.Coordinate(model->first, Axis::kTp);
    found.pp = models.Coordinate(model->first, Axis::kPp);
    if (const auto data = NumberBehind(name, "zero_pp_rank_")) found.dp = data->first;
    if (const auto experts = NumberBehind(name, "expp_rank_")) found.ep = experts->first;
  } else if (const auto in_directory = NumberBehind(file, "mp_rank_")) {
    found.tp = in_directory->first;
    found.pp = 0;
    std::vector<int> others;
    std::string_view rest = std::string_view(file).substr(in_directory->second);
    while (rest.starts_with('_')) {
      rest.remove_prefix(1);
      others.push_back(TakeNumber<int>(rest).value_or(0));
    }
    if (others.size() > 1 || (others.size() == 1 && topology.ep > 1 && topology.pp == 1))
      found.ep = others.back();
    if (others.size() > 1 || !found.ep) found.pp = others.empty() ? 0 : others.front();
  } else if (const auto layer = NumberBehind(name.substr(0, name.rfind("-model_states")), "-model_")) {
    found.tp = layer->first;
  } else if (name.ends_with(".distcp") && name.starts_with("__")) {
    if (const auto writer = NumberBehind(name.substr(0, name.rfind('_')), "__")) found.rank = writer->first;
  }
  return found;
}

std::vector<std::pair<std::string, int>> FileRank::Coordinates() const {
  std::vector<std::pair<std::string, int>> coordinates;
  for (const auto& [name, value] : {std::pair("tp", tp), std::pair("pp", pp), std::pair("ep", ep),
                                    std::pair("dp", dp), std::pair("rank", rank)})
    if (value) coordinates.emplace_back(name, *value);
  return coordinates;
}

std::string ToString(const FileRank& rank) {
  std::string text;
  for (const auto& [name, value] : rank.Coordinates())
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
  return text.empty() ? "-" : text;
}

std::vector<StoredSlice> SlicesOf(const StoredCatalog& catalog, const Topology& topology, uint32_t tensor) {
  std::vector<StoredSlice> slices;
  for (const ArrayPart& part : catalog.parts) {
    if (part.tensor != tensor || part.in_array.Volume() == 0) continue;
    const StoredArray& array = catalog.arrays[part.array];
    const FlatRange reach = ReachOf(part.in_array, array.shape);
    for (const StoredExtent& extent : array.extents) {
      const FlatRange here{std::max(reach.begin, extent.range.begin), std::min(reach.end, extent.range.end)};
      if (here.begin >= here.end) continue;
      const uint64_t size = SizeOf(array.dtype);
      slices.push_back({.box = part.box,
                        .array = &array,
                        .range = here,
                        .transposed = part.reorders(),
                        .file = &catalog.files[extent.file],
                        .file_offset = extent.file_offset + (here.begin - extent.range.begin) * size,
                        .bytes = size * (CountBefore(here.end, part.in_array, array.shape) -
                                         CountBefore(here.begin, part.in_array, array.shape)),
                        .rank = RankOfFile(catalog.files[extent.file], topology)});
    }
  }
  return slices;
}

}  // namespace cairn
