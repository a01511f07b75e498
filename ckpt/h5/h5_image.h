// Lays out an HDF5 file without touching a disk.
//
// HDF5 writes the file into sparse memory (h5_memory_driver.h): contiguous datasets, allocated early, never
// filled, aligned to kPageBytes, no time stamps. The pages that it wrote are the metadata extents; the places
// of the datasets are the offsets. The bytes of both are then written by our own I/O path. The same datasets
// give the same file, bit for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ckpt/base/box.h"
#include "ckpt/base/dtype.h"

namespace cairn {

struct H5Extent {
  uint64_t offset = 0;  // of the file; a multiple of kPageBytes
  std::string bytes;    // a multiple of kPageBytes long
};

struct H5Layout {
  uint64_t file_bytes = 0;         // a multiple of kPageBytes
  std::vector<uint64_t> offsets;   // of each dataset's data, as they were given
  std::vector<H5Extent> metadata;  // every page that HDF5 wrote, in order of offset
};

struct H5DatasetSpec {
  std::string path;  // groups on the way are created
  Dtype dtype = Dtype::kU8;
  Dims shape;  // no dimension is 0
};

// With at most this many datasets HDF5 aligns its structures, too, each to a page; with more they follow the
// data.
inline constexpr size_t kMostAlignedDatasets = 1024;

// A file of these datasets, in this order; in the file, the data is in the same order.
// Errors: IoError with HDF5's own message.
Result<H5Layout> LayOutH5(const std::vector<H5DatasetSpec>& datasets);

// A chunk of a dataset that is on disk already.
struct H5Chunk {
  uint64_t offset = 0;  // of the file
  uint32_t bytes = 0;
  bool encoded = false;  // shuffled and zstd; else the elements as they are
};

// A vector in chunks of chunk_elements, with the filters shuffle and zstd (registered as 32015), or none.
// `elements` is a multiple of chunk_elements.
struct H5PackedDataset {
  std::string path;
  Dtype dtype = Dtype::kU8;
  uint64_t elements = 0;
  uint64_t chunk_elements = 0;
  bool filtered = true;
  std::vector<H5Chunk> chunks;
};

inline constexpr uint64_t kH5HeadBytes = 64 << 10;  // room that packed files leave for HDF5 before the data

// A file around data that was written before: `datasets` and then `last`, whose data lies at `last_offset`,
// all within [kH5HeadBytes, data_end). data_end is a multiple of kPageBytes. The layout's offsets are empty.
Result<H5Layout> LayOutPackedH5(const std::vector<H5PackedDataset>& datasets, const H5DatasetSpec& last,
                                uint64_t last_offset, uint64_t data_end);

// Creates an HDF5 file in memory, lets `fill` (given the hid_t of the file) add to it, and lays it out. For
// index files.
Result<H5Layout> BuildH5(const std::function<Status(int64_t file, H5Layout& layout)>& fill);

// The same onto a file that BuildH5 laid out, whose datasets have no data in the file itself.
Result<H5Layout> ExtendH5(const H5Layout& base,
                          const std::function<Status(int64_t file, H5Layout& layout)>& fill);

// Creates the groups above `path` that are missing, without time stamps. (HDF5's own way to create them on
// the fly stamps them.) For use within BuildH5's `fill`.
Status AddH5Groups(int64_t file, const std::string& path);

// Adds one contiguous dataset and appends its data's offset to the layout. For use within BuildH5's `fill`.
Status AddH5Dataset(int64_t file, const H5DatasetSpec& spec, H5Layout& layout);

}  // namespace cairn
