// The layout depends only on entries and metadata, and what is filled in has a fixed length. So the file can
// be laid out with a placeholder, before its tensors are read, and the header made again once that is known.

#include "convert/formats/hugging_face/safetensors_layout.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>
#include <unordered_set>

#include "convert/formats/hugging_face/safetensors_header.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

uint64_t BytesOf(const StoredArray& entry) { return entry.shape.Volume() * SizeOf(entry.dtype); }

// The format counts elements of four bits one by one.
std::vector<uint64_t> ShapeOf(const StoredArray& entry) {
  std::vector<uint64_t> shape(entry.shape.begin(), entry.shape.end());
  if (entry.dtype == Dtype::kF4x2 && !shape.empty()) shape.back() *= 2;
  return shape;
}

class SafetensorsStorages final : public StorageLayout {
 public:
  SafetensorsStorages(std::vector<StoredArray> entries, SafetensorsMetadata metadata)
      : entries_(std::move(entries)),
        metadata_(std::move(metadata)),
        order_(entries_.size()),
        offsets_(entries_.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::sort(order_, [&](size_t a, size_t b) {
      const size_t type_a = SafetensorsTypeOrder(entries_[a].dtype),
                   type_b = SafetensorsTypeOrder(entries_[b].dtype);
      return type_a != type_b ? type_a > type_b : entries_[a].name < entries_[b].name;
    });
  }

  Status Place() {
    std::unordered_set<std::string_view> names = {kSafetensorsMetadataKey};
    for (const StoredArray& entry : entries_)
      if (!names.insert(entry.name).second)
        return InvalidArgument("tensor {} would be in one file twice", entry.name);
    bytes_ = Header({}).size();
    if (bytes_ - sizeof(uint64_t) > kMaxSafetensorsHeaderBytes)
      return InvalidArgument(
          "{} tensors are too many for one safetensors file; choose a smaller --max-shard-size",
          entries_.size());
    for (const size_t index : order_) {
      offsets_[index] = bytes_;
      bytes_ += BytesOf(entries_[index]);
    }
    return OkStatus();
  }

  uint64_t bytes() const override { return bytes_; }
  size_t storage_count() const override { return entries_.size(); }
  uint64_t storage_offset(size_t storage) const override { return offsets_[storage]; }
  uint64_t storage_bytes(size_t storage) const override { return BytesOf(entries_[storage]); }
  bool wants_crcs() const override { return false; }
  std::vector<PlacedBytes> Around(const StorageSums& sums) const override { return {{0, Header(sums)}}; }

 private:
  // With its length before it, padded to a multiple of 8.
  std::string Header(const StorageSums& sums) const {
    ordered_json header;
    header[kSafetensorsMetadataKey] = {{"format", "pt"}};
    for (const auto& [key, value] : metadata_)
      header[kSafetensorsMetadataKey][key] = key == kSourceFingerprintKey ? ToHex(sums.source)
                                             : key == kQuantizationErrorKey
                                                 ? fmt::format("{:.6e}", sums.quantization_error)
                                                 : value;
    auto& rows = header.get_ref<ordered_json::object_t&>();  // its operator[] looks through all of them
    uint64_t at = 0;
    for (const size_t index : order_) {
      const StoredArray& entry = entries_[index];
      rows.emplace_back(entry.name, ordered_json{{"dtype", SafetensorsTypeName(entry.dtype)},
                                                 {"shape", ShapeOf(entry)},
                                                 {"data_offsets", {at, at + BytesOf(entry)}}});
      at += BytesOf(entry);
    }
    std::string json = header.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    json.resize((json.size() + 7) / 8 * 8, ' ');
    const uint64_t length = json.size();
    std::string text(sizeof(length), '\0');
    std::memcpy(text.data(), &length, sizeof(length));
    return text + json;
  }

  const std::vector<StoredArray> entries_;
  const SafetensorsMetadata metadata_;
  std::vector<size_t> order_;      // of the entries in the file
  std::vector<uint64_t> offsets_;  // of each entry
  uint64_t bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<StorageLayout>> MakeSafetensorsStorages(std::vector<StoredArray> entries,
                                                               SafetensorsMetadata metadata) {
  auto storages = std::make_unique<SafetensorsStorages>(std::move(entries), std::move(metadata));
  CAIRN_RETURN_IF_ERROR(storages->Place());
  return std::unique_ptr<StorageLayout>(std::move(storages));
}

}  // namespace cairn
