#include "ckpt/job/job_save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <fstream>
#include <thread>

#include "tests/support/make_step.h"
#include "tests/support/open_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kRanks = 2;

// Ranks as threads: each operation is a meeting of all.
struct Meeting {
  std::vector<std::string> blobs = std::vector<std::string>(kRanks);
  std::barrier<> barrier{kRanks};
};

class ThreadRank final : public JobRanks {
 public:
  ThreadRank(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return kRanks; }
  std::string NameOf(int rank) const override { return fmt::format("rank {}", rank); }
  Result<std::vector<std::string>> GatherToRoot(std::string blob, std::string_view /*what*/) override {
    Meet(rank_, std::move(blob));
    auto blobs = rank_ == 0 ? meeting_.blobs : std::vector<std::string>();
    meeting_.barrier.arrive_and_wait();
    return blobs;
  }
  Result<std::string> BroadcastFromRoot(std::string blob, std::string_view /*what*/) override {
    Meet(rank_, std::move(blob));
    std::string told = meeting_.blobs[0];
    meeting_.barrier.arrive_and_wait();
    return told;
  }

 private:
  void Meet(int rank, std::string blob) {
    meeting_.blobs[rank] = std::move(blob);
    meeting_.barrier.arrive_and_wait();
  }

  Meeting& meeting_;
  const int rank_;
};

class JobSaveTest : public testing::Test {
 protected:
  // Changes what a rank has written, or fails in its place.
  using Spoil = std::function<Status(int rank, const std::string& shard)>;

  // Both ranks save a step, and keep the newest `keep_last`. Returns their outcomes.
  std::vector<Status> Save(int64_t step, int64_t keep_last, const Spoil& spoil = {},
                           const Status& seal = {}) {
    Meeting meeting;
    std::vector<Status> outcomes(kRanks, Aborted("did not end"));
    std::vector<std::jthread> ranks;
    EXPECT_TRUE(MakeDirs(Fs(), run_).ok());
    for (int rank = 0; rank < kRanks; ++rank)
      ranks.emplace_back([&, rank] {
        ThreadRank thread(meeting, rank);
        RankSaveMessages messages(thread);
        outcomes[rank] = SaveAs(rank, step, keep_last, messages, spoil, seal);
      });
    ranks.clear();
    return outcomes;
  }

  std::vector<std::string> Names() {
    auto names = Fs().List(run_).value();
    std::erase_if(names, [](const std::string& name) { return name.starts_with('.') || name == "latest"; });
    return names;
  }

  const TempDir dir_;
  const std::string run_ = dir_ / "run";

 private:
  Status SaveAs(int rank, int64_t step, int64_t keep_last, SaveMessages& messages, const Spoil& spoil,
                const Status& seal) {
    const StepRecipe recipe = RecipeOf({}, {.tp = kRanks});
    const std::vector<TensorEntry> tensors = TensorsOf(recipe);
    const StepIdentity identity{recipe.run, step};
    JobSave job(Fs(), messages, run_, step, "7e57", {.retention = {.keep_last = keep_last}});
    const auto write = [&]() -> Result<SavePart> {
      CAIRN_RETURN_IF_ERROR(job.MakePartial());
      CAIRN_ASSIGN_OR_RETURN(const std::vector<Piece> pieces, PiecesOfRank(recipe, tensors, rank));
      WriteRing ring(Fs(), {.buffer_bytes = 64 << 10});
      CAIRN_ASSIGN_OR_RETURN(const auto writer,
                             ShardWriter::Create(Fs(), ring, job.partial(),
                                                 {ShardName(rank), identity, tensors, pieces}, Direct::kOff));
      for (size_t i = 0; i < pieces.size(); ++i) {
        const TensorEntry& tensor = tensors[pieces[i].tensor];
        CAIRN_RETURN_IF_ERROR(writer->Append(i, GatherPiece(pieces[i], tensor, ValuesOf(tensor, 1))));
      }
      SavePart part{.receipt = {}, .note = std::string(100'000, static_cast<char>('a' + rank))};
      CAIRN_ASSIGN_OR_RETURN(part.receipt, writer->Finish());
      if (spoil) CAIRN_RETURN_IF_ERROR(spoil(rank, JoinPath(job.partial(), ShardName(rank))));
      return part;
    };
    CAIRN_RETURN_IF_ERROR(job.Commit(write(), identity, [&](const auto& parts) -> Result<StepSeal> {
      EXPECT_EQ(rank, 0);
      CAIRN_RETURN_IF_ERROR(seal);
      std::vector<ShardReceipt> receipts;
      for (const SavePart& part : parts) {
        EXPECT_EQ(part.note, std::string(100'000, static_cast<char>('a' + receipts.size())));
        receipts.push_back(part.receipt.value());
      }
      return MakeSeal({.identity = identity, .topology = recipe.topology, .model = recipe.model}, tensors,
                      receipts);
    }));
    job.Retire(identity, [](const Status& why) { ADD_FAILURE() << why.message(); });
    return OkStatus();
  }
};

void FlipLastByte(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char last = static_cast<char>(file.get() ^ 1);
  file.seekp(-1, std::ios::end);
  file.put(last);
}

TEST_F(JobSaveTest, AllRanksLearnThatTheStepIsDurableAndOlderOnesGo) {
  for (const int64_t step : {1, 2, 3}) {
    const auto outcomes = Save(step, 2);
    for (const Status& outcome : outcomes) ASSERT_TRUE(outcome.ok()) << outcome.message();
    ASSERT_NE(Open(JoinPath(run_, StepDirName(step))), nullptr);
  }
  EXPECT_THAT(Names(), ElementsAre(StepDirName(2), StepDirName(3)));
}

TEST_F(JobSaveTest, AFailureOfARankIsThatOfAllAndLeavesNothing) {
  ASSERT_TRUE(Save(1, 1)[0].ok());
  for (const int failed : {0, 1}) {
    const auto outcomes = Save(2, 1, [&](int rank, const std::string& /*shard*/) {
      return rank == failed ? NoSpace("the disk is full") : OkStatus();
    });
    for (const Status& outcome : outcomes) {
      EXPECT_EQ(outcome.kind(), StatusKind::kNoSpace);
      EXPECT_EQ(outcome.message(), fmt::format("rank {}: the disk is full", failed));
    }
    EXPECT_THAT(Names(), ElementsAre(StepDirName(1)));
  }
  for (const Status& outcome : Save(2, 1, {}, Corrupt("a hole"))) EXPECT_EQ(outcome.message(), "a hole");
  EXPECT_THAT(Names(), ElementsAre(StepDirName(1)));
}

// Without older steps to delete, nothing is read back: the damage costs only this step.
TEST_F(JobSaveTest, AShardThatWasDamagedOnItsWayKeepsOlderSteps) {
  const auto flip = [](int rank, const std::string& shard) {
    if (rank == 1) FlipLastByte(shard);
    return OkStatus();
  };
  ASSERT_TRUE(Save(1, 1)[0].ok());
  for (const Status& outcome : Save(2, 1, flip)) {
    EXPECT_THAT(outcome.message(), StartsWith("rank 1: reading it back: "));
    EXPECT_THAT(outcome.message(), HasSubstr("older steps are kept"));
  }
  EXPECT_THAT(Names(), ElementsAre(StepDirName(1)));
  for (const Status& outcome : Save(2, 0, flip)) EXPECT_TRUE(outcome.ok()) << outcome.message();
}

}  // namespace
}  // namespace cairn
