#include "convert/stream/fingerprint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "ckpt/run/run_dir.h"
#include "ckpt/step/step_reader.h"
#include "convert/stream/element_sums.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"
#include "tests/support/unsynced_file_system.h"

namespace cairn {
namespace {

TensorEntry VectorOf(Dtype dtype, uint64_t elements) {
  return {{.name = "some.weight", .shape = {elements}}, Role::kMaster, dtype};
}

Digest DigestOfValues(const TensorEntry& tensor, std::span<const std::byte> bytes) {
  TensorFingerprint sum(tensor);
  sum.Add(0, bytes);
  return sum.Finish(tensor);
}

// The header's formula, one element at a time.
Digest PlainDigest(const TensorEntry& tensor, std::span<const std::byte> bytes) {
  uint64_t seed;
  const Digest name = DigestOf(DisplayName(tensor));
  std::memcpy(&seed, name.data(), 8);
  unsigned __int128 sum = 0;
  const uint64_t size = SizeOf(tensor.dtype);
  for (uint64_t i = 0; i * size < bytes.size(); ++i) {
    uint64_t z = seed + i * 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    uint64_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * size, size);
    sum += (static_cast<unsigned __int128>(z) + 1) * bits;
  }
  return DigestOf(fmt::format("{}|{}|{}|{}|{:016x}{:016x}", DisplayName(tensor), Name(tensor.role),
                              Name(tensor.dtype), ToString(tensor.spec.shape),
                              static_cast<uint64_t>(sum >> 64), static_cast<uint64_t>(sum)));
}

std::vector<std::byte> RandomBytes(uint64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

constexpr Dtype kOneOfEachSize[] = {Dtype::kU8, Dtype::kBF16, Dtype::kF32, Dtype::kI64};

TEST(FingerprintTest, FollowsTheFormulaForEveryElementSize) {
  for (const Dtype dtype : kOneOfEachSize) {
    for (const uint64_t elements : {1u, 7u, 1000u, 100'003u}) {
      const TensorEntry tensor = VectorOf(dtype, elements);
      const auto bytes = RandomBytes(tensor.bytes(), elements);
      EXPECT_EQ(DigestOfValues(tensor, bytes), PlainDigest(tensor, bytes)) << Name(dtype) << " x" << elements;
    }
    const TensorEntry tensor = VectorOf(dtype, 40'000);
    const std::vector<std::byte> ones(tensor.bytes(), std::byte{0xff});  // the largest products
    EXPECT_EQ(DigestOfValues(tensor, ones), PlainDigest(tensor, ones)) << Name(dtype);
  }
}

// With the largest elements an overflow of a lane would show.
TEST(ElementSumsTest, VectorAndScalarSumsAreEqual) {
  std::mt19937_64 random(5);
  for (const uint64_t size : {1, 2, 4, 8}) {
    for (const bool largest : {false, true}) {
      for (int round = 0; round < 60; ++round) {
        std::vector<std::byte> bytes(random() % (size << (round % 19)) + 64, std::byte{0xff});
        if (!largest)
          for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
        const uint64_t skip = random() % 9, count = (bytes.size() - skip) / size, at = random();
        EXPECT_TRUE(SumOfElements(size, bytes.data() + skip, count, at) ==
                    PlainSumOfElements(size, bytes.data() + skip, count, at))
            << size << " bytes, " << count << " elements";
      }
    }
  }
}

TEST(FingerprintTest, PiecesInAnyOrderAddUp) {
  for (const Dtype dtype : kOneOfEachSize) {
    const TensorEntry tensor = VectorOf(dtype, 5000);
    const auto bytes = RandomBytes(tensor.bytes(), 3);
    const uint64_t size = SizeOf(dtype);
    TensorFingerprint pieces(tensor);
    for (const auto& [begin, end] : {std::pair(3001, 5000), std::pair(0, 17), std::pair(17, 3001)})
      pieces.Add(begin, std::span(bytes).subspan(begin * size, (end - begin) * size));
    EXPECT_EQ(pieces.Finish(tensor), DigestOfValues(tensor, bytes));
  }
}

TEST(FingerprintTest, AFlippedBitChangesIt) {
  const TensorEntry tensor = VectorOf(Dtype::kF16, 300);
  const auto bytes = RandomBytes(tensor.bytes(), 4);
  const Digest original = DigestOfValues(tensor, bytes);
  for (uint64_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    auto changed = bytes;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(DigestOfValues(tensor, changed), original);
  }
}

TEST(FingerprintTest, SwappedElementsChangeIt) {
  const TensorEntry tensor = VectorOf(Dtype::kF32, 200);
  const auto bytes = RandomBytes(tensor.bytes(), 5);
  const Digest original = DigestOfValues(tensor, bytes);
  std::mt19937 random(6);
  for (int round = 0; round < 1000; ++round) {
    const uint64_t i = random() % 200, j = random() % 200;
    if (i == j) continue;
    auto changed = bytes;
    std::swap_ranges(changed.begin() + i * 4, changed.begin() + i * 4 + 4, changed.begin() + j * 4);
    EXPECT_NE(DigestOfValues(tensor, changed), original);
  }
}

TEST(FingerprintTest, NameRoleDtypeAndShapeChangeIt) {
  const TensorEntry tensor = VectorOf(Dtype::kF32, 6);
  const auto bytes = RandomBytes(tensor.bytes(), 7);
  std::vector<TensorEntry> others(4, tensor);
  others[0].spec.name = "other.weight";
  others[1].role = Role::kExpAvg;
  others[2].dtype = Dtype::kI32;
  others[3].spec.shape = {2, 3};
  for (const TensorEntry& other : others)
    EXPECT_NE(DigestOfValues(other, bytes), DigestOfValues(tensor, bytes));
}

TEST(FingerprintTest, ZerosOfDifferentCountDiffer) {
  const std::vector<std::byte> zeros(64);
  EXPECT_NE(DigestOfValues(VectorOf(Dtype::kF32, 4), std::span(zeros).first(16)),
            DigestOfValues(VectorOf(Dtype::kF32, 5), std::span(zeros).first(20)));
}

Result<Fingerprints> FingerprintAt(const StepRecipe& recipe, uint64_t max_memory = kDefaultMaxMemory) {
  UnsyncedFileSystem fs;
  TempDir dir;
  CAIRN_RETURN_IF_ERROR(MakeStep(fs, dir.path(), recipe));
  CAIRN_ASSIGN_OR_RETURN(const auto reader, OpenCheckpoint(fs, dir.path(), [](const Status&) {}));
  return FingerprintOf(*reader, max_memory);
}

TEST(StepFingerprintTest, IsTheSameForAnyTopologyAndWindow) {
  const TinyGpt model{.layers = 3, .vocab = 41};
  const auto one = FingerprintAt(RecipeOf(model, {}));
  ASSERT_TRUE(one.ok()) << one.status().message();
  EXPECT_EQ(one->tensors.size(), 4 * SpecsOf(model).size());  // random states are left out
  for (const Topology& topology : {Topology{2, 1, 1, 0}, Topology{4, 3, 1, 1}, Topology{1, 2, 5, 1}}) {
    const auto other = FingerprintAt(RecipeOf(model, topology), 4096);
    ASSERT_TRUE(other.ok()) << other.status().message();
    EXPECT_EQ(*other, *one) << ToString(topology);
  }
}

TEST(StepFingerprintTest, OtherValuesChangeIt) {
  StepRecipe recipe = RecipeOf({}, {});
  const auto one = FingerprintAt(recipe);
  recipe.seed = 2;
  const auto other = FingerprintAt(recipe);
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_NE(one->overall, other->overall);
}

}  // namespace
}  // namespace cairn
