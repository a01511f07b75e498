#include "convert/verbs/diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "convert/foreign/stored_source.h"
#include "convert/stream/value_distance.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A checkpoint of fp32 vectors, in one file.
class Vectors {
 public:
  Vectors& Add(const std::string& name, std::vector<float> values, Role role = Role::kWeight) {
    const uint32_t index = static_cast<uint32_t>(catalog_.tensors.size());
    const Dims shape{values.size()};
    catalog_.tensors.push_back({{.name = name, .shape = shape}, role, Dtype::kF32});
    catalog_.arrays.push_back({name, Dtype::kF32, shape, {{{0, values.size()}, 0, bytes_.size() * 4}}});
    catalog_.parts.push_back({{Box::Whole(shape), Box::Whole(shape)}, index, index});
    bytes_.insert(bytes_.end(), values.begin(), values.end());
    return *this;
  }
  CheckpointSource& Open() {
    catalog_.files = {"values"};
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()), bytes_.size() * 4);
    const std::string path = JoinPath(dir_.path(), "values");
    if (!source_) {
      EXPECT_TRUE(WriteSmallFile(FileSystem::Posix(), path, text).ok());
    }
    auto source = StoredSource::Make(FileSystem::Posix(), dir_.path(), {}, catalog_);
    EXPECT_TRUE(source.ok()) << source.status().message();
    source_ = std::move(*source);
    return *source_;
  }

 private:
  TempDir dir_;
  StoredCatalog catalog_;
  std::vector<float> bytes_;
  std::unique_ptr<StoredSource> source_;
};

TEST(Diff, EqualSourcesHaveNoDifference) {
  Vectors a, b;
  a.Add("x", {1, 2, NAN}).Add("y", {}).Add("x", {7}, Role::kMaster);
  b.Add("x", {7}, Role::kMaster).Add("y", {}).Add("x", {1, 2, NAN});
  const auto result = Diff(a.Open(), b.Open(), {});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_TRUE(result->tensors.empty());
  EXPECT_TRUE(result->within_tolerance);
  EXPECT_EQ(result->compared, 3);
  EXPECT_EQ(result->equal, 3);
}

TEST(Diff, ComparesUnderGivenNamesAndOtherValuesByName) {
  Vectors a, b;
  a.Add("x", {1}).Add("x", {1}, Role::kMaster).Add("json", {1, 2}, Role::kJson);
  b.Add("x", {2}).Add("x", {2}, Role::kMaster).Add("json", {1}, Role::kJson);
  const std::map<std::string, std::string> of_a = {
      {"here", "1"}, {"lr", "0.1"}, {"same", "[]"}, {"step", "4"}};
  const std::map<std::string, std::string> of_b = {
      {"lr", std::string(99, '7')}, {"same", "[]"}, {"step", "5"}};
  DiffOptions options;
  options.name_a = [](const TensorEntry& tensor) { return "model." + DisplayName(tensor); };
  options.ignore = {"model.x/master", "step"};
  options.others_a = &of_a, options.others_b = &of_b;
  const auto result = Diff(a.Open(), b.Open(), options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  std::vector<std::string> told;
  for (const TensorDiff& diff : result->tensors)
    told.push_back(fmt::format("{}: {}: {}: {}", diff.name, Name(diff.kind), diff.a, diff.b));
  EXPECT_THAT(told, ElementsAre("here: only in A: 1: ", "lr: value: 0.1: " + std::string(57, '7') + "...",
                                "model.x: values: : "));
  EXPECT_EQ(result->compared, 1);
  EXPECT_FALSE(result->within_tolerance);

  options.others_b = nullptr;  // only one of them has any: then its tensors are listed
  options.ignore = {"model.x*", "x"};
  const auto apart = Diff(a.Open(), b.Open(), options);
  ASSERT_TRUE(apart.ok()) << apart.status().message();
  ASSERT_EQ(apart->tensors.size(), 1);
  EXPECT_EQ(apart->tensors[0].a, "json of 8 bytes");
}

TEST(Diff, ListsStructureFirstThenTheWorstValues) {
  Vectors a, b;
  a.Add("slightly", {1, 2, 4}).Add("much", {1, 1}).Add("here", {1}).Add("shape", {1, 2}).Add("same", {5});
  b.Add("slightly", {1, 2, std::nextafterf(4, 5)}).Add("much", {1, -1}).Add("shape", {1}).Add("same", {5});
  b.Add("there", {1});
  const auto result = Diff(a.Open(), b.Open(), {});
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result->within_tolerance);
  EXPECT_THAT(
      result->tensors,
      ElementsAre(testing::Field(&TensorDiff::name, "here"), testing::Field(&TensorDiff::name, "there"),
                  testing::Field(&TensorDiff::name, "shape"), testing::Field(&TensorDiff::name, "much"),
                  testing::Field(&TensorDiff::name, "slightly")));
  const TensorDiff &much = result->tensors[3], &slightly = result->tensors[4];
  EXPECT_EQ(much.max_absolute, 2);
  EXPECT_EQ(much.max_relative, 2);
  EXPECT_EQ(much.cosine, 0);
  EXPECT_DOUBLE_EQ(much.relative_norm, std::sqrt(2.0));
  EXPECT_EQ(much.first, 1);
  EXPECT_EQ(slightly.max_ulp, 1);
  EXPECT_EQ(slightly.differing, 1);
  EXPECT_EQ(slightly.first, 2);
}

TEST(Diff, TheLastMatchingToleranceCounts) {
  Vectors a, b;
  a.Add("layers.0.up", {10, 100}).Add("layers.0.up", {10, 100}, Role::kMaster);
  b.Add("layers.0.up", {11, 100}).Add("layers.0.up", {11, 100}, Role::kMaster);
  DiffOptions options{.tolerances = {{"*", 2, 0}, {"*/master", 0, 0.05}}};
  const auto result = Diff(a.Open(), b.Open(), options);
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result->within_tolerance);
  for (const TensorDiff& diff : result->tensors)
    EXPECT_EQ(diff.beyond, diff.name == "layers.0.up/master" ? 1 : 0) << diff.name;
  options.tolerances[1].relative = 0.1;
  EXPECT_TRUE(Diff(a.Open(), b.Open(), options)->within_tolerance);
}

TEST(Diff, LeavesOutIgnoredTensors) {
  Vectors a, b;
  a.Add("w", {1}).Add("w", {1}, Role::kExpAvg).Add("extra", {1});
  b.Add("w", {1}).Add("w", {2}, Role::kExpAvg);
  EXPECT_FALSE(Diff(a.Open(), b.Open(), {})->within_tolerance);
  EXPECT_TRUE(Diff(a.Open(), b.Open(), {.ignore = {"extra"}, .ignore_optimizer = true})->tensors.empty());
  EXPECT_THAT(Diff(a.Open(), b.Open(), {.ignore = {"extr"}}).status().message(), HasSubstr("--ignore extr"));
  EXPECT_THAT(Diff(a.Open(), b.Open(), {.tolerances = {{"v", 1, 0}}}).status().message(),
              HasSubstr("--tolerance v"));
}

std::span<const std::byte> DiffBytes(const auto& values) { return std::as_bytes(std::span(values)); }

TEST(ValueDistance, ComparesNumbersAcrossTypes) {
  const std::vector<float> a = {1, -2, NAN, INFINITY, 0.1f};
  const std::vector<uint16_t> b = {0x3F80, 0xC000, 0x7FC0, 0x7F80, 0x3DCD};  // bf16
  ValueDistance distance(Dtype::kF32, Dtype::kBF16, 0, 0);
  distance.Add(100, DiffBytes(a), DiffBytes(b));
  EXPECT_EQ(distance.differing, 1);
  EXPECT_EQ(distance.first, 104);
  EXPECT_EQ(distance.max_ulp, 0);
  EXPECT_LT(distance.max_absolute, 0.001);
}

TEST(ValueDistance, NonFiniteValuesAreInfinitelyFar) {
  const std::vector<float> a = {1, NAN}, b = {1, 2};
  ValueDistance distance(Dtype::kF32, Dtype::kF32, 1e30, 1e30);
  distance.Add(0, DiffBytes(a), DiffBytes(b));
  EXPECT_TRUE(std::isinf(distance.max_absolute));
  EXPECT_TRUE(std::isinf(distance.relative_norm()));
  EXPECT_EQ(distance.beyond, 1);
}

TEST(ValueDistance, NothingIsWithinAToleranceOfInfinity) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& [a, b] : {std::pair{1.0f, inf}, {inf, 1.0f}, {-inf, inf}, {1.0f, NAN}}) {
    ValueDistance distance(Dtype::kF32, Dtype::kF32, 0, 1e-6);
    distance.Add(0, std::as_bytes(std::span(&a, 1)), std::as_bytes(std::span(&b, 1)));
    EXPECT_EQ(distance.beyond, 1) << a << " and " << b;
  }
}

TEST(ValueDistance, IntegersAreComparedExactly) {
  const int64_t large = int64_t{1} << 62;
  const std::vector<int64_t> a = {large, large, INT64_MIN}, b = {large + 300, large + 1, INT64_MAX};
  ValueDistance distance(Dtype::kI64, Dtype::kI64, 1, 0);
  distance.Add(0, DiffBytes(a), DiffBytes(b));
  EXPECT_EQ(distance.differing, 3);
  EXPECT_EQ(distance.beyond, 2) << "300 and all, but not 1";
  EXPECT_EQ(distance.first_beyond, 0);
  ValueDistance small(Dtype::kI64, Dtype::kI64, 0, 0);
  small.Add(0, DiffBytes(a).first(8), DiffBytes(b).first(8));
  EXPECT_EQ(small.max_absolute, 300);
  const std::vector<double> real = {0x1p62};
  ValueDistance across(Dtype::kI64, Dtype::kF64, 0, 0);
  across.Add(0, DiffBytes(b).first(8), DiffBytes(real));
  EXPECT_EQ(across.differing, 1);
}

TEST(ValueDistance, NanPayloadsAreNotADistance) {
  const std::vector<uint32_t> a = {0x7fc00000, 0x3f800000}, b = {0xffc00001, 0x3f800000};
  ValueDistance exact(Dtype::kF32, Dtype::kF32, 0, 0);
  exact.Add(0, DiffBytes(a), DiffBytes(b));
  EXPECT_EQ(exact.differing, 1);
  EXPECT_EQ(exact.nan_payloads, 1);
  EXPECT_EQ(exact.beyond, 1);
  EXPECT_EQ(exact.max_absolute, 0);
  EXPECT_EQ(exact.max_ulp, 0);
  ValueDistance tolerant(Dtype::kF32, Dtype::kF32, 1e-6, 0);
  tolerant.Add(0, DiffBytes(a), DiffBytes(b));
  EXPECT_EQ(tolerant.beyond, 0);
}

TEST(Diff, TensorsBeyondTheToleranceComeFirst) {
  Vectors a, b;
  a.Add("far_but_near_enough", {1000, 0, 0}).Add("beyond", {1, 1, 1});
  b.Add("far_but_near_enough", {1001, 0, 0}).Add("beyond", {1, 1, 1.001f});
  const auto result = Diff(a.Open(), b.Open(), {.tolerances = {{"*", 0, 1e-5}, {"far*", 10, 0}}});
  ASSERT_TRUE(result.ok());
  EXPECT_GT(result->tensors[1].relative_norm, result->tensors[0].relative_norm);
  EXPECT_THAT(result->tensors, ElementsAre(testing::Field(&TensorDiff::name, "beyond"),
                                           testing::Field(&TensorDiff::name, "far_but_near_enough")));
}

TEST(ValueDistance, CountsUlpsAcrossZero) {
  const std::vector<float> a = {-std::numeric_limits<float>::denorm_min()},
                           b = {std::numeric_limits<float>::denorm_min()}, zero = {0.0f}, minus = {-0.0f};
  ValueDistance distance(Dtype::kF32, Dtype::kF32, 0, 0);
  distance.Add(0, DiffBytes(a), DiffBytes(b));
  EXPECT_EQ(distance.max_ulp, 2);
  ValueDistance signs(Dtype::kF32, Dtype::kF32, 0, 0);
  signs.Add(0, DiffBytes(zero), DiffBytes(minus));
  EXPECT_EQ(signs.differing, 1);  // the bits are not the same
  EXPECT_EQ(signs.max_ulp, 0);
}

}  // namespace
}  // namespace cairn
