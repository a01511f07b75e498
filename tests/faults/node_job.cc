#include "tests/faults/node_job.h"

#include <cstring>

#include "ckpt/base/nonce.h"
#include "ckpt/job/peer_file_system.h"
#include "ckpt/step/step_reader.h"
#include "ckpt/step/verify.h"
#include "tools/serve/failure.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr uint64_t kRows = 6, kColumns = 1000;  // of the only tensor

float ValueAt(int64_t step, uint64_t element) { return static_cast<float>(step * 10'000 + element); }

uint64_t RowsBefore(int rank, int world) { return kRows * static_cast<uint64_t>(rank) / world; }

Status StatusOfReply(const json& head) {
  if (head.contains("ok")) return OkStatus();
  return head.is_object() ? StatusOf(head) : Aborted("the helper has ended");
}

// Every byte of the step, and that it has the values of its number.
Result<int64_t> LoadStep(FileSystem& fs, const json& said) {
  PeerFiles peers(fs, NodeJob::kDeadlineSeconds, [] {});
  std::map<std::string, PeerFileSystem::Place> elsewhere;
  for (const auto& [name, place] : said.at("elsewhere").items())
    elsewhere[name] = {place.at(0).get<int>(), place.at(1).get<uint64_t>()};
  peers.Join({.rank = -1,
              .secret = said.at("secret").get<std::string>(),
              .places = said.at("places").get<std::vector<std::string>>(),
              .names = said.at("names").get<std::vector<std::string>>()},
             nullptr);
  const auto directory = said.at("load").get<std::string>();
  PeerFileSystem view(fs, directory, std::move(elsewhere), peers);
  CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(view, directory));
  if (const VerifyReport report = VerifyHash(view, *step); !report.problems.empty())
    return Corrupt("{}", ToString(report.problems.front()));
  std::vector<float> values(kRows * kColumns);
  const Dims shape{kRows, kColumns};
  for (uint32_t t = 0; t < step->catalog().tensors.size(); ++t) {
    if (step->catalog().tensors[t].spec.shape != shape) continue;
    CAIRN_RETURN_IF_ERROR(
        step->ReadBox(t, Box::Whole(shape), std::as_writable_bytes(std::span<float>(values))));
    for (uint64_t i = 0; i < values.size(); ++i)
      if (values[i] != ValueAt(step->manifest().step, i))
        return InvalidArgument("step {} holds other values at element {}", step->manifest().step, i);
    return step->manifest().step;
  }
  return InvalidArgument("step {} has no tensor", step->manifest().step);
}

}  // namespace

NodeJob::NodeJob(std::vector<FileSystem*> disks, std::string root, std::string redundancy, int64_t keep_local)
    : disks_(std::move(disks)),
      root_(std::move(root)),
      redundancy_(std::move(redundancy)),
      keep_local_(keep_local) {
  for (FileSystem* disk : disks_) ranks_.push_back({std::make_unique<ServedHelper>(*disk), {}});
}

// All ranks answer before the first error is returned: they must stay in step.
Status NodeJob::AskAll(const std::function<json(int rank)>& request) {
  std::vector<int64_t> ids;
  for (int rank = 0; rank < world(); ++rank) ids.push_back(ranks_[rank].helper->Send(request(rank)));
  Status first;
  for (int rank = 0; rank < world(); ++rank)
    if (const Status status = StatusOfReply(ranks_[rank].helper->Await(ids[rank]).packet.head); first.ok())
      first = status;
  return first;
}

Status NodeJob::Open() {
  opened_ = local_ = false;
  json places = json::array(), names = json::array();
  for (int rank = 0; rank < world(); ++rank) {
    const json head = ranks_[rank].helper->Ask({{"do", "listen"}}).packet.head;
    CAIRN_RETURN_IF_ERROR(StatusOfReply(head));
    places.push_back(head["ok"]["place"]);
    names.push_back(fmt::format("rank {}", rank));
  }
  const std::string secret = NewNonce(), nonce = NewNonce();
  CAIRN_RETURN_IF_ERROR(AskAll([&](int rank) -> json {
    return {{"do", "join"},     {"rank", rank},   {"secret", secret},
            {"places", places}, {"names", names}, {"deadline", 10 * kDeadlineSeconds}};
  }));
  const Status opened = AskAll([&](int rank) -> json {
    return {{"do", "local"},
            {"run", Run()},
            {"local", NodeDir(root_, rank)},
            {"redundancy", redundancy_},
            {"keep_local", keep_local_},
            {"nonce", nonce},
            {"deadline", kDeadlineSeconds}};
  });
  if (opened.kind() == StatusKind::kAborted || opened.kind() == StatusKind::kInvalidArgument) return opened;
  opened_ = true;
  local_ = opened.ok();
  return OkStatus();
}

Result<int64_t> NodeJob::Resume() {
  if (!opened_) CAIRN_RETURN_IF_ERROR(Open());
  if (!local_) return IoError("the local level cannot be used");
  std::vector<json> requests(world(), {{"do", "resume"}, {"run", Run()}});
  int64_t loaded = -1;
  while (true) {
    std::vector<int64_t> ids;
    std::vector<json> replies;
    for (int rank = 0; rank < world(); ++rank) ids.push_back(ranks_[rank].helper->Send(requests[rank]));
    for (int rank = 0; rank < world(); ++rank)
      replies.push_back(ranks_[rank].helper->Await(ids[rank]).packet.head);
    for (const json& reply : replies) CAIRN_RETURN_IF_ERROR(StatusOfReply(reply));
    if (!replies[0]["ok"].contains("load")) return replies[0]["ok"]["resumed"] == true ? loaded : -1;
    for (int rank = 0; rank < world(); ++rank) {
      const Result<int64_t> step = LoadStep(*disks_[rank], replies[rank]["ok"]);
      if (step.status().kind() == StatusKind::kInvalidArgument) return step;
      if (step.ok()) loaded = *step;
      requests[rank]["outcome"] = step.ok() ? json::object() : FailureJson(step.status());
    }
  }
}

// Memory that no step has, with the values of `step`.
Result<const NodeJob::Segment*> NodeJob::Stage(int rank, int64_t step) {
  Rank& own = ranks_[rank];
  json plans = json::array();
  for (const Segment& segment : own.segments) plans.push_back(segment.plan);
  const json freed = own.helper->Ask({{"do", "freed"}, {"plans", plans}}).packet.head;
  CAIRN_RETURN_IF_ERROR(StatusOfReply(freed));
  const Segment* chosen = nullptr;
  for (const Segment& segment : own.segments)
    for (const json& plan : freed["ok"]["plans"])
      if (plan == segment.plan) chosen = &segment;
  const uint64_t begin = RowsBefore(rank, world()), end = RowsBefore(rank + 1, world());
  if (chosen == nullptr) {
    const json box{{"offset", {begin, 0}}, {"extent", {end - begin, kColumns}}};
    const json tensor{
        {"fqn", "a"}, {"dtype", "fp32"}, {"shape", {kRows, kColumns}}, {"pieces", json::array({box})}};
    const Message reply = own.helper->Ask({{"do", "plan"},
                                           {"plan", ++plans_},
                                           {"rank", rank},
                                           {"world", world()},
                                           {"run", local_ ? Run() : ""},
                                           {"names", {"step"}},
                                           {"tensors", json::array({tensor})}});
    CAIRN_RETURN_IF_ERROR(StatusOfReply(reply.packet.head));
    const json& ok = reply.packet.head["ok"];
    const auto bytes = ok["bytes"].get<uint64_t>();
    void* const memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, reply.descriptor.get(), 0);
    if (memory == MAP_FAILED) return IoError("mmap of a segment");
    own.segments.push_back({plans_, Mapping(memory, bytes), ok["offsets"][0].get<std::vector<uint64_t>>()});
    chosen = &own.segments.back();
  }
  std::vector<float> values((end - begin) * kColumns);
  for (uint64_t i = 0; i < values.size(); ++i) values[i] = ValueAt(step, begin * kColumns + i);
  std::memcpy(chosen->memory.bytes().data() + chosen->offsets[0], values.data(),
              values.size() * sizeof(float));
  return chosen;
}

NodeJob::Save NodeJob::Begin(int64_t step, bool durable) {
  Save save{.nonce = NewNonce() + NewNonce(), .requests = std::vector<int64_t>(world(), -1), .failure = {}};
  if (!opened_) save.failure = Open();
  if (!save.failure.ok()) return save;
  for (int rank = 0; rank < world(); ++rank) {
    json begin{{"do", "begin"},
               {"run", Run()},
               {"step", step},
               {"nonce", save.nonce},
               {"rank", rank},
               {"world", world()},
               {"deadline", kDeadlineSeconds},
               {"local", local_},
               {"durable", durable || !local_}};
    if (!started_) begin["start"] = {{"time", 1.0}, {"seconds", 1.0}, {"local_step", -1}};
    ranks_[rank].helper->Send(begin);
  }
  started_ = true;
  for (int rank = 0; rank < world(); ++rank) {
    ServedHelper& helper = *ranks_[rank].helper;
    const Result<const Segment*> segment = Stage(rank, step);
    if (!segment.ok()) {
      save.failure = segment.status();
      helper.Ask({{"do", "abort"}, {"nonce", save.nonce}, {"error", save.failure.message()}});
      continue;
    }
    const json value{{"step", {{"json", std::to_string(step)}}}};
    save.requests[rank] = helper.Send({{"do", "write"},
                                       {"nonce", save.nonce},
                                       {"plan", (*segment)->plan},
                                       {"objects", {{"step", {{"tail", {0, 0}}, {"values", value}}}}}});
    helper.Send({{"do", "copied"}, {"nonce", save.nonce}, {"bytes", (*segment)->memory.bytes().size()}});
  }
  return save;
}

// The replies, or those that come before all others have said "written". The first failure is passed to the
// other ranks, as by the job's store.
std::vector<std::optional<json>> NodeJob::Follow(const Save& save, bool only_written) {
  std::vector<std::optional<json>> replies(world());
  bool told = false;
  for (int left = world(); left > 0;) {
    left = 0;
    for (int rank = 0; rank < world(); ++rank) {
      const int64_t id = save.requests[rank];
      ServedHelper& helper = *ranks_[rank].helper;
      if (id < 0 || replies[rank] || (only_written && helper.HasWritten(id))) continue;
      ++left;
      if (!helper.Replied(id, 10)) continue;
      replies[rank] = helper.Await(id).packet.head;
      const Status status = StatusOfReply(*replies[rank]);
      for (int other = 0; other < world() && !status.ok() && !told; ++other)
        if (other != rank)
          ranks_[other].helper->Send({{"do", "news"},
                                      {"nonce", save.nonce},
                                      {"failed", fmt::format("rank {} failed: {}", rank, status.message())}});
      told |= !status.ok();
    }
  }
  if (only_written)  // they are asked for again
    for (int rank = 0; rank < world(); ++rank)
      if (replies[rank]) ranks_[rank].helper->PutBack(std::move(*replies[rank]));
  return replies;
}

Status NodeJob::Await(const Save& save, bool& reported) {
  Status first = save.failure;
  reported = false;
  for (const std::optional<json>& reply : Follow(save, false)) {
    if (!reply) continue;
    const Status status = StatusOfReply(*reply);
    reported |= status.ok();
    if (first.ok()) first = status;
  }
  if (!first.ok()) opened_ = false;
  return first;
}

Status NodeJob::Write(int64_t step, bool durable, bool& reported) {
  return Await(Begin(step, durable), reported);
}

void NodeJob::End() {
  (void)AskAll([](int) -> json { return {{"do", "end"}, {"how", "done"}}; });
  for (Rank& rank : ranks_) rank.helper->Die();
}

}  // namespace cairn
