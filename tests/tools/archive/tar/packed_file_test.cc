#include "tools/archive/tar/packed_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/support/temp_dir.h"
#include "tools/archive/tar/file_packer.h"

namespace cairn {
namespace {

using Bytes = std::vector<std::byte>;

// Values like trained ones: small floats around zero.
Bytes Floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  Bytes bytes(count * 4);
  for (size_t i = 0; i < count; ++i) {
    const float value = normal(random);
    std::memcpy(bytes.data() + i * 4, &value, 4);
  }
  return bytes;
}

// Rounded to nearest even, as a trainer does.
Bytes RoundedTo16(const Bytes& masters) {
  Bytes out(masters.size() / 2);
  for (size_t i = 0; i < out.size() / 2; ++i) {
    uint32_t bits;
    std::memcpy(&bits, masters.data() + i * 4, 4);
    const auto half = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    std::memcpy(out.data() + i * 2, &half, 2);
  }
  return out;
}

class PackedFileTest : public testing::Test {
 protected:
  // Packs `file`; `weights` are the bytes of the file "weights".
  Bytes Pack(const Bytes& file, std::vector<PackSegment> segments, const Bytes& weights = {}) {
    PackPool pool(2);
    Bytes packed;
    const uint64_t most = PackedBytesAtMost(segments);
    FilePacker packer(
        pool, std::move(segments),
        [&](const std::string& name, uint64_t offset, std::span<std::byte> out) -> Status {
          if (name != "weights" || offset + out.size() > weights.size()) return NotFound("{}", name);
          std::memcpy(out.data(), weights.data() + offset, out.size());
          return OkStatus();
        },
        [&](std::span<const std::byte> bytes) {
          packed.insert(packed.end(), bytes.begin(), bytes.end());
          return OkStatus();
        });
    for (size_t at = 0; at < file.size(); at += 777'777)
      EXPECT_TRUE(
          packer.Append(std::span(file).subspan(at, std::min<size_t>(777'777, file.size() - at))).ok());
    EXPECT_TRUE(packer.Finish().ok());
    EXPECT_LE(packed.size(), most);
    return packed;
  }

  Result<std::unique_ptr<PackedFile>> Open(const Bytes& packed, const Bytes& weights = {}) {
    const std::string path = dir_ / fmt::format("packed{}", number_++);
    const std::string text(reinterpret_cast<const char*>(packed.data()), packed.size());
    EXPECT_TRUE(WriteSmallFile(FileSystem::Posix(), path, "head" + text).ok());
    std::shared_ptr<File> file = std::move(FileSystem::Posix().OpenForRead(path)).value();
    return PackedFile::Open(path, {file, 4, packed.size()},
                            [weights](const std::string&, uint64_t offset, std::span<std::byte> out) {
                              if (offset > weights.size() || out.size() > weights.size() - offset)
                                return Corrupt("the weights end before");
                              std::memcpy(out.data(), weights.data() + offset, out.size());
                              return OkStatus();
                            });
  }

  TempDir dir_;
  int number_ = 0;
};

TEST_F(PackedFileTest, ReadsAnyRange) {
  Bytes file = Floats(3'000'000, 1);
  file.resize(file.size() + 3);  // an incomplete element at the end
  const Bytes packed = Pack(file, {{0, 100, 1, "", 0}, {100, file.size(), 4, "", 0}});
  EXPECT_LT(packed.size(), file.size() * 9 / 10);
  const auto opened = Open(packed);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  std::mt19937 random(2);
  for (int i = 0; i < 50; ++i) {
    const size_t begin = random() % file.size(),
                 size = random() % std::min<size_t>(file.size() - begin, 1 << 20);
    Bytes out(size);
    ASSERT_TRUE((*opened)->ReadAt(begin, out).ok());
    EXPECT_EQ(std::memcmp(out.data(), file.data() + begin, size), 0);
  }
  Bytes beyond(10);
  EXPECT_EQ((*opened)->ReadAt(file.size() - 5, beyond).kind(), StatusKind::kCorrupt);
}

TEST_F(PackedFileTest, StoresOnlyTheBitsOfMastersThatWeightsLack) {
  Bytes masters = Floats(2'000'000, 3);
  const uint32_t nan = 0x7f800001;  // rounds to an infinity: an exception
  std::memcpy(masters.data() + 400, &nan, 4);
  const Bytes weights = RoundedTo16(masters);
  const Bytes packed = Pack(masters, {{0, masters.size(), 4, "weights", 0}}, weights);
  EXPECT_LT(packed.size(), masters.size() * 51 / 100);
  const auto opened = Open(packed, weights);
  Bytes out(masters.size());
  ASSERT_TRUE((*opened)->ReadAt(0, out).ok());
  EXPECT_EQ(out, masters);
}

TEST_F(PackedFileTest, WithoutMatchingWeightsStoresWholeMasters) {
  const Bytes masters = Floats(100'000, 4), others = RoundedTo16(Floats(100'000, 5));
  for (const Bytes& weights : {others, Bytes()}) {
    const auto opened = Open(Pack(masters, {{0, masters.size(), 4, "weights", 0}}, weights));
    Bytes out(masters.size());
    ASSERT_TRUE((*opened)->ReadAt(0, out).ok());
    EXPECT_EQ(out, masters);
  }
}

TEST_F(PackedFileTest, PacksFilesWithoutADescription) {
  const Bytes file = Floats(500'000, 6);
  const Bytes packed = Pack(file, UnknownSegments(file.size()));
  EXPECT_LT(packed.size(), file.size() * 95 / 100);
  Bytes out(file.size());
  ASSERT_TRUE((*Open(packed))->ReadAt(0, out).ok());
  EXPECT_EQ(out, file);
}

TEST_F(PackedFileTest, DamageNeitherCrashesNorAllocatesMuch) {
  const Bytes masters = Floats(50'000, 7), weights = RoundedTo16(masters);
  const Bytes good = Pack(masters, {{0, masters.size(), 4, "weights", 0}}, weights);
  std::mt19937 random(8);
  for (int i = 0; i < 400; ++i) {
    Bytes bad = good;
    // The table and seek table lie at the end.
    const size_t tail = std::min<size_t>(bad.size(), i % 2 ? 100 : bad.size());
    bad[bad.size() - 1 - random() % tail] ^= std::byte(1 << random() % 8);
    if (i % 5 == 0) bad.resize(random() % bad.size());
    const auto opened = Open(bad, weights);
    if (!opened.ok()) continue;
    Bytes out(std::min<uint64_t>((*opened)->bytes(), masters.size()));
    (void)(*opened)->ReadAt(0, out);
  }
}

TEST_F(PackedFileTest, FramesThatClaimMoreThanAChunkAreRefused) {
  PackedTable bomb{.bytes = uint64_t{1} << 40, .names = {}, .frames = {}, .exceptions = {}};
  for (int i = 0; i < 1000; ++i) bomb.frames.push_back({.bytes = 1u << 30, .stored_bytes = 10});
  const std::string tail = EncodePackedTail(bomb);
  Bytes packed(10'000 + tail.size());
  std::memcpy(packed.data() + 10'000, tail.data(), tail.size());
  EXPECT_EQ(Open(packed).status().kind(), StatusKind::kCorrupt);
}

}  // namespace
}  // namespace cairn
