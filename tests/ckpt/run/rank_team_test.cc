#include "ckpt/run/rank_team.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/support/temp_dir.h"
#include "tests/support/unsynced_file_system.h"

namespace cairn {
namespace {

FileSystem& Disk() { return FileSystem::Posix(); }

TEST(RankTeamTest, LaunchersAreRecognisedByTheirVariables) {
  const auto team = [](std::map<std::string, std::string> env) {
    return RankTeam::FromEnvironment([env = std::move(env)](const char* name) -> const char* {
      const auto found = env.find(name);
      return found == env.end() ? nullptr : found->second.c_str();
    });
  };
  EXPECT_TRUE(team({}).alone());
  EXPECT_EQ(team({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}}).rank, 2);
  EXPECT_EQ(team({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}}).size, 3);
  EXPECT_EQ(team({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}}).rank, 1);
  // A batch script that starts the command by itself is one process, however many tasks its job has.
  EXPECT_TRUE(team({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).alone());
  EXPECT_TRUE(team({{"OMPI_COMM_WORLD_RANK", "4"}, {"OMPI_COMM_WORLD_SIZE", "4"}}).alone());
  EXPECT_EQ(team({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"PBS_JOBID", "7.host"}}).launch,
            "PBS_JOBID=7.host ");
}

// A killed launch may have left such a room; nobody could tell whose it is.
TEST(RankTeamTest, ALaunchWithoutANameIsRefused) {
  const TempDir dir(TempDir::Place::kMemory);
  for (const int rank : {0, 1}) {
    const RankTeam team{.rank = rank, .size = 2};
    const Status status =
        rank == 0 ? OpenTeamRoom(Disk(), dir / "", team) : AwaitTeamRoom(Disk(), dir / "", team);
    EXPECT_EQ(status.kind(), StatusKind::kInvalidArgument);
    EXPECT_NE(status.message().find("PMI_JOBID"), std::string::npos) << status.message();
  }
}

// Looks as a peer does, before each call of the rank at work.
class WatchedByPeer final : public UnsyncedFileSystem {
 public:
  explicit WatchedByPeer(std::function<void()> look) : look_(std::move(look)) {}

 protected:
  Status Do(const FsCall&, const std::function<Status()>& run) override {
    look_();
    return run();
  }

 private:
  std::function<void()> look_;
};

TEST(RankTeamTest, APeerSeesMessagesWhole) {
  const TempDir dir(TempDir::Place::kMemory);
  const RankTeam lead{.rank = 0, .size = 2, .launch = "test"}, other{.rank = 1, .size = 2, .launch = "test"};
  ASSERT_TRUE(OpenTeamRoom(Disk(), dir.path(), lead).ok());
  int looks = 0;
  WatchedByPeer fs([&] {
    ++looks;
    const Status seen = CheckTeam(Disk(), dir.path());
    EXPECT_TRUE(seen.ok() || seen.message() == "rank 1 failed: the disk is full") << seen.message();
  });
  LeaveTeam(fs, dir.path(), other, NoSpace("the disk is full"), 0);
  EXPECT_GT(looks, 3);
  // A rank that fails because of it would say nothing new.
  LeaveTeam(fs, dir.path(), lead, CheckTeam(Disk(), dir.path()), 0);
  EXPECT_EQ(AwaitTeam(Disk(), dir.path(), lead).status().message(), "rank 1 failed: the disk is full");
}

TEST(RankTeamTest, TheBytesThatTheOthersReadAreCounted) {
  const TempDir dir(TempDir::Place::kMemory);
  for (const int rank : {0, 1, 2}) {
    const RankTeam team{.rank = rank, .size = 3, .launch = "test"};
    if (team.leads()) {
      ASSERT_TRUE(OpenTeamRoom(Disk(), dir.path(), team).ok());
    }
    LeaveTeam(Disk(), dir.path(), team, OkStatus(), 100 + rank);
  }
  const Result<uint64_t> read = AwaitTeam(Disk(), dir.path(), {.size = 3, .launch = "test"});
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, 203u);
}

}  // namespace
}  // namespace cairn
