// A tensor of torch is a storage, an offset and strides. A contiguous tensor and a transposed matrix are one
// stretch of the file each. Any other view becomes one extent for each run of elements that lie together;
// the number of runs is bounded, so that a small file cannot make a large catalog. The builder numbers files
// and tensors once each. Open() sorts, settles the account and makes the run's identity; StoredSource checks
// the coverage.

#include "convert/foreign/stored_builder.h"

#include <algorithm>

#include "ckpt/base/digest.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxExtents = 1 << 20;  // of one tensor; 48 MB
constexpr uint64_t kMaxRepeats = 1 << 12;  // the same, if its elements overlap

// A matrix whose transpose lies in the file, or a stack of them.
bool IsTransposed(const TensorRef& tensor) {
  if (tensor.contiguous() || tensor.shape.rank() < 2) return false;
  TensorRef stored = tensor;
  stored.shape = LastTwoSwapped(tensor.shape);
  stored.stride = LastTwoSwapped(tensor.stride);
  return stored.contiguous();
}

// One extent for each of the longest runs of elements that lie together.
Status AddExtents(const TensorRef& tensor, uint64_t storage_offset, uint32_t file, StoredArray& array) {
  const uint64_t size = tensor.type->bytes;
  const auto [outer, run, count] = RunsOf(tensor);
  // A small storage does not make a large catalog.
  const uint64_t apart = std::max(kMaxRepeats, tensor.storage->elements / run);
  if (count > std::min(kMaxExtents, apart))
    return NotSupported("{} is a view whose elements are scattered (strides {}); save its .contiguous()",
                        array.name, ToString(tensor.stride));
  uint64_t begin = 0;
  ForEachTensorRun(tensor, [&](uint64_t element) {
    array.extents.push_back({{begin, begin + run}, file, storage_offset + element * size});
    begin += run;
  });
  return OkStatus();
}

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

// A run for files that do not name one: 32 hex digits of the arrays' names, dtypes and shapes, the first
// bytes of some of them, and `about`. It does not depend on where the files lie.
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

}  // namespace

Result<StoredArray> ArrayOf(const TorchFile& file, const TensorRef& tensor, uint32_t file_index,
                            std::string name) {
  if (!tensor.type->dtype)
    return NotSupported("{} has type {}, which Cairn does not support", name, tensor.type->name);
  Result<uint64_t> storage = file.Locate(tensor);
  if (!storage.ok()) return storage.status().WithContext(name);
  StoredArray found{std::move(name), *tensor.type->dtype, tensor.shape};
  if (!CheckedBytes(tensor.shape, tensor.type->bytes)) return Corrupt("{}: its size overflows", found.name);
  found.transposed = IsTransposed(tensor);
  if (found.transposed) found.shape = LastTwoSwapped(tensor.shape);
  if (found.transposed || tensor.contiguous()) {
    if (tensor.shape.Volume() > 0)
      found.extents.push_back(
          {{0, tensor.shape.Volume()}, file_index, *storage + tensor.offset * tensor.type->bytes});
    return found;
  }
  CAIRN_RETURN_IF_ERROR(AddExtents(tensor, *storage, file_index, found));
  return found;
}

uint32_t StoredBuilder::AddFile(const std::string& name) {
  const auto [at, added] = files_.try_emplace(name, catalog.files.size());
  if (added) catalog.files.push_back(name);
  return at->second;
}

Result<TorchFile> StoredBuilder::OpenFile(FileSystem& fs, const std::string& directory,
                                          const std::string& name) {
  CAIRN_ASSIGN_OR_RETURN(TorchFile file, TorchFile::Open(fs, directory, name));
  account.AddFile(file);
  return file;
}

uint32_t StoredBuilder::AddArray(StoredArray array) {
  catalog.arrays.push_back(std::move(array));
  return static_cast<uint32_t>(catalog.arrays.size() - 1);
}

Result<uint32_t> StoredBuilder::Tensor(const ParameterSpec& spec, Role role, Dtype dtype) {
  const auto [at, added] = tensors_.try_emplace(std::pair(spec.name, role), catalog.tensors.size());
  if (added) {
    catalog.tensors.push_back({spec, role, dtype});
    return at->second;
  }
  const TensorEntry& tensor = catalog.tensors[at->second];
  if (tensor.dtype != dtype || !(tensor.spec.shape == spec.shape))
    return Corrupt("{} is {} {} in one file and {} {} in another", DisplayName(tensor), Name(tensor.dtype),
                   ToString(tensor.spec.shape), Name(dtype), ToString(spec.shape));
  return at->second;
}

void StoredBuilder::AddPart(uint32_t tensor, const Box& box, const StoredArray& array) {
  const BoxMap map = array.Stored({box, Box::Whole(array.tensor_shape())});
  catalog.parts.push_back({map, tensor, AddArray(array)});
}

void StoredBuilder::AddSlice(const ArrayPart& part, bool first) {
  const auto [read, fresh] = slices_.try_emplace({part.tensor, ToString(part.box)}, part.array);
  if (fresh)
    catalog.parts.push_back(part);
  else if (first)
    AddReplica(part.tensor, part.array, read->second);
}

void StoredBuilder::AddReplica(uint32_t tensor, uint32_t array, uint32_t read) {
  account.Replica(array);
  replicas_.push_back({tensor, array, read});
}

void StoredBuilder::SortByParameter() {
  std::map<std::string_view, size_t> first;
  for (const TensorEntry& tensor : catalog.tensors) first.try_emplace(tensor.spec.name, first.size());
  std::vector<uint32_t> order(catalog.tensors.size()), place(order.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, {}, [&](uint32_t i) {
    return std::pair(first.at(catalog.tensors[i].spec.name), catalog.tensors[i].role);
  });
  std::vector<TensorEntry> tensors;
  for (uint32_t i = 0; i < order.size(); ++i) {
    place[order[i]] = i;
    tensors.push_back(catalog.tensors[order[i]]);
  }
  catalog.tensors = std::move(tensors);
  for (ArrayPart& part : catalog.parts) part.tensor = place[part.tensor];
  for (StoredReplica& replica : replicas_) replica.tensor = place[replica.tensor];
}

Result<std::unique_ptr<ForeignSource>> StoredBuilder::Open(FileSystem& fs, const std::string& directory,
                                                           Manifest manifest, Replicas how,
                                                           std::string_view about) {
  SortByParameter();
  auto settled = account.Close(catalog);
  if (!settled.ok()) return settled.status().WithContext(directory);
  manifest.state[kAccountKey] = *std::move(settled);
  catalog.records = account.RecordsIn(catalog.files);
  CAIRN_ASSIGN_OR_RETURN(manifest.run, RunIdentity(fs, directory, catalog, about));
  return OpenWithReplicas(fs, directory, std::move(manifest), std::move(catalog), replicas_, how);
}

}  // namespace cairn
