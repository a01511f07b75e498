#include "ckpt/catalog.h"

#include <algorithm>
#include <tuple>
#include <unordered_set>

namespace cairn {
namespace {

std::string LookupKey(std::string_view name, Role role) { return fmt::format("{}/{}", Name(role), name); }

std::string Describe(const Catalog& catalog, const Piece& piece) {
  return fmt::format("tensor {} box {} elements {}:{} in {}", DisplayName(catalog.tensors[piece.tensor]),
                     ToString(piece.box), piece.range.begin, piece.range.end, catalog.files[piece.file]);
}

Status CheckPiece(const Catalog& catalog, const Piece& piece) {
  const TensorEntry& tensor = catalog.tensors[piece.tensor];
  if (!Contains(Box::Whole(tensor.spec.shape), piece.box))
    return Corrupt("{} lies outside the shape {}", Describe(catalog, piece), ToString(tensor.spec.shape));
  if (piece.range.begin > piece.range.end || piece.range.end > piece.box.Volume())
    return Corrupt("{} lies outside its box", Describe(catalog, piece));
  if (piece.codec == Codec::kNone && piece.stored_bytes != piece.range.size() * SizeOf(tensor.dtype))
    return Corrupt("{} has {} bytes, needs {}", Describe(catalog, piece), piece.stored_bytes,
                   piece.range.size() * SizeOf(tensor.dtype));
  return OkStatus();
}

struct PlacedBox {
  Box box;
  const Piece* piece;
};

// Volumes add up to the tensor's, and no two boxes meet: then every element is covered exactly once. Boxes
// are swept in order of their first dimension, so that only those which share rows are compared.
Status CheckTensorCoverage(const Catalog& catalog, uint32_t index, std::vector<PlacedBox>& boxes) {
  const TensorEntry& tensor = catalog.tensors[index];
  const auto [first, last] = catalog.PiecesOfTensor(index);
  boxes.clear();
  uint64_t covered = 0;
  for (size_t i = first; i < last; ++i) {
    const Piece& piece = catalog.pieces[i];
    CAIRN_RETURN_IF_ERROR(CheckPiece(catalog, piece));
    covered += piece.range.size();
    for (const Segment& segment : Decompose(piece.box, piece.range)) boxes.push_back({segment.box, &piece});
  }
  const auto begin_row = [](const PlacedBox& b) { return b.box.rank() == 0 ? 0 : b.box.offset[0]; };
  const auto end_row = [](const PlacedBox& b) {
    return b.box.rank() == 0 ? 1 : b.box.offset[0] + b.box.extent[0];
  };
  std::stable_sort(boxes.begin(), boxes.end(),
                   [&](const PlacedBox& a, const PlacedBox& b) { return begin_row(a) < begin_row(b); });
  for (size_t i = 0; i < boxes.size(); ++i)
    for (size_t j = i + 1; j < boxes.size() && begin_row(boxes[j]) < end_row(boxes[i]); ++j)
      if (Intersect(boxes[i].box, boxes[j].box))
        return Corrupt("{} overlaps {}", Describe(catalog, *boxes[i].piece),
                       Describe(catalog, *boxes[j].piece));
  if (covered != tensor.spec.shape.Volume())
    return Corrupt("tensor {} of shape {} has a hole: its pieces hold {} of {} elements", DisplayName(tensor),
                   ToString(tensor.spec.shape), covered, tensor.spec.shape.Volume());
  return OkStatus();
}

}  // namespace

std::string_view Name(Codec codec) {
  switch (codec) {
    case Codec::kNone:
      return "none";
    case Codec::kShuffleZstd:
      return "shuffle+zstd";
    case Codec::kMasterLow:
      return "master-low";
  }
  return "?";
}

std::vector<FlatRange> PackedParts(const Piece& piece, Dtype dtype) {
  const uint64_t chunk = kChunkBytes / SizeOf(dtype);
  const uint64_t middle = piece.range.begin + piece.range.size() / chunk * chunk;
  std::vector<FlatRange> parts;
  if (middle > piece.range.begin) parts.push_back({piece.range.begin, middle});
  if (middle < piece.range.end) parts.push_back({middle, piece.range.end});
  return parts;
}

uint64_t Catalog::bytes() const {
  uint64_t sum = 0;
  for (const TensorEntry& tensor : tensors) sum += tensor.bytes();
  return sum;
}

std::pair<size_t, size_t> Catalog::PiecesOfTensor(uint32_t tensor) const {
  const auto [first, last] = std::ranges::equal_range(pieces, tensor, {}, &Piece::tensor);
  return {first - pieces.begin(), last - pieces.begin()};
}

void Catalog::SortPieces() {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    if (a.tensor != b.tensor) return a.tensor < b.tensor;
    if (!(a.box.offset == b.box.offset))
      return std::lexicographical_compare(a.box.offset.begin(), a.box.offset.end(), b.box.offset.begin(),
                                          b.box.offset.end());
    return std::tie(a.range.begin, a.file) < std::tie(b.range.begin, b.file);
  });
}

std::vector<ParameterSpec> Catalog::Parameters() const {
  std::vector<ParameterSpec> specs;
  std::unordered_set<std::string_view> seen;
  for (const TensorEntry& tensor : tensors)
    if (tensor.role != Role::kRng && seen.insert(tensor.spec.name).second) specs.push_back(tensor.spec);
  return specs;
}

TensorLookup::TensorLookup(const Catalog& catalog) {
  for (uint32_t i = 0; i < catalog.tensors.size(); ++i)
    index_.emplace(LookupKey(catalog.tensors[i].spec.name, catalog.tensors[i].role), i);
}

Result<uint32_t> TensorLookup::Find(std::string_view name, Role role) const {
  const auto found = index_.find(LookupKey(name, role));
  if (found == index_.end()) return NotFound("the checkpoint has no {} of tensor {}", Name(role), name);
  return found->second;
}

Status CheckCoverage(const Catalog& catalog) {
  std::vector<PlacedBox> boxes;
  for (uint32_t i = 0; i < catalog.tensors.size(); ++i)
    CAIRN_RETURN_IF_ERROR(CheckTensorCoverage(catalog, i, boxes));
  return OkStatus();
}

}  // namespace cairn
