// The layout is a function of entries and metadata alone, and a digest has one length. So the file can be
// laid out with a placeholder, before its tensors are read, and the header made again once the digest is
// known.

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

class SafetensorsStorages final : public StorageLayout {
 public:
  SafetensorsStorages(std::vector<StoredArray> entries, SafetensorsMetadata metadata,
                      SafetensorsLayout layout)
      : entries_(std::move(entries)), metadata_(std::move(metadata)), layout_(std::move(layout)) {}

  uint64_t bytes() const override { return layout_.file_bytes; }
  size_t storage_count() const override { return entries_.size(); }
  uint64_t storage_offset(size_t storage) const override { return layout_.offsets[storage]; }
  uint64_t storage_bytes(size_t storage) const override { return BytesOf(entries_[storage]); }
  bool wants_crcs() const override { return false; }
  std::vector<PlacedBytes> Around(const StorageSums& sums) const override {
    SafetensorsMetadata metadata = metadata_;
    if (const auto key = metadata.find(kSourceFingerprintKey); key != metadata.end())
      key->second = ToHex(sums.source);
    return {{0, LayOutSafetensors(entries_, metadata).value().header}};
  }

 private:
  const std::vector<StoredArray> entries_;
  const SafetensorsMetadata metadata_;
  const SafetensorsLayout layout_;
};

}  // namespace

Result<SafetensorsLayout> LayOutSafetensors(const std::vector<StoredArray>& entries,
                                            const SafetensorsMetadata& metadata) {
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](size_t a, size_t b) {
    const size_t type_a = SafetensorsTypeOrder(entries[a].dtype),
                 type_b = SafetensorsTypeOrder(entries[b].dtype);
    return type_a != type_b ? type_a > type_b : entries[a].name < entries[b].name;
  });
  ordered_json header;
  header[kSafetensorsMetadataKey] = {{"format", "pt"}};
  for (const auto& [key, value] : metadata) header[kSafetensorsMetadataKey][key] = value;
  auto& rows = header.get_ref<ordered_json::object_t&>();  // its operator[] looks through all of them
  std::unordered_set<std::string_view> names = {kSafetensorsMetadataKey};
  SafetensorsLayout layout;
  layout.offsets.resize(entries.size());
  uint64_t at = 0;
  for (size_t index : order) {
    const StoredArray& entry = entries[index];
    if (!names.insert(entry.name).second)
      return InvalidArgument("tensor {} would be in one file twice", entry.name);
    layout.offsets[index] = at;
    rows.emplace_back(entry.name,
                      ordered_json{{"dtype", SafetensorsTypeName(entry.dtype)},
                                   {"shape", std::vector<uint64_t>(entry.shape.begin(), entry.shape.end())},
                                   {"data_offsets", {at, at + BytesOf(entry)}}});
    at += BytesOf(entry);
  }
  std::string json = header.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > kMaxSafetensorsHeaderBytes)
    return InvalidArgument(
        "{} tensors are too many for one safetensors file; choose a smaller --max-shard-size",
        entries.size());
  const uint64_t length = json.size();
  layout.header.resize(sizeof(length));
  std::memcpy(layout.header.data(), &length, sizeof(length));
  layout.header += json;
  for (uint64_t& offset : layout.offsets) offset += layout.header.size();
  layout.file_bytes = layout.header.size() + at;
  return layout;
}

Result<std::unique_ptr<StorageLayout>> MakeSafetensorsStorages(std::vector<StoredArray> entries,
                                                               SafetensorsMetadata metadata) {
  if (const auto key = metadata.find(kSourceFingerprintKey); key != metadata.end())
    key->second = ToHex(Digest{});
  CAIRN_ASSIGN_OR_RETURN(SafetensorsLayout layout, LayOutSafetensors(entries, metadata));
  return std::unique_ptr<StorageLayout>(
      std::make_unique<SafetensorsStorages>(std::move(entries), std::move(metadata), std::move(layout)));
}

}  // namespace cairn
