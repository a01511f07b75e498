#include "tools/archive/store/leftovers.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "ckpt/run/committer.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

struct Case {
  std::string_view name;
  Leftover leftover;
  FileKind kind = FileKind::kFile;
};

constexpr Case kCases[] = {
    {"gpt-step-00000040.9f8e7d6c.tar.partial", Leftover::kPartial},
    {"gpt-step-00000040.fp16.9f8e7d6c.tar.partial", Leftover::kPartial},
    {"gpt-step-00000040.9f8e7d6c.tar.2.partial", Leftover::kPartial},
    {"gpt-step-00000040.9f8e7d6c.tar.json.partial", Leftover::kPartial},
    {"gpt-step-00000040.9f8e7d6c.tar.parity.partial", Leftover::kPartial},
    {"gpt-bundle-00000010-00000020.aaaaaaaa.tar.partial", Leftover::kPartial},
    {"gpt-bundle-00000010-00000020.aaaaaaaa.tar.json.partial", Leftover::kPartial},
    {"gpt-bundle-00000010-00000020.aaaaaaaa.tar.parity.partial", Leftover::kPartial},
    {"README.txt.partial", Leftover::kPartial},
    {"unpack.py.partial", Leftover::kPartial},
    {".team.partial", Leftover::kPartial},
    {"status.json.1a2b3c4d.partial", Leftover::kPartial},
    {"gpt-step-00000040.9f8e7d6c.tar.deleting", Leftover::kRemoval},
    {"gpt-bundle-00000010-00000020.aaaaaaaa.tar.deleting", Leftover::kRemoval},
    // Another user's, although the names look similar.
    {"x.tar.gz.partial", Leftover::kNone},
    {"other.tar.7f3a.partial", Leftover::kNone},
    {"gpt-step-00000040.9f8e7d6c.tar.7f3a.partial", Leftover::kNone},
    {"gpt-step-00000040.weightss.tar.partial", Leftover::kNone},
    {"gpt-step-40.9f8e7d6c.tar.partial", Leftover::kNone},
    {"gpt-step-00000040.9f8e7d6c.tar.gz.partial", Leftover::kNone},
    {"notes.deleting", Leftover::kNone},
    {"x.tar.deleting", Leftover::kNone},
    {"gpt-step-00000040.9f8e7d6c.tar.2.deleting", Leftover::kNone},
    {".staging-mine", Leftover::kNone, FileKind::kDirectory},
    {".staging-1a2b3c4d", Leftover::kNone, FileKind::kDirectory},
    {"status.json.20261127", Leftover::kNone},
    {"status.json.old", Leftover::kNone},
    {"status.json.partial", Leftover::kNone},
    // With a name like Cairn's, but not made by Cairn.
    {"gpt-step-00000040.9f8e7d6c.tar.partial", Leftover::kNone, FileKind::kLink},
    {"gpt-step-00000040.9f8e7d6c.tar.partial", Leftover::kNone, FileKind::kDirectory},
    {"gpt-step-00000040.9f8e7d6c.tar.deleting", Leftover::kNone, FileKind::kOther},
};

TEST(LeftoversTest, OnlyCompleteNamesOfCairnAreLeftovers) {
  for (const Case& c : kCases) {
    EXPECT_EQ(LeftoverOf(c.name, c.kind), c.leftover) << c.name;
    EXPECT_TRUE(LooksLikeLeftover(c.name)) << c.name;
  }
  for (const char* name :
       {"gpt-step-00000040.9f8e7d6c.tar", "status.json", "ledger.sqlite", ".lock", "partial"})
    EXPECT_FALSE(LooksLikeLeftover(name)) << name;
}

TEST(LeftoversTest, RemovesOnlyMarkedLeftoversAndNamesTheOthers) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir dir, outside;
  {  // the directory of a killed process
    auto staging = PartialDir::MakeFor(fs, dir / std::string(kStagingName), RunOfOneStep(40, {"vocab.json"}));
    ASSERT_TRUE(staging.ok());
    ASSERT_TRUE(MakeDirs(fs, staging->path() + "/step-00000040").ok());
    for (const char* file : {"/.lock", "/step-00000040/manifest.json", "/step-00000040/vocab.json"})
      ASSERT_TRUE(WriteSmallFile(fs, staging->path() + file, "k").ok());
    staging->Leave();
  }
  ASSERT_TRUE(WriteSmallFile(fs, outside / "kept", "k").ok());
  std::vector<std::string> others;
  for (const Case& c : kCases) {
    const std::string path = dir / std::string(c.name);
    if (fs.LinkStat(path).ok() || c.kind == FileKind::kOther) continue;
    if (c.kind == FileKind::kDirectory) {
      ASSERT_TRUE(fs.MakeDir(path).ok());
      ASSERT_TRUE(WriteSmallFile(fs, path + "/inside", "i").ok());
    } else {
      ASSERT_TRUE(WriteSmallFile(fs, path, "x").ok());
    }
    if (c.leftover == Leftover::kNone) others.emplace_back(c.name);
  }
  std::filesystem::create_symlink(outside.path(), dir / ".staging-0a0a0a0a");
  std::filesystem::create_symlink(outside / "kept", dir / "gpt-step-00000050.9f8e7d6c.tar.partial");
  others.insert(others.end(), {".staging-0a0a0a0a", "gpt-step-00000050.9f8e7d6c.tar.partial"});
  std::ranges::sort(others);
  std::vector<std::string> notes, expected;
  ASSERT_TRUE(CleanStore({fs, dir.path()}, [&](const auto& note) { notes.push_back(note); }).ok());
  EXPECT_EQ(fs.List(dir.path()).value(), others);
  for (const std::string& name : others)
    expected.push_back(dir / name + " was not removed: it is not known to be Cairn's");
  EXPECT_EQ(notes, expected);
  EXPECT_TRUE(fs.Stat(outside / "kept").ok());
}

}  // namespace
}  // namespace cairn
