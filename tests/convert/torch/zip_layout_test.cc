#include "convert/torch/zip_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "ckpt/io/paged_file.h"
#include "convert/torch/crc32_sum.h"
#include "convert/torch/pickle_emitter.h"
#include "convert/torch/storage_layout.h"
#include "convert/torch/torch_file.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

std::span<const std::byte> ZipBytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string RandomText(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

// By definition, one bit at a time.
uint32_t PlainCrc(const std::string& text) {
  uint32_t crc = UINT32_MAX;
  for (const char c : text) {
    crc ^= static_cast<uint8_t>(c);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc;
}

TEST(Crc32SumTest, SumsRangesInAnyOrderWithGapsOfZeros) {
  EXPECT_EQ(Crc32(ZipBytes("123456789")), 0xcbf43926);
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::string record = RandomText(random() % 3000, random());
    std::vector<size_t> cuts = {0, record.size()};
    for (int i = 0; i < 6; ++i) cuts.push_back(record.empty() ? 0 : random() % record.size());
    std::ranges::sort(cuts);
    std::vector<size_t> order(cuts.size() - 1);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    Crc32Sum sum(record.size());
    for (const size_t i : order) {
      const auto stretch = ZipBytes(record).subspan(cuts[i], cuts[i + 1] - cuts[i]);
      if (i == 2) {  // never comes
        std::ranges::fill(record.begin() + cuts[i], record.begin() + cuts[i + 1], '\0');
        continue;
      }
      const size_t half = stretch.size() / 2;
      sum.Add(cuts[i + 1], Crc32Sum::Extend(Crc32Sum::Extend(0, stretch.first(half)), stretch.subspan(half)));
    }
    ASSERT_EQ(sum.Finish(), PlainCrc(record));
  }
}

// Storages are holes of a sparse file.
void WriteSparse(const std::string& path, const ZipLayout& layout, const std::vector<uint32_t>& crcs) {
  std::ofstream(path).close();
  std::filesystem::resize_file(path, layout.bytes());
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  for (const PlacedBytes& placed : layout.Around({.crcs = crcs})) {
    file.seekp(static_cast<std::streamoff>(placed.offset));
    file.write(placed.bytes.data(), static_cast<std::streamsize>(placed.bytes.size()));
  }
}

TEST(ZipLayoutTest, HandlesSizesAndOffsetsBeyondFourGibibytes) {
  const TempDir temp;
  const std::string path = temp.path() + "/big.pt";
  const std::vector<uint64_t> storages = {12, (uint64_t{4} << 30) - 2, (uint64_t{5} << 30) + 8, 0, 16};
  PickleEmitter pickle;
  pickle.BeginDict();
  for (size_t i = 0; i < storages.size(); ++i) {
    pickle.Text("t" + std::to_string(i));
    pickle.Tensor(Dtype::kBF16, std::to_string(i), {storages[i] / 2});
  }
  pickle.EndDict();
  const ZipLayout layout("big", pickle.Finish(), storages);
  std::vector<uint32_t> crcs;
  for (const uint64_t bytes : storages) crcs.push_back(Crc32Sum(bytes).Finish());
  WriteSparse(path, layout, crcs);
  const auto file = TorchFile::Open(FileSystem::Posix(), "", path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  for (size_t i = 0; i < storages.size(); ++i) {
    const TorchStorage& storage = file->storages().at(std::to_string(i));
    EXPECT_EQ(storage.bytes, storages[i]);
    EXPECT_EQ(storage.file_offset, layout.storage_offset(i));
    EXPECT_EQ(storage.file_offset % 4096, 0);
  }
  EXPECT_EQ(file->root().items.size(), 2 * storages.size());
}

TEST(ZipLayoutTest, HandlesMoreThan65535Records) {
  const TempDir temp;
  const std::string path = temp.path() + "/many.pt";
  const std::vector<uint64_t> storages(70'000, 4);
  PickleEmitter pickle;
  pickle.None();
  const ZipLayout layout("many", pickle.Finish(), storages);
  WriteSparse(path, layout, std::vector<uint32_t>(storages.size(), Crc32Sum(4).Finish()));
  const auto file = TorchFile::Open(FileSystem::Posix(), "", path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->storages().size(), storages.size());
  EXPECT_EQ(file->storages().at("69999").file_offset % 64, 0);
}

TEST(ZipLayoutTest, TheSameRecordsGiveTheSameBytes) {
  const auto bytes = [] {
    std::string all;
    for (const PlacedBytes& placed : ZipLayout("a", "N.", {100, 3}).Around({.crcs = {1, 2}}))
      all += placed.bytes;
    return all;
  };
  EXPECT_EQ(bytes(), bytes());
}

class PagedFileTest : public testing::TestWithParam<Direct> {};

TEST_P(PagedFileTest, WritesRangesOfAnyAlignmentAndOrder) {
  const TempDir temp;
  std::mt19937 random(7);
  for (int round = 0; round < 8; ++round) {
    std::string expected = RandomText(1 + random() % 3'000'000, random());
    const std::string path = temp.path() + "/" + std::to_string(round);
    WriteRing ring(FileSystem::Posix(), {.buffer_bytes = 64 << 10, .in_flight = 4});
    WaitingPages waiting(512);
    auto file = PagedFile::Create(FileSystem::Posix(), ring, waiting, path, expected.size(), GetParam());
    ASSERT_TRUE(file.ok()) << file.status().message();
    std::vector<std::pair<size_t, size_t>> stretches;
    const size_t most = round % 2 ? 200'000 : 700;  // the latter leaves more incomplete pages than are kept
    for (size_t at = 0; at < expected.size();) {
      const size_t count = std::min<size_t>(1 + random() % most, expected.size() - at);
      if (random() % 10 == 0)
        std::fill_n(expected.begin() + at, count, '\0');  // padding
      else
        stretches.emplace_back(at, count);
      at += count;
    }
    std::ranges::shuffle(stretches, random);
    for (const auto& [at, count] : stretches)
      ASSERT_TRUE((*file)->Write(at, ZipBytes(expected).subspan(at, count)).ok());
    ASSERT_TRUE((*file)->Finish().ok());
    std::ifstream in(path, std::ios::binary);
    const std::string found((std::istreambuf_iterator<char>(in)), {});
    ASSERT_TRUE(found == expected);
  }
}

TEST_P(PagedFileTest, NothingIsWrittenPastTheEnd) {
  const TempDir temp;
  WriteRing ring(FileSystem::Posix(), {});
  WaitingPages waiting(512);
  auto file = PagedFile::Create(FileSystem::Posix(), ring, waiting, temp.path() + "/f", 10, GetParam());
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->Write(8, ZipBytes("abc")).kind(), StatusKind::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Direct, PagedFileTest, testing::Values(Direct::kAuto, Direct::kOff),
                         [](const auto& info) { return info.param == Direct::kOff ? "Off" : "Auto"; });

}  // namespace
}  // namespace cairn
