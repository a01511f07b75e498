// Lays out the zip container of torch.save before any of its tensors is written: where each record lies, and
// the bytes around them.
//
// As torch 2.11 writes it: stored records with data descriptors, their data at multiples of the alignment,
// zip64 fields if a size or an offset needs them, zip64 end records always; no times or ids, so that
// the same records give the same bytes. Source: APPNOTE.TXT 6.3, 4.3 to 4.5, and torch's caffe2/serialize.
#pragma once

#include <string>
#include <vector>

#include "convert/torch/storage_layout.h"

namespace cairn {

class ZipLayout final : public StorageLayout {
 public:
  // `archive`: the directory that torch puts its records in, the stem of the file's name. `pickle`: data.pkl.
  // `storages`: bytes of data/0, data/1, ... Pure; sizes up to 2^62.
  ZipLayout(const std::string& archive, std::string pickle, const std::vector<uint64_t>& storages);

  uint64_t bytes() const override { return bytes_; }
  size_t storage_count() const override { return storage_count_; }
  uint64_t storage_offset(size_t storage) const override {
    return records_[first_storage_ + storage].data_offset;
  }
  uint64_t storage_bytes(size_t storage) const override { return records_[first_storage_ + storage].bytes; }
  bool wants_crcs() const override { return true; }
  std::vector<PlacedBytes> Around(const StorageSums& sums) const override;

 private:
  struct Record {
    std::string name;
    std::string data;  // if it is known now
    uint64_t bytes = 0;
    uint64_t header_offset = 0;
    uint64_t data_offset = 0;
    bool zip64 = false;
  };
  void Add(std::string name, uint64_t bytes, std::string data);
  std::string LocalHeader(const Record& record) const;
  std::string Directory(const std::vector<uint32_t>& crcs) const;

  std::vector<Record> records_;
  size_t first_storage_ = 0;
  size_t storage_count_ = 0;
  uint64_t alignment_ = 64;
  uint64_t directory_offset_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace cairn
