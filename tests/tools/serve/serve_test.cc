// Ranks as threads, each with a helper at the other end of a socket, as in cairn.torch.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ckpt/base/mapping.h"
#include "ckpt/base/this_process.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/step/verify.h"
#include "tests/support/served_helper.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr uint64_t kRows = 6, kColumns = 1000;

class Trainer : public ServedHelper {
 public:
  // Rows [begin, end) of a tensor of floats `value`, column by row.
  void Plan(int rank, int world, uint64_t begin, uint64_t end, float value) {
    const json pieces = begin == end
                            ? json::array()
                            : json::array({{{"offset", {begin, 0}}, {"extent", {end - begin, kColumns}}}});
    Message reply = Ask(
        {{"do", "plan"},
         {"plan", 1},
         {"rank", rank},
         {"world", world},
         {"tensors", {{{"fqn", "a"}, {"dtype", "fp32"}, {"shape", {kRows, kColumns}}, {"pieces", pieces}}}}});
    if (begin == end) return;
    const auto bytes = reply.packet.head["ok"]["bytes"].get<uint64_t>();
    const Mapping memory(
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, reply.descriptor.get(), 0), bytes);
    const std::vector<float> values((end - begin) * kColumns, value);
    const auto at = reply.packet.head["ok"]["offsets"][0][0].get<uint64_t>();
    std::memcpy(memory.bytes().data() + at, values.data(), values.size() * sizeof(float));
  }
  json Begin(const std::string& run, int rank, int world, double deadline = 30) {
    return Ask({{"do", "begin"},
                {"run", run},
                {"step", 7},
                {"nonce", kNonce},
                {"rank", rank},
                {"world", world},
                {"deadline", deadline}})
        .packet.head;
  }
  json Save() {
    const int64_t id = HandOver();
    Copied(kEverything);
    return Await(id).packet.head;
  }
  int64_t HandOver() {
    return Send(
        {{"do", "write"},
         {"nonce", kNonce},
         {"plan", 1},
         {"objects", {{"train", {{"tail", {0, 0}}, {"values", {{"train.step", {{"json", "7"}}}}}}}}}});
  }
  void Copied(uint64_t bytes) { Send({{"do", "copied"}, {"nonce", kNonce}, {"bytes", bytes}}); }

  static constexpr uint64_t kEverything = 1 << 30;
  static constexpr const char* kNonce = "00112233aabbccdd";
};

// Both ranks save; returns the replies.
std::pair<json, json> SaveOfTwo(const std::string& run, uint64_t first_end, uint64_t second_begin) {
  std::pair<json, json> replies;
  std::thread second([&] {
    Trainer trainer;
    trainer.Plan(1, 2, second_begin, kRows, 2);
    trainer.Begin(run, 1, 2);
    replies.second = trainer.Save();
  });
  Trainer trainer;
  trainer.Plan(0, 2, 0, first_end, 1);
  trainer.Begin(run, 0, 2);
  replies.first = trainer.Save();
  second.join();
  return replies;
}

TEST(ServeTest, TwoRanksSaveOneStepThatLoadsBack) {
  const TempDir dir;
  const auto [first, second] = SaveOfTwo(dir / "run", 2, 2);
  ASSERT_TRUE(first.contains("ok")) << first;
  ASSERT_TRUE(second.contains("ok")) << second;
  const std::string step = first["ok"]["step_dir"];
  const auto opened_step = StepReader::Open(FileSystem::Posix(), step);
  ASSERT_TRUE(opened_step.ok()) << opened_step.status().message();
  EXPECT_TRUE(VerifyHash(FileSystem::Posix(), **opened_step).problems.empty());
}

TEST(ServeTest, AnUnwrittenTensorFailsTheSaveByName) {
  const TempDir dir;
  const auto [first, second] = SaveOfTwo(dir / "run", 2, 3);
  EXPECT_NE(first["error"].get<std::string>().find("tensor a"), std::string::npos) << first;
  EXPECT_NE(second["error"].get<std::string>().find("tensor a"), std::string::npos) << second;
  EXPECT_FALSE(FileSystem::Posix().Stat((dir / "run/") + StepDirName(7)).ok());
}

const std::string kRankOneDied = "rank 1 (host " + HostName() + ") failed: its training ended";

// Rank 0's reply if rank 1 has begun, does this, and its trainer dies.
json SaveBesideOneThatDies(const std::string& run, const std::function<void(Trainer&)>& before) {
  std::thread second([&] {
    Trainer trainer;
    trainer.Plan(1, 2, 2, kRows, 2);
    trainer.Begin(run, 1, 2);
    before(trainer);
    trainer.Die();
  });
  Trainer trainer;
  trainer.Plan(0, 2, 0, 2, 1);
  trainer.Begin(run, 0, 2);
  json reply = trainer.Save();
  second.join();
  return reply;
}

TEST(ServeTest, NamesARankWhoseTrainerDiesBeforeItsCopy) {
  const TempDir dir;
  const json reply = SaveBesideOneThatDies(dir / "run", [](Trainer&) {});
  EXPECT_NE(reply["error"].get<std::string>().find(kRankOneDied), std::string::npos) << reply;
}

TEST(ServeTest, NamesATrainerThatDiesDuringItsCopy) {
  const TempDir dir;
  const json reply = SaveBesideOneThatDies(dir / "run", [](Trainer& trainer) {
    trainer.HandOver();
    trainer.Copied(kPageBytes);
  });
  EXPECT_NE(reply["error"].get<std::string>().find(kRankOneDied), std::string::npos) << reply;
}

TEST(ServeTest, AnAbandonedCopyFailsTheSave) {
  const TempDir dir;
  Trainer trainer;
  trainer.Plan(0, 1, 0, kRows, 1);
  trainer.Begin(dir / "run", 0, 1);
  const int64_t id = trainer.HandOver();
  trainer.Send({{"do", "abort"}, {"nonce", Trainer::kNonce}, {"error", "a was changed"}});
  EXPECT_EQ(trainer.Await(id).packet.head["error"], "a was changed");
  EXPECT_FALSE(FileSystem::Posix().Stat((dir / "run/") + StepDirName(7)).ok());
}

TEST(ServeTest, ALateRankIsNamedAndGetsTheErrorWhenItArrives) {
  const TempDir dir;
  Trainer trainer;
  trainer.Plan(0, 2, 0, 2, 1);
  trainer.Begin(dir / "run", 0, 2, 1);
  const json reply = trainer.Save();
  EXPECT_NE(reply["error"].get<std::string>().find("not finished: rank 1"), std::string::npos) << reply;
  trainer.Die();
  const std::vector<std::string> names = FileSystem::Posix().List(dir / "run").value();
  const auto failed =
      std::ranges::find_if(names, [](const std::string& name) { return name.find("partial") != name.npos; });
  ASSERT_NE(failed, names.end());  // the error that a rank should find that arrives now

  Trainer late;
  late.Plan(1, 2, 2, kRows, 2);
  late.Begin(dir / "run", 1, 2, 600);
  const json heard = late.Save();
  EXPECT_NE(heard["error"].get<std::string>().find("not finished: rank 1"), std::string::npos) << heard;
}

// Through the job's store, if the host of that rank, or this one, has lost the directory.
TEST(ServeTest, AReportedFailureEndsASaveImmediately) {
  const TempDir dir;
  for (const int rank : {0, 1}) {
    Trainer trainer;
    trainer.Plan(rank, 2, 0, 2, 1);
    trainer.Begin(dir / "run", rank, 2, 600);
    const int64_t id = trainer.HandOver();
    trainer.Copied(Trainer::kEverything);
    trainer.Ask({{"do", "news"}, {"nonce", Trainer::kNonce}, {"opened", rank == 0}});
    trainer.Ask({{"do", "news"}, {"nonce", Trainer::kNonce}, {"failed", "rank 3 (host n4) failed: no room"}});
    EXPECT_EQ(trainer.Await(id).packet.head["error"], "rank 3 (host n4) failed: no room");
  }
}

TEST(ServeTest, ASaveOutlivesItsTrainer) {
  const TempDir dir;
  Trainer trainer;
  trainer.Plan(0, 1, 0, kRows, 1);
  trainer.Begin(dir / "run", 0, 1);
  trainer.HandOver();
  trainer.Copied(Trainer::kEverything);
  trainer.Die();
  EXPECT_TRUE(FileSystem::Posix().Stat((dir / "run/") + StepDirName(7)).ok());
}

// After a node died: the restarted training waits for the run, and rank 1 will never come.
TEST(ServeTest, AHelperOfADeadTrainerReleasesTheRunSoon) {
  const TempDir dir;
  constexpr double kDeadline = 40;  // seconds; a tenth of it is left
  const auto start = std::chrono::steady_clock::now();
  Trainer trainer;
  trainer.Plan(0, 2, 0, 2, 1);
  trainer.Begin(dir / "run", 0, 2, kDeadline);
  trainer.HandOver();
  trainer.Copied(Trainer::kEverything);
  std::thread death([&] { trainer.Die(); });
  Trainer next;
  next.Plan(0, 1, 0, kRows, 1);
  EXPECT_TRUE(next.Begin(dir / "run", 0, 1, kDeadline / 2).contains("ok"));
  death.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::duration<double>(kDeadline));
}

// As with Lustre's localflock: each host has its own lock.
TEST(ServeTest, StopsSavingIfAnotherHostHoldsTheRunsLockToo) {
  const TempDir dir;
  Trainer trainer;
  trainer.Plan(0, 1, 0, kRows, 1);
  trainer.Begin(dir / "run", 0, 1);
  ASSERT_TRUE(trainer.Save().contains("ok"));
  std::ofstream(dir / "run/.lock") << EncodeLockHolder(
      {.host = "n3", .pid = 71, .job = "", .since = "then", .word = "abc"});
  const json refused = trainer.Begin(dir / "run", 0, 1);
  EXPECT_EQ(refused["kind"], "already_exists") << refused;
  EXPECT_NE(refused["error"].get<std::string>().find("pid 71 on n3 since then"), std::string::npos)
      << refused;
}

TEST(ServeTest, AFailedSaveOfAnExistingStepFails) {
  const TempDir dir;
  ASSERT_TRUE(SaveOfTwo(dir / "run", kRows, kRows).second.contains("ok"));  // rank 1 has no shard
  std::thread second([&] {
    Trainer trainer;
    trainer.Plan(1, 2, kRows, kRows, 2);
    trainer.Begin(dir / "run", 1, 2);
    EXPECT_TRUE(trainer.Save().contains("error"));
  });
  Trainer trainer;
  trainer.Plan(0, 2, 0, 2, 1);  // no rank writes rows 2 and on
  trainer.Begin(dir / "run", 0, 2);
  EXPECT_TRUE(trainer.Save().contains("error"));
  second.join();
}

TEST(ServeTest, ARunRemovedBetweenSavesIsCreatedAgain) {
  const TempDir dir;
  Trainer trainer;
  trainer.Plan(0, 1, 0, kRows, 1);
  for (int time = 0; time < 2; ++time) {
    trainer.Begin(dir / "run", 0, 1);
    EXPECT_TRUE(trainer.Save().contains("ok"));
    ASSERT_TRUE(RemoveTree(FileSystem::Posix(), dir / "run").ok());
  }
}

json Local(const std::string& run, const std::string& directory) {
  return {{"do", "local"},   {"run", run},          {"local", directory}, {"redundancy", ""},
          {"keep_local", 2}, {"nonce", "01234567"}, {"deadline", 30}};
}
json JoinAlone(const std::string& place) {
  return {{"do", "join"},      {"rank", 0},           {"secret", "s"},
          {"places", {place}}, {"names", {"rank 0"}}, {"deadline", 30}};
}

TEST(ServeTest, ASingleRankSavesOnItsNodeAndResumes) {
  const TempDir dir;
  const std::string run = dir / "run";
  Trainer trainer;
  const json place = trainer.Ask({{"do", "listen"}}).packet.head["ok"]["place"];
  ASSERT_TRUE(trainer.Ask(JoinAlone(place)).packet.head.contains("ok"));
  ASSERT_TRUE(trainer.Ask(Local(run, dir / "node")).packet.head.contains("ok"));
  const json resume{{"do", "resume"}, {"run", run}};
  EXPECT_EQ(trainer.Ask(resume).packet.head["ok"]["resumed"], false);
  trainer.Plan(0, 1, 0, kRows, 1);
  ASSERT_TRUE(trainer
                  .Ask({{"do", "begin"},
                        {"run", run},
                        {"step", 7},
                        {"nonce", Trainer::kNonce},
                        {"rank", 0},
                        {"world", 1},
                        {"local", true},
                        {"durable", false}})
                  .packet.head.contains("ok"));
  const json saved = trainer.Save();
  const std::string step = saved["ok"]["step_dir"];
  EXPECT_TRUE(step.starts_with(dir / "node")) << saved;
  EXPECT_FALSE(FileSystem::Posix().Stat(run + "/" + StepDirName(7)).ok());
  const auto opened_step = StepReader::Open(FileSystem::Posix(), step);
  ASSERT_TRUE(opened_step.ok()) << opened_step.status().message();
  EXPECT_TRUE(VerifyHash(FileSystem::Posix(), **opened_step).problems.empty());
  EXPECT_EQ(trainer.Ask(resume).packet.head["ok"]["load"], step);
  json outcome = resume;
  outcome["outcome"] = json::object();
  const json ended = trainer.Ask(outcome).packet.head["ok"];
  EXPECT_EQ(ended["resumed"], true);
  EXPECT_EQ(ended["in_run"], false);
}

// A trainer that dies while it loads does not leave its helper behind, and a request out of order is refused.
TEST(ServeTest, RefusesRequestsOfALocalLevelThatDoNotFit) {
  const TempDir dir;
  const std::string run = dir / "run";
  Trainer trainer;
  const auto refused = [&](json request, const std::string& words) {
    const json reply = trainer.Ask(request).packet.head;
    EXPECT_EQ(reply["kind"], "corrupt") << request << reply;
    EXPECT_NE(reply["error"].get<std::string>().find(words), std::string::npos) << reply;
  };
  refused(JoinAlone("1 127.0.0.1"), "rank 0 of 1 joins");
  refused(Local(run, dir / "node"), "have not joined");
  const json place = trainer.Ask({{"do", "listen"}}).packet.head["ok"]["place"];
  for (const int rank : {-1, 1}) {
    json join = JoinAlone(place);
    join["rank"] = rank;
    refused(join, "joins");
  }
  json nameless = JoinAlone(place);
  nameless["names"] = json::array();
  refused(nameless, "joins");
  ASSERT_TRUE(trainer.Ask(JoinAlone(place)).packet.head.contains("ok"));
  for (const auto& [field, value] : std::map<std::string, json>{
           {"nonce", "../../etc"}, {"run", ""}, {"local", ""}, {"keep_local", 0}, {"deadline", -1}}) {
    json local = Local(run, dir / "node");
    local[field] = value;
    refused(local, "");
  }
  refused({{"do", "resume"}, {"run", run}}, "no local level");
  refused({{"do", "resume"}, {"run", run}, {"outcome", json::object()}}, "no step was to be loaded");
  refused({{"do", "begin"},
           {"run", run},
           {"step", 7},
           {"nonce", Trainer::kNonce},
           {"rank", 0},
           {"world", 1},
           {"local", true}},
          "no local level");
}

// A process that opens the lock's file again waits for itself.
TEST(ServeTest, AllPathsToARunMeanTheSameRun) {
  const TempDir dir;
  Trainer trainer;
  trainer.Plan(0, 1, 0, kRows, 1);
  trainer.Begin(dir / "run", 0, 1);
  EXPECT_TRUE(trainer.Save().contains("ok"));
  ASSERT_EQ(::symlink((dir / "run").c_str(), (dir / "link").c_str()), 0);
  EXPECT_TRUE(trainer.Begin(dir / "link", 0, 1, /*deadline=*/2).contains("ok"));
  EXPECT_TRUE(trainer.Save().contains("ok"));
}

TEST(ServeTest, MalformedRequestsGetAnErrorAndChangeNothing) {
  const TempDir dir;
  Trainer trainer;
  for (const json& request :
       {json{{"do", "dance"}}, json{{"do", "plan"}}, json{{"do", "plan"}, {"rank", "x"}},
        json{{"do", "write"}}, json{{"do", "write"}, {"nonce", "00"}, {"plan", 3}},
        json{{"do", "begin"}, {"run", ""}},
        json{{"do", "begin"}, {"run", dir / "r"}, {"step", 1}, {"nonce", "../x"}, {"rank", 0}, {"world", 1}},
        json{{"do", "loaded"}},
        json{{"do", "loaded"},
             {"origin",
              {{"step", 1}, {"run", "r"}, {"descent", json::object()}, {"names", {"a"}}, {"read", {1}}}}}})
    EXPECT_TRUE(trainer.Ask(request).packet.head.contains("error")) << request;
}

TEST(ServeTest, ConflictingTensorsAreRefusedBeforeTheCopy) {
  Trainer trainer;
  const auto tensor = [](const char* name) {
    return json{{"fqn", name}, {"dtype", "fp32"}, {"shape", {2}}, {"pieces", json::array()}};
  };
  const json reply = trainer
                         .Ask({{"do", "plan"},
                               {"plan", 1},
                               {"rank", 0},
                               {"world", 1},
                               {"tensors", {tensor("a"), tensor("a/b")}}})
                         .packet.head;
  EXPECT_EQ(reply["kind"], "invalid_argument") << reply;
  EXPECT_NE(reply["error"].get<std::string>().find("tensors a and a/b"), std::string::npos) << reply;
}

TEST(ServeTest, AFailedSystemCallIsReportedWithErrnoAndPath) {
  const TempDir dir;
  const std::string file = dir / "file";
  ASSERT_TRUE(WriteSmallFile(FileSystem::Posix(), file, "x").ok());
  Trainer trainer;
  const json reply = trainer.Begin(file + "/run", 0, 1);
  EXPECT_EQ(reply["errno"], ENOTDIR) << reply;
  EXPECT_EQ(reply["path"].get<std::string>().rfind(file, 0), 0U) << reply;
  EXPECT_EQ(reply["reason"], std::strerror(ENOTDIR));
}

TEST(ServeTest, AMessageWithoutANumberEndsTheHelperAndFreesTheRun) {
  for (const json& id : {json("seven"), json(), json(7.5)}) {
    const TempDir dir;
    Trainer trainer;
    trainer.Plan(0, 1, 0, kRows, 1);
    trainer.Begin(dir / "run", 0, 1);
    trainer.HandOver();
    trainer.SendAsItIs({{"id", id}, {"do", "copied"}});
    EXPECT_TRUE(trainer.Ended());
    EXPECT_TRUE(RunLock::Take(FileSystem::Posix(), dir / "run").ok());
    EXPECT_FALSE(FileSystem::Posix().Stat((dir / "run/") + StepDirName(7)).ok());
  }
}

// A save that comes from a load, request by request.
std::vector<json> Requests(const std::string& run) {
  const json box = {{"offset", {0, 0}}, {"extent", {kRows, kColumns}}};
  std::vector<json> requests = {
      {{"do", "plan"},
       {"plan", 1},
       {"rank", 0},
       {"world", 1},
       {"names", {"x"}},
       {"small", json::array()},
       {"tensors", {{{"fqn", "a"}, {"dtype", "fp32"}, {"shape", {kRows, kColumns}}, {"pieces", {box}}}}}},
      {{"do", "begin"},
       {"run", run},
       {"step", 7},
       {"nonce", Trainer::kNonce},
       {"rank", 0},
       {"world", 1},
       {"deadline", 2}},
      {{"do", "write"},
       {"nonce", Trainer::kNonce},
       {"plan", 1},
       {"options", {{"compress", false}, {"keep_last", 0}, {"model", {{"x", 1}}}, {"state", {{"x", 1}}}}},
       {"objects", {{"x", {{"tail", {0, 0}}, {"values", {{"x", {{"json", "7"}, {"path", {"x"}}}}}}}}}}},
      {{"do", "copied"}, {"nonce", Trainer::kNonce}, {"bytes", Trainer::kEverything}},
      {{"do", "news"}, {"nonce", Trainer::kNonce}, {"opened", true}, {"saved", false}, {"failed", ""}},
      {{"do", "loaded"},
       {"origin", {{"step", 1}, {"run", "r"}, {"descent", json::object()}, {"names", {"a"}}, {"read", {0}}}}},
      {{"do", "abort"}, {"nonce", Trainer::kNonce}, {"error", "x"}},
      {{"do", "forget"}, {"plan", 1}}};
  for (size_t i = 0; i < requests.size(); ++i) requests[i]["id"] = i + 1;
  return requests;
}

// Each field of each request in turn has each of these values. The helper ends with its trainer, and the run
// is free.
TEST(ServeTest, AFieldOfTheWrongTypeBlocksNeitherHelperNorRun) {
  const size_t count = Requests("").size();
  for (size_t changed = 0; changed < count; ++changed) {
    const json fields = Requests("")[changed].flatten();
    for (const auto& [path, value] : fields.items())
      for (const json& wrong : {json(), json(""), json(-1), json(1e300), json::array({{}})}) {
        SCOPED_TRACE(fmt::format("{} of request {} is {}", path, changed, wrong.dump()));
        const TempDir dir(TempDir::Place::kMemory);
        Trainer trainer;
        std::vector<json> requests = Requests(dir / "run");
        requests[changed][json::json_pointer(path)] = wrong;
        for (json& request : requests) trainer.SendAsItIs(request);
        trainer.Die();
        const bool made = FileSystem::Posix().Stat(dir / "run").ok();
        EXPECT_TRUE(!made || RunLock::Take(FileSystem::Posix(), dir / "run").ok());
      }
  }
}

}  // namespace
}  // namespace cairn
