// A checkpoint in another system's files, planned whole before a byte of it is written: the inverse of
// stored_source.h.
//
// Files are made of zip containers of torch.save (one as a rule, many in a .distcp file) or of text. An array
// is a tensor in their storages: a dtype, a shape, and the stretches of storages that hold its row-major
// order. A part says which box of which written tensor is which box of which array; a box that several ranks
// hold has several parts. What no part fills is zero: padding.
#pragma once

#include <string>
#include <vector>

#include "ckpt/base/box_map.h"
#include "ckpt/model/tensor.h"
#include "convert/torch/zip_layout.h"

namespace cairn {

struct TargetZip {
  uint32_t file = 0;
  uint64_t offset = 0;  // in the file
  ZipLayout layout;
};

struct TargetFile {
  std::string name;  // relative, with directories
  uint64_t bytes = 0;
  std::string text;  // of a file without zips
};

struct TargetExtent {
  FlatRange range;       // elements of the array's row-major order
  uint32_t zip = 0;      // into the target's zips
  uint32_t storage = 0;  // of the zip
  uint64_t element = 0;  // of the storage: where the range begins
};

struct TargetArray {
  Dtype dtype = Dtype::kF32;
  Dims shape;
  std::vector<TargetExtent> extents;  // in order; elements between them are in no file
};

// A tensor on its way: of the source, in the type that is written.
struct TargetTensor {
  uint32_t source = 0;    // into the source's catalog
  TensorEntry entry;      // as the format's reader finds it again
  bool read_back = true;  // false: the reader finds it through another tensor
};

// Of a storage whose bytes are known beforehand: numbers that are stored as tensors.
struct TargetConstant {
  uint32_t zip = 0;
  uint32_t storage = 0;
  std::string bytes;
};

struct StoredTarget {
  std::vector<TargetFile> files;
  std::vector<TargetZip> zips;
  std::vector<TargetTensor> tensors;
  std::vector<TargetArray> arrays;
  std::vector<ArrayPart> parts;
  std::vector<TargetConstant> constants;

  uint64_t bytes() const;
};

// Places zips in their files, one behind the other, each at a multiple of 4096, and sets the files' sizes. To
// be called once all of them are there, before the text files that name their places are made.
void PlaceZips(StoredTarget& target);

}  // namespace cairn
