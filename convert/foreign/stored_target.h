// A checkpoint in another system's files, planned whole before a byte of it is written: the inverse of
// stored_source.h.
//
// Files are made of containers (one as a rule, many zips in a .distcp file), of text, or are copies. An array
// is a tensor in the containers' storages. A part says which box of which written tensor is which box of
// which array; a box that several ranks hold has several parts. Elements that no part fills are zero:
// padding.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ckpt/base/box_map.h"
#include "ckpt/io/file_copies.h"
#include "ckpt/model/region.h"
#include "convert/foreign/stored_array.h"
#include "convert/stream/tensor_stream.h"
#include "convert/torch/storage_layout.h"

namespace cairn {

struct TargetContainer {
  uint32_t file = 0;
  uint64_t offset = 0;  // in the file
  std::shared_ptr<const StorageLayout> layout;
};

struct TargetFile {
  std::string name;  // relative, with directories
  uint64_t bytes = 0;
  std::string text = {};  // of a file without containers
  FileToCopy copy = {};   // of a file that is copied
};

struct TargetStorage {
  uint32_t container = 0;  // into the target's containers
  uint32_t index = 0;      // in the container's layout
};

// The bytes of a storage that are known beforehand: a number that is stored as a tensor.
struct TargetConstant {
  uint32_t storage = 0;  // into the target's storages
  std::string bytes;
};

struct StoredTarget {
  std::vector<TargetFile> files;
  std::vector<TargetContainer> containers;
  std::vector<TargetStorage> storages;
  std::vector<WrittenTensor> tensors;
  // The `file` of an extent is a storage, its offset is in that; elements between extents are in no file.
  std::vector<StoredArray> arrays;
  std::vector<ArrayPart> parts;
  // Arrays whose last axis has one index of each of these tensors, which are to be written block by block in
  // turns: in memory they become whole rows.
  std::map<uint32_t, std::vector<uint32_t>> by_turns;
  std::vector<TargetConstant> constants;

  uint64_t bytes() const;
  // The regions of the source that its parts need, each in the file in which its array begins.
  RegionList Wanted() const;
};

// Places containers in their files, one after another, each at a multiple of 4096, and sets the files'
// sizes. To be called once all of them are known, before the text files that name their places are made.
void PlaceContainers(StoredTarget& target);

}  // namespace cairn
