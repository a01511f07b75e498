#include "tools/archive/schedule/schedule.h"

#include <gtest/gtest.h>

#include "ckpt/base/child.h"
#include "tools/process/shell_word.h"

namespace cairn {
namespace {

ScheduleOptions Options(const std::string& policy = "/p/archive.toml") {
  return {.cairn = "/opt/my cairn", .policy = policy, .log = "/p/a.log", .script = "/p/x.sbatch"};
}

// Text that a scheduler must pass on unchanged.
const std::string kNasty[] = {"/p/a b.toml",      "/p/$HOME.toml",   "/p/100%.toml",   "/p/%j%h.toml",
                              "/p/it's.toml",     "/p/\"q\".toml",   "/p/back\\.toml", "/p/`id`.toml",
                              "/p/#;&|<>*?.toml", "/p/\xc3\xa9.toml"};

TEST(ScheduleTest, ShellWordsRoundTrip) {
  EXPECT_EQ(ShellWord("/a/b.toml"), "/a/b.toml");
  for (const std::string& path : kNasty) {
    const auto said = ChildOutput({"sh", "-c", "printf %s " + ShellWord(path)});
    ASSERT_TRUE(said.ok()) << said.status().message();
    EXPECT_EQ(*said, path);
  }
}

TEST(ScheduleTest, EveryPolicyHasItsOwnName) {
  const std::string name = ChainName(Options("/a/archive.toml"));
  EXPECT_TRUE(name.starts_with("cairn-archive-archive-")) << name;
  EXPECT_NE(name, ChainName(Options("/b/archive.toml")));
  ScheduleOptions tagged = Options("/a/archive.toml");
  tagged.tag = "my gpt/7";
  const std::string with_tag = ChainName(tagged);
  EXPECT_TRUE(with_tag.starts_with("cairn-archive-my-gpt-7-")) << with_tag;
  for (const std::string& own : {name, with_tag}) {  // a changed tag does not start a second chain
    EXPECT_TRUE(IsOfChain(own, "/a/archive.toml"));
    EXPECT_FALSE(IsOfChain(own, "/b/archive.toml"));
  }
  EXPECT_FALSE(IsOfChain("other" + name, "/a/archive.toml"));
  tagged.policy = "/b/archive.toml";  // a copied policy still has its tag
  EXPECT_NE(ChainName(tagged), with_tag);
  for (const std::string& path : kNasty)
    EXPECT_EQ(ChainName(Options(path))
                  .find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"),
              std::string::npos);
}

TEST(ScheduleTest, RefusesCharactersThatASchedulerCannotQuote) {
  struct Row {
    Scheduler scheduler;
    std::string ScheduleOptions::*field;
    const char* value;
    const char* says;
  };
  const Row rows[] = {
      {Scheduler::kSlurm, &ScheduleOptions::partition, "io\n#SBATCH --wrap=evil", "--partition"},
      {Scheduler::kSlurm, &ScheduleOptions::account, "a\rb", "--account"},
      {Scheduler::kSlurm, &ScheduleOptions::time_limit, "1\n", "--time"},
      {Scheduler::kSlurm, &ScheduleOptions::policy, "/p/a\nb.toml", "policy's path"},
      {Scheduler::kSlurm, &ScheduleOptions::script, "/p/\x1b.sbatch", "--script"},
      {Scheduler::kSlurm, &ScheduleOptions::log, "/p/back\\slash", "backslash"},
      {Scheduler::kCron, &ScheduleOptions::log, "/p/a\nb", "--log"},
      {Scheduler::kCron, &ScheduleOptions::search_path, "/bin:/\t", "PATH"},
      {Scheduler::kSystemd, &ScheduleOptions::cairn, "/opt/my\"cairn", "--program"},
      {Scheduler::kSystemd, &ScheduleOptions::log, "/p/a ", "--log"},
      {Scheduler::kSystemd, &ScheduleOptions::log, "/p/\xff", "UTF-8"},
  };
  for (const Row& row : rows) {
    ScheduleOptions options = Options();
    EXPECT_TRUE(CheckSchedule(options, row.scheduler).ok());
    options.*row.field = row.value;
    const Status status = CheckSchedule(options, row.scheduler);
    EXPECT_EQ(status.kind(), StatusKind::kInvalidArgument) << row.value;
    EXPECT_NE(status.message().find(row.says), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
  ScheduleOptions options = Options("/" + std::string(600, 'p'));  // twice in the line
  options.log = options.policy + ".log";
  EXPECT_NE(CheckSchedule(options, Scheduler::kCron).message().find("998"), std::string::npos);
}

TEST(ScheduleTest, AcceptsOnlyExactIntervals) {
  for (int hours = 0; hours <= 200; ++hours) {
    ScheduleOptions options = Options();
    options.every_hours = hours;
    const bool exact = hours > 0 && (hours == 168 || 24 % hours == 0);
    EXPECT_EQ(CheckSchedule(options, Scheduler::kSlurm).ok(), hours >= 1 && hours <= 168);
    EXPECT_EQ(CheckSchedule(options, Scheduler::kCron).ok(), exact) << hours;
    EXPECT_EQ(CheckSchedule(options, Scheduler::kSystemd).ok(), exact) << hours;
  }
}

TEST(ScheduleTest, CronEscapesPercentSignsAndKeepsTheOutput) {
  ScheduleOptions options = Options("/p/100%.toml");
  options.search_path = "/opt/hsm/bin:/bin";
  const std::string line = CrontabLine(options), name = ChainName(options);
  EXPECT_NE(
      line.find(" 3 * * * PATH=/opt/hsm/bin:/bin '/opt/my cairn' archive run --policy '/p/100\\%.toml' >> "
                "/p/a.log 2>&1 || echo '" +
                name + " failed: see /p/a.log' # " + name + "\n"),
      std::string::npos)
      << line;
  options.every_hours = 6;
  EXPECT_NE(CrontabLine(options).find(" */6 * * * "), std::string::npos);
  options.every_hours = 168;
  EXPECT_NE(CrontabLine(options).find(" 3 * * 0 "), std::string::npos);
}

TEST(ScheduleTest, ACrontabLosesOnlyTheLinesOfOneChain) {
  const std::string mine = CrontabLine(Options("/a/p.toml")), other = CrontabLine(Options("/b/p.toml"));
  const std::string before = "# m h\nMAILTO=me\n\n",
                    after = "0 4 * * * cairn archive run --policy /a/p.toml\n#end";
  EXPECT_EQ(CrontabWithout(before + mine + other + mine + after, "/a/p.toml"), before + other + after);
  EXPECT_EQ(CrontabWithout(before + other + after, "/a/p.toml"), before + other + after);
  EXPECT_EQ(CrontabWithout(mine, "/a/p.toml"), "");
  EXPECT_EQ(CrontabWithout(mine.substr(0, mine.size() - 1), "/a/p.toml"), "");
  EXPECT_EQ(CrontabWithout("", "/a/p.toml"), "");
}

TEST(ScheduleTest, SystemdDoublesItsSpecialCharacters) {
  ScheduleOptions options = Options("/p/$HOME 100% \"q\" \\.toml");
  options.cairn = "/opt/$x 5%/cairn";
  options.log = "/p/my 5% $x.log";
  options.search_path = "/opt/$x/bin";
  const std::string service = SystemdService(options);
  EXPECT_NE(service.find("\nExecStart=\"/opt/$x 5%%/cairn\" archive run --policy "
                         "\"/p/$$HOME 100%% \\\"q\\\" \\\\.toml\"\n"),
            std::string::npos)
      << service;
  EXPECT_NE(service.find("\nStandardOutput=append:/p/my 5%% $x.log\n"), std::string::npos) << service;
  EXPECT_NE(service.find("\nEnvironment=\"PATH=/opt/$x/bin\"\n"), std::string::npos) << service;
}

TEST(ScheduleTest, ATimerCatchesUpOnMissedRuns) {
  ScheduleOptions options = Options();
  for (const auto& [hours, says] :
       {std::pair{1, "\nOnCalendar=*-*-* 00/1:"}, std::pair{6, "\nOnCalendar=*-*-* 00/6:"},
        std::pair{24, "\nOnCalendar=*-*-* 03:"}, std::pair{168, "\nOnCalendar=Sun *-*-* 03:"}}) {
    options.every_hours = hours;
    const std::string timer = SystemdTimer(options);
    EXPECT_NE(timer.find(says), std::string::npos) << timer;
    EXPECT_NE(timer.find("\nPersistent=true\n"), std::string::npos);
    EXPECT_EQ(timer.find("OnUnitActiveSec"), std::string::npos);
  }
}

TEST(ScheduleTest, SlurmsLinesAreEscaped) {
  ScheduleOptions options = Options();
  options.log = "/p/my #1 100%j.log";
  options.partition = "io \"x\"";
  const std::string script = SlurmScript(options);
  EXPECT_NE(script.find("\n#SBATCH --output=\"/p/my #1 100%%j.log\"\n"), std::string::npos) << script;
  EXPECT_NE(script.find("\n#SBATCH --partition=\"io \"'\"'\"x\"'\"'\"\"\n"), std::string::npos) << script;
  EXPECT_NE(script.find("\n#SBATCH --job-name=" + ChainName(options) + "\n"), std::string::npos);
  EXPECT_TRUE(IsScheduleText(script));
  EXPECT_TRUE(IsScheduleText(SystemdService(options)));
  EXPECT_TRUE(IsScheduleText(SystemdTimer(options)));
  EXPECT_FALSE(IsScheduleText("#!/bin/bash\n#SBATCH --job-name=mine\n"));
  for (const std::string& path : kNasty) {
    ScheduleOptions nasty = Options(path);
    nasty.script = path + ".sbatch";
    const auto checked = RunChild({"bash", "-n"}, SlurmScript(nasty));
    ASSERT_TRUE(checked.ok());
    EXPECT_EQ(checked->exit, 0) << checked->err;
  }
}

}  // namespace
}  // namespace cairn
