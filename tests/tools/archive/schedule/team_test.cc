#include "tools/archive/schedule/team.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "tests/support/stale_names.h"
#include "tests/support/temp_dir.h"

namespace {

bool g_locks_as_nfs_does = false;

}  // namespace

// The one that this program calls.
extern "C" int flock(int fd, int operation) noexcept {
  if (!g_locks_as_nfs_does) return static_cast<int>(::syscall(SYS_flock, fd, operation));
  struct flock lock = {};  // of all bytes, by any open file
  lock.l_type = (operation & LOCK_UN) != 0 ? F_UNLCK : (operation & LOCK_SH) != 0 ? F_RDLCK : F_WRLCK;
  return ::fcntl(fd, (operation & LOCK_NB) != 0 ? F_OFD_SETLK : F_OFD_SETLKW, &lock);
}

namespace cairn {
namespace {

Result<RankTeam> TeamOf(const std::map<std::string, std::string>& variables) {
  return ArchiveTeam([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(ArchiveTeamTest, RanksAndTasksMultiply) {
  EXPECT_TRUE(TeamOf({})->alone());
  std::map<std::string, std::string> array = {{"SLURM_ARRAY_JOB_ID", "7"},
                                              {"SLURM_ARRAY_TASK_COUNT", "3"},
                                              {"SLURM_ARRAY_TASK_MIN", "2"},
                                              {"SLURM_ARRAY_TASK_STEP", "4"},
                                              {"SLURM_ARRAY_TASK_ID", "10"}};
  EXPECT_EQ(TeamOf(array)->rank, 2);
  EXPECT_EQ(TeamOf(array)->size, 3);
  array.insert({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_JOB_ID", "9"}});
  EXPECT_EQ(TeamOf(array)->rank, 5);
  EXPECT_EQ(TeamOf(array)->size, 6);
  EXPECT_EQ(TeamOf(array)->launch, "SLURM_ARRAY_JOB_ID=7");
  array["SLURM_ARRAY_TASK_ID"] = "11";
  EXPECT_EQ(TeamOf(array).status().kind(), StatusKind::kInvalidArgument);
}

TEST(ArchiveTeamTest, ALaunchWithoutANameIsRefused) {
  EXPECT_EQ(TeamOf({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}).status().kind(), StatusKind::kInvalidArgument);
}

class TeamStoreTest : public testing::Test {
 protected:
  Result<TeamStore> Join(int rank, std::string launch = "job 1") {
    return Join(fs_, rank, std::move(launch));
  }
  Result<TeamStore> Join(FileSystem& fs, int rank, std::string launch) {
    return TeamStore::Join({fs, dir_.path()}, {.rank = rank, .size = 2, .launch = std::move(launch)}, [&] {
      ++prepared_;
      return OkStatus();
    });
  }
  ShareResult Work() {
    ++worked_;
    return {.stored_bytes = 5, .stored_members = 1};
  }

  FileSystem& fs_ = FileSystem::Posix();
  TempDir dir_;
  int prepared_ = 0, worked_ = 0;
};

TEST_F(TeamStoreTest, EachSourceIsTakenOnceAndTheLastReportsAll) {
  Result<TeamStore> a = Join(0), b = Join(1);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(prepared_, 1);
  EXPECT_EQ(a->Order(5), (std::vector<size_t>{0, 2, 4, 1, 3}));
  EXPECT_EQ(b->Order(5), (std::vector<size_t>{1, 3, 0, 2, 4}));
  EXPECT_TRUE(*a->Share("x", [&] {
    EXPECT_FALSE(*b->Share("x", [&] { return Work(); }));  // it is taken
    EXPECT_TRUE(*b->Share("y", [&] { return Work(); }));
    return Work();
  }));
  EXPECT_FALSE(*b->Share("x", [&] { return Work(); }));  // it is done
  EXPECT_EQ(worked_, 2);
  EXPECT_FALSE(*a->IsLast());
  EXPECT_TRUE(*b->IsLast());
  EXPECT_EQ(b->Collect()->size(), 2U);
}

// As with Lustre's localflock, or NFS's nolock: each host has its own lock.
TEST_F(TeamStoreTest, StopsIfAnotherHostHoldsTheStoresLockToo) {
  Result<TeamStore> alone = TeamStore::Join({fs_, dir_.path()}, {}, [] { return OkStatus(); });
  ASSERT_TRUE(alone.ok());
  EXPECT_TRUE(*alone->Share("x", [&] { return Work(); }));
  const LockHolder other{.host = "n3", .pid = 71, .since = "then", .word = "abc"};
  std::ofstream(dir_ / ".lock") << EncodeLockHolder(other);
  const Status share = alone->Share("y", [&] { return Work(); }).status();
  EXPECT_EQ(share.kind(), StatusKind::kAlreadyExists);
  EXPECT_NE(share.message().find("pid 71 on n3 since then"), std::string::npos) << share.message();
  EXPECT_EQ(alone->IsLast().status().kind(), StatusKind::kAlreadyExists);
  EXPECT_EQ(worked_, 1);
}

TEST_F(TeamStoreTest, AHostThatCachesMissingNamesJoinsTheOthers) {
  StaleNames stale;
  ASSERT_FALSE(stale.Stat(JoinPath(dir_.path(), kTeamName)).ok());
  Result<TeamStore> a = Join(0);
  const Result<TeamStore> b = Join(stale, 1, "job 1");
  EXPECT_TRUE(b.ok()) << b.status().message();
}

TEST_F(TeamStoreTest, FindsTheLastRankOnNfs) {
  g_locks_as_nfs_does = true;
  {
    Result<TeamStore> a = Join(0), b = Join(1);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_FALSE(*a->IsLast());
    EXPECT_TRUE(*b->IsLast());
  }
  g_locks_as_nfs_does = false;
}

TEST_F(TeamStoreTest, ALaterTaskKnowsTheFinishedWork) {
  {
    Result<TeamStore> a = Join(0);
    EXPECT_TRUE(*a->Share("x", [&] { return Work(); }));  // and exits without a message
  }
  Result<TeamStore> b = Join(1);
  EXPECT_FALSE(*b->Share("x", [&] { return Work(); }));
  EXPECT_TRUE(*b->IsLast());
  EXPECT_EQ(b->Collect()->front().stored_bytes, 5U);
}

TEST_F(TeamStoreTest, AnotherLaunchWaitsForTheEndAndStartsAgain) {
  {
    Result<TeamStore> a = Join(0);
    EXPECT_TRUE(*a->Share("x", [&] { return Work(); }));
    EXPECT_EQ(Join(0, "job 2").status().kind(), StatusKind::kAlreadyExists);
  }
  Result<TeamStore> other = Join(0, "job 2");
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_TRUE(*other->Share("x", [&] { return Work(); }));
  EXPECT_EQ(worked_, 2);
}

// mpirun in a new container may give a launch the name of the one before.
TEST_F(TeamStoreTest, ALaunchWithAnEarlierNameStartsAgain) {
  for (int launch = 0; launch < 2; ++launch) {
    Result<TeamStore> a = Join(0);
    ASSERT_TRUE(a.ok()) << a.status().message();
    EXPECT_TRUE(*a->Share("x", [&] { return Work(); }));
  }
  EXPECT_EQ(worked_, 2);
}

}  // namespace
}  // namespace cairn
