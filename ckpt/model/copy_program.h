// The plan of every command that moves tensors: stored regions x wanted regions -> copies.
//
// Both are lists of regions of the same tensors. A copy is a pair of regions with elements in common.
// The program is a value: it can be counted and compared, and planning it needs no disk. The caller
// chooses the order: that of the files for a resume (ckpt/step/step_loader.h), that of the tensors for a
// checkpoint that is written in one pass (convert/stream).
#pragma once

#include <vector>

#include "ckpt/model/catalog.h"
#include "ckpt/model/region.h"

namespace cairn {

struct Copy {
  uint32_t from = 0;      // into the stored regions
  uint32_t to = 0;        // into the wanted regions
  uint64_t elements = 0;  // that the two have in common
  bool operator==(const Copy&) const = default;
};

struct CopyProgram {
  std::vector<Copy> copies;  // by `to`, then by `from`
  bool operator==(const CopyProgram&) const = default;

  // In the order of the stored places.
  void SortByPlace(const Regions& there);
};

// Errors: Corrupt naming the tensor and the box of a wanted region if elements of it are missing or stored
// twice.
Result<CopyProgram> PlanCopies(const TensorTable& tensors, const Regions& there, const Regions& wanted);

// The bytes that a program moves.
struct ProgramSize {
  uint64_t copies = 0;
  uint64_t bytes = 0;                // of the wanted elements, in their stored types
  std::vector<uint64_t> from_files;  // bytes out of each stored file
  std::vector<uint64_t> to_files;    // bytes into each wanted one

  ProgramSize& operator+=(const ProgramSize& other);
};
ProgramSize SizeOf(const CopyProgram& program, const TensorTable& tensors, const Regions& there,
                   const Regions& wanted);

}  // namespace cairn
