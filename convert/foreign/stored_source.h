// Canonical tensors over arrays that another system stored its own way: fused, transposed, cut, flattened.
//
// Every format's reader makes one of these. An array is a tensor that a file names: a dtype, a shape, and the
// stretches of files that hold its row-major order (one as a rule; several if ZeRO cut a flattened buffer). A
// part says which box of which array is which box of a canonical tensor. All other code is independent of the
// format. Boxes that were announced are read ahead (runs_ahead.h), any other by pread in order
// of file offsets, near runs joined; nothing is mapped and nothing unpacked.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/io/open_files.h"
#include "convert/foreign/foreign_source.h"
#include "convert/foreign/part_index.h"
#include "convert/foreign/runs_ahead.h"
#include "convert/foreign/stored_array.h"
#include "convert/torch/record_sums.h"

namespace cairn {

// The tensor that is all of an array, under its name.
inline TensorEntry WholeTensor(const StoredArray& array) {
  return {{.name = array.name, .shape = array.tensor_shape()}, Role::kWeight, array.dtype};
}

struct StoredCatalog : TensorTable {
  std::vector<StoredArray> arrays;
  std::vector<ArrayPart> parts;       // in any order; cover each tensor once
  std::vector<SummedRecord> records;  // of its files, which reading checks
};

// Parts as regions of their tensors, each in the file where its array begins. The parts must outlive it.
class PartRegions final : public Regions {
 public:
  // `place_of`: sets the file and the offset of a part of this array.
  PartRegions(const std::vector<ArrayPart>& parts, std::function<void(uint32_t array, Region&)> place_of)
      : parts_(parts), place_of_(std::move(place_of)) {}
  // Tensors that are made of those of `source`, which have numbers as arrays have; a part is where its
  // array begins.
  PartRegions(const std::vector<ArrayPart>& parts, const CheckpointSource& source);
  size_t size() const override { return parts_.size(); }
  Region operator[](size_t index) const override;
  std::pair<size_t, size_t> OfTensor(uint32_t tensor) const override { return parts_.Of(tensor); }
  const PartIndex& parts() const { return parts_; }

 private:
  const PartIndex parts_;
  const std::function<void(uint32_t array, Region&)> place_of_;
};

class StoredSource final : public ForeignSource {
 public:
  // The catalog's files are relative to `directory`, which messages name. Sorts the parts.
  // Errors: Corrupt naming tensor, array and file: dtypes that differ, boxes outside, holes and overlaps,
  // extents beyond the end of a file; NotFound for a missing file.
  static Result<std::unique_ptr<StoredSource>> Make(FileSystem& fs, std::string directory, Manifest manifest,
                                                    StoredCatalog catalog);

  const TensorTable& catalog() const override { return catalog_; }
  const Regions& regions() const override { return regions_; }
  const PartIndex& parts() const { return regions_.parts(); }
  const std::string& directory() const override { return files_.directory(); }
  Status ReadBox(uint32_t tensor, const Box& box, std::span<std::byte> out) override;
  void ReadAhead(BoxSequence next) override;
  Status CheckRead() override;
  void SetCacheBytes(uint64_t bytes) override;
  // The part of the cache for reading ahead.
  static uint64_t AheadBytes(uint64_t cache_bytes) { return std::min<uint64_t>(cache_bytes / 4, 32 << 20); }
  uint64_t bytes_read() const override { return bytes_read_; }

  bool SkipSums() override { return std::exchange(sums_, std::nullopt).has_value(); }
  const StoredCatalog* stored() const override { return &catalog_; }

 private:
  StoredSource(FileSystem& fs, std::string directory, Manifest manifest, StoredCatalog catalog)
      : ForeignSource(std::move(manifest)), catalog_(std::move(catalog)), files_(fs, std::move(directory)) {
    if (!catalog_.records.empty()) sums_.emplace(std::exchange(catalog_.records, {}));
  }
  void SetPlace(uint32_t array, Region& region) const;
  Status CheckArrays();
  Status CheckParts() const;
  Status CheckCovered() const;
  std::vector<FileRun> RunsOf(const TensorBox& box) const;
  void AddRuns(const ArrayPart& part, const Box& common, const Box& box, std::vector<FileRun>& runs) const;
  static void AddRun(const StoredArray& array, const Loop& run, uint64_t element, uint64_t target,
                     std::vector<FileRun>& runs);
  // Bytes of a file that were just read.
  void Saw(uint32_t file, uint64_t offset, std::span<const std::byte> bytes) {
    if (sums_) sums_->Add(file, offset, bytes);
  }
  Status ReadRuns(std::span<const FileRun> runs, uint64_t element_bytes, std::span<std::byte> out);

  StoredCatalog catalog_;
  const PartRegions regions_{catalog_.parts,
                             [this](uint32_t array, Region& region) { SetPlace(array, region); }};
  OpenFiles files_;
  std::vector<uint64_t> file_bytes_;
  uint64_t cache_bytes_ = 64 << 20;
  uint64_t window_bytes_ = 4 << 20;
  std::vector<std::byte> window_;
  uint64_t bytes_read_ = 0;
  std::optional<RecordSums> sums_;
  std::unique_ptr<RunsAhead> ahead_;
};

}  // namespace cairn
