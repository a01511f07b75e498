#include "convert/transfer/transfer.h"

#include <gtest/gtest.h>

#include <random>

#include "convert/stream/tensor_stream.h"
#include "convert/verbs/export.h"
#include "convert/verbs/reshape.h"
#include "convert/verbs/strip.h"
#include "tests/support/made_source.h"
#include "tests/support/make_step.h"
#include "tests/support/open_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

// Small units, so that several are finished after the stream.
constexpr uint64_t kUnitBytes = 1 << 12;

const StepInfo kInfo{.identity = {"0123456789abcdef0123456789abcdef", 7}, .topology = {.tp = 2, .dp = 2}};

std::vector<TensorEntry> SomeTensors() {
  return {{{.name = "a", .shape = {32, 24}, .cuts = {{.dim = 0}}}, Role::kWeight, Dtype::kF32},
          {{.name = "b", .shape = {40, 16}, .cuts = {{.dim = 1}}}, Role::kWeight, Dtype::kF32},
          {{.name = "c", .shape = {}}, Role::kWeight, Dtype::kF32},
          {{.name = "d", .shape = {0, 4}}, Role::kWeight, Dtype::kF32}};
}

// Element i of a tensor is i, so that bf16 rounds some.
void Count(const TensorEntry&, uint64_t begin, std::span<std::byte> out) {
  for (size_t i = 0; i < out.size() / 4; ++i) {
    const auto value = static_cast<float>(begin + i);
    std::memcpy(&out[i * 4], &value, 4);
  }
}

StepTarget TargetOf(const std::vector<WrittenTensor>& tensors) {
  std::vector<TensorEntry> entries;
  for (const WrittenTensor& tensor : tensors) entries.push_back(tensor.entry);
  return {.info = kInfo,
          .tensors = tensors,
          .plan = StepPlan::Make(entries, kInfo.model, kInfo.topology).value(),
          .unit_bytes = kUnitBytes};
}

std::vector<std::byte> ValuesIn(StepReader& step, const std::string& name) {
  const uint32_t tensor = step.catalog().Find(name, Role::kWeight).value();
  const TensorEntry& entry = step.catalog().tensors[tensor];
  std::vector<std::byte> bytes(entry.bytes());
  EXPECT_TRUE(step.ReadBox(tensor, Box::Whole(entry.spec.shape), bytes).ok());
  return bytes;
}

TEST(TransferTest, OneTensorCanFillSeveralOfTheSameUnit) {
  const TempDir dir;
  MadeSource source(kInfo, SomeTensors(), Count);
  std::vector<WrittenTensor> tensors;
  for (uint32_t i = 0; i < 4; ++i) {
    TensorEntry rounded = SomeTensors()[i], twin = SomeTensors()[i];
    rounded.dtype = Dtype::kBF16;
    twin.spec.name += ".twin";
    tensors.push_back({i, rounded});
    tensors.push_back({i, twin});
  }
  Transfer transfer(source, TargetOf(tensors));
  transfer.reported = tensors.size();
  const auto result = transfer.Run(Fs(), dir / "run");
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->tensors.size(), 8u);
  EXPECT_EQ(result->fingerprints.tensors.size(), 4u);  // of the source
  const auto step = Open(dir / "run");
  for (const TensorEntry& tensor : SomeTensors()) {
    std::vector<std::byte> expected(tensor.bytes()), rounded(tensor.bytes() / 2);
    Count(tensor, 0, expected);
    EXPECT_EQ(ValuesIn(*step, tensor.spec.name + ".twin"), expected);
    Cast(Dtype::kF32, expected, Dtype::kBF16, rounded, OnOverflow::kInfinity);
    EXPECT_EQ(ValuesIn(*step, tensor.spec.name), rounded);
  }
}

// The index's views are laid out from the plan before the step is written, and are not made again.
TEST(TransferTest, ThePlanMatchesTheWrittenStep) {
  const TempDir dir;
  ASSERT_TRUE(MakeStep(Fs(), dir / "source", RecipeOf({.layers = 2}, {.tp = 2})).ok());
  const auto source = Open(dir / "source");
  MadeSource odd(kInfo, SomeTensors(), Count);
  std::vector<WrittenTensor> tensors;
  for (uint32_t i = 0; i < 4; ++i) tensors.push_back({i, SomeTensors()[i]});
  std::vector<Transfer> transfers;
  transfers.push_back(PlanReshape(*source, {.target = {.pp = 2, .dp = 3, .zero = 1}, .writer = {}}).value());
  transfers.push_back(Transfer(odd, TargetOf(tensors)));
  int number = 0;
  for (Transfer& transfer : transfers) {
    const std::string run = dir / fmt::format("run{}", number++);
    ASSERT_TRUE(transfer.Run(Fs(), run).ok());
    const auto step = Open(run);
    Catalog written;
    written.tensors = step->catalog().tensors;
    written.files = step->catalog().files;
    for (const Piece& piece : step->catalog().pieces) written.pieces.push_back(piece);
    H5Views views;
    ASSERT_TRUE(views.Of(std::get<StepTarget>(transfer.target).plan.Layout(), {}).ok());
    ASSERT_TRUE(views.Of(written, {}).ok());
    EXPECT_EQ(views.made(), 1) << number;
  }
}

// Progress ends at the bytes that the cost predicted, for every kind of target.
TEST(TransferTest, ProgressEndsAtTheCost) {
  const TempDir dir;
  ASSERT_TRUE(MakeStep(Fs(), dir / "run", RecipeOf({.layers = 2}, {.tp = 2, .pp = 2})).ok());
  const auto source = Open(dir / "run");
  std::vector<Transfer> transfers;
  transfers.push_back(PlanReshape(*source, {.target = {.dp = 2}, .writer = {}}).value());
  transfers.push_back(PlanReshape(*source, {.target = {.tp = 2}, .writer = {}, .read_back = false}).value());
  transfers.push_back(PlanStrip(*source, {.format = FindSystem("native")}).value());
  transfers.push_back(PlanStrip(*source, {.format = FindSystem("safetensors")}).value());
  transfers.push_back(PlanExport(*source, *FindSystem("dcp"), {.target = {}, .writer = {}}).value());
  int number = 0;
  for (Transfer& transfer : transfers) {
    uint64_t done = 0;
    transfer.progress = [&](uint64_t bytes) {
      EXPECT_GE(bytes, done);
      done = bytes;
    };
    const auto cost = transfer.Cost();
    ASSERT_TRUE(cost.ok()) << cost.status().message();
    const auto result = transfer.Run(Fs(), dir / fmt::format("out{}", number++));
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_GT(done, 0u);
    EXPECT_EQ(done, cost->moved_bytes) << number;
  }
}

TEST(TransferTest, ADryRunReportsTheCountsAndWritesNothing) {
  const TempDir dir;
  MadeSource source(kInfo, SomeTensors(),
                    [](const TensorEntry& tensor, uint64_t begin, std::span<std::byte> out) {
                      Count(tensor, begin + 65000, out);  // fp16 ends at 65504
                    });
  std::vector<WrittenTensor> tensors;
  for (uint32_t i = 0; i < 4; ++i) {
    tensors.push_back({i, SomeTensors()[i]});
    tensors.back().entry.dtype = Dtype::kF16;
  }
  Transfer transfer(source, TargetOf(tensors));
  transfer.reported = tensors.size();
  const auto tried = transfer.CountOnly();
  const auto run = transfer.Run(Fs(), dir / "run");
  ASSERT_TRUE(tried.ok() && run.ok());
  EXPECT_TRUE(tried->overflowed && run->overflowed);
  for (size_t i = 0; i < tensors.size(); ++i)
    EXPECT_EQ(tried->tensors[i].counts.overflowed, run->tensors[i].counts.overflowed);
  EXPECT_GT(tried->tensors[0].counts.overflowed, 0u);
  EXPECT_FALSE(Fs().Stat(dir / "run").ok());
}

}  // namespace
}  // namespace cairn
