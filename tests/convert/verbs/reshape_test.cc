#include "convert/verbs/reshape.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "ckpt/families/expand.h"
#include "ckpt/families/families.h"
#include "ckpt/step/verify.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/long_form.h"
#include "tests/support/make_step.h"
#include "tests/support/open_step.h"
#include "tests/support/overtaking_file_system.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_dir.h"
#include "tests/support/transfers.h"

namespace cairn {
namespace {

Result<TransferResult> ReshapeDir(const std::string& source, const std::string& target,
                                  const Topology& topology, uint64_t max_memory = kDefaultMaxMemory) {
  return Reshape(Fs(), *Open(source), target, {.target = topology, .writer = {.max_memory = max_memory}});
}

using Files = std::map<std::string, std::string>;
Files FilesOf(const std::string& run_dir) {
  Files files;
  const std::string step = JoinPath(run_dir, "step-00000100");
  const std::vector<std::string> names = *Fs().List(step);
  for (const std::string& name : names) {
    std::ifstream in(JoinPath(step, name), std::ios::binary);
    files[name] = std::string(std::istreambuf_iterator<char>(in), {});
  }
  return files;
}

// Names of the files that differ, for a readable failure.
std::vector<std::string> Differences(const Files& a, const Files& b) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : a)
    if (!b.contains(name) || b.at(name) != bytes) names.push_back(name);
  for (const auto& [name, bytes] : b)
    if (!a.contains(name)) names.push_back(name);
  return names;
}

struct RandomModel {
  nlohmann::json model;  // the manifest's
  std::vector<ParameterSpec> specs;
  int layers;
  uint64_t key_value_heads;  // divides everything that tensor parallelism cuts
  uint64_t vocab_multiple;
};

void SetVocabMultiple(std::vector<ParameterSpec>& specs, uint64_t multiple) {
  for (ParameterSpec& spec : specs)
    for (Cut& cut : spec.cuts)
      if (cut.pad > 0) cut.pad = multiple;
}

// Awkward sizes, and every switch of the family's table somewhere.
RandomModel MakeRandomModel(const Family& architecture, std::mt19937& random) {
  const auto upto = [&](uint64_t n) { return 1 + random() % n; };
  const uint64_t groups = std::array<uint64_t, 5>{1, 2, 4, 6, 12}[random() % 5], heads = groups * upto(2);
  const uint64_t unrotated = upto(3), rotated = upto(3);  // elements of a head of latent attention
  const bool latent =
      std::ranges::find(architecture.fields, "qk_rope_head_dim", &Field::name) != architecture.fields.end();
  const std::map<std::string, uint64_t> sizes = {{"qk_nope_head_dim", unrotated},
                                                 {"qk_rope_head_dim", rotated},
                                                 {"v_head_dim", upto(4)},
                                                 {"q_lora_rank", upto(6)},
                                                 {"kv_lora_rank", upto(6)},
                                                 {"num_experts", upto(4)},
                                                 {"moe_ffn_hidden_size", heads * upto(3)},
                                                 {"shared_expert_ffn_hidden_size", heads * upto(3)},
                                                 {"num_layers", upto(5)},
                                                 {"hidden_size", heads * upto(4)},
                                                 {"num_attention_heads", heads},
                                                 {"num_key_value_heads", groups},
                                                 {"head_dim", upto(5)},
                                                 {"ffn_hidden_size", heads * upto(4)},
                                                 {"vocab_size", 4 + upto(60)},
                                                 {"max_position_embeddings", upto(20)}};
  nlohmann::json model = architecture.model;
  model["architecture"] = architecture.name;
  for (const Field& field : architecture.fields) {
    if (sizes.contains(field.name))
      model[field.name] = sizes.at(field.name);
    else if (field.fallback.is_boolean())
      model[field.name] = random() % 2 == 0;
    else if (!field.fallback.is_null())
      model[field.name] = field.fallback;
  }
  if (latent) model["head_dim"] = unrotated + rotated;
  const uint64_t multiple = std::array<uint64_t, 3>{1, 4, 16}[random() % 3];
  Result<ExpandedModel> expanded = Expand(architecture, model);
  EXPECT_TRUE(expanded.ok()) << expanded.status().message();
  SetVocabMultiple(expanded->parameters, multiple);
  const uint64_t key_value_heads = model.value("num_key_value_heads", heads);
  return {std::move(model), std::move(expanded->parameters), static_cast<int>(sizes.at("num_layers")),
          key_value_heads, multiple};
}

Topology RandomTopology(std::mt19937& random, const RandomModel& model) {
  std::vector<int> divisors;
  for (int tp = 1; tp <= 4; ++tp)
    if (model.key_value_heads % tp == 0) divisors.push_back(tp);
  Topology topology{.tp = divisors[random() % divisors.size()],
                    .pp = 1 + static_cast<int>(random() % model.layers),
                    .dp = 1 + static_cast<int>(random() % 3),
                    .zero = static_cast<int>(random() % 4)};
  if (random() % 3 == 0)
    topology.virtual_stages = 1 + static_cast<int>(random() % (model.layers / topology.pp));
  if (random() % 3 == 0) {
    topology.layers_per_stage.resize(topology.pp * topology.virtual_stages);
    for (int i = 0; i < model.layers; ++i)
      ++topology.layers_per_stage[random() % topology.layers_per_stage.size()];
  }
  return topology;
}

// For each family.
int Rounds() { return IsLongForm() ? 1000 : kSanitized ? 5 : 8; }

class ReshapeTest : public testing::TestWithParam<Family> {};

// There and back, as a trainer and a user may choose it.
struct RandomReshape {
  RandomModel model;
  Topology from, to;
  StepRecipe recipe;               // of a step on `from`
  uint64_t window;                 // bytes of memory
  uint64_t vocab_multiple;         // on `to`
  uint64_t unit_there, unit_back;  // bytes of a unit
};

RandomReshape MakeRandomReshape(const Family& architecture, std::mt19937& random) {
  RandomReshape drawn;
  drawn.model = MakeRandomModel(architecture, random);
  drawn.from = RandomTopology(random, drawn.model);
  drawn.to = RandomTopology(random, drawn.model);
  drawn.recipe = {.specs = drawn.model.specs, .topology = drawn.from, .model = drawn.model.model};
  drawn.recipe.weights = std::array{Dtype::kBF16, Dtype::kF16, Dtype::kF32}[random() % 3];
  drawn.recipe.optimizer = random() % 4 != 0;
  drawn.window = random() % 2 == 0 ? kDefaultMaxMemory : 256 << (random() % 12);
  drawn.vocab_multiple = random() % 2 == 0 ? drawn.model.vocab_multiple : 1 + random() % 9;
  drawn.unit_there = 1 + random() % 65536;
  drawn.unit_back = 1 + random() % 65536;
  return drawn;
}

std::string ToString(const RandomReshape& drawn) {
  return fmt::format(
      "A step with {} weights {} an optimizer, on {}, its vocabulary padded to multiples of {}, is reshaped "
      "to {} with multiples of {}, in {} bytes of memory and units of {} bytes; then back, in units of {}. "
      "The model: {}",
      Name(drawn.recipe.weights), drawn.recipe.optimizer ? "and" : "without", ToString(drawn.from),
      drawn.model.vocab_multiple, ToString(drawn.to), drawn.vocab_multiple, drawn.window, drawn.unit_there,
      drawn.unit_back, drawn.model.model.dump());
}

// The step there is the one that a trainer would have written, and the step back has the bytes of the first.
void ExpectRoundTrip(RandomReshape drawn, TempDir::Place place) {
  StepRecipe& recipe = drawn.recipe;
  const auto reshape = [&](const std::string& from, const std::string& to, const Topology& topology,
                           uint64_t vocab_multiple, uint64_t unit) {
    return Reshape(Fs(), *Open(from), to,
                   {.target = topology,
                    .writer = {.max_memory = drawn.window},
                    .vocab_multiple = vocab_multiple,
                    .unit_bytes = unit});
  };

  TempDir dir(place);
  ASSERT_TRUE(MakeStep(Fs(), dir / "a", recipe).ok());
  const auto there = reshape(dir / "a", dir / "b", drawn.to, drawn.vocab_multiple, drawn.unit_there);
  ASSERT_TRUE(there.ok()) << there.status().message();
  const auto back = reshape(dir / "b", dir / "back", drawn.from, drawn.model.vocab_multiple, drawn.unit_back);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(there->fingerprints, back->fingerprints);
  EXPECT_EQ(Differences(FilesOf(dir / "a"), FilesOf(dir / "back")), std::vector<std::string>{});

  recipe.topology = drawn.to;
  recipe.rng_topology = drawn.from;
  SetVocabMultiple(recipe.specs, drawn.vocab_multiple);
  ASSERT_TRUE(MakeStep(Fs(), dir / "direct", recipe).ok());
  EXPECT_EQ(Differences(FilesOf(dir / "direct"), FilesOf(dir / "b")), std::vector<std::string>{});
}

TempDir::Place PlaceOf(int round) {
  return round % 10 == 0 ? TempDir::Place::kDisk : TempDir::Place::kMemory;
}

TEST_P(ReshapeTest, RoundTripIsIdenticalAndEqualsTheTrainersStep) {
  for (int round = 0; round < Rounds(); ++round) {
    std::mt19937 random(round);
    const RandomReshape drawn = MakeRandomReshape(GetParam(), random);
    SCOPED_TRACE(fmt::format("round {}: {}", round, ToString(drawn)));
    ExpectRoundTrip(drawn, PlaceOf(round));
  }
}

// Sizes of experts that divide the ranks of a stage, or make it larger.
Topology WithExperts(Topology topology, std::mt19937& random) {
  topology.ep = std::array{1, 2, 3, 6}[random() % 4];
  topology.etp = static_cast<int>(random() % 4);
  const int replica = topology.ep * topology.size(Axis::kEtp);
  topology.dp = replica / std::gcd(replica, topology.tp) * static_cast<int>(1 + random() % 2);
  return topology;
}

TEST(ReshapeMixtureTest, RoundTripIsIdenticalAndEqualsTheTrainersStep) {
  for (int round = 0; round < Rounds(); ++round) {
    std::mt19937 random(round);
    const auto times6 = [&] { return 6 * (1 + random() % 2); };
    RandomReshape drawn = MakeRandomReshape(*FindFamily("gpt2"), random);
    const TinyGpt sizes{.layers = 1 + static_cast<int>(random() % 3),
                        .hidden = times6(),
                        .heads = 6,
                        .ffn = times6(),
                        .vocab = 4 + random() % 60,
                        .tied = random() % 2 == 0,
                        .pad_multiple = drawn.model.vocab_multiple,
                        .experts = times6(),
                        .expert_ffn = times6()};
    drawn.model = {ModelJson(sizes), SpecsOf(sizes), sizes.layers, 6, drawn.model.vocab_multiple};
    drawn.from = WithExperts(RandomTopology(random, drawn.model), random);
    drawn.to = WithExperts(RandomTopology(random, drawn.model), random);
    drawn.recipe.specs = drawn.model.specs;
    drawn.recipe.topology = drawn.from;
    drawn.recipe.model = drawn.model.model;
    SCOPED_TRACE(fmt::format("round {}: {}", round, ToString(drawn)));
    ExpectRoundTrip(drawn, PlaceOf(round));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ReshapeTest, testing::ValuesIn(KnownFamilies()),
                         [](const auto& info) { return info.param.name; });

class ReshapeErrorTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeStep(Fs(), dir_ / "a", RecipeOf({.layers = 3, .heads = 4}, {.tp = 2, .dp = 2})).ok());
  }
  // Names in the temporary directory: leftovers of a failure.
  std::vector<std::string> Left() { return *Fs().List(dir_.path()); }
  TempDir dir_;
  const std::vector<std::string> only_source_ = {"a"};
};

TEST_F(ReshapeErrorTest, NamesATpThatDoesNotDivideTheHeads) {
  const auto result = ReshapeDir(dir_ / "a", dir_ / "b", {.tp = 3});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().kind(), StatusKind::kInvalidArgument);
  EXPECT_NE(result.status().message().find("TP=3 does not divide the model's 4 attention heads"),
            std::string::npos);
  EXPECT_EQ(Left(), only_source_);
}

TEST_F(ReshapeErrorTest, RefusesMoreStagesThanLayers) {
  const auto result = ReshapeDir(dir_ / "a", dir_ / "b", {.pp = 4});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().kind(), StatusKind::kInvalidArgument);
  EXPECT_NE(result.status().message().find("PP=4 is more than the model's 3 layers"), std::string::npos);
  EXPECT_EQ(Left(), only_source_);
}

TEST_F(ReshapeErrorTest, AnExistingStepIsNeverOverwritten) {
  const auto result = ReshapeDir(dir_ / "a", dir_ / "a", {.tp = 1});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().kind(), StatusKind::kAlreadyExists);
  EXPECT_EQ(Open(dir_ / "a")->manifest().topology.tp, 2);
}

TEST_F(ReshapeErrorTest, ADamagedSourceLeavesNothing) {
  const auto source = Open(dir_ / "a");
  const Piece piece = source->catalog().pieces.back();
  const std::string path = JoinPath(dir_ / "a/step-00000100", source->catalog().files[piece.file]);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(piece.file_offset));
  const char byte = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(piece.file_offset));
  file.put(static_cast<char>(byte ^ 8));
  file.close();
  const auto result = ReshapeDir(dir_ / "a", dir_ / "new/deep/b", {.tp = 1, .pp = 3});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().kind(), StatusKind::kCorrupt);
  EXPECT_NE(result.status().message().find(path), std::string::npos);
  EXPECT_EQ(Left(), only_source_);
}

TEST_F(ReshapeErrorTest, RefusesADirectoryThatATrainingWritesInto) {
  ASSERT_TRUE(Fs().MakeDir(dir_ / "b").ok());
  const auto lock = RunLock::Take(FileSystem::Posix(), dir_ / "b");
  ASSERT_TRUE(lock.ok());
  const auto result = ReshapeDir(dir_ / "a", dir_ / "b", {.tp = 1});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().kind(), StatusKind::kAlreadyExists);
  EXPECT_TRUE(ListSteps(Fs(), dir_ / "b")->empty());
}

class NearlyFullFileSystem final : public UnsyncedFileSystem {
 public:
  Result<uint64_t> FreeBytes(const std::string&) override { return 12345; }
};

TEST_F(ReshapeErrorTest, ReportsTooLittleSpaceBeforeWriting) {
  NearlyFullFileSystem full;
  const auto result = Reshape(full, *Open(dir_ / "a"), dir_ / "b", {.target = {}, .writer = {}});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().kind(), StatusKind::kNoSpace);
  EXPECT_NE(result.status().message().find("12345 are free"), std::string::npos) << result.status().message();
  EXPECT_EQ(Left(), only_source_);
}

// Whatever fails, and when: no step, or the whole step.
TEST_F(ReshapeErrorTest, AFailureAtAnyOperationLeavesNoPartialStep) {
  const Topology target{.tp = 1, .pp = 2, .dp = 1};
  FaultyFileSystem faulty(Fs());
  const auto attempt = [&](int64_t budget) {
    const std::string run = dir_ / fmt::format("b{}", budget);
    faulty.SetBudget(budget);
    const bool ok = Reshape(faulty, *Open(dir_ / "a"), run, {.target = target, .writer = {}}).ok();
    const auto steps = ListSteps(Fs(), run);
    EXPECT_TRUE(steps.ok());
    EXPECT_LE(ok, !steps->empty());
    if (steps->empty()) return;
    EXPECT_TRUE(VerifyHash(Fs(), *Open(run)).problems.empty()) << "after " << budget;
  };
  attempt(-1);
  const int64_t operations = faulty.operations();
  ASSERT_GT(operations, 100);
  for (int64_t budget = 0; budget < operations; budget += 1 + operations / 60)
    attempt(faulty.operations() + budget);
}

TEST(ReshapeResultTest, TheResultVerifiesAndIsTheNewestStep) {
  TempDir dir;
  ASSERT_TRUE(MakeStep(Fs(), dir / "a", RecipeOf({.layers = 3}, {.tp = 2, .dp = 2})).ok());
  const auto result = ReshapeDir(dir / "a", dir / "b", {.tp = 1, .pp = 3, .dp = 1, .zero = 1});
  ASSERT_TRUE(result.ok()) << result.status().message();
  const auto reader = Open(dir / "b");
  EXPECT_EQ(reader->manifest().topology, (Topology{1, 3, 1, 1}));
  EXPECT_TRUE(VerifyHash(Fs(), *reader).problems.empty());
  EXPECT_TRUE(VerifyStructure(*reader).problems.empty());
  EXPECT_EQ(result->files, 3u + 2u);
}

TEST(ReshapeResultTest, TheEstimateIsACloseUpperBound) {
  TempDir dir;
  ASSERT_TRUE(
      MakeStep(Fs(), dir / "a", RecipeOf({.layers = 4, .hidden = 64, .ffn = 256}, {.tp = 2, .dp = 2})).ok());
  const ReshapeOptions options{.target = {.tp = 1, .pp = 2, .dp = 4}, .writer = {}};
  const auto source = Open(dir / "a");
  const auto cost = PlanReshape(*source, options)->Cost();
  ASSERT_TRUE(cost.ok());
  const auto result = Reshape(Fs(), *source, dir / "b", options);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(cost->files, result->files);
  EXPECT_GE(cost->file_bytes, result->bytes_written);
  EXPECT_LE(cost->file_bytes, result->bytes_written * 11 / 10);
}

TEST(ReshapeResultTest, EachSourceByteIsReadOnce) {
  TempDir dir;
  ASSERT_TRUE(MakeStep(Fs(), dir / "a", RecipeOf({.hidden = 64, .ffn = 256}, {.tp = 4, .dp = 2})).ok());
  const auto result = ReshapeDir(dir / "a", dir / "b", {.tp = 2, .pp = 2}, 1 << 20);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->bytes_read, Open(dir / "a")->catalog().bytes());
}

class ReshapeResumeTest : public testing::Test {
 protected:
  void SetUp() override {
    const StepRecipe recipe = RecipeOf({.layers = 4, .hidden = 32, .ffn = 128}, {.tp = 2, .dp = 2});
    ASSERT_TRUE(MakeStep(Fs(), dir_ / "a", recipe).ok());
    ASSERT_TRUE(Attempt(Fs(), "whole").ok());
    expected_ = FilesOf(dir_ / "whole");
  }
  Result<TransferResult> Attempt(FileSystem& fs, const std::string& run, bool resume = false) {
    return Reshape(fs, *Open(dir_ / "a"), dir_ / run,
                   {.target = {.tp = 4, .pp = 2}, .resume = resume, .unit_bytes = 20000});
  }
  TempDir dir_;
  Files expected_;
};

TEST_F(ReshapeResumeTest, AKilledRunResumesToIdenticalBytes) {
  FaultyFileSystem faulty(Fs());
  ASSERT_TRUE(Attempt(faulty, "count").ok());
  const int64_t operations = faulty.operations();
  uint64_t resumed = 0;
  for (int round = 0; round < 12; ++round) {
    const std::string run = fmt::format("b{}", round);
    faulty.SetBudget(faulty.operations() + operations * round / 12);
    ASSERT_FALSE(Attempt(faulty, run).ok());
    EXPECT_TRUE(ListSteps(Fs(), dir_ / run)->empty());
    const auto result = Attempt(Fs(), run, /*resume=*/true);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(Differences(expected_, FilesOf(dir_ / run)), std::vector<std::string>{});
    resumed += result->bytes_resumed;
  }
  EXPECT_GT(resumed, 0u);
}

TEST_F(ReshapeResumeTest, DamagedUnitsAreWrittenAgain) {
  FaultyFileSystem faulty(Fs());
  ASSERT_TRUE(Attempt(faulty, "count").ok());
  faulty.SetBudget(faulty.operations() + faulty.operations() * 3 / 4);
  ASSERT_FALSE(Attempt(faulty, "b").ok());
  std::string partial;
  const std::vector<std::string> names = *Fs().List(dir_ / "b");
  for (const std::string& name : names)
    if (ParseMarkedDirName(name)) partial = JoinPath(dir_ / "b", name);
  ASSERT_FALSE(partial.empty());
  const std::vector<std::string> files = *Fs().List(partial);
  for (const std::string& name : files) {
    if (!name.starts_with("shard-")) continue;
    const auto file = Fs().OpenForWrite(JoinPath(partial, name), Direct::kOff);
    ASSERT_TRUE(file.ok());
    std::vector<std::byte> zeros(Fs().Stat(JoinPath(partial, name))->bytes);
    ASSERT_TRUE((*file)->WriteAt(0, zeros).ok());
  }
  const auto result = Attempt(Fs(), "b", /*resume=*/true);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->bytes_resumed, 0u);
  EXPECT_EQ(Differences(expected_, FilesOf(dir_ / "b")), std::vector<std::string>{});
}

TEST_F(ReshapeResumeTest, WithoutResumeLeftoversAreRemoved) {
  FaultyFileSystem faulty(Fs());
  ASSERT_TRUE(Attempt(faulty, "count").ok());
  faulty.SetBudget(faulty.operations() + faulty.operations() / 2);
  ASSERT_FALSE(Attempt(faulty, "b").ok());
  const auto result = Attempt(Fs(), "b");
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->bytes_resumed, 0u);
  EXPECT_EQ(Differences(expected_, FilesOf(dir_ / "b")), std::vector<std::string>{});
  EXPECT_EQ(*Fs().List(dir_ / "b"), (std::vector<std::string>{".lock", "latest", "step-00000100"}));
}

// The reshape makes the directory; before it has the lock, another process locks it and writes a step.
TEST_F(ReshapeResumeTest, KeepsADirectoryThatAnotherProcessCreated) {
  OvertakingFileSystem fs(Fs(), dir_ / "b");
  EXPECT_FALSE(Attempt(fs, "b").ok());
  EXPECT_TRUE(Fs().Stat(dir_ / "b/theirs").ok());
}

// Each rank as its process would run it.
std::vector<Status> RunTeam(int size, const std::function<Status(const RankTeam&)>& run) {
  std::vector<Status> outcomes(size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] { outcomes[rank] = run({.rank = rank, .size = size, .launch = "test"}); });
  for (std::thread& rank : ranks) rank.join();
  return outcomes;
}

TEST_F(ReshapeResumeTest, ATeamOfRanksWritesIdenticalBytesAndReadsEachOnce) {
  TransferResult result;
  const auto outcomes = RunTeam(3, [&](const RankTeam& team) {
    const auto mine = Reshape(Fs(), *Open(dir_ / "a"), dir_ / "b",
                              {.target = {.tp = 4, .pp = 2}, .unit_bytes = 20000, .team = team});
    if (mine.ok() && team.leads()) result = *mine;
    return mine.status();
  });
  for (const Status& status : outcomes) EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(Differences(expected_, FilesOf(dir_ / "b")), std::vector<std::string>{});
  EXPECT_EQ(result.bytes_read, Open(dir_ / "a")->catalog().bytes());
}

// Accepts some data, then fails.
class FullDisk final : public UnsyncedFileSystem {
 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    if (call.kind == FsCall::Kind::kWrite && call.bytes.size() >= kPageBytes && writes_++ > 20)
      return NoSpace("{}: disk full", call.path);
    return UnsyncedFileSystem::Do(call, run);
  }

 private:
  std::atomic<int> writes_ = 0;
};

TEST_F(ReshapeResumeTest, AFailedRankFailsAllAndLeavesNothing) {
  for (int failing : {0, 2}) {
    FullDisk full;
    const auto outcomes = RunTeam(3, [&](const RankTeam& team) {
      FileSystem& fs = team.rank == failing ? static_cast<FileSystem&>(full) : Fs();
      return Reshape(fs, *Open(dir_ / "a"), dir_ / "b",
                     {.target = {.tp = 4, .pp = 2}, .unit_bytes = 20000, .team = team})
          .status();
    });
    for (const Status& status : outcomes) EXPECT_EQ(status.kind(), StatusKind::kNoSpace) << status.message();
    const auto left = Fs().List(dir_ / "b");
    EXPECT_FALSE(left.ok()) << fmt::format("{}", fmt::join(*left, ", "));
  }
}

// A rank that fails while it lays out its next stage, whose last shard it creates when rank 0 removes the
// directory, if it has left by then.
struct LastMoment {
  std::atomic<bool> creating = false, created = false, removing = false;
  static void Await(const std::atomic<bool>& moment) {
    for (int i = 0; i < 100 && !moment; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
};

class LateShard final : public UnsyncedFileSystem {
 public:
  explicit LateShard(LastMoment& moment) : moment_(moment) {}

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    if (call.kind == FsCall::Kind::kWrite && call.bytes.size() >= kPageBytes && moment_.creating)
      return NoSpace("{}: disk full", call.path);
    if (call.kind != FsCall::Kind::kCreate || !call.path.ends_with("shard-00007.h5"))
      return UnsyncedFileSystem::Do(call, run);
    moment_.creating = true;
    LastMoment::Await(moment_.removing);
    const Status created = run();
    moment_.created = true;
    return created;
  }

 private:
  LastMoment& moment_;
};

class LateRemoval final : public UnsyncedFileSystem {
 public:
  explicit LateRemoval(LastMoment& moment) : moment_(moment) {}

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    if (call.kind == FsCall::Kind::kRemoveDir && call.path.find(".partial-") != call.path.npos) {
      moment_.removing = true;
      LastMoment::Await(moment_.created);
    }
    return UnsyncedFileSystem::Do(call, run);
  }

 private:
  LastMoment& moment_;
};

TEST_F(ReshapeResumeTest, AFailedRankLeavesOnlyWhenItMakesNoMoreFiles) {
  LastMoment moment;
  LateShard failing(moment);
  LateRemoval first(moment);
  const auto outcomes = RunTeam(3, [&](const RankTeam& team) {
    FileSystem& fs = team.rank == 2 ? static_cast<FileSystem&>(failing) : team.leads() ? first : Fs();
    return Reshape(fs, *Open(dir_ / "a"), dir_ / "b",
                   {.target = {.tp = 4, .pp = 2}, .unit_bytes = 20000, .team = team})
        .status();
  });
  for (const Status& status : outcomes) EXPECT_EQ(status.kind(), StatusKind::kNoSpace) << status.message();
  const auto left = Fs().List(dir_ / "b");
  EXPECT_FALSE(left.ok()) << fmt::format("{}", fmt::join(*left, ", "));
}

}  // namespace
}  // namespace cairn
