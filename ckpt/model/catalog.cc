// Coverage needs no map of the elements: the boxes of a tensor's pieces lie inside it, no two overlap, and
// their sizes add up to its size; so each element is covered exactly once. Flat ranges become boxes first.
// TensorIndex is a hash table of numbers with open addressing: the names stay in the table of tensors.

#include "ckpt/model/catalog.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstring>
#include <functional>
#include <tuple>
#include <unordered_set>

#include "ckpt/base/box_cover.h"

namespace cairn {
namespace {

std::string Describe(const TensorTable& catalog, const Piece& piece) {
  return fmt::format("tensor {} box {} elements {}:{} in {}", DisplayName(catalog.tensors[piece.tensor]),
                     ToString(piece.box), piece.range.begin, piece.range.end, catalog.files[piece.file]);
}

Status CheckPiece(const TensorTable& catalog, const Piece& piece) {
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

// The boxes of a tensor's pieces, and the piece of each box.
struct PieceBoxes {
  std::vector<Box> boxes;
  std::vector<size_t> pieces;
};

// "; the first that is missing is [2, 5, 0, 0], of layer 2, expert 5". Megatron stacks layers, too: its name
// then has no number of a layer.
std::string FirstMissing(const ParameterSpec& spec, const std::vector<Box>& boxes) {
  const std::optional<Dims> gap = FirstGap(boxes, spec.shape);
  if (!gap) return "";
  const size_t experts = spec.name.find("experts.");
  std::string of;
  if (experts != std::string::npos && !std::isdigit(spec.name[experts + std::strlen("experts.")])) {
    const bool stacked = spec.name.find_first_of("0123456789") > experts;
    if (stacked && gap->rank() > 2)
      of = fmt::format(", of layer {}, expert {}", (*gap)[0], (*gap)[1]);
    else if (!stacked && gap->rank() > 1)
      of = fmt::format(", of expert {}", (*gap)[0]);
  }
  return fmt::format("; the first that is missing is {}{}", ToString(*gap), of);
}

template <typename AnyCatalog>
Status CheckTensorCoverage(const AnyCatalog& catalog, uint32_t index, PieceBoxes& found) {
  const TensorEntry& tensor = catalog.tensors[index];
  const auto [first, last] = catalog.PiecesOfTensor(index);
  found.boxes.clear();
  found.pieces.clear();
  uint64_t covered = 0;
  for (size_t i = first; i < last; ++i) {
    const Piece& piece = catalog.pieces[i];
    CAIRN_RETURN_IF_ERROR(CheckPiece(catalog, piece));
    covered += piece.range.size();
    for (const Segment& segment : Decompose(piece.box, piece.range)) {
      found.boxes.push_back(segment.box);
      found.pieces.push_back(i);
    }
  }
  if (const auto overlap = FindOverlap(found.boxes))
    return Corrupt("{} overlaps {}", Describe(catalog, catalog.pieces[found.pieces[overlap->first]]),
                   Describe(catalog, catalog.pieces[found.pieces[overlap->second]]));
  if (covered != tensor.spec.shape.Volume())
    return Corrupt("tensor {} of shape {} has a hole: its pieces hold {} of {} elements{}",
                   DisplayName(tensor), ToString(tensor.spec.shape), covered, tensor.spec.shape.Volume(),
                   FirstMissing(tensor.spec, found.boxes));
  return OkStatus();
}

template <typename AnyCatalog>
Status CheckEveryTensor(const AnyCatalog& catalog) {
  PieceBoxes boxes;
  for (uint32_t i = 0; i < catalog.tensors.size(); ++i)
    CAIRN_RETURN_IF_ERROR(CheckTensorCoverage(catalog, i, boxes));
  return OkStatus();
}

uint32_t HashOf(std::string_view name, const Role& role) {
  // The multiplication spreads the role, and regularities of std::hash, over the upper bits.
  const uint64_t both = std::hash<std::string_view>()(name) + std::hash<std::string_view>()(Name(role));
  return static_cast<uint32_t>(both * 0x9e3779b97f4a7c15 >> 32);
}

}  // namespace

std::string_view Name(Codec codec) {
  constexpr std::string_view kNames[] = {"none", "shuffle+zstd", "master-low", "derived"};
  static_assert(std::size(kNames) == static_cast<size_t>(Codec::kDerived) + 1);
  const auto index = static_cast<size_t>(codec);
  return index < std::size(kNames) ? kNames[index] : "?";
}

uint64_t PieceSeed(std::string_view run, int64_t step, const TensorEntry& tensor, const Box& box,
                   FlatRange range) {
  const std::string identity =
      fmt::format("{}|{}|{}|{}|{}|{}|{}:{}", run, step, Name(tensor.role), tensor.spec.name,
                  Name(tensor.dtype), ToString(box), range.begin, range.end);
  return Hash64(identity);
}

std::vector<FlatRange> PackedParts(const Piece& piece, Dtype dtype) {
  const uint64_t chunk = kChunkBytes / SizeOf(dtype);
  const uint64_t middle = piece.range.begin + piece.range.size() / chunk * chunk;
  std::vector<FlatRange> parts;
  if (middle > piece.range.begin) parts.push_back({piece.range.begin, middle});
  if (middle < piece.range.end) parts.push_back({middle, piece.range.end});
  return parts;
}

uint64_t TensorTable::bytes() const {
  uint64_t sum = 0;
  for (const TensorEntry& tensor : tensors) sum += tensor.bytes();
  return sum;
}

std::set<Role> TensorTable::Roles() const {
  std::set<Role> roles;
  for (const TensorEntry& tensor : tensors) roles.insert(tensor.role);
  return roles;
}

std::pair<size_t, size_t> Catalog::PiecesOfTensor(uint32_t tensor) const {
  // Not equal_range(): clang 14 cannot compile the subrange that libstdc++ 12 returns.
  const auto first = std::ranges::lower_bound(pieces, tensor, {}, &Piece::tensor);
  const auto last = std::ranges::upper_bound(first, pieces.end(), tensor, {}, &Piece::tensor);
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

std::vector<ParameterSpec> TensorTable::Parameters() const {
  std::vector<ParameterSpec> specs;
  std::unordered_set<std::string_view> seen;
  std::string_view last;  // the roles of a parameter usually follow each other
  for (const TensorEntry& tensor : tensors) {
    if (IsOpaque(tensor.role) || tensor.spec.name == last) continue;
    last = tensor.spec.name;
    if (seen.insert(last).second) specs.push_back(tensor.spec);
  }
  return specs;
}

TensorIndex::TensorIndex(size_t capacity) : slots_(std::bit_ceil(2 * capacity + 1)) {}

size_t TensorIndex::SlotOf(const TensorTable& table, std::string_view name, Role role, uint32_t hash) const {
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.tensor == UINT32_MAX) return at;
    if (slot.hash != hash) continue;
    const TensorEntry& tensor = table.tensors[slot.tensor];
    if (tensor.role == role && tensor.spec.name == name) return at;
  }
}

bool TensorIndex::Add(const TensorTable& table, uint32_t index) {
  const TensorEntry& tensor = table.tensors[index];
  const uint32_t hash = HashOf(tensor.spec.name, tensor.role);
  Slot& slot = slots_[SlotOf(table, tensor.spec.name, tensor.role, hash)];
  if (slot.tensor != UINT32_MAX) return false;
  slot = {hash, index};
  return true;
}

Result<uint32_t> TensorIndex::Find(const TensorTable& table, std::string_view name, Role role) const {
  const Slot& slot = slots_[SlotOf(table, name, role, HashOf(name, role))];
  if (slot.tensor == UINT32_MAX) return NotFound("the checkpoint has no {} of tensor {}", Name(role), name);
  return slot.tensor;
}

TensorLookup::TensorLookup(const TensorTable& table) : table_(table), index_(table.tensors.size()) {
  for (uint32_t i = 0; i < table.tensors.size(); ++i) (void)index_.Add(table, i);
}

Status CheckCoverage(const Catalog& catalog) { return CheckEveryTensor(catalog); }
Status CheckCoverage(const StepCatalog& catalog) { return CheckEveryTensor(catalog); }

}  // namespace cairn
