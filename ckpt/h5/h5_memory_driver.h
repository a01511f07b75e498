// An HDF5 file driver over sparse memory: a file of any size costs what HDF5 writes to it, its metadata.
//
// For h5_image.cc only. (memfd would do as well, but HDF5 1.10 resolves links of names and /proc/self/fd has
// none.)
#pragma once

#include <hdf5.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "ckpt/io/file_system.h"

namespace cairn {

// Where data lies that was written before the file was laid out: HDF5 gets its addresses from here and keeps
// its metadata elsewhere.
struct PlacedData {
  uint64_t begin = 0;  // [begin, end) of the file is the data's; begin > 0
  uint64_t end = 0;
  uint64_t next = 0;  // where the next allocation of raw data goes; 0 once it is used
};

struct SparsePages {
  std::map<uint64_t, std::array<char, kPageBytes>> pages;  // by offset; missing pages read as zeros
  uint64_t end = 0;                  // bytes from the start to the end of allocated space
  std::optional<PlacedData> placed;  // raw data that HDF5 writes is then dropped
};

// Makes `access_list` open files over `pages`, which must outlive them.
Status UseSparseMemory(hid_t access_list, SparsePages* pages);

}  // namespace cairn
