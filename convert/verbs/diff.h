// The differences of two checkpoints: tensors that one of them lacks, shapes and types, and the distances of
// values. Topologies and formats do not matter: both are read by global boxes, block by block.
//
// Random states of `cairn train` (Role::kRng) belong to one topology and are left out. Two NaN are equal
// if their bits are; with a tolerance any two are near enough. Integers are compared exactly.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ckpt/model/source.h"
#include "convert/stream/block_stream.h"

namespace cairn {

// Values a, b of tensors that fit `glob` (name, display name or bare name) are near enough if
// |a - b| <= absolute + relative * |b|.
struct Tolerance {
  std::string glob;
  double absolute = 0;
  double relative = 0;
};

struct DiffOptions {
  std::vector<Tolerance> tolerances;  // the last one that fits a tensor counts; none: bit for bit
  std::vector<std::string> ignore;    // globs of names, display names or bare names
  bool ignore_optimizer = false;      // masters and moments
  bool ignore_dtype = false;          // values are compared as numbers, whatever their types
  uint64_t max_memory = kDefaultMaxMemory;
  std::function<void(uint64_t)> progress;  // gets the bytes of A done; may be empty
  // The names of tensors of A and of B in the results. Tensors are paired by parameter and role.
  std::function<std::string(const TensorEntry&)> name_a = DisplayName, name_b = DisplayName;
  // Other values of the two, as text by name, compared in place of their JSON (Role::kJson). Null: the JSON
  // is compared like a tensor.
  const std::map<std::string, std::string>*others_a = nullptr, *others_b = nullptr;
};

enum class Difference { kOnlyInA, kOnlyInB, kShape, kDtype, kOther, kValues };
std::string_view Name(Difference difference);  // "only in A", ..., "value", "values"

struct TensorDiff {
  std::string name;
  Difference kind = Difference::kValues;
  std::string a, b;  // type or shape, if they differ: "fp32 [3, 4]"

  // For kValues: elements whose bits differ (numbers, where types do), and how far.
  uint64_t elements = 0;
  uint64_t differing = 0;
  uint64_t beyond = 0;        // of these, those not within the tolerance
  uint64_t first = 0;         // row-major index of the first one beyond it, else of the first that differs
  uint64_t nan_payloads = 0;  // of differing: two NaN of other bits, which count for no distance
  double max_absolute = 0;    // |a - b|; infinite if one of them is not finite
  double max_relative = 0;    // |a - b| / max(|a|, |b|)
  uint64_t max_ulp = 0;       // representable numbers between a and b; 0 if types differ
  double relative_norm = 0;   // |A - B| / |A|, L2
  double cosine = 1;          // of A and B as vectors
};

struct DiffResult {
  std::vector<TensorDiff> tensors;  // structure first, then beyond the tolerance, then by relative_norm
  uint64_t compared = 0;            // tensors whose values were compared
  uint64_t equal = 0;               // of these, bit for bit
  bool within_tolerance = true;     // no difference of structure, and no element beyond its tolerance
};

// Errors: InvalidArgument for a glob that matches nothing; those of reading.
Result<DiffResult> Diff(CheckpointSource& a, CheckpointSource& b, const DiffOptions& options);

}  // namespace cairn
