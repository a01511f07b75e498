#include "convert/foreign/stored_source.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "ckpt/io/page_cache.h"
#include "ckpt/model/source.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/random_box_map.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

// A checkpoint of arrays of random bytes in one file, and the expected bytes of its tensors.
struct Sample {
  TempDir dir;
  StoredCatalog catalog;
  std::vector<std::vector<uint16_t>> expected;  // of each tensor
  std::vector<uint16_t> file{0, 0, 0};          // an unaligned start

  uint32_t AddTensor(const std::string& name, const Dims& shape) {
    catalog.tensors.push_back({{.name = name, .shape = shape}, Role::kWeight, Dtype::kBF16});
    expected.emplace_back(shape.Volume());
    return static_cast<uint32_t>(expected.size() - 1);
  }

  // Stores `shape` elements in `cuts` ranges with holes between them.
  uint32_t AddArray(std::mt19937_64& rng, const Dims& shape, int cuts, std::vector<uint16_t>& values) {
    StoredArray array{.name = "array", .dtype = Dtype::kBF16, .shape = shape, .extents = {}};
    const uint64_t volume = shape.Volume();
    values.resize(volume);
    for (uint16_t& value : values) value = static_cast<uint16_t>(rng());
    for (uint64_t begin = 0, i = 1; begin < volume; ++i) {
      const uint64_t end = static_cast<int>(i) >= cuts ? volume : begin + 1 + rng() % (volume - begin);
      array.extents.push_back({{begin, end}, 0, file.size() * 2});
      file.insert(file.end(), values.begin() + begin, values.begin() + end);
      file.resize(file.size() + rng() % 7);
      begin = end;
    }
    catalog.arrays.push_back(array);
    return static_cast<uint32_t>(catalog.arrays.size() - 1);
  }

  // `box` of a matrix is a box at (row, column) of a larger array, transposed or not.
  void AddPart(std::mt19937_64& rng, uint32_t tensor, const Box& box, bool transpose) {
    const Dims shape = catalog.tensors[tensor].spec.shape;
    const uint64_t rows = box.extent[transpose], columns = box.extent[!transpose];
    const Dims array{rows + rng() % 3, columns + rng() % 3};
    const Box in{{rng() % (array[0] - rows + 1), rng() % (array[1] - columns + 1)}, {rows, columns}};
    std::vector<uint16_t> values;
    const uint32_t index = AddArray(rng, array, 1 + static_cast<int>(rng() % 3), values);
    catalog.parts.push_back({{box, in, transpose ? kLastTwoSwapped : kSameAxes}, tensor, index});
    for (uint64_t r = 0; r < rows; ++r)
      for (uint64_t c = 0; c < columns; ++c)
        expected[tensor][(box.offset[0] + (transpose ? c : r)) * shape[1] + box.offset[1] +
                         (transpose ? r : c)] = values[(in.offset[0] + r) * array[1] + in.offset[1] + c];
  }

  std::string path() const { return JoinPath(dir.path(), "data.bin"); }

  Result<std::unique_ptr<StoredSource>> Open(size_t bytes_cut = 0, FileSystem& fs = FileSystem::Posix()) {
    catalog.files = {"data.bin"};
    (void)fs.RemoveFile(path());
    EXPECT_TRUE(WriteSmallFile(
                    fs, path(),
                    std::string_view(reinterpret_cast<const char*>(file.data()), file.size() * 2 - bytes_cut))
                    .ok());
    return StoredSource::Make(fs, dir.path(), {}, catalog);
  }
};

void CutAndAdd(std::mt19937_64& rng, Sample& sample, uint32_t tensor, const Box& box) {
  const int dim = static_cast<int>(rng() % 2);
  if (box.extent[dim] < 2 || rng() % 3 == 0) return sample.AddPart(rng, tensor, box, rng() % 2);
  Box low = box, high = box;
  low.extent[dim] = 1 + rng() % (box.extent[dim] - 1);
  high.offset[dim] += low.extent[dim];
  high.extent[dim] -= low.extent[dim];
  CutAndAdd(rng, sample, tensor, low);
  CutAndAdd(rng, sample, tensor, high);
}

// Reads ten boxes of the only tensor.
void ExpectReadsAnyBox(std::mt19937_64& rng, Sample& sample, const std::string& which) {
  auto source = sample.Open();
  ASSERT_TRUE(source.ok()) << source.status().message();
  const Dims shape = sample.catalog.tensors[0].spec.shape;
  for (int i = 0; i < 10; ++i) {
    const Box box = RandomBox(rng, shape);
    std::vector<uint16_t> found(box.Volume()), wanted(box.Volume());
    ForEachRun(box, Box::Whole(shape), box, [&](uint64_t from, uint64_t to, uint64_t count) {
      std::memcpy(&wanted[to], &sample.expected[0][from], count * 2);
    });
    ASSERT_TRUE((*source)->ReadBox(0, box, std::as_writable_bytes(std::span(found))).ok());
    ASSERT_EQ(found, wanted) << which << " box " << ToString(box);
  }
}

TEST(StoredSource, ReadsAnyBoxOfAnyParts) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 rng(seed);
    Sample sample;
    const Dims shape{1 + rng() % 40, 1 + rng() % 40};
    CutAndAdd(rng, sample, sample.AddTensor("w", shape), Box::Whole(shape));
    ExpectReadsAnyBox(rng, sample, fmt::format("seed {}", seed));
  }
}

// A matrix of a stack, axes in any order, every n-th index.
TEST(StoredSource, ReadsAnyBoxOfAnyMap) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 rng(seed);
    Sample sample;
    Dims shape;
    for (uint64_t rank = rng() % 6; rank > 0; --rank) shape.push_back(1 + rng() % 6);
    const Box whole = Box::Whole(shape);
    sample.AddTensor("w", shape);
    const RandomBoxMap drawn = DrawArray(rng, shape, whole);
    std::vector<uint16_t> values;
    const uint32_t array = sample.AddArray(rng, drawn.array, 1 + static_cast<int>(rng() % 3), values);
    sample.catalog.parts.push_back({drawn.map, 0, array});
    for (uint64_t i = 0; i < whole.Volume(); ++i)
      sample.expected[0][i] =
          values[FlatIndex(Box::Whole(drawn.array), drawn.Find(ElementAt(whole, i).offset))];
    ExpectReadsAnyBox(rng, sample, fmt::format("seed {}", seed));
  }
}

TEST(StoredSource, ReadsEachByteOfAWholeMatrixOnce) {
  std::mt19937_64 rng(1);
  Sample sample;
  const uint32_t tensor = sample.AddTensor("w", {64, 48});
  for (uint64_t i = 0; i < 4; ++i) {  // columns, as row-parallel layers are cut
    std::vector<uint16_t> values;
    const uint32_t array = sample.AddArray(rng, {64, 12}, 1, values);
    sample.catalog.parts.push_back({{{{0, 12 * i}, {64, 12}}, {{0, 0}, {64, 12}}}, tensor, array});
  }
  auto source = sample.Open();
  ASSERT_TRUE(source.ok());
  std::vector<std::byte> bytes(64 * 48 * 2);
  ASSERT_TRUE((*source)->ReadBox(tensor, Box::Whole({64, 48}), bytes).ok());
  EXPECT_LE((*source)->bytes_read(), sample.file.size() * 2);
}

void DropFromCache(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  ::close(fd);
}

BoxSequence SequenceOf(const std::vector<TensorBox>& boxes) {
  return [&boxes, next = size_t{0}]() mutable {
    return next < boxes.size() ? std::optional(boxes[next++]) : std::nullopt;
  };
}

// All rows of all tensors, in blocks.
std::vector<TensorBox> RowBlocksOf(std::mt19937_64& rng, const Sample& sample) {
  std::vector<TensorBox> boxes;
  for (uint32_t t = 0; t < sample.expected.size(); ++t) {
    const Dims& shape = sample.catalog.tensors[t].spec.shape;
    for (uint64_t row = 0, rows; row < shape[0]; row += rows) {
      rows = 1 + rng() % (shape[0] - row);
      boxes.push_back({t, {{row, 0}, {rows, shape[1]}}});
    }
  }
  return boxes;
}

void ExpectReads(StoredSource& source, const Sample& sample, const TensorBox& box) {
  const uint64_t columns = sample.catalog.tensors[box.tensor].spec.shape[1];
  std::vector<uint16_t> found(box.box.Volume());
  const Status status = source.ReadBox(box.tensor, box.box, std::as_writable_bytes(std::span(found)));
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(std::memcmp(found.data(), &sample.expected[box.tensor][box.box.offset[0] * columns],
                        found.size() * sizeof(uint16_t)),
            0)
      << box.tensor << " " << ToString(box.box);
}

// Announced or not, in this order or nearly, with little memory and with much, from the page cache and
// not.
TEST(StoredSource, ReadsAnnouncedBoxes) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 rng(seed);
    Sample sample;
    for (uint32_t t = 0; t < 1 + seed % 4; ++t) {
      const Dims shape{1 + rng() % 300, 1 + rng() % 300};
      CutAndAdd(rng, sample, sample.AddTensor("w" + std::to_string(t), shape), Box::Whole(shape));
    }
    FaultyFileSystem foreign(FileSystem::Posix());  // its files have no descriptor
    auto source = seed % 5 == 0 ? sample.Open(0, foreign) : sample.Open();
    ASSERT_TRUE(source.ok()) << source.status().message();
    for (const uint64_t cache : {0u, 16u << 10, 1u << 20, 128u << 20}) {
      if (rng() % 2 == 0) DropFromCache(sample.path());
      const std::vector<TensorBox> boxes = RowBlocksOf(rng, sample);
      (*source)->SetCacheBytes(cache);
      (*source)->ReadAhead(SequenceOf(boxes));
      for (size_t i = 0; i < boxes.size(); ++i) {
        if (seed % 7 == 1 && rng() % 8 == 0) continue;  // the hint is broken
        ExpectReads(**source, sample, boxes[i]);
        if (rng() % 8 == 0) ExpectReads(**source, sample, boxes[rng() % boxes.size()]);
      }
      (*source)->ReadAhead({});
    }
  }
}

// Unaligned in the file, in blocks that are not a multiple of a read.
TEST(StoredSource, ReadsAheadOnceWithoutThePageCache) {
  std::mt19937_64 rng(3);
  Sample sample;
  const Dims shape{3000, 5000};
  const uint32_t tensor = sample.AddTensor("w", shape);
  const uint32_t array = sample.AddArray(rng, shape, 1, sample.expected[tensor]);
  sample.catalog.parts.push_back({{Box::Whole(shape), Box::Whole(shape)}, tensor, array});
  auto source = sample.Open();
  ASSERT_TRUE(source.ok());
  std::vector<TensorBox> boxes;
  for (uint64_t row = 0; row < shape[0]; row += 300) boxes.push_back({tensor, {{row, 0}, {300, 5000}}});
  DropFromCache(sample.path());
  const auto file = FileSystem::Posix().OpenForRead(sample.path(), Direct::kAuto);
  const bool direct = (*file)->direct() && CachedBytes(**file, 0, sample.file.size() * 2) == 0;
  (*source)->SetCacheBytes(64 << 20);
  (*source)->ReadAhead(SequenceOf(boxes));
  for (const TensorBox& box : boxes) ExpectReads(**source, sample, box);
  EXPECT_EQ((*source)->bytes_read(), shape.Volume() * 2);
  // The last page of the file is read through the cache: one read at most.
  EXPECT_LE(direct ? *CachedBytes(**file, 0, sample.file.size() * 2) : 0, kExtentBytes + kPageBytes);
}

TEST(StoredSource, NamesAnAnnouncedBoxThatCannotBeRead) {
  std::mt19937_64 rng(4);
  Sample sample;
  const uint32_t tensor = sample.AddTensor("w", {100, 100});
  sample.AddPart(rng, tensor, Box::Whole({100, 100}), false);
  auto source = sample.Open();
  ASSERT_TRUE(source.ok());
  std::filesystem::resize_file(sample.path(), 5000);
  std::vector<std::byte> out(20000);
  const std::vector<TensorBox> boxes = {{tensor, Box::Whole({100, 100})}};
  for (const bool announced : {true, false}) {
    if (announced) (*source)->ReadAhead(SequenceOf(boxes));
    const Status status = (*source)->ReadBox(tensor, boxes[0].box, out);
    EXPECT_EQ(status.kind(), StatusKind::kCorrupt);
    EXPECT_THAT(status.message(), testing::StartsWith("tensor w"));
    EXPECT_THAT(status.message(), testing::HasSubstr(sample.path()));
  }
}

TEST(StoredSource, RefusesInconsistentParts) {
  const auto make = [](const std::function<void(Sample&)>& spoil, size_t cut = 0) {
    std::mt19937_64 rng(2);
    Sample sample;
    const uint32_t tensor = sample.AddTensor("w", {8, 6});
    sample.AddPart(rng, tensor, {{0, 0}, {8, 2}}, false);
    sample.AddPart(rng, tensor, {{0, 2}, {8, 4}}, true);
    spoil(sample);
    return sample.Open(cut).status().message();
  };
  EXPECT_EQ(make([](Sample&) {}), "");
  EXPECT_THAT(make([](Sample& s) { s.catalog.parts.pop_back(); }), testing::HasSubstr("w"));
  EXPECT_NE(make([](Sample& s) { s.catalog.parts.push_back(s.catalog.parts[0]); }), "");
  EXPECT_NE(make([](Sample& s) { s.catalog.parts[0].array = 99; }), "");
  EXPECT_NE(make([](Sample& s) { s.catalog.parts[1].in_array.offset[0] = 99; }), "");
  EXPECT_NE(make([](Sample& s) { s.catalog.parts[1].axes = kSameAxes; }), "");
  EXPECT_NE(make([](Sample& s) { s.catalog.arrays[0].dtype = Dtype::kF16; }), "");
  EXPECT_NE(make([](Sample& s) { s.catalog.arrays[0].extents.back().file = 7; }), "");
  EXPECT_NE(make([](Sample& s) { s.catalog.arrays[0].extents.back().file_offset = UINT64_MAX - 1; }), "");
  EXPECT_NE(make([](Sample& s) { s.catalog.arrays[0].extents.back().range.end += 1; }), "");
  EXPECT_NE(make([](Sample& s) { s.catalog.arrays[0].extents.clear(); }), "");
  EXPECT_THAT(make([](Sample&) {}, 30), testing::HasSubstr("data.bin"));
}

}  // namespace
}  // namespace cairn
