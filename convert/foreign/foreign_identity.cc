#include "convert/foreign/foreign_identity.h"

#include <algorithm>

#include "ckpt/base/digest.h"

namespace cairn {
namespace {

constexpr uint64_t kSampleBytes = 256;
constexpr size_t kSampledArrays = 256;  // or opening a large checkpoint would read from each of its files

Status AddSample(OpenFiles& files, const StoredCatalog& catalog, const StoredArray& array, Hasher& hasher) {
  if (array.extents.empty()) return OkStatus();
  const StoredExtent& extent = array.extents[0];
  CAIRN_ASSIGN_OR_RETURN(const auto file, files.Get(catalog.files[extent.file], Direct::kOff));
  std::byte sample[kSampleBytes];
  const auto bytes =
      std::span(sample).first(std::min(kSampleBytes, extent.range.size() * SizeOf(array.dtype)));
  CAIRN_RETURN_IF_ERROR(file->ReadAt(extent.file_offset, bytes));
  hasher.Update(bytes);
  return OkStatus();
}

}  // namespace

Result<std::string> RunIdentity(FileSystem& fs, const std::string& directory, const StoredCatalog& catalog,
                                std::string_view about) {
  std::vector<std::pair<std::string, const StoredArray*>> arrays;
  for (const StoredArray& array : catalog.arrays)
    arrays.emplace_back(fmt::format("{}|{}|{}\n", array.name, Name(array.dtype), ToString(array.shape)),
                        &array);
  std::ranges::stable_sort(arrays, {}, &std::pair<std::string, const StoredArray*>::first);
  Hasher hasher;
  hasher.Update(std::as_bytes(std::span(about)));
  OpenFiles files(fs, directory);
  const size_t every = (arrays.size() + kSampledArrays - 1) / kSampledArrays;
  for (size_t i = 0; i < arrays.size(); ++i) {
    hasher.Update(std::as_bytes(std::span(arrays[i].first)));
    if (i % every == 0) CAIRN_RETURN_IF_ERROR(AddSample(files, catalog, *arrays[i].second, hasher));
  }
  return ToHex(hasher.Finish());
}

}  // namespace cairn
