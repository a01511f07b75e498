// For every format that is read: a missing entry is an error, and so is an additional one, unless it is
// reported. A checkpoint of each is written, and its entries are removed, or another is added, one at a time.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "convert/foreign/account.h"
#include "convert/formats/deepspeed/zero_shards.h"
#include "convert/formats/systems.h"
#include "convert/stream/fingerprint.h"
#include "tests/support/edited_torch.h"
#include "tests/support/make_step.h"
#include "tests/support/open_step.h"
#include "tests/support/temp_dir.h"
#include "tests/support/transfers.h"

namespace cairn {
namespace {

using testing::HasSubstr;

// The result of reading a directory.
struct Reading {
  std::string error;
  std::string tensors;  // their names, and the fingerprint of all
  nlohmann::json state, account, history;

  std::string all() const { return tensors + state.dump() + account.dump() + history.dump(); }
  // Without the account's lines that are not tensors.
  std::string kept() const {
    nlohmann::json roles = account["parts"];
    for (const Fate fate : {Fate::kTrainingState, Fate::kReplica}) roles.erase(std::string(Name(fate)));
    return tensors + state.dump() + roles.dump() + history.dump();
  }
};

Reading ReadingOf(const std::string& path, const std::vector<std::string>& allow = {}) {
  Reading reading;
  OpenOptions options;
  options.allow = allow;
  const auto source = OpenForeign(Fs(), path, options);
  if (!source.ok()) {
    reading.error = source.status().message();
    return reading;
  }
  std::set<std::string> names;
  for (const TensorEntry& tensor : (*source)->catalog().tensors) names.insert(DisplayName(tensor));
  reading.tensors = fmt::format("{} ", fmt::join(names, " "));
  const auto sums = FingerprintOf(**source);
  EXPECT_TRUE(sums.ok()) << sums.status().message();
  if (sums.ok()) reading.tensors += ToHex(sums->overall);
  reading.state = (*source)->manifest().state;
  reading.account = reading.state[kAccountKey];
  reading.state.erase(kAccountKey);
  reading.history = (*source)->manifest().history;
  return reading;
}

std::string Pattern(const std::string& text) { return std::regex_replace(text, std::regex("[0-9]+"), "N"); }

std::vector<std::string> FilesBelow(const std::string& directory) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  std::ranges::sort(files);
  return files;
}

struct Written {
  const char* format;
  Topology topology;
};

class AccountMutants : public testing::TestWithParam<Written> {
 protected:
  void SetUp() override {
    StepRecipe recipe = RecipeOf({.layers = 2, .vocab = 13}, {});
    recipe.weights = Dtype::kBF16;
    recipe.packed = recipe.split_master = true;
    ASSERT_TRUE(MakeStep(Fs(), dir_ / "run", recipe).ok());
    const auto source = Open(dir_ / "run");
    const auto done = Export(Fs(), *source, *FindSystem(GetParam().format), out_,
                             {.target = {.topology = GetParam().topology, .dtype = {}}, .writer = {}});
    ASSERT_TRUE(done.ok()) << done.status().message();
    whole_ = ReadingOf(out_);
    ASSERT_EQ(whole_.error, "");
  }

  TempDir dir_{TempDir::Place::kMemory};
  const std::string out_ = dir_ / "out";
  Reading whole_;
};

// Copies of another rank and counters of the training may be missing: all tensors stay.
TEST_P(AccountMutants, EveryRemovedOrAddedEntryIsReported) {
  std::set<std::string> seen;
  for (const std::string& path : FilesBelow(out_)) {
    if (!TorchFile::Matches(Fs(), path) || path.ends_with(".distcp")) continue;
    EditedTorch file(Fs(), path);
    for (const EditedTorch::Slot& slot : file.slots()) {
      if (!seen.insert(Pattern(path + ": " + slot.path)).second) continue;
      SCOPED_TRACE(path + ": " + slot.path);
      file.WriteWithout(slot);
      const Reading less = ReadingOf(out_);
      if (less.error.empty()) {
        EXPECT_EQ(less.kept(), whole_.kept());
      }
      if (slot.holder->is(PyKind::kDict) && !path.ends_with(".metadata")) {
        file.WriteWithSecret(*slot.holder);
        const Reading more = ReadingOf(out_);
        if (more.error.empty()) {
          EXPECT_THAT(more.all(), HasSubstr("secret"));
        }
      }
      file.Restore();
    }
  }
  EXPECT_EQ(ReadingOf(out_).all(), whole_.all());
  EXPECT_GE(seen.size(), 20);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, AccountMutants,
    testing::Values(Written{"dcp", {.dp = 2}}, Written{"megatron", {.tp = 2, .pp = 2}},
                    Written{"megatron", {.tp = 2, .dp = 2, .zero = 1}},
                    Written{"megatron-deepspeed", {.tp = 2, .pp = 2, .dp = 2}},
                    Written{"megatron-deepspeed", {.tp = 2, .pp = 2, .dp = 2, .zero = 1}},
                    Written{"megatron-deepspeed", {.dp = 2, .zero = 2}},
                    Written{"megatron-deepspeed", {.dp = 2, .zero = 3}},
                    Written{"torch-dist", {.tp = 2, .pp = 2}},
                    Written{"torch-dist", {.tp = 2, .dp = 2, .zero = 1}}, Written{"universal", {.tp = 2}}),
    [](const auto& info) {
      std::string name =
          fmt::format("{}_zero{}_pp{}", info.param.format, info.param.topology.zero, info.param.topology.pp);
      std::ranges::replace(name, '-', '_');
      return name;
    });

TEST(Relaxations, AllowedLossesAreRecordedByName) {
  const TempDir dir(TempDir::Place::kMemory);
  ASSERT_TRUE(MakeStep(Fs(), dir / "run", RecipeOf({.layers = 2, .vocab = 13}, {})).ok());
  const auto done = Export(Fs(), *Open(dir / "run"), *FindSystem("megatron-deepspeed"), dir / "out",
                           {.target = {.topology = {.zero = 1}, .dtype = {}}, .writer = {}});
  ASSERT_TRUE(done.ok()) << done.status().message();
  const std::string path = dir / "out/global_step100/mp_rank_00_model_states.pt";
  EditedTorch file(Fs(), path);
  file.WriteWithWord(*Find(file.root(), "args")->state);
  EXPECT_EQ(ReadingOf(dir / "out").history, nlohmann::json::array());
  EXPECT_EQ(ReadingOf(dir / "out", {"args.s*", "args.nothing"}).history,
            nlohmann::json{"import: args.secret was left out (--allow)"});
  file.Restore();
  file.WriteWithSecret(file.root());
  EXPECT_THAT(ReadingOf(dir / "out").error, HasSubstr("--allow 'secret'"));
  EXPECT_EQ(ReadingOf(dir / "out", {"sec*"}).history,
            nlohmann::json{"import: secret was left out (--allow)"});
}

TEST(Relaxations, LeavesOutTheOptimizerOnAllRanksOrNone) {
  const TempDir dir(TempDir::Place::kMemory);
  ASSERT_TRUE(MakeStep(Fs(), dir / "run", RecipeOf({.layers = 2, .vocab = 13}, {})).ok());
  const Topology topology{.tp = 2, .dp = 2, .zero = 1};
  const auto done = Export(Fs(), *Open(dir / "run"), *FindSystem("megatron-deepspeed"), dir / "out",
                           {.target = {.topology = topology, .dtype = {}}, .writer = {}});
  ASSERT_TRUE(done.ok()) << done.status().message();
  std::vector<nlohmann::json> states;
  for (const int rank : {0, 1}) {  // the second one's is found when the first one's is read
    const std::string path =
        dir / fmt::format("out/global_step100/bf16_zero_pp_rank_0_mp_rank_{:02}_optim_states.pt", rank);
    EditedTorch file(Fs(), path);
    const auto moment = std::ranges::find_if(
        file.slots(), [](const EditedTorch::Slot& slot) { return slot.path.ends_with("exp_avg"); });
    ASSERT_NE(moment, file.slots().end());
    file.WriteWithSecret(*moment->holder);
    EXPECT_THAT(ReadingOf(dir / "out").error, HasSubstr("--allow optimizer"));
    const Reading reading = ReadingOf(dir / "out", {"optimizer"});
    EXPECT_EQ(reading.error, "");
    EXPECT_THAT(reading.tensors, testing::Not(HasSubstr("exp_avg")));
    EXPECT_THAT(reading.tensors, HasSubstr("final_norm.weight/master"));  // exact weights, sound on all ranks
    EXPECT_EQ(std::ranges::count_if(
                  reading.history,
                  [](const auto& entry) { return entry.dump().find("left out") != std::string::npos; }),
              1)
        << reading.history.dump(1);
    states.push_back(reading.state);
    file.Restore();
  }
  EXPECT_FALSE(states[0].contains("param_groups"));
  EXPECT_EQ(states[0], states[1]);
}

// The header of a safetensors file is JSON, whose end may be spaces.
TEST(AccountMutantsOfSafetensors, EveryRemovedOrRenamedEntryIsReported) {
  const TempDir dir(TempDir::Place::kMemory);
  ASSERT_TRUE(MakeStep(Fs(), dir / "run", RecipeOf({.layers = 2, .vocab = 13}, {})).ok());
  for (const System* format : {FindSystem("hf"), FindSystem("safetensors")}) {
    const std::string out = dir / fmt::format("out-{}", format->name);
    const auto done = Strip(Fs(), *Open(dir / "run"), out, {.format = format});
    ASSERT_TRUE(done.ok()) << done.status().message();
    const std::string path = out + "/model.safetensors";
    const std::string whole = ReadSmallFile(Fs(), path, 1 << 20).value();
    uint64_t length = 0;
    std::memcpy(&length, whole.data(), sizeof(length));
    const auto header = nlohmann::ordered_json::parse(whole.substr(8, length));
    int tensors = 0;
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      for (const std::string& other : {std::string(), name.substr(0, name.size() - 1) + "?"}) {
        auto edited = header;
        edited.erase(name);
        if (!other.empty()) edited[other] = entry;
        std::string text = edited.dump();
        ASSERT_LE(text.size(), length);
        text.resize(length, ' ');
        ASSERT_TRUE(Fs().RemoveFile(path).ok());
        ASSERT_TRUE(WriteSmallFile(Fs(), path, whole.substr(0, 8) + text + whole.substr(8 + length)).ok());
        const Reading reading = ReadingOf(out);
        EXPECT_NE(reading.error, "") << name << " -> " << other;
      }
      ++tensors;
    }
    EXPECT_GT(tensors, 20);
  }
}

}  // namespace
}  // namespace cairn
