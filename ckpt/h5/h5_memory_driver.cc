// The callbacks of an HDF5 file driver. A page exists from its first write on, any other reads as zeros. With
// placed data the driver also decides where things go: raw data at the address that it was given, the first
// block of metadata before the data, all others behind it. That needs one more callback, hence two classes of
// driver.

#include "ckpt/h5/h5_memory_driver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ckpt/h5/h5_handle.h"

namespace cairn {
namespace {

struct DriverInfo {
  SparsePages* pages;
};

struct MemoryFile {
  H5FD_t base;  // HDF5's own part, first
  SparsePages* pages;
  haddr_t end_of_allocation;
};

MemoryFile* Self(H5FD_t* file) { return reinterpret_cast<MemoryFile*>(file); }
const MemoryFile* Self(const H5FD_t* file) { return reinterpret_cast<const MemoryFile*>(file); }

H5FD_t* OpenDriver(const char*, unsigned, hid_t access_list, haddr_t) {
  const auto* info = static_cast<const DriverInfo*>(H5Pget_driver_info(access_list));
  if (info == nullptr) return nullptr;
  auto* file = new MemoryFile{};
  file->pages = info->pages;
  return &file->base;
}

herr_t Close(H5FD_t* file) {
  delete Self(file);
  return 0;
}

herr_t Query(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA;
  return 0;
}

haddr_t EndOfAllocation(const H5FD_t* file, H5FD_mem_t) { return Self(file)->end_of_allocation; }

herr_t SetEndOfAllocation(H5FD_t* file, H5FD_mem_t, haddr_t end) {
  Self(file)->end_of_allocation = end;
  Self(file)->pages->end = std::max<uint64_t>(Self(file)->pages->end, end);
  return 0;
}

haddr_t EndOfFile(const H5FD_t* file, H5FD_mem_t) { return Self(file)->pages->end; }

// Calls visit(page_offset, offset_in_page, count, done) for each page that [offset, offset + size) touches.
template <typename Visit>
void ForEachPage(haddr_t offset, size_t size, Visit visit) {
  for (size_t done = 0; done < size;) {
    const uint64_t at = offset + done;
    const uint64_t in_page = at % kPageBytes;
    const size_t count = std::min<size_t>(size - done, kPageBytes - in_page);
    visit(at - in_page, in_page, count, done);
    done += count;
  }
}

herr_t ReadDriver(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t offset, size_t size, void* buffer) {
  ForEachPage(offset, size, [&](uint64_t page, uint64_t in_page, size_t count, size_t done) {
    const auto found = Self(file)->pages->pages.find(page);
    char* out = static_cast<char*>(buffer) + done;
    if (found == Self(file)->pages->pages.end())
      std::memset(out, 0, count);
    else
      std::memcpy(out, found->second.data() + in_page, count);
  });
  return 0;
}

// With placed data. The first block of metadata, with the superblock, lies before the data and all others
// behind it. The end of allocation is never that of the first block, which HDF5 would then extend.
haddr_t AllocateAround(H5FD_t* file, H5FD_mem_t type, hid_t, hsize_t size) {
  MemoryFile& self = *Self(file);
  PlacedData& placed = *self.pages->placed;
  if (type == H5FD_MEM_DRAW) {
    const haddr_t address = std::exchange(placed.next, 0);
    return address >= placed.begin && address + size <= placed.end ? address : HADDR_UNDEF;
  }
  const bool first = self.end_of_allocation == 0;
  if (first && size > placed.begin) return HADDR_UNDEF;
  const haddr_t address = first ? 0 : self.end_of_allocation;
  SetEndOfAllocation(file, type, first ? placed.end : address + size);
  return address;
}

herr_t Write(H5FD_t* file, H5FD_mem_t type, hid_t, haddr_t offset, size_t size, const void* buffer) {
  if (type == H5FD_MEM_DRAW && Self(file)->pages->placed) return 0;
  ForEachPage(offset, size, [&](uint64_t page, uint64_t in_page, size_t count, size_t done) {
    auto& bytes = Self(file)->pages->pages[page];  // a new page is zeros
    std::memcpy(bytes.data() + in_page, static_cast<const char*>(buffer) + done, count);
  });
  return 0;
}

H5FD_class_t MakeClass(bool placed) {
  H5FD_class_t driver{};
  driver.name = placed ? "cairn_placed_memory" : "cairn_sparse_memory";
  driver.maxaddr = INT64_MAX;
  driver.fc_degree = H5F_CLOSE_STRONG;
  driver.fapl_size = sizeof(DriverInfo);
  driver.open = OpenDriver;
  driver.close = Close;
  driver.query = Query;
  if (placed) driver.alloc = AllocateAround;
  driver.get_eoa = EndOfAllocation;
  driver.set_eoa = SetEndOfAllocation;
  driver.get_eof = EndOfFile;
  driver.read = ReadDriver;
  driver.write = Write;
  // Raw data must not land in space that metadata gave back.
  const H5FD_mem_t one_free_list[] = H5FD_FLMAP_SINGLE, two_free_lists[] = H5FD_FLMAP_DICHOTOMY;
  const auto& free_lists = placed ? two_free_lists : one_free_list;
  std::copy(std::begin(free_lists), std::end(free_lists), driver.fl_map);
  return driver;
}

}  // namespace

Status UseSparseMemory(hid_t access_list, SparsePages* pages) {
  static const H5FD_class_t classes[] = {MakeClass(false), MakeClass(true)};
  static const hid_t drivers[] = {H5FDregister(&classes[0]), H5FDregister(&classes[1])};
  const hid_t driver = drivers[pages->placed.has_value()];
  const DriverInfo info{pages};
  if (driver < 0 || H5Pset_driver(access_list, driver, &info) < 0)
    return H5Error("register the memory driver");
  return OkStatus();
}

}  // namespace cairn
