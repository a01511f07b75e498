// The schedules by simulation: each stage takes its actions one after another, each as soon as its input
// has arrived. Nothing here communicates or measures time.
#include "runtime/schedules/pipeline_schedule.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace cairn {
namespace {

using Kind = StageAction::Kind;
using Schedules = std::vector<StageSchedule>;  // by stage
using MakeSchedule = StageSchedule (*)(const PipelineShape&, int stage);

Schedules Of(MakeSchedule make, const PipelineShape& shape) {
  Schedules schedules;
  for (int stage = 0; stage < shape.stages; ++stage) schedules.push_back(make(shape, stage));
  return schedules;
}

StageSchedule Forwards(const PipelineShape& shape, int) { return ForwardOnly(shape); }

// A dependency of actions: an action of a part of the model.
struct Task {
  Kind kind;
  int64_t micro_batch;
  int part;
  auto operator<=>(const Task&) const = default;
};

Task TaskOf(const PipelineShape& shape, int stage, const StageAction& action) {
  return {action.kind, action.micro_batch, action.chunk * shape.stages + stage};
}

// The tasks before `task`: of the part before or after, and the forward of a backward.
std::vector<Task> Needs(const PipelineShape& shape, const Task& task) {
  const auto [kind, i, part] = task;
  std::vector<Task> needs;
  if (kind == Kind::kForward && part > 0) needs.push_back({kind, i, part - 1});
  if (kind == Kind::kBackward && part < shape.parts() - 1) needs.push_back({kind, i, part + 1});
  if (kind == Kind::kBackward) needs.push_back({Kind::kForward, i, part});
  return needs;
}

struct Outcome {
  std::vector<double> idle;   // of each stage, as a share of the time that it computes
  std::vector<int64_t> most;  // micro-batches of a chunk whose activations each stage held at once
};

// Requires schedules that finish. Seconds of a part's forward and backward.
Outcome Simulate(const PipelineShape& shape, const Schedules& schedules, double forward, double backward) {
  std::map<Task, double> done;
  std::vector<size_t> next(shape.stages);
  std::vector<double> now(shape.stages), busy(shape.stages);
  std::vector<int64_t> held(shape.stages);
  Outcome outcome{.idle = {}, .most = std::vector<int64_t>(shape.stages)};
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < shape.stages; ++stage) {
      if (next[stage] == schedules[stage].size()) continue;
      const Task task = TaskOf(shape, stage, schedules[stage][next[stage]]);
      const std::vector<Task> needs = Needs(shape, task);
      if (!std::ranges::all_of(needs, [&](const Task& need) { return done.contains(need); })) continue;
      double start = now[stage];
      for (const Task& need : needs) start = std::max(start, done[need]);
      const double takes = task.kind == Kind::kForward ? forward : backward;
      now[stage] = done[task] = start + takes;
      busy[stage] += takes;
      held[stage] += task.kind == Kind::kForward ? 1 : -1;
      outcome.most[stage] = std::max(outcome.most[stage], held[stage]);
      ++next[stage];
      moved = true;
    }
  }
  for (int stage = 0; stage < shape.stages; ++stage)
    EXPECT_EQ(next[stage], schedules[stage].size()) << "stage " << stage << " is stuck";
  const double end = *std::ranges::max_element(now);
  for (const double seconds : busy) outcome.idle.push_back(end / seconds - 1);
  return outcome;
}

// The strictest transport, NCCL's: the messages of a kind and direction (to a higher rank or a lower one) go
// one after another at each stage, and none is sent before its receiver is ready. A stage posts what its
// next `ahead` actions receive, waits for what this one does, and waits for no send.
class OrderedTransport {
 public:
  OrderedTransport(const PipelineShape& shape, Schedules schedules, size_t ahead)
      : shape_(shape), schedules_(std::move(schedules)), ahead_(ahead), stages_(shape.stages) {}

  bool ComesToAnEnd() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < shape_.stages; ++stage) moved = Step(stage) || moved;
      for (int stage = 0; stage < shape_.stages; ++stage) moved = Deliver(stage) || moved;
    }
    for (int stage = 0; stage < shape_.stages; ++stage)
      if (stages_[stage].next < schedules_[stage].size()) return false;
    return true;
  }

 private:
  using Line = std::pair<Kind, bool>;  // upwards or not
  struct Message {
    bool sends;
    int peer;
    Task task;  // the one that receives
  };
  struct Stage {
    size_t next = 0, posted = 0;
    std::map<Line, std::deque<Message>> lines;
    std::set<Task> received;
  };

  std::optional<Message> Receive(int stage, const StageAction& action) const {
    const Task task = TaskOf(shape_, stage, action);
    const bool forward = task.kind == Kind::kForward;
    if (task.part == (forward ? 0 : shape_.parts() - 1)) return std::nullopt;
    return Message{false, (stage + shape_.stages + (forward ? -1 : 1)) % shape_.stages, task};
  }

  std::optional<Message> Send(int stage, const StageAction& action) const {
    Task task = TaskOf(shape_, stage, action);
    const bool forward = task.kind == Kind::kForward;
    if (task.part == (forward ? shape_.parts() - 1 : 0)) return std::nullopt;
    task.part += forward ? 1 : -1;
    return Message{true, (stage + shape_.stages + (forward ? 1 : -1)) % shape_.stages, task};
  }

  void Post(int stage, const Message& message) {
    const bool up = message.sends ? message.peer > stage : message.peer < stage;
    stages_[stage].lines[{message.task.kind, up}].push_back(message);
  }

  bool Step(int stage) {
    Stage& s = stages_[stage];
    const StageSchedule& schedule = schedules_[stage];
    if (s.next == schedule.size()) return false;
    for (; s.posted < std::min(s.next + 1 + ahead_, schedule.size()); ++s.posted)
      if (const auto message = Receive(stage, schedule[s.posted])) Post(stage, *message);
    const StageAction& action = schedule[s.next];
    if (Receive(stage, action) && !s.received.contains(TaskOf(shape_, stage, action))) return false;
    if (const auto message = Send(stage, action)) Post(stage, *message);
    ++s.next;
    return true;
  }

  bool Deliver(int stage) {
    bool moved = false;
    for (auto& [line, messages] : stages_[stage].lines) {
      if (messages.empty() || !messages.front().sends) continue;
      const Message message = messages.front();
      Stage& peer = stages_[message.peer];
      auto& others = peer.lines[line];
      if (others.empty() || others.front().sends || others.front().peer != stage) continue;
      EXPECT_EQ(others.front().task, message.task) << "messages arrive in another order than sent";
      peer.received.insert(message.task);
      others.pop_front();
      messages.pop_front();
      moved = true;
    }
    return moved;
  }

  const PipelineShape shape_;
  const Schedules schedules_;
  size_t ahead_;
  std::vector<Stage> stages_;
};

// Each micro-batch once a chunk, in order; nothing waits for ever.
void CheckSound(MakeSchedule make, const PipelineShape& shape, bool trains) {
  const Schedules schedules = Of(make, shape);
  SCOPED_TRACE(
      fmt::format("{} stages, {} chunks, {} micro-batches", shape.stages, shape.chunks, shape.micro_batches));
  for (int stage = 0; stage < shape.stages; ++stage) {
    std::map<std::pair<Kind, int>, int64_t> next;
    for (const auto& [kind, micro_batch, chunk] : schedules[stage])
      EXPECT_EQ(micro_batch, (next[{kind, chunk}]++)) << "stage " << stage << ", chunk " << chunk;
    EXPECT_EQ(next.size(), static_cast<size_t>(shape.chunks * (trains ? 2 : 1)));
    for (const auto& [which, count] : next) EXPECT_EQ(count, shape.micro_batches);
  }
  EXPECT_TRUE(OrderedTransport(shape, schedules, 0).ComesToAnEnd());
}

void CheckBubble(const PipelineShape& shape, const Outcome& outcome) {
  const double formula =
      (shape.stages - 1.0) / (static_cast<double>(shape.micro_batches) * static_cast<double>(shape.chunks));
  for (const double idle : outcome.idle)
    EXPECT_NEAR(idle, formula, 1e-9) << shape.stages << " stages, " << shape.chunks << " chunks, "
                                     << shape.micro_batches << " micro-batches";
}

TEST(PipelineSchedule, SchedulesOfTwoStagesAreAsPublished) {
  const auto text = [](const StageSchedule& schedule) {
    std::string words;
    for (const auto& [kind, i, chunk] : schedule)
      words += fmt::format("{}{}{} ", kind == Kind::kForward ? "F" : "B", i, chunk == 0 ? "" : "'");
    return words;
  };
  EXPECT_EQ(text(GPipe({2, 1, 3}, 0)), "F0 F1 F2 B0 B1 B2 ");
  EXPECT_EQ(text(OneForwardOneBackward({2, 1, 3}, 0)), "F0 F1 B0 F2 B1 B2 ");
  EXPECT_EQ(text(OneForwardOneBackward({2, 1, 3}, 1)), "F0 B0 F1 B1 F2 B2 ");
  EXPECT_EQ(text(Interleaved({2, 2, 4}, 0)), "F0 F1 F0' F1' F2 B0' F3 B1' F2' B0 F3' B1 B2' B3' B2 B3 ");
  EXPECT_EQ(text(Interleaved({2, 2, 4}, 1)), "F0 F1 F0' B0' F1' B1' F2 B0 F3 B1 F2' B2' F3' B3' B2 B3 ");
  EXPECT_EQ(text(ForwardOnly({2, 2, 3})), "F0 F1 F0' F1' F2 F2' ");
}

TEST(PipelineSchedule, NoScheduleDeadlocksWithOrderedMessages) {
  for (int stages = 1; stages <= 6; ++stages)
    for (int64_t count = 1; count <= 13; ++count) {
      CheckSound(GPipe, {stages, 1, count}, true);
      CheckSound(OneForwardOneBackward, {stages, 1, count}, true);
      for (int chunks = 1; chunks <= (stages == 1 ? 1 : 4); ++chunks) {
        CheckSound(Forwards, {stages, chunks, count}, false);
        if (count % stages == 0) CheckSound(Interleaved, {stages, chunks, count}, true);
      }
    }
}

// The reason why a pipeline posts no early receives on a GPU: a stage's message to the next would wait for
// one that it is to receive later, and that one for the first to go round.
TEST(PipelineSchedule, EarlyReceivesNeedAnUnorderedTransport) {
  const PipelineShape shape{5, 2, 2};
  EXPECT_TRUE(OrderedTransport(shape, Of(Forwards, shape), 0).ComesToAnEnd());
  EXPECT_FALSE(OrderedTransport(shape, Of(Forwards, shape), 1).ComesToAnEnd());
}

// (p - 1) / m, and (p - 1) / (m v) with v chunks; whatever a backward costs relative to a forward.
TEST(PipelineSchedule, BubbleMatchesTheFormula) {
  for (const double backward : {1.0, 2.0, 3.0})
    for (int stages = 1; stages <= 6; ++stages)
      for (int groups = 1; groups <= 4; ++groups) {
        const int64_t count = int64_t{stages} * groups;
        for (const MakeSchedule make : {GPipe, OneForwardOneBackward}) {
          const PipelineShape shape{stages, 1, count};
          CheckBubble(shape, Simulate(shape, Of(make, shape), 1, backward));
        }
        for (int chunks = 2; chunks <= 4; ++chunks) {
          const PipelineShape shape{stages, chunks, count};
          CheckBubble(shape, Simulate(shape, Of(Interleaved, shape), 1, backward));
        }
      }
}

TEST(PipelineSchedule, ActivationsInFlightAreBounded) {
  const PipelineShape plain{4, 1, 16}, cut{4, 2, 16};
  const auto most = [](MakeSchedule make, const PipelineShape& shape) {
    return Simulate(shape, Of(make, shape), 1, 2).most;
  };
  EXPECT_EQ(most(GPipe, plain), (std::vector<int64_t>{16, 16, 16, 16}));
  EXPECT_EQ(most(OneForwardOneBackward, plain), (std::vector<int64_t>{4, 3, 2, 1}));
  // With chunks, which are half as large: 5.5 micro-batches instead of 4, a factor of 1 + (p - 1) / (p v).
  EXPECT_EQ(most(Interleaved, cut), (std::vector<int64_t>{11, 9, 7, 5}));
}

}  // namespace
}  // namespace cairn
