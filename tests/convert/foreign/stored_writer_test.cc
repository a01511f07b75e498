#include "convert/foreign/stored_writer.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <array>
#include <cstring>

#include "convert/foreign/stored_source.h"
#include "convert/foreign/target_builder.h"
#include "convert/stream/block_stream.h"
#include "tests/support/random_box_map.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

constexpr uint64_t kBufferBytes = 64 << 10;

uint64_t AllocatedBytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

// Tensors in one file, their arrays one after another.
struct Plan {
  TargetBuilder builder;
  StoredCatalog catalog;  // the same parts of the same arrays, to read them back
  uint64_t bytes = 0;
  uint64_t held = 0;  // memory that the writer has taken after the last block

  uint32_t AddArray(const Dims& shape) {
    const uint64_t volume = shape.Volume();
    catalog.arrays.push_back({"array", Dtype::kBF16, shape, {{{0, volume}, 0, bytes}}});
    bytes += volume * 2;
    return builder.AddArray(catalog.arrays.back());
  }
  void AddTensor(const Dims& shape, const BoxMap& map, uint32_t array) {
    const auto number = static_cast<uint32_t>(catalog.tensors.size());
    catalog.tensors.push_back(
        {{.name = std::to_string(number), .shape = shape}, Role::kWeight, Dtype::kBF16});
    catalog.parts.push_back({map, number, array});
  }

  // The values of all tensors are numbers from 1 on. Writes block after block, of each tensor by itself, or
  // of all of them by turns.
  void Write(FileSystem& fs, const std::string& directory, uint64_t block_elements, bool by_turns = false) {
    builder.target.parts = catalog.parts;
    const uint32_t file = builder.AddFile("data.bin");
    builder.AddBytes(file, bytes);
    builder.Place();
    WriteRing ring(fs, {.buffer_bytes = kBufferBytes});
    const auto writer = StoredWriter::Create(fs, ring, directory, builder.target, Direct::kOff);
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    std::vector<uint16_t> next{1};  // value of each tensor
    for (const TensorEntry& tensor : catalog.tensors)
      next.push_back(static_cast<uint16_t>(next.back() + tensor.spec.shape.Volume()));
    const std::vector<uint32_t> all = AllTensors(catalog);
    BoxSequence blocks =
        BlocksOf(catalog, by_turns ? decltype(EachAlone(all)){all} : EachAlone(all), 2 * block_elements);
    const uint64_t before = AllocatedBytes();
    while (const auto block = blocks()) {
      std::vector<uint16_t> values(block->box.Volume());
      for (uint16_t& each : values) each = next[block->tensor]++;
      ASSERT_TRUE((*writer)->Write({block->tensor, block->box, 0, std::as_bytes(std::span(values))}).ok());
    }
    const uint64_t after = AllocatedBytes();
    held = after > before ? after - before : 0;
    ASSERT_TRUE((*writer)->EndTensors().ok());
    ASSERT_TRUE((*writer)->Finish({}).ok());
  }

  void ExpectReadBack(FileSystem& fs, const std::string& directory) {
    catalog.files = {"data.bin"};
    const auto source = StoredSource::Make(fs, directory, {}, catalog);
    ASSERT_TRUE(source.ok()) << source.status().message();
    uint16_t value = 1;
    for (uint32_t tensor = 0; tensor < catalog.tensors.size(); ++tensor) {
      const Box whole = Box::Whole(catalog.tensors[tensor].spec.shape);
      std::vector<uint16_t> found(whole.Volume()), wanted(whole.Volume());
      for (uint16_t& each : wanted) each = value++;
      ASSERT_TRUE((*source)->ReadBox(tensor, whole, std::as_writable_bytes(std::span(found))).ok());
      EXPECT_EQ(found, wanted) << tensor;
    }
  }
};

TEST(StoredWriter, WritesAnyMapAndReadsItBack) {
  FileSystem& fs = FileSystem::Posix();
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 rng(seed);
    const TempDir dir(TempDir::Place::kMemory);
    Plan plan;
    for (int i = 0; i < 4; ++i) {
      Dims shape;
      for (uint64_t rank = rng() % 6; rank > 0; --rank) shape.push_back(1 + rng() % 5);
      const RandomBoxMap drawn = DrawArray(rng, shape, Box::Whole(shape));
      plan.AddTensor(shape, drawn.map, plan.AddArray(drawn.array));
    }
    plan.Write(fs, dir.path(), 1 + rng() % 100);
    plan.ExpectReadBack(fs, dir.path());
  }
}

// Gates and ups [experts, ffn, hidden] of each layer are by turns the columns of one stack, [layers, experts,
// hidden, 2 ffn].
void ExpectEveryOtherColumn(bool joined, bool by_turns) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir dir(TempDir::Place::kMemory);
  const uint64_t layers = 2, experts = 3, ffn = 5, hidden = 7;
  const Dims shape{experts, ffn, hidden};
  Plan plan;
  const uint32_t stack = plan.AddArray({layers, experts, hidden, ffn, 2});
  for (uint64_t layer = 0; layer < layers; ++layer)
    for (const uint64_t up : {0, 1}) {
      const Box columns{{layer, 0, 0, 0, up}, {1, experts, hidden, ffn, 1}};
      plan.AddTensor(shape, {Box::Whole(shape), columns, {3, 1, 0, 2, 4, 5, 6, 7}}, stack);
    }
  if (joined) plan.builder.target.by_turns[stack] = AllTensors(plan.catalog);
  plan.Write(fs, dir.path(), 2 * hidden, by_turns);
  plan.ExpectReadBack(fs, dir.path());
  const auto file = fs.OpenForRead(dir / "data.bin");
  std::vector<uint16_t> found(layers * experts * hidden * 2 * ffn);
  ASSERT_TRUE((*file)->ReadAt(0, std::as_writable_bytes(std::span(found))).ok());
  for (uint64_t i = 0; i < found.size(); ++i) {
    const uint64_t row = i / (2 * ffn), column = i % (2 * ffn), expert = row / hidden % experts;
    const uint64_t tensor = row / hidden / experts * 2 + column % 2;
    EXPECT_EQ(found[i], 1 + ((tensor * experts + expert) * ffn + column / 2) * hidden + row % hidden);
  }
}

TEST(StoredWriter, WritesEveryOtherColumnOfAStack) { ExpectEveryOtherColumn(false, false); }

TEST(StoredWriter, JoinsEveryOtherColumnInAnyOrder) {
  ExpectEveryOtherColumn(true, false);
  ExpectEveryOtherColumn(true, true);
}

// Two tensors of `shape`, gate and up, as columns of one array.
void ExpectLittleHeld(Plan& plan, const Dims& shape, uint32_t array, const std::array<BoxMap, 2>& maps,
                      uint64_t block_elements, bool by_turns) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir dir(TempDir::Place::kMemory);
  for (const BoxMap& map : maps) plan.AddTensor(shape, map, array);
  if (by_turns) plan.builder.target.by_turns[array] = {0, 1};
  plan.Write(fs, dir.path(), block_elements, by_turns);
  EXPECT_LT(plan.held, plan.bytes / 8);
  plan.ExpectReadBack(fs, dir.path());
}

TEST(StoredWriter, MemoryDoesNotGrowWithColumnsThatComeByTurns) {
  const uint64_t experts = 64, ffn = 96, hidden = 128;
  const Dims shape{experts, ffn, hidden};
  const auto columns = [&](uint64_t up) {
    const Box box{{0, 0, 0, up}, {experts, hidden, ffn, 1}};
    return BoxMap{Box::Whole(shape), box, {3, 1, 0, 2, 4, 5, 6, 7}};
  };
  Plan plan;
  const uint32_t array = plan.AddArray({experts, hidden, ffn, 2});
  ExpectLittleHeld(plan, shape, array, {columns(0), columns(1)}, ffn * hidden, true);
}

// Gates are the left halves of the rows, ups the right ones.
TEST(StoredWriter, MemoryDoesNotGrowWithLargeColumns) {
  const uint64_t experts = 16, ffn = 544, hidden = 1024;
  const Dims shape{experts, ffn, hidden};
  const auto columns = [&](uint64_t up) {
    return BoxMap{Box::Whole(shape), {{0, up * ffn, 0}, shape}}.Transposed();
  };
  Plan plan;
  const uint32_t array = plan.AddArray({experts, hidden, 2 * ffn});
  ExpectLittleHeld(plan, shape, array, {columns(0), columns(1)}, 48 * hidden, false);
}

TEST(StoredWriter, MemoryDoesNotGrowWithTheExpertsOfATensor) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir dir(TempDir::Place::kMemory);
  const uint64_t experts = 256, rows = 128, columns = 64;
  const Box whole = Box::Whole({rows, columns});
  Plan plan;
  for (uint64_t expert = 0; expert < experts; ++expert) {
    const BoxMap map{{{expert, 0, 0}, {1, rows, columns}}, whole};
    plan.catalog.parts.push_back({map, 0, plan.AddArray(whole.extent)});
  }
  plan.catalog.tensors.push_back(
      {{.name = "0", .shape = {experts, rows, columns}}, Role::kWeight, Dtype::kBF16});
  plan.Write(fs, dir.path(), 48 * columns);
  EXPECT_LT(plan.held, experts / 4 * kBufferBytes);
  plan.ExpectReadBack(fs, dir.path());
}

}  // namespace
}  // namespace cairn
