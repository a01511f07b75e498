#include "ckpt/run/rendezvous.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "ckpt/base/exit_code.h"
#include "ckpt/base/this_process.h"
#include "ckpt/io/fresh_names.h"
#include "ckpt/run/committer.h"
#include "tests/support/stale_names.h"
#include "tests/support/temp_dir.h"
#include "tests/support/unsynced_file_system.h"

namespace cairn {
namespace {

FileSystem& Disk() { return FileSystem::Posix(); }

// A killed launch may have left such a room, and its owner could not be identified.
TEST(RendezvousTest, ALaunchWithoutANameIsRefused) {
  const TempDir dir(TempDir::Place::kMemory);
  for (const int rank : {0, 1}) {
    const RankTeam team{.rank = rank, .size = 2};
    const Status status = Rendezvous(Disk(), dir / "", team).Begin();
    EXPECT_EQ(status.kind(), StatusKind::kInvalidArgument);
    EXPECT_NE(status.message().find("PMI_JOBID"), std::string::npos) << status.message();
  }
}

// Each rank as its process would run it.
std::vector<Status> Meet(const std::string& directory, const std::vector<RankTeam>& ranks) {
  std::vector<Status> met(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i)
    threads.emplace_back([&, i] { met[i] = Rendezvous(Disk(), directory, ranks[i]).Begin(); });
  for (std::thread& thread : threads) thread.join();
  return met;
}

RankTeam RankOf(int rank, int size, std::chrono::seconds patience = std::chrono::minutes(2)) {
  const Patience same = [patience] { return patience; };
  return {.rank = rank, .size = size, .launch = "test", .start_patience = same, .patience = same};
}

// A launch may have the name of a killed one: a requeued job, mpirun in a new container.
TEST(RendezvousTest, DoesNotJoinTheRoomOfAKilledLaunchOfTheSameName) {
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
    late = Rendezvous(Disk(), dir.path(), RankOf(0, 3)).Begin();
  });
  for (const Status& met : Meet(dir.path(), {RankOf(2, 3), RankOf(1, 3)}))
    EXPECT_TRUE(met.ok()) << met.message();
  lead.join();
  EXPECT_TRUE(late.ok()) << late.message();
}

TEST(RendezvousTest, ALateRankIsNamedWithItsHost) {
  const TempDir dir(TempDir::Place::kMemory);
  const std::chrono::seconds soon(1);
  for (const Status& met : Meet(dir.path(), {RankOf(0, 3), RankOf(1, 3), RankOf(2, 3)}))
    EXPECT_TRUE(met.ok()) << met.message();
  EXPECT_EQ(Rendezvous(Disk(), dir.path(), RankOf(0, 3, soon)).GatherToRoot("").status().message(),
            fmt::format("{}: no rank made progress for 1 s; not finished: rank 1 (host {}), rank 2 (host {})",
                        dir.path(), HostName(), HostName()));
}

TEST(RendezvousTest, ARankOfAnotherLaunchCannotJoin) {
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

TEST(RendezvousTest, APeerReadsOnlyCompleteMessages) {
  const TempDir dir(TempDir::Place::kMemory);
  const RankTeam lead{.rank = 0, .size = 2, .launch = "test", .once = true},
      other{.rank = 1, .size = 2, .launch = "test", .once = true};
  ASSERT_TRUE(Rendezvous(Disk(), dir.path(), lead).Begin().ok());
  const std::string expected = fmt::format("rank 1 (host {}) failed: the disk is full", HostName());
  int looks = 0;
  WatchedByPeer fs([&] {
    ++looks;
    const Status seen = Rendezvous(Disk(), dir.path(), lead).Check();
    EXPECT_TRUE(seen.ok() || seen.message() == expected) << seen.message();
  });
  Rendezvous(fs, dir.path(), other).Fail(NoSpace("the disk is full"));
  EXPECT_GT(looks, 3);
  // A rank that fails because of it would add nothing new.
  Rendezvous(fs, dir.path(), lead).Fail(Rendezvous(Disk(), dir.path(), lead).Check());
  const Status waited = Rendezvous(Disk(), dir.path(), lead).GatherToRoot("").status();
  EXPECT_EQ(waited.message(), expected);
  EXPECT_EQ(waited.kind(), StatusKind::kNoSpace);  // no rank was lost
}

// Those that hear of it have lost the same rank.
TEST(RendezvousTest, ARankThatLostAPeerReportsIt) {
  const TempDir dir(TempDir::Place::kMemory);
  Rendezvous(Disk(), dir.path(), RankOf(1, 3)).Fail(Aborted("rank 0 did not commit"));
  EXPECT_EQ(Rendezvous(Disk(), dir.path(), RankOf(2, 3)).Check().kind(), StatusKind::kAborted);
  EXPECT_EQ(ExitOf(Rendezvous(Disk(), dir.path(), RankOf(2, 3)).Check()), kExitLostPeer);
}

// Has space for names but not for bytes.
class FullDisk final : public UnsyncedFileSystem {
 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    return call.kind == FsCall::Kind::kWrite && !call.bytes.empty() ? NoSpace("full") : run();
  }
};

TEST(RendezvousTest, NamesARankThatCannotWriteItsReason) {
  const TempDir dir(TempDir::Place::kMemory);
  FullDisk full;
  Rendezvous(full, dir.path(), RankOf(1, 2)).Fail(NoSpace("full"));
  const Status failed = Rendezvous(Disk(), dir.path(), RankOf(0, 2)).GatherToRoot("").status();
  EXPECT_EQ(failed.message(), "rank 1 failed; see its message");
  EXPECT_EQ(failed.kind(), StatusKind::kNoSpace);
}

TEST(RendezvousTest, RankZeroGetsTheBlobsByRank) {
  const TempDir dir(TempDir::Place::kMemory);
  const auto rank_of = [&](int rank) {
    return Rendezvous(Disk(), dir.path(), {.rank = rank, .size = 3, .launch = "test", .once = true});
  };
  ASSERT_TRUE(rank_of(0).Begin().ok());
  for (const int rank : {2, 1}) EXPECT_TRUE(rank_of(rank).GatherToRoot(fmt::format("of {}", rank)).ok());
  const auto blobs = rank_of(0).GatherToRoot("own");
  ASSERT_TRUE(blobs.ok()) << blobs.status().message();
  EXPECT_EQ(*blobs, (std::vector<std::string>{"own", "of 1", "of 2"}));
}

TEST(RendezvousTest, ASingleRankWritesNoFile) {
  const TempDir dir(TempDir::Place::kMemory);
  const Rendezvous rendezvous(Disk(), dir.path(), {});
  EXPECT_TRUE(rendezvous.Begin().ok() && rendezvous.Check().ok());
  EXPECT_EQ(rendezvous.GatherToRoot("own").value(), std::vector<std::string>{"own"});
  rendezvous.Fail(NoSpace("full"));
  rendezvous.Dismiss();
  EXPECT_TRUE(Disk().List(dir.path()).value().empty());
}

// A rank looks before rank 0 has made the directory, on a host that remembers for ever what it has not found.
// How FileSystem::Posix() makes a kernel forget is tested by cluster/test_shared_directory.py.
TEST(RendezvousTest, AHostThatRemembersMissingNamesMeetsTheOthers) {
  const TempDir dir(TempDir::Place::kMemory);
  const std::string run = dir / "run", partial = run + "/partial", step = run + "/step-00000007";
  const std::chrono::seconds late(30);
  StaleNames stale;
  ASSERT_FALSE(stale.Stat(run).ok());
  ASSERT_TRUE(Committer(stale, run, 7, "ab12").CheckNew().ok());
  EXPECT_FALSE(IsListed(stale, run + "/a/b") || IsListed(stale, step) || ListFresh(stale, partial).ok());
  Status other;
  std::thread rank([&] {
    const RankTeam team = RankOf(1, 2, late);
    const Rendezvous rendezvous(stale, partial, team);
    other = rendezvous.Begin();
    if (other.ok()) other = rendezvous.GatherToRoot("read").status();
    if (other.ok()) other = rendezvous.AwaitPublished(team.patience, [&] { return IsListed(stale, step); });
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ASSERT_TRUE(Disk().MakeDir(run).ok() && Disk().MakeDir(partial).ok());
  EXPECT_TRUE(Rendezvous(Disk(), partial, RankOf(0, 2, late)).Begin().ok());
  const auto read = Rendezvous(Disk(), partial, RankOf(0, 2, late)).GatherToRoot("");
  EXPECT_TRUE(read.ok()) << read.status().message();
  EXPECT_TRUE(Disk().Rename(partial, step).ok());
  rank.join();
  EXPECT_TRUE(other.ok()) << other.message();
}

// The directory is gone from one listing and the step comes only in a later one.
TEST(RendezvousTest, ALateViewOfTheStepIsNotAFailure) {
  const TempDir dir(TempDir::Place::kMemory);
  const RankTeam team = RankOf(1, 2, std::chrono::seconds(30));
  int looks = 0;
  const Status seen =
      Rendezvous(Disk(), dir / "partial", team).AwaitPublished(team.patience, [&] { return ++looks > 10; });
  EXPECT_TRUE(seen.ok()) << seen.message();

  const RankTeam hasty = RankOf(1, 2, std::chrono::seconds(1));
  EXPECT_NE(Rendezvous(Disk(), dir / "partial", hasty).Check().message().find("is gone"), std::string::npos);
}

// This host has lost the directory.
TEST(RendezvousTest, NewsReachARankThatDoesNotSeeTheDirectory) {
  const TempDir dir(TempDir::Place::kMemory);
  const std::string lost = dir / "lost";
  RankTeam team = RankOf(1, 2, std::chrono::seconds(60));
  team.news = [] { return TeamNews{.published = true}; };
  EXPECT_TRUE(Rendezvous(Disk(), lost, team).AwaitPublished(team.patience, [] { return false; }).ok());

  const Status failed = Aborted("rank 2 (host n3) failed: no room");
  team.news = [&] { return TeamNews{.failed = failed}; };
  const auto never = [] { return false; };
  RankTeam lead = team;
  lead.rank = 0;
  for (const Status& heard : {Rendezvous(Disk(), lost, team).Begin(), Rendezvous(Disk(), lost, team).Check(),
                              Rendezvous(Disk(), lost, team).AwaitPublished(team.patience, never),
                              Rendezvous(Disk(), dir.path(), lead).GatherToRoot("").status()})
    EXPECT_EQ(heard.message(), failed.message());
  Rendezvous(Disk(), dir.path(), team).Fail(failed);  // passes it on as it is
  EXPECT_EQ(Rendezvous(Disk(), dir.path(), RankOf(0, 2)).Check().message(), failed.message());

  const auto told = std::chrono::steady_clock::now() - kNamesStayOld;
  team.news = [&] { return TeamNews{.opened = told}; };
  EXPECT_NE(Rendezvous(Disk(), lost, team).Begin().message().find("the same file system"), std::string::npos);
}

}  // namespace
}  // namespace cairn
