#include "ckpt/run/rank_team.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "ckpt/base/exit_code.h"
#include "ckpt/base/this_process.h"
#include "ckpt/io/fresh_names.h"
#include "tests/support/stale_names.h"
#include "tests/support/temp_dir.h"
#include "tests/support/unsynced_file_system.h"

namespace cairn {
namespace {

FileSystem& Disk() { return FileSystem::Posix(); }

TEST(RankTeamTest, RecognisesLaunchersByTheirVariables) {
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
  // A batch script that starts the command directly is one process, however many tasks its job has.
  EXPECT_TRUE(team({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).alone());
  EXPECT_TRUE(team({{"OMPI_COMM_WORLD_RANK", "4"}, {"OMPI_COMM_WORLD_SIZE", "4"}}).alone());
  EXPECT_EQ(team({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"PBS_JOBID", "7.host"}}).launch, "PBS job 7.host");
}

// A command that a rank of a training starts inherits them too, and must not wait for the others.
TEST(RankTeamTest, TorchrunIsALauncherOnlyOnRequest) {
  std::map<std::string, std::string> env = {
      {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}};
  const auto get_env = [&](const char* name) {
    const auto found = env.find(name);
    return found == env.end() ? nullptr : found->second.c_str();
  };
  EXPECT_FALSE(RankTeam::FromTorchrun(get_env)) << "another launcher set them";
  env["TORCHELASTIC_RUN_ID"] = "none";
  const std::optional<RankTeam> team = RankTeam::FromTorchrun(get_env);
  ASSERT_TRUE(team);
  EXPECT_EQ(team->rank, 3);
  EXPECT_EQ(team->size, 4);
  EXPECT_EQ(team->launch, "none n1 29500");
  EXPECT_TRUE(RankTeam::FromEnvironment(get_env).alone());
}

// Slurm starts a requeued job with the same job and step numbers.
TEST(RankTeamTest, ARequeuedJobIsAnotherLaunch) {
  const auto launch = [](const char* restarts) {
    return RankTeam::FromEnvironment([=](const char* asked) -> const char* {
             const std::string_view name = asked;
             if (name == "SLURM_RESTART_COUNT") return restarts;
             if (name == "SLURM_PROCID" || name == "SLURM_STEP_ID") return "0";
             return name == "SLURM_STEP_NUM_TASKS" || name == "SLURM_JOB_ID" ? "2" : nullptr;
           })
        .launch;
  };
  const std::set<std::string> names = {launch(nullptr), launch("1"), launch("2")};
  EXPECT_EQ(names.size(), 3U);
}

// A killed launch may have left such a room, and its owner could not be identified.
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

// Each rank as its process would run it.
std::vector<Status> Meet(const std::string& directory, const std::vector<RankTeam>& ranks) {
  std::vector<Status> met(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i)
    threads.emplace_back([&, i] {
      met[i] = ranks[i].leads() ? OpenTeamRoom(Disk(), directory, ranks[i])
                                : AwaitTeamRoom(Disk(), directory, ranks[i]);
    });
  for (std::thread& thread : threads) thread.join();
  return met;
}

RankTeam RankOf(int rank, int size, std::chrono::seconds patience = std::chrono::minutes(2)) {
  const Patience same = [patience] { return patience; };
  return {.rank = rank, .size = size, .launch = "test", .start_patience = same, .patience = same};
}

// A launch may have the name of a killed one: a requeued job, mpirun in a new container.
TEST(RankTeamTest, DoesNotJoinTheRoomOfAKilledLaunchOfTheSameName) {
  const TempDir dir(TempDir::Place::kMemory);
  for (const Status& met : Meet(dir.path(), {RankOf(0, 3), RankOf(1, 3), RankOf(2, 3)}))
    EXPECT_TRUE(met.ok()) << met.message();
  const std::vector<std::string> left = Disk().List(dir.path()).value();

  const std::chrono::seconds soon(1);
  for (const Status& alone : Meet(dir.path(), {RankOf(1, 3, soon), RankOf(2, 3, soon)}))
    EXPECT_EQ(alone.kind(), StatusKind::kAborted);
  EXPECT_EQ(Disk().List(dir.path()).value(), left);  // rank 0 may be about to remove the directory

  Status late;  // rank 0 starts when the others wait
  std::thread lead([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    late = OpenTeamRoom(Disk(), dir.path(), RankOf(0, 3));
  });
  for (const Status& met : Meet(dir.path(), {RankOf(2, 3), RankOf(1, 3)}))
    EXPECT_TRUE(met.ok()) << met.message();
  lead.join();
  EXPECT_TRUE(late.ok()) << late.message();
}

TEST(RankTeamTest, ALateRankIsNamedWithItsHost) {
  const TempDir dir(TempDir::Place::kMemory);
  const std::chrono::seconds soon(1);
  for (const Status& met : Meet(dir.path(), {RankOf(0, 3), RankOf(1, 3), RankOf(2, 3)}))
    EXPECT_TRUE(met.ok()) << met.message();
  EXPECT_EQ(AwaitTeam(Disk(), dir.path(), RankOf(0, 3, soon)).status().message(),
            fmt::format("{}: no rank made progress for 1 s; not finished: rank 1 (host {}), rank 2 (host {})",
                        dir.path(), HostName(), HostName()));
}

TEST(RankTeamTest, ARankOfAnotherLaunchCannotJoin) {
  const TempDir dir(TempDir::Place::kMemory);
  const std::chrono::seconds soon(1);
  RankTeam stranger = RankOf(2, 3, soon);
  stranger.launch = "other";
  const std::vector<Status> met = Meet(dir.path(), {RankOf(0, 3, soon), RankOf(1, 3, soon), stranger});
  for (const Status& status : met) EXPECT_EQ(status.kind(), StatusKind::kAborted);
  EXPECT_NE(met[0].message().find("rank 2 did not begin within 1 s"), std::string::npos) << met[0].message();
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

TEST(RankTeamTest, APeerReadsOnlyCompleteMessages) {
  const TempDir dir(TempDir::Place::kMemory);
  const RankTeam lead{.rank = 0, .size = 2, .launch = "test", .once = true},
      other{.rank = 1, .size = 2, .launch = "test", .once = true};
  ASSERT_TRUE(OpenTeamRoom(Disk(), dir.path(), lead).ok());
  const std::string expected = fmt::format("rank 1 (host {}) failed: the disk is full", HostName());
  int looks = 0;
  WatchedByPeer fs([&] {
    ++looks;
    const Status seen = CheckTeam(Disk(), dir.path(), lead);
    EXPECT_TRUE(seen.ok() || seen.message() == expected) << seen.message();
  });
  LeaveTeam(fs, dir.path(), other, NoSpace("the disk is full"), 0);
  EXPECT_GT(looks, 3);
  // A rank that fails because of it would add nothing new.
  LeaveTeam(fs, dir.path(), lead, CheckTeam(Disk(), dir.path(), lead), 0);
  const Status waited = AwaitTeam(Disk(), dir.path(), lead).status();
  EXPECT_EQ(waited.message(), expected);
  EXPECT_EQ(waited.kind(), StatusKind::kNoSpace);  // no rank was lost
}

// Ranks that learn of it have lost the same rank.
TEST(RankTeamTest, ALostPeerHasAnExitStatusOfItsOwn) {
  const TempDir dir(TempDir::Place::kMemory);
  LeaveTeam(Disk(), dir.path(), RankOf(1, 3), Aborted("rank 0 did not commit"), 0);
  EXPECT_EQ(CheckTeam(Disk(), dir.path(), RankOf(2, 3)).kind(), StatusKind::kAborted);
  EXPECT_EQ(ExitOf(CheckTeam(Disk(), dir.path(), RankOf(2, 3))), kExitLostPeer);
}

// Has space for names but not for bytes.
class FullDisk final : public UnsyncedFileSystem {
 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    return call.kind == FsCall::Kind::kWrite && !call.bytes.empty() ? NoSpace("full") : run();
  }
};

TEST(RankTeamTest, ARankThatCannotWriteItsErrorIsNamed) {
  const TempDir dir(TempDir::Place::kMemory);
  FullDisk full;
  LeaveTeam(full, dir.path(), RankOf(1, 2), NoSpace("full"), 0);
  const Status failed = AwaitTeam(Disk(), dir.path(), RankOf(0, 2)).status();
  EXPECT_EQ(failed.message(), "rank 1 failed; see its message");
  EXPECT_EQ(failed.kind(), StatusKind::kNoSpace);
}

TEST(RankTeamTest, CountsTheBytesThatOtherRanksRead) {
  const TempDir dir(TempDir::Place::kMemory);
  for (const int rank : {0, 1, 2}) {
    const RankTeam team{.rank = rank, .size = 3, .launch = "test", .once = true};
    if (team.leads()) {
      ASSERT_TRUE(OpenTeamRoom(Disk(), dir.path(), team).ok());
    }
    LeaveTeam(Disk(), dir.path(), team, OkStatus(), 100 + rank);
  }
  const Result<uint64_t> read = AwaitTeam(Disk(), dir.path(), {.size = 3, .launch = "test", .once = true});
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, 203u);
}

// A rank looks before rank 0 has made the directory, on a host that caches missing names for ever.
TEST(RankTeamTest, AHostThatCachesMissingNamesJoinsTheOthers) {
  const TempDir dir(TempDir::Place::kMemory);
  const std::string run = dir / "run", partial = run + "/partial", step = run + "/step";
  const std::chrono::seconds late(30);
  StaleNames stale;
  ASSERT_FALSE(stale.Stat(run).ok());
  Status other;
  std::thread rank([&] {
    const RankTeam team = RankOf(1, 2, late);
    other = AwaitTeamRoom(stale, partial, team);
    LeaveTeam(stale, partial, team, other, 7);
    if (other.ok())
      other = AwaitPublished(stale, partial, team, team.patience, [&] { return IsListed(stale, step); });
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ASSERT_TRUE(Disk().MakeDir(run).ok() && Disk().MakeDir(partial).ok());
  EXPECT_TRUE(OpenTeamRoom(Disk(), partial, RankOf(0, 2, late)).ok());
  const Result<uint64_t> read = AwaitTeam(Disk(), partial, RankOf(0, 2, late));
  EXPECT_TRUE(read.ok()) << read.status().message();
  EXPECT_TRUE(Disk().Rename(partial, step).ok());
  rank.join();
  EXPECT_TRUE(other.ok()) << other.message();
}

// The directory is missing in one listing, and the step appears only in a later one.
TEST(RankTeamTest, AStepThatBecomesVisibleLateIsFound) {
  const TempDir dir(TempDir::Place::kMemory);
  const RankTeam team = RankOf(1, 2, std::chrono::seconds(30));
  int looks = 0;
  const Status seen =
      AwaitPublished(Disk(), dir / "partial", team, team.patience, [&] { return ++looks > 10; });
  EXPECT_TRUE(seen.ok()) << seen.message();

  const RankTeam hasty = RankOf(1, 2, std::chrono::seconds(1));
  EXPECT_NE(CheckTeam(Disk(), dir / "partial", hasty).message().find("is gone"), std::string::npos);
}

// This host has lost the directory.
TEST(RankTeamTest, FailuresReachARankThatDoesNotSeeTheDirectory) {
  const TempDir dir(TempDir::Place::kMemory);
  const std::string lost = dir / "lost";
  RankTeam team = RankOf(1, 2, std::chrono::seconds(60));
  team.news = [] { return TeamNews{.published = true}; };
  EXPECT_TRUE(AwaitPublished(Disk(), lost, team, team.patience, [] { return false; }).ok());

  const Status failed = Aborted("rank 2 (host n3) failed: no room");
  team.news = [&] { return TeamNews{.failed = failed}; };
  const auto never = [] { return false; };
  for (const Status& heard : {AwaitTeamRoom(Disk(), lost, team), CheckTeam(Disk(), lost, team),
                              AwaitPublished(Disk(), lost, team, team.patience, never),
                              AwaitTeam(Disk(), dir.path(), RankTeam(team)).status()})
    EXPECT_EQ(heard.message(), failed.message());
  LeaveTeam(Disk(), dir.path(), team, failed, 0);  // passes it on as it is
  EXPECT_EQ(CheckTeam(Disk(), dir.path(), RankOf(0, 2)).message(), failed.message());

  const auto told = std::chrono::steady_clock::now() - kNamesStayOld;
  team.news = [&] { return TeamNews{.opened = told}; };
  EXPECT_NE(AwaitTeamRoom(Disk(), lost, team).message().find("the same file system"), std::string::npos);
}

}  // namespace
}  // namespace cairn
