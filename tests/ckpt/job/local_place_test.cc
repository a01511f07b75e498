#include "ckpt/job/local_place.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "ckpt/step/dir_mark.h"
#include "tests/support/peer_world.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wrapped_file_system.h"

namespace cairn {
namespace {

using Groups = std::vector<std::vector<int>>;

std::vector<std::string> Hosts(int count, int ranks_each) {
  std::vector<std::string> hosts;
  for (int host = 0; host < count; ++host)
    for (int i = 0; i < ranks_each; ++i) hosts.push_back("n" + std::to_string(host));
  return hosts;
}

struct LayoutCase {
  std::vector<std::string> nodes;  // by rank
  Redundancy redundancy;
  Groups groups;
  int losable;  // nodes
};

const LayoutCase kLayouts[] = {
    {Hosts(4, 2), {4, 1}, {{0, 2, 4, 6}, {1, 3, 5, 7}}, 1},
    {Hosts(4, 2), {4, 2}, {{0, 2, 4, 6}, {1, 3, 5, 7}}, 2},
    {Hosts(4, 2), {8, 1}, {{0, 1, 2, 3, 4, 5, 6, 7}}, 0},
    {Hosts(4, 2), {8, 2}, {{0, 1, 2, 3, 4, 5, 6, 7}}, 1},
    {Hosts(4, 2), {8, 3}, {{0, 1, 2, 3, 4, 5, 6, 7}}, 1},
    {Hosts(2, 2), {2, 1}, {{0, 2}, {1, 3}}, 1},
    {Hosts(2, 2), {4, 1}, {{0, 1, 2, 3}}, 0},
    {Hosts(1, 4), {2, 1}, {{0, 2}, {1, 3}}, 0},
    {{"a", "b", "a", "b"}, {2, 1}, {{0, 1}, {2, 3}}, 1},  // mpirun --map-by node
    // One node has as many ranks as there are groups; the others have one each.
    {{"a", "a", "a", "a", "b", "c", "d", "e"}, {2, 1}, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}, 1},
    {{"b", "c", "d", "e", "a", "a", "a", "a"}, {2, 1}, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}, 1},
    // More of one node than there are groups.
    {{"a", "a", "a", "b", "c", "d"}, {3, 1}, {{0, 2, 4}, {1, 3, 5}}, 0},
    {{"a", "a", "a", "b", "c", "d"}, {3, 2}, {{0, 2, 4}, {1, 3, 5}}, 1},
};

TEST(LocalPlace, GroupsAreLaidOutOverNodes) {
  for (const LayoutCase& c : kLayouts) {
    SCOPED_TRACE(testing::PrintToString(c.nodes));
    const auto groups = CutIntoGroups(c.nodes, c.redundancy);
    ASSERT_TRUE(groups.ok()) << groups.status().message();
    EXPECT_EQ(*groups, c.groups);
    EXPECT_EQ(LosableNodes(*groups, c.nodes, c.redundancy.parity), c.losable);
  }
}

TEST(LocalPlace, EveryRankIsInOneGroupLargerThanItsParity) {
  for (int hosts = 1; hosts <= 9; ++hosts)
    for (int each = 1; each <= 5; ++each)
      for (int group = 2; group <= 8; ++group)
        for (int parity = 1; parity < group; ++parity) {
          SCOPED_TRACE(testing::Message() << hosts << " x " << each << ", " << group << "," << parity);
          const auto groups = CutIntoGroups(Hosts(hosts, each), {group, parity});
          ASSERT_EQ(groups.ok(), hosts * each > parity);
          std::set<int> seen;
          for (const std::vector<int>& ranks : groups.ok() ? *groups : Groups()) {
            EXPECT_GT(static_cast<int>(ranks.size()), parity);
            EXPECT_LE(static_cast<int>(ranks.size()), std::max(group, 2 * parity + 1));
            EXPECT_TRUE(std::ranges::is_sorted(ranks));
            seen.insert(ranks.begin(), ranks.end());
          }
          if (groups.ok()) {
            EXPECT_EQ(static_cast<int>(seen.size()), hosts * each);
          }
        }
}

TEST(LocalPlace, WithEnoughHostsALostHostCostsEachGroupOneMember) {
  const std::vector<std::string> hosts = Hosts(8, 4);
  const Groups groups = CutIntoGroups(hosts, {8, 1}).value();
  for (const std::vector<int>& group : groups) {
    std::set<std::string> of_group;
    for (int rank : group) EXPECT_TRUE(of_group.insert(hosts[rank]).second);
  }
}

namespace fs = std::filesystem;

constexpr const char* kRun = "0123456789abcdef0123456789abcdef";
constexpr const char* kNonce = "deadbeef";

Result<LocalPlace> Open(const std::string& run_dir, const std::string& local, const std::string& run = kRun,
                        FileSystem& files = FileSystem::Posix()) {
  Result<LocalPlace> place = Aborted("not opened");
  PeerWorld(1).Run([&](JobRanks& ranks, PeerFiles&) {
    place = OpenLocalPlace(files, {.directory = local}, run_dir, run, kNonce, ranks, [](const auto&) {});
  });
  return place;
}

void Write(const std::string& path, const std::string& text = "") {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path) << text;
}

// All files below, with what they hold but for OWNER.
std::map<std::string, std::string> Tree(const std::string& directory) {
  std::map<std::string, std::string> tree;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    std::string text;
    if (entry.is_regular_file() && entry.path().filename() != "OWNER")
      std::getline(std::ifstream(entry.path()), text, '\0');
    tree[fs::relative(entry.path(), directory)] = text;
  }
  return tree;
}

// `a` is a run directory that trained with `local`, with leftovers of a killed save and of others.
struct Scene {
  TempDir dir;
  std::string a = dir / "a", local = dir / "local", place = local + "/" + kRun;
  Scene() {
    fs::create_directory(a);
    EXPECT_TRUE(Open(a, local).ok());
    Write(place + "/step-00000004/manifest.json", "4");
    for (const char* left : {"/step-00000006.partial-0badcafe0/shard-00000.h5", "/.rank-0badcafe-0"})
      Write(place + left, "left");
    EXPECT_TRUE(
        MakeMarkedDir(FileSystem::Posix(), place + "/step-00000006.partial-0badcafe0", {.step = true}).ok());
    for (const char* theirs : {"/.rank-notes", "/.rank-0badcafe-x", "/mine.partial-x", "/step-6.partial-x/f",
                               "/step-00000008.partial-0badcafe1/shard-00000.h5"})
      Write(place + theirs, "theirs");
  }
};

struct OwnerCase {
  const char* name;
  std::function<std::string(Scene&)> prepare;  // the run directory that opens
  const char* refused;                         // part of the message; empty: it may use the directory
};

const OwnerCase kOwnerCases[] = {
    {"the same directory", [](Scene& s) { return s.a; }, ""},
    {"the same directory, renamed",
     [](Scene& s) {
       fs::rename(s.a, s.dir / "b");
       return s.dir / "b";
     },
     ""},
    {"the same directory, by a link",
     [](Scene& s) {
       fs::create_symlink(s.a, s.dir / "b");
       return s.dir / "b";
     },
     ""},
    {"a copy that bears the same identity",
     [](Scene& s) {
       fs::copy(s.a, s.dir / "b");
       return s.dir / "b";
     },
     "of which"},
    {"a copy, the first one gone",
     [](Scene& s) {
       fs::copy(s.a, s.dir / "b");
       fs::remove_all(s.a);
       return s.dir / "b";
     },
     "/a (host "},
    {"steps whose owner nobody knows",
     [](Scene& s) {
       fs::remove(s.place + "/OWNER");
       return s.a;
     },
     "no OWNER names their owner"},
    {"an owner that cannot be read",
     [](Scene& s) {
       Write(s.place + "/OWNER", "{");
       return s.a;
     },
     "no OWNER names their owner"},
    {"a torn owner without a step",
     [](Scene& s) {
       fs::remove_all(s.place + "/step-00000004");
       Write(s.place + "/OWNER", "{");
       return s.a;
     },
     ""},
    {"a link to another user's directory",
     [](Scene& s) {
       fs::rename(s.place, s.dir / "elsewhere");
       fs::create_directory_symlink(s.dir / "elsewhere", s.place);
       return s.a;
     },
     "is a link"},
    {"an owner that is a link",
     [](Scene& s) {
       fs::rename(s.place + "/OWNER", s.dir / "owner");
       fs::create_symlink(s.dir / "owner", s.place + "/OWNER");
       return s.a;
     },
     "OWNER"},
};

TEST(LocalPlace, OnlyTheOwningRunReadsOrCleansLocalSteps) {
  for (const OwnerCase& c : kOwnerCases) {
    SCOPED_TRACE(c.name);
    Scene scene;
    const std::string run_dir = c.prepare(scene);
    const auto before = Tree(scene.dir.path());
    const auto place = Open(run_dir, scene.local);
    const auto after = Tree(scene.dir.path());
    EXPECT_EQ(place.ok(), std::string(c.refused).empty()) << place.status().message();
    if (!place.ok()) {
      EXPECT_NE(place.status().message().find(c.refused), std::string::npos) << place.status().message();
      EXPECT_EQ(place.status().kind(), StatusKind::kIoError);  // training continues without it
      EXPECT_EQ(before, after);
      continue;
    }
    std::set<std::string> left;
    for (const auto& [path, text] : after) {
      EXPECT_EQ(before.at(path), text);
      if (text == "left") left.insert(path);
    }
    EXPECT_TRUE(left.empty());
    EXPECT_EQ(std::ranges::count(after, "theirs", [](const auto& entry) { return entry.second; }), 5);
  }
}

TEST(LocalPlace, RefusesADirectoryOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  Scene scene;
  ASSERT_EQ(::chown(scene.place.c_str(), 1, 1), 0);
  const auto place = Open(scene.a, scene.local);
  ASSERT_FALSE(place.ok());
  EXPECT_NE(place.status().message().find("belongs to another user"), std::string::npos);
  EXPECT_EQ(place.status().kind(), StatusKind::kIoError);  // training continues without it
}

TEST(LocalPlace, AnotherRunHasItsOwnDirectory) {
  Scene scene;
  fs::create_directory(scene.dir / "b");
  const auto before = Tree(scene.place);
  EXPECT_TRUE(Open(scene.dir / "b", scene.local, std::string(32, 'b')).ok());
  EXPECT_EQ(Tree(scene.place), before);
}

TEST(LocalPlace, TwoTrainingsNeverUseOneDirectory) {
  Scene scene;
  auto first = Open(scene.a, scene.local);
  ASSERT_TRUE(first.ok()) << first.status().message();
  const auto second = Open(scene.a, scene.local);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("another training uses"), std::string::npos);
  first = Aborted("gone");
  EXPECT_TRUE(Open(scene.a, scene.local).ok());
}

// A directory that differs between hosts, or whose listings are stale.
TEST(LocalPlace, RefusesADirectoryThatDoesNotListTheMark) {
  class Lagging final : public WrappedFileSystem {
   public:
    using WrappedFileSystem::WrappedFileSystem;
    Result<std::vector<std::string>> List(const std::string& path) override {
      auto names = WrappedFileSystem::List(path);
      if (names.ok()) std::erase_if(*names, [](const std::string& name) { return IsRankMark(name); });
      return names;
    }

   private:
    Status Do(const FsCall&, const std::function<Status()>& run) override { return run(); }
  };
  TempDir dir;
  fs::create_directory(dir / "a");
  Lagging files(FileSystem::Posix());
  const auto place = Open(dir / "a", dir / "local", kRun, files);
  ASSERT_FALSE(place.ok());
  EXPECT_NE(place.status().message().find("does not list it"), std::string::npos) << place.status().message();
}

// Ranks that share a directory remove their marks while their leader cleans it.
TEST(LocalPlace, AMarkRemovedByItsRankIsNotAnError) {
  class Racing final : public WrappedFileSystem {
   public:
    using WrappedFileSystem::WrappedFileSystem;

   private:
    Status Do(const FsCall& call, const std::function<Status()>& run) override {
      if (call.kind == FsCall::Kind::kRemoveFile && call.path.ends_with("/.rank-0badcafe-0")) {
        EXPECT_TRUE(fs::remove(call.path));
      }
      return run();
    }
  };
  Scene scene;
  Racing files(FileSystem::Posix());
  const auto place = Open(scene.a, scene.local, kRun, files);
  EXPECT_TRUE(place.ok()) << place.status().message();
  EXPECT_FALSE(fs::exists(scene.place + "/.rank-0badcafe-0"));
}

TEST(LocalPlace, ParsesOnlyWellFormedMarks) {
  for (const char* mark : {".rank-deadbeef-0", ".rank-01234567-31"}) EXPECT_TRUE(IsRankMark(mark)) << mark;
  for (const char* other : {".rank-", ".rank-deadbeef", ".rank-deadbeef-", ".rank-deadbeef-x",
                            ".rank-notes-of-me", ".rank-DEADBEEF-0", ".rank-deadbeef0-0", "rank-deadbeef-0"})
    EXPECT_FALSE(IsRankMark(other)) << other;
}

TEST(LocalPlace, MemoryHasNamesOfItsOwn) {
  EXPECT_TRUE(IsMemoryName(NewMemoryName()));
  for (const char* other : {".memory-", ".memory", ".memory-xyz", "memory-01234567", ".memory-0123.old"})
    EXPECT_FALSE(IsMemoryName(other)) << other;
}

}  // namespace
}  // namespace cairn
