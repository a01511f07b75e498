// A catalog: the tensors of a checkpoint and the pieces that hold their bytes.
//
// The engine knows nothing else about a checkpoint, whichever format it came from. Writers use Catalog, whose
// pieces can be changed; an opened step has a StepCatalog, which is small.
// Encoded form: FORMAT.md, "Catalog".
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/base/byte_codec.h"
#include "ckpt/base/digest.h"
#include "ckpt/model/piece.h"
#include "ckpt/model/piece_table.h"
#include "ckpt/model/tensor.h"

namespace cairn {

// The part that all catalogs have.
struct TensorTable {
  std::vector<TensorEntry> tensors;
  std::vector<std::string> files;  // relative to the step's directory

  bool operator==(const TensorTable&) const = default;

  uint64_t bytes() const;  // of all tensors, each once
  // The distinct parameters in order of first appearance: the input of placement.h. Opaque ones are left out.
  std::vector<ParameterSpec> Parameters() const;
  std::set<Role> Roles() const;
};

struct Catalog : TensorTable {
  std::vector<Piece> pieces;  // sorted by tensor, then by offset of the box, then by range

  bool operator==(const Catalog&) const = default;

  // Pieces of tensor t are pieces[first, second).
  std::pair<size_t, size_t> PiecesOfTensor(uint32_t tensor) const;
  void SortPieces();
};

// Finds a table's tensors by parameter name and role. Each call gets the same table, which only grows.
class TensorIndex {
 public:
  TensorIndex() = default;
  // For at most this many tensors.
  explicit TensorIndex(size_t capacity);

  // Adds table.tensors[tensor]. False if another has its name and role.
  bool Add(const TensorTable& table, uint32_t tensor);
  // NotFound names the tensor.
  Result<uint32_t> Find(const TensorTable& table, std::string_view name, Role role) const;

 private:
  struct Slot {
    uint32_t hash = 0;
    uint32_t tensor = UINT32_MAX;  // free
  };
  // The slot that holds it, or the free one that it belongs in.
  size_t SlotOf(const TensorTable& table, std::string_view name, Role role, uint32_t hash) const;

  std::vector<Slot> slots_ = std::vector<Slot>(1);  // a power of two of them, at most half in use
};

// The catalog of an opened step; read-only.
struct StepCatalog : TensorTable {
  PieceTable pieces;                 // in the same order
  std::vector<size_t> first_pieces;  // of each tensor; one more at the end: the number of pieces
  std::vector<uint64_t> file_ends;   // of each file: where its last piece ends, bytes
  TensorIndex index;

  std::pair<size_t, size_t> PiecesOfTensor(uint32_t tensor) const {
    return {first_pieces[tensor], first_pieces[tensor + 1]};
  }
  // NotFound names the tensor.
  Result<uint32_t> Find(std::string_view name, Role role) const { return index.Find(*this, name, role); }
};

StepCatalog PackCatalog(const Catalog& catalog);

// The pieces of an opened step as regions; the catalog must outlive them.
class PieceRegions final : public Regions {
 public:
  explicit PieceRegions(const StepCatalog& catalog) : catalog_(catalog) {}
  size_t size() const override { return catalog_.pieces.size(); }
  Region operator[](size_t index) const override { return catalog_.pieces.RegionOf(index); }
  std::pair<size_t, size_t> OfTensor(uint32_t tensor) const override {
    return catalog_.PiecesOfTensor(tensor);
  }

 private:
  const StepCatalog& catalog_;
};

// Finds a table's tensors by parameter name and role; the table must outlive it.
class TensorLookup {
 public:
  explicit TensorLookup(const TensorTable& table);
  explicit TensorLookup(const StepCatalog& catalog) : table_(catalog), index_(catalog.index) {}
  // NotFound names the tensor.
  Result<uint32_t> Find(std::string_view name, Role role) const { return index_.Find(table_, name, role); }

 private:
  const TensorTable& table_;
  TensorIndex index_;
};

// Every element of every tensor is covered exactly once, every piece lies in its tensor and has the bytes it
// needs. Errors: Corrupt naming tensor, box and file of the hole or overlap.
Status CheckCoverage(const Catalog& catalog);
Status CheckCoverage(const StepCatalog& catalog);

std::string EncodeCatalog(const Catalog& catalog);
// The length of EncodeCatalog()'s result, without encoding; digests may still be missing, their number is
// that of the chunks.
uint64_t EncodedCatalogBytes(const Catalog& catalog);
// Validates sizes before it allocates; never trusts a count. Errors: Corrupt with the offset in the catalog.
Result<Catalog> DecodeCatalog(std::string_view bytes);
// The same for bytes that come in windows; reads only the bytes of the catalog.
Result<StepCatalog> DecodeStepCatalog(ByteReader bytes);

}  // namespace cairn
