#include "ckpt/h5_image.h"

#include <mutex>

#include "ckpt/file_system.h"
#include "ckpt/h5_handle.h"
#include "ckpt/h5_memory_driver.h"

namespace cairn {
namespace {

constexpr hsize_t kMetadataBlockBytes = 64 << 10;  // HDF5 packs its metadata into blocks of this size

H5Handle AccessList() {
  H5Handle list(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_libver_bounds(list.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  H5Pset_alignment(list.get(), 1, kPageBytes);
  H5Pset_meta_block_size(list.get(), kMetadataBlockBytes);
  H5Pset_small_data_block_size(list.get(), 0);
  return list;
}

H5Handle ContiguousList() {
  H5Handle list(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_layout(list.get(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(list.get(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(list.get(), H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(list.get(), false);
  return list;
}

// Neighbouring pages become one extent.
void TakePages(const SparsePages& memory, H5Layout& layout) {
  layout.file_bytes = (memory.end + kPageBytes - 1) / kPageBytes * kPageBytes;
  for (const auto& [offset, bytes] : memory.pages) {
    const bool adjacent = !layout.metadata.empty() &&
                          layout.metadata.back().offset + layout.metadata.back().bytes.size() == offset;
    if (!adjacent) layout.metadata.push_back({offset, {}});
    layout.metadata.back().bytes.append(bytes.data(), bytes.size());
  }
}

}  // namespace

Result<H5Layout> BuildH5(const std::function<Status(int64_t, H5Layout&)>& fill) {
  static std::mutex mutex;  // Debian's serial HDF5 is not thread-safe
  const std::lock_guard lock(mutex);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  SparsePages memory;
  H5Layout layout;
  {
    const H5Handle access = AccessList();
    CAIRN_RETURN_IF_ERROR(UseSparseMemory(access.get(), &memory));
    H5Handle create(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
    H5Pset_obj_track_times(create.get(), false);
    H5Handle file(H5Fcreate("memory", H5F_ACC_TRUNC, create.get(), access.get()), H5Fclose);
    if (!file.ok()) return H5Error("create a file in memory");
    CAIRN_RETURN_IF_ERROR(fill(file.get(), layout));
    if (H5Fflush(file.get(), H5F_SCOPE_GLOBAL) < 0) return H5Error("flush a file in memory");
  }
  TakePages(memory, layout);
  return layout;
}

Status AddH5Groups(int64_t file, const std::string& path) {
  const H5Handle no_times(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
  H5Pset_obj_track_times(no_times.get(), false);
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
  if (offset == HADDR_UNDEF || offset % kPageBytes != 0) return H5Error("place dataset " + spec.path);
  layout.offsets.push_back(offset);
  return OkStatus();
}

Result<H5Layout> LayOutH5(const std::vector<H5DatasetSpec>& datasets) {
  return BuildH5([&](int64_t file, H5Layout& layout) {
    for (const H5DatasetSpec& spec : datasets) CAIRN_RETURN_IF_ERROR(AddH5Dataset(file, spec, layout));
    return OkStatus();
  });
}

}  // namespace cairn
