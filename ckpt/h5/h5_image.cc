// HDF5 makes the whole file over a driver that keeps the pages it writes; those pages are the metadata.
// Datasets are allocated early and never written, so they cost only their place. In a packed file the data
// already lies in its place: the driver gets the address of each chunk just before HDF5 asks for room, and
// drops the bytes. No object has a time stamp, so that the same datasets give the same file.

#include "ckpt/h5/h5_image.h"

#include <mutex>

#include "ckpt/h5/h5_handle.h"
#include "ckpt/h5/h5_memory_driver.h"
#include "ckpt/io/file_system.h"

namespace cairn {
namespace {

// HDF5 packs its metadata into blocks of these sizes: the second if it adds to a file.
constexpr hsize_t kMetadataBlockBytes = kH5HeadBytes, kAddedBlockBytes = kPageBytes;
constexpr H5Z_filter_t kZstdFilter = 32015;  // as registered with the HDF Group
constexpr unsigned kZstdLevel = 1;           // what a program that rewrites the file would use

struct Access {
  bool aligned = false;  // whatever HDF5 places starts at a page; metadata pays for it in space and time
  bool views = false;    // a view takes 6 KB while HDF5 knows it, so it forgets each one that is closed
};

H5Handle AccessList(Access access, bool adds) {
  H5Handle list(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_libver_bounds(list.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  if (access.aligned) H5Pset_alignment(list.get(), 1, kPageBytes);
  if (access.views) H5Pset_evict_on_close(list.get(), true);
  H5Pset_meta_block_size(list.get(), adds ? kAddedBlockBytes : kMetadataBlockBytes);
  H5Pset_small_data_block_size(list.get(), 0);
  return list;
}

// A list of properties of a new object that has no time stamps.
H5Handle TimelessList(hid_t kind) {
  H5Handle list(H5Pcreate(kind), H5Pclose);
  H5Pset_obj_track_times(list.get(), false);
  return list;
}

H5Handle ContiguousList() {
  H5Handle list = TimelessList(H5P_DATASET_CREATE);
  H5Pset_layout(list.get(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(list.get(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(list.get(), H5D_FILL_TIME_NEVER);
  return list;
}

SparsePages PagesOf(const H5Layout& layout) {
  SparsePages memory;
  memory.end = layout.file_bytes;
  for (const H5Extent& extent : layout.metadata)
    for (size_t at = 0; at < extent.bytes.size(); at += kPageBytes)
      extent.bytes.copy(memory.pages[extent.offset + at].data(), kPageBytes, at);
  return memory;
}

// Neighbouring pages become one extent. Each page is freed once it is copied.
void TakePages(SparsePages& memory, H5Layout& layout) {
  layout.file_bytes = PageUp(memory.end);
  while (!memory.pages.empty()) {
    H5Extent& extent = layout.metadata.emplace_back(memory.pages.begin()->first);
    uint64_t end = extent.offset;
    for (auto page = memory.pages.begin(); page != memory.pages.end() && page->first == end; ++page)
      end += kPageBytes;
    extent.bytes.reserve(end - extent.offset);
    for (auto page = memory.pages.begin(); page != memory.pages.end() && page->first < end;
         page = memory.pages.erase(page))
      extent.bytes.append(page->second.data(), page->second.size());
  }
}

H5Handle OpenOrCreate(const SparsePages& memory, const H5Handle& access) {
  if (!memory.pages.empty()) return {H5Fopen("memory", H5F_ACC_RDWR, access.get()), H5Fclose};
  const H5Handle create = TimelessList(H5P_FILE_CREATE);
  return {H5Fcreate("memory", H5F_ACC_TRUNC, create.get(), access.get()), H5Fclose};
}

Result<H5Layout> Build(SparsePages& memory, Access access,
                       const std::function<Status(int64_t, H5Layout&)>& fill) {
  static std::mutex mutex;  // Debian's serial HDF5 is not thread-safe
  const std::lock_guard lock(mutex);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  H5Layout layout;
  {
    const H5Handle access_list = AccessList(access, !memory.pages.empty());
    CAIRN_RETURN_IF_ERROR(UseSparseMemory(access_list.get(), &memory));
    const H5Handle file = OpenOrCreate(memory, access_list);
    if (!file.ok()) return H5Error("create a file in memory");
    CAIRN_RETURN_IF_ERROR(fill(file.get(), layout));
    if (H5Fflush(file.get(), H5F_SCOPE_GLOBAL) < 0) return H5Error("flush a file in memory");
  }
  TakePages(memory, layout);
  return layout;
}

H5Handle PackedList(uint64_t chunk_elements, bool filtered) {
  H5Handle list = TimelessList(H5P_DATASET_CREATE);
  const hsize_t chunk = chunk_elements;
  H5Pset_chunk(list.get(), 1, &chunk);
  H5Pset_fill_time(list.get(), H5D_FILL_TIME_NEVER);
  if (!filtered) return list;
  H5Pset_shuffle(list.get());
  H5Pset_filter(list.get(), kZstdFilter, H5Z_FLAG_OPTIONAL, 1, &kZstdLevel);
  return list;
}

// The driver drops the bytes of raw data, so any address will do.
Status AddPackedDataset(int64_t file, const H5PackedDataset& spec, SparsePages& memory) {
  CAIRN_RETURN_IF_ERROR(AddH5Groups(file, spec.path));
  const H5Handle type = H5TypeOf(spec.dtype);
  const hsize_t elements = spec.elements;
  const H5Handle space(H5Screate_simple(1, &elements, nullptr), H5Sclose);
  const H5Handle list = PackedList(spec.chunk_elements, spec.filtered);
  const H5Handle dataset(
      H5Dcreate2(file, spec.path.c_str(), type.get(), space.get(), H5P_DEFAULT, list.get(), H5P_DEFAULT),
      H5Dclose);
  if (!dataset.ok()) return H5Error("create dataset " + spec.path);
  for (size_t i = 0; i < spec.chunks.size(); ++i) {
    const H5Chunk& chunk = spec.chunks[i];
    const hsize_t first = i * spec.chunk_elements;
    const uint32_t skipped_filters =
        chunk.encoded || !spec.filtered ? 0 : 3;  // bit i: filter i was not applied
    memory.placed->next = chunk.offset;
    if (H5Dwrite_chunk(dataset.get(), H5P_DEFAULT, skipped_filters, &first, chunk.bytes, &spec) < 0 ||
        memory.placed->next != 0)
      return H5Error(fmt::format("place chunk {} of dataset {}", i, spec.path));
  }
  return OkStatus();
}

}  // namespace

Result<H5Layout> BuildH5(const std::function<Status(int64_t, H5Layout&)>& fill) {
  SparsePages memory;
  return Build(memory, {.views = true}, fill);
}

Result<H5Layout> ExtendH5(const H5Layout& base, const std::function<Status(int64_t, H5Layout&)>& fill) {
  SparsePages memory = PagesOf(base);
  return Build(memory, {}, fill);
}

Status AddH5Groups(int64_t file, const std::string& path) {
  static const H5Handle no_times = TimelessList(H5P_GROUP_CREATE);
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string group = path.substr(0, slash);
    if (H5Lexists(file, group.c_str(), H5P_DEFAULT) > 0) continue;
    const H5Handle made(H5Gcreate2(file, group.c_str(), H5P_DEFAULT, no_times.get(), H5P_DEFAULT), H5Gclose);
    if (!made.ok()) return H5Error("create group " + group);
  }
  return OkStatus();
}

Status AddH5Dataset(int64_t file, const H5DatasetSpec& spec, H5Layout& layout) {
  CAIRN_RETURN_IF_ERROR(AddH5Groups(file, spec.path));
  static const H5Handle contiguous = ContiguousList();
  const H5Handle type = H5TypeOf(spec.dtype);
  const std::vector<hsize_t> shape(spec.shape.begin(), spec.shape.end());
  const H5Handle space(
      shape.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(shape.size(), shape.data(), nullptr),
      H5Sclose);
  const H5Handle dataset(H5Dcreate2(file, spec.path.c_str(), type.get(), space.get(), H5P_DEFAULT,
                                    contiguous.get(), H5P_DEFAULT),
                         H5Dclose);
  if (!dataset.ok()) return H5Error("create dataset " + spec.path);
  const haddr_t offset = H5Dget_offset(dataset.get());
  if (offset == HADDR_UNDEF) return H5Error("place dataset " + spec.path);
  layout.offsets.push_back(offset);
  return OkStatus();
}

namespace {

Status AddPlacedDataset(int64_t file, const H5DatasetSpec& spec, uint64_t offset, SparsePages& memory,
                        H5Layout& layout) {
  memory.placed->next = offset;
  CAIRN_RETURN_IF_ERROR(AddH5Dataset(file, spec, layout));
  return layout.offsets.back() == offset ? OkStatus() : IoError("HDF5 moved dataset {}", spec.path);
}

Result<H5Layout> LayOutAligned(const std::vector<H5DatasetSpec>& datasets) {
  SparsePages memory;
  return Build(memory, {.aligned = true}, [&](int64_t file, H5Layout& layout) {
    for (const H5DatasetSpec& spec : datasets) {
      CAIRN_RETURN_IF_ERROR(AddH5Dataset(file, spec, layout));
      if (layout.offsets.back() % kPageBytes != 0) return H5Error("align dataset " + spec.path);
    }
    return OkStatus();
  });
}

// Without HDF5's alignment, which searches all space freed so far for each dataset. Datasets follow one
// another from kH5HeadBytes on, then come HDF5's structures.
Result<H5Layout> LayOutPlaced(const std::vector<H5DatasetSpec>& datasets) {
  std::vector<uint64_t> offsets;
  uint64_t end = kH5HeadBytes;
  for (const H5DatasetSpec& spec : datasets) {
    offsets.push_back(end);
    end += PageUp(spec.shape.Volume() * SizeOf(spec.dtype));
  }
  SparsePages memory;
  memory.placed = PlacedData{kH5HeadBytes, end, 0};
  return Build(memory, {}, [&](int64_t file, H5Layout& layout) {
    for (size_t i = 0; i < datasets.size(); ++i)
      CAIRN_RETURN_IF_ERROR(AddPlacedDataset(file, datasets[i], offsets[i], memory, layout));
    return OkStatus();
  });
}

}  // namespace

Result<H5Layout> LayOutH5(const std::vector<H5DatasetSpec>& datasets) {
  return datasets.size() <= kMostAlignedDatasets ? LayOutAligned(datasets) : LayOutPlaced(datasets);
}

Result<H5Layout> LayOutPackedH5(const std::vector<H5PackedDataset>& datasets, const H5DatasetSpec& last,
                                uint64_t last_offset, uint64_t data_end) {
  SparsePages memory;
  memory.placed = PlacedData{kH5HeadBytes, data_end, 0};
  CAIRN_ASSIGN_OR_RETURN(H5Layout layout, Build(memory, {}, [&](int64_t file, H5Layout& out) -> Status {
                           for (const H5PackedDataset& spec : datasets)
                             CAIRN_RETURN_IF_ERROR(AddPackedDataset(file, spec, memory));
                           return AddPlacedDataset(file, last, last_offset, memory, out);
                         }));
  layout.offsets.clear();
  return layout;
}

}  // namespace cairn
