// The table of refusals: each row spoils one thing, and nothing is removed.
#include "ckpt/run/deletion.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "ckpt/model/layout.h"
#include "ckpt/run/health.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/run/step_hold.h"
#include "ckpt/run/step_tags.h"
#include "ckpt/step/find_step.h"
#include "ckpt/step/step_reader.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

class ProofThat final : public DeletionProof {
 public:
  explicit ProofThat(bool holds) : holds_(holds) {}
  Status Check(FileSystem&) const override { return holds_ ? OkStatus() : NotFound("the copy is gone"); }
  std::string Text() const override { return "a copy"; }

 private:
  bool holds_;
};

testing::AssertionResult IsRefused(const Status& status, const std::string& why) {
  if (!status.ok() && status.message().find(why) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << '"' << status.message() << "\" does not say \"" << why << '"';
}

void Touch(const std::string& path) { std::ofstream(path) << "mine"; }

std::vector<std::string> Everything(const std::string& directory) {
  std::vector<std::string> paths;
  for (const auto& entry : stdfs::recursive_directory_iterator(directory))
    if (entry.path().filename() != kDeletionLockName) paths.push_back(entry.path());
  std::ranges::sort(paths);
  return paths;
}

class DeletionTest : public testing::Test {
 protected:
  DeletionTest() {
    for (const int64_t step : {10, 20, 30}) Save(step);
  }
  void Save(int64_t step, bool bad = false, uint64_t seed = 1) {
    StepRecipe recipe = RecipeOf({.layers = 1, .hidden = 16}, {});
    recipe.step = step;
    recipe.seed = seed;
    recipe.state["iteration"] = step;
    if (bad)
      recipe.state["health"] =
          ToJson(Health{.loss = 1e30, .bad_iterations = 3, .first_bad_iteration = step - 2});
    ASSERT_TRUE(MakeStep(fs_, run_, recipe).ok());
  }
  std::string Path(int64_t step) const { return JoinPath(run_, StepDirName(step)); }
  StepDeletion Deletion(int64_t step) {
    const auto text = ReadSmallFile(fs_, JoinPath(Path(step), kManifestName), kMaxManifestBytes);
    return {.run_dir = run_, .name = StepDirName(step), .manifest = DigestOf(*text), .nonce = "1a"};
  }

  const TempDir temp_{TempDir::Place::kMemory};
  const std::string run_ = temp_ / "gpt";
  FileSystem& fs_ = FileSystem::Posix();
};

TEST_F(DeletionTest, RemovesOnlyTheProvenStep) {
  ASSERT_TRUE(DeleteStep(fs_, Deletion(20), ProofThat(true)).ok());
  EXPECT_EQ(*ListSteps(fs_, run_), (std::vector<int64_t>{10, 30}));
  for (const std::string& path : Everything(run_)) EXPECT_EQ(path.find("deleting"), path.npos) << path;
}

TEST_F(DeletionTest, RefusesUnexpectedStateAndChangesNothing) {
  struct Row {
    const char* what;
    const char* why;
    int64_t step;
    std::function<void(StepDeletion&)> spoil;
  };
  const std::string elsewhere = temp_ / "elsewhere";
  const std::vector<Row> rows = {
      {"the step is a link", "is a link to a directory elsewhere", 20,
       [&](StepDeletion&) {
         stdfs::rename(Path(20), elsewhere);
         stdfs::create_directory_symlink(elsewhere, Path(20));
       }},
      {"a link in it", "index.h5 is not part of the checkpoint", 20,
       [&](StepDeletion&) {
         stdfs::rename(Path(20) + "/index.h5", temp_ / "index.h5");
         stdfs::create_symlink(temp_ / "index.h5", Path(20) + "/index.h5");
       }},
      {"saved again", "was saved again meanwhile", 20, [&](StepDeletion&) { Save(20, false, 2); }},
      {"another step under its name", "its manifest names step 10", 20,
       [&](StepDeletion& deletion) {
         stdfs::remove_all(Path(20));
         stdfs::copy(Path(10), Path(20));
         deletion = Deletion(20);
       }},
      {"of another run", "of another run than", 20,
       [](StepDeletion& deletion) { deletion.run = std::string(32, 'f'); }},
      {"no manifest", "manifest.json: No such file", 20,
       [&](StepDeletion&) { stdfs::remove(Path(20) + "/manifest.json"); }},
      {"a foreign file", "notes.txt is not part of the checkpoint", 20,
       [&](StepDeletion&) { Touch(Path(20) + "/notes.txt"); }},
      {"a foreign directory", "eval is not part of the checkpoint", 20,
       [&](StepDeletion&) { stdfs::create_directory(Path(20) + "/eval"); }},
      {"tagged", "step-00000020 is kept: it has the tag 'best'", 20,
       [&](StepDeletion&) { ASSERT_TRUE(AddTag(fs_, Path(20), "best").ok()); }},
      {"tags that cannot be read", "gpt/tags: not the JSON of tags", 20,
       [&](StepDeletion&) { Touch(JoinPath(run_, kTagsName)); }},
      {"the newest", "the newest healthy step of its run", 30, [](StepDeletion&) {}},
      {"the newest healthy one", "the newest healthy step of its run", 30,
       [&](StepDeletion&) { Save(40, /*bad=*/true); }},
      {"the newest that opens", "the newest healthy step of its run", 30,
       [&](StepDeletion&) {
         Save(40);
         stdfs::remove(Path(40) + "/index.h5");
       }},
      {"a virtual step uses it", "uses its shards", 20,
       [&](StepDeletion&) {
         ASSERT_TRUE(AnnounceHold(fs_, Path(20), temp_ / "other/step-00000020", temp_.path()).ok());
       }},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    stdfs::remove_all(run_);
    stdfs::remove_all(elsewhere);
    for (const int64_t step : {10, 20, 30}) Save(step);
    StepDeletion deletion = Deletion(row.step);
    row.spoil(deletion);
    const std::vector<std::string> before = Everything(temp_.path());
    EXPECT_TRUE(IsRefused(DeleteStep(fs_, deletion, ProofThat(true)), row.why));
    EXPECT_EQ(Everything(temp_.path()), before);
  }
}

TEST_F(DeletionTest, RefusesAProofThatNoLongerHolds) {
  EXPECT_TRUE(IsRefused(DeleteStep(fs_, Deletion(20), ProofThat(false)), "the copy is gone"));
  EXPECT_TRUE(stdfs::exists(Path(20)));
}

TEST_F(DeletionTest, NewestTooRemovesTheNewestStep) {
  StepDeletion deletion = Deletion(30);
  deletion.newest_too = true;
  EXPECT_TRUE(DeleteStep(fs_, deletion, ProofThat(true)).ok());
}

TEST_F(DeletionTest, AnUnhealthyNewestStepCanBeRemoved) {
  Save(40, /*bad=*/true);
  EXPECT_TRUE(DeleteStep(fs_, Deletion(40), ProofThat(true)).ok());
}

TEST_F(DeletionTest, StepsAfterARollbackAreNewerThanAbandonedOnes) {
  Save(11);
  EXPECT_EQ(NewestHealthyStep(fs_, run_).value()->step, 11);
  EXPECT_EQ(OpenNewestStep(fs_, run_, [](const Status&) {}).value()->manifest().step, 11);
  EXPECT_EQ(*ListCurrentSteps(fs_, run_), (std::vector<int64_t>{10, 11}));
  const auto left = [](const Status& why) { ADD_FAILURE() << why.message(); };
  ASSERT_TRUE(ApplyRetention(fs_, run_, {.keep_last = 1}, "1a", left).ok());
  EXPECT_EQ(*ListSteps(fs_, run_), (std::vector<int64_t>{10, 11, 20, 30}));
  EXPECT_FALSE(RetireStep(fs_, run_, StepDirName(11), "1a").ok());
  Save(12);
  ASSERT_TRUE(ApplyRetention(fs_, run_, {.keep_last = 1}, "1a", left).ok());
  EXPECT_EQ(*ListSteps(fs_, run_), (std::vector<int64_t>{11, 12}));
}

// If no step of the branch is healthy, the abandoned step is the last healthy one.
TEST_F(DeletionTest, TheLastHealthyStepStaysEvenIfSuperseded) {
  Save(5, /*bad=*/true);
  EXPECT_EQ(NewestHealthyStep(fs_, run_).value()->step, 30);
  EXPECT_FALSE(RetireStep(fs_, run_, StepDirName(30), "1a").ok());
}

TEST_F(DeletionTest, OnlyAHealthySuccessorIsAProof) {
  EXPECT_TRUE(HealthySuccessor::Find(fs_, run_, {30}).ok());
  EXPECT_EQ(HealthySuccessor::Find(fs_, run_, {31}).status().kind(), StatusKind::kNotFound);
  Save(40, /*bad=*/true);
  EXPECT_EQ(HealthySuccessor::Find(fs_, run_, {31}).status().kind(), StatusKind::kNotFound);
  const auto successor = HealthySuccessor::Find(fs_, run_, {20});
  ASSERT_TRUE(successor.ok());
  stdfs::remove(Path(30) + "/manifest.json");
  EXPECT_FALSE(successor->Check(fs_).ok());
}

TEST_F(DeletionTest, ProofIsANewerStepThatPassesItsCheck) {
  std::set<std::string> bad;
  std::vector<std::string> looked;
  const StepLook look = [&](const std::string& directory) {
    looked.push_back(directory);
    return bad.contains(directory) ? Corrupt("{}: a bit", directory) : OkStatus();
  };
  const auto stays_for = [&](int64_t step) {
    looked.clear();
    return HealthySuccessor::For(fs_, run_, StepDirName(step), look);
  };
  EXPECT_EQ(stays_for(30).status().kind(), StatusKind::kInvalidArgument);  // itself the newest
  EXPECT_EQ(looked, std::vector<std::string>());
  auto stays = stays_for(10);
  ASSERT_TRUE(stays.ok()) << stays.status().message();
  EXPECT_EQ(looked, std::vector<std::string>{Path(30)});
  bad.insert(Path(30));
  EXPECT_FALSE(stays->Check(fs_).ok());
  stays = stays_for(10);
  ASSERT_TRUE(stays.ok()) << stays.status().message();
  EXPECT_NE(stays->Text().find(Path(20)), std::string::npos);
  const Status only = stays_for(20).status();  // the newest good one
  EXPECT_EQ(only.kind(), StatusKind::kCorrupt);
  EXPECT_NE(only.message().find(Path(30) + ": a bit"), std::string::npos) << only.message();
  Save(40, /*bad=*/true);
  EXPECT_FALSE(stays_for(20).ok());  // an unhealthy step does not count
  stays = stays_for(40);             // but may itself go
  ASSERT_TRUE(stays.ok()) << stays.status().message();
  EXPECT_NE(stays->Text().find(Path(20)), std::string::npos);
  for (const int64_t step : {10, 20, 30, 40}) Save(step, /*bad=*/true);
  EXPECT_EQ(stays_for(10).status().kind(), StatusKind::kCorrupt);
}

// A clone of the file system with the virtual step, whose directory has the same inode and birth time.
TEST_F(DeletionTest, ACloneThatIsDeletedKeepsTheHoldOfItsOriginal) {
  const std::string original = Path(30), clone = JoinPath(run_, "clone/step-00000030");
  ASSERT_TRUE(AnnounceHold(fs_, Path(20), original, original).ok());
  Manifest manifest = ReadManifest(fs_, original).value();
  manifest.shards = "../" + StepDirName(20);
  EndHold(fs_, clone, original, manifest);
  EXPECT_EQ(HoldsOf(fs_, run_, 20)->size(), 1U);
  EndHold(fs_, original, original, manifest);
  EXPECT_TRUE(HoldsOf(fs_, run_, 20)->empty());
}

TEST_F(DeletionTest, FinishesAKilledDeletionAndKeepsForeignFiles) {
  const std::string aside = JoinPath(run_, DeletingDirName(20, "1a"));
  std::vector<std::string> files, left;
  for (const auto& entry : stdfs::directory_iterator(Path(20))) files.push_back(entry.path().filename());
  const auto clean = [&] {
    left.clear();
    ASSERT_TRUE(CleanLeftovers(fs_, run_, [&](const Status& why) { left.push_back(why.message()); }).ok());
  };
  ASSERT_TRUE(WriteMark(fs_, aside, {.files = files}, FactsOf(fs_, Path(20)).value()).ok());
  stdfs::rename(Path(20), aside);
  Touch(aside + "/notes.txt");
  clean();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_NE(left[0].find("/notes.txt"), std::string::npos) << left[0];
  EXPECT_FALSE(stdfs::exists(aside + "/manifest.json"));
  stdfs::remove(aside + "/notes.txt");
  clean();
  EXPECT_TRUE(left.empty());
  EXPECT_FALSE(stdfs::exists(aside) || stdfs::exists(MarkPath(aside)));
  ASSERT_TRUE(WriteMark(fs_, aside, {.files = files}).ok());
  stdfs::create_directory_symlink(Path(10), aside);
  clean();
  EXPECT_EQ(left.size(), 1u);
  EXPECT_TRUE(stdfs::exists(Path(10) + "/manifest.json"));
}

TEST_F(DeletionTest, CleanUpKeepsForeignFilesAndReportsThemOnce) {
  stdfs::create_directory(run_ + "/step-00000040.partial-1a");
  Touch(run_ + "/step-00000040.partial-1a/shard-00000.h5");
  Touch(run_ + "/step-00000040.partial-1a/vocab.json");
  ASSERT_TRUE(
      MakeMarkedDir(fs_, run_ + "/step-00000040.partial-1a", {.step = true, .files = {"vocab.json"}}).ok());
  Touch(run_ + "/latest.1a");
  stdfs::copy(Path(10), run_ + "/step-00000010.partial-20261127");  // a user's, without a mark
  stdfs::create_directory(run_ + "/step-00000040.partial-backup");  // no nonce
  Touch(run_ + "/step-00000040.partial-backup/shard-00000.h5");
  stdfs::create_directory_symlink(Path(10), run_ + "/step-00000010.deleting-1a");
  Touch(run_ + "/latest.txt");
  Touch(run_ + "/latest.1a2b");
  std::vector<std::string> left;
  ASSERT_TRUE(CleanLeftovers(fs_, run_, [&](const Status& why) { left.push_back(why.message()); }).ok());
  ASSERT_EQ(left.size(), 2u);
  EXPECT_NE(left[0].find("step-00000010.deleting-1a"), std::string::npos);
  EXPECT_NE(left[1].find("step-00000010.partial-20261127"), std::string::npos);
  EXPECT_FALSE(stdfs::exists(run_ + "/step-00000040.partial-1a"));
  EXPECT_FALSE(stdfs::exists(run_ + "/latest.1a"));
  for (const char* stays : {"/step-00000040.partial-backup/shard-00000.h5", "/latest.txt", "/latest.1a2b",
                            "/step-00000010.partial-20261127/manifest.json", "/step-00000010/manifest.json",
                            "/step-00000010.deleting-1a"})
    EXPECT_TRUE(stdfs::exists(run_ + stays)) << stays;
}

class TreeDeletionTest : public testing::Test {
 protected:
  TreeDeletionTest() {
    stdfs::create_directories(tree_ + "/sub/empty");
    Touch(tree_ + "/a");
    Touch(tree_ + "/sub/b");
  }
  TreeDeletion Deletion(std::vector<std::string> more_files = {}, std::vector<std::string> more_dirs = {}) {
    TreeDeletion d{
        .directory = tree_, .files = {"a", "sub/b"}, .directories = {"sub", "sub/empty"}, .same = [] {
          return OkStatus();
        }};
    d.files.insert(d.files.end(), more_files.begin(), more_files.end());
    d.directories.insert(d.directories.end(), more_dirs.begin(), more_dirs.end());
    return d;
  }

  const TempDir temp_{TempDir::Place::kMemory};
  const std::string tree_ = temp_ / "tree";
  FileSystem& fs_ = FileSystem::Posix();
};

TEST_F(TreeDeletionTest, RemovesAnUnchangedTree) {
  ASSERT_TRUE(DeleteTree(fs_, Deletion(), ProofThat(true)).ok());
  EXPECT_TRUE(Everything(temp_.path()).empty());
}

TEST_F(TreeDeletionTest, FilesThatAppearedDuringTheDeletionStay) {
  TreeDeletion d = Deletion();
  Touch(tree_ + "/sub/late");
  EXPECT_FALSE(DeleteTree(fs_, d, ProofThat(true)).ok());
  EXPECT_TRUE(stdfs::exists(tree_ + std::string(kTreeDeletingSuffix) + "/sub/late"));
}

TEST_F(TreeDeletionTest, RefusesChangedTrees) {
  const auto refused = [&](const TreeDeletion& deletion, const std::string& why, bool proven = true) {
    return IsRefused(DeleteTree(fs_, deletion, ProofThat(proven)), why);
  };
  TreeDeletion other = Deletion();
  other.same = [] { return Corrupt("other content"); };
  EXPECT_TRUE(refused(other, "other content"));
  EXPECT_TRUE(refused(Deletion(), "the copy is gone", /*proven=*/false));
  stdfs::create_directories(tree_ + "/gpt/step-00000010");
  EXPECT_TRUE(refused(Deletion({"gpt/.run"}, {"gpt"}), "gpt/.run belongs to a run of Cairn"));
  EXPECT_TRUE(refused(Deletion({"gpt/step-00000010/manifest.json"}, {"gpt", "gpt/step-00000010"}),
                      "manifest.json belongs to a run of Cairn"));
  stdfs::remove_all(tree_ + "/gpt");
  // A training that began after the tree was listed.
  const int lock = ::open((tree_ + "/sub/.lock").c_str(), O_CREAT | O_RDWR, 0600);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  EXPECT_TRUE(refused(Deletion(), "a training writes into it"));
  ::close(lock);
  stdfs::create_directory(temp_ / "elsewhere");
  Touch(temp_ / "elsewhere/c");
  stdfs::create_directory_symlink(temp_ / "elsewhere", tree_ + "/linked");
  EXPECT_TRUE(refused(Deletion({"linked/c"}), "linked/c is reached through a link"));
  EXPECT_TRUE(refused(Deletion({"linked/c"}, {"linked"}), "linked is a link to a directory elsewhere"));
  EXPECT_TRUE(stdfs::exists(temp_ / "elsewhere/c"));
  stdfs::remove(tree_ + "/linked");
  stdfs::rename(tree_, temp_ / "real");
  stdfs::create_directory_symlink(temp_ / "real", tree_);
  EXPECT_TRUE(refused(Deletion(), "is a link to a directory elsewhere"));
  EXPECT_TRUE(stdfs::exists(temp_ / "real/sub/b"));
}

TEST_F(TreeDeletionTest, AFreeLockDoesNotBlockTheDeletion) {
  Touch(tree_ + "/sub/.lock");
  EXPECT_FALSE(DeleteTree(fs_, Deletion(), ProofThat(true)).ok());  // its name is not in the list
  EXPECT_FALSE(stdfs::exists(tree_));
  EXPECT_TRUE(stdfs::exists(tree_ + std::string(kTreeDeletingSuffix) + "/sub/.lock"));
}

}  // namespace
}  // namespace cairn
