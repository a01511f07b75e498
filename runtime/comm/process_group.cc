// Each operation checks its tensors, starts on the backend, and becomes a Work with what the watchdog would
// print. Collectives are numbered by group on the status board when they start, so that the watchdog can name
// the ranks that have not arrived. The watchdog watches only while a thread waits; on a GPU, where wait()
// returns before the operation is complete, it takes over and polls until it is.

#include "runtime/comm/process_group.h"

#include <exception>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "runtime/control/watchdog.h"

namespace cairn {

struct ProcessGroup::State {
  std::string name;
  int id = -1;
  std::vector<int> world_ranks{0};
  int rank = 0;
  c10::intrusive_ptr<c10d::Backend> backend;
  c10::intrusive_ptr<c10d::Backend> downward;
  bool on_device = false;  // complete long after wait() has returned
  mutable uint64_t sequence = 0;

  int size() const { return static_cast<int>(world_ranks.size()); }
};

struct Work::Pending {
  c10::intrusive_ptr<c10d::Work> work;
  Watchdog::Operation operation;
  std::string tensor;  // operation.tensor looks at it
  std::shared_ptr<const ProcessGroup::State> group;
};

Work::Work() = default;
Work::Work(std::unique_ptr<Pending> pending) : pending_(std::move(pending)) {}
Work::Work(Work&&) noexcept = default;

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    Wait();
    pending_ = std::move(other.pending_);
  }
  return *this;
}

Work::~Work() {
  if (std::uncaught_exceptions() == 0) Wait();
}

void Work::Wait() {
  if (!pending_) return;
  const std::unique_ptr<Pending> pending = std::move(pending_);
  if (!pending->group->on_device && pending->work->isCompleted()) return;
  pending->operation.tensor = pending->tensor;
  Watchdog::Scope scope(pending->operation);
  pending->work->wait(kNoTimeout);
  if (pending->group->on_device)
    Watchdog::Adopt(std::move(scope), [work = pending->work] { return work->isCompleted(); });
}

bool Work::IsComplete() const { return !pending_ || pending_->work->isCompleted(); }

namespace {

void CheckTensor(const at::Tensor& t, std::string_view what) {
  TORCH_CHECK(t.defined() && t.is_contiguous(), what, ": only contiguous tensors can be sent or reduced");
}

}  // namespace

ProcessGroup::ProcessGroup() : state_(std::make_shared<State>()) {}

ProcessGroup::ProcessGroup(std::string name, int id, std::vector<int> world_ranks, int rank,
                           c10::intrusive_ptr<c10d::Backend> backend,
                           c10::intrusive_ptr<c10d::Backend> downward) {
  auto state = std::make_shared<State>();
  state->name = std::move(name);
  state->id = id;
  state->world_ranks = std::move(world_ranks);
  state->rank = rank;
  state->on_device = backend && backend->getBackendName() == "nccl";
  state->backend = std::move(backend);
  state->downward = std::move(downward);
  state_ = std::move(state);
}

int ProcessGroup::rank() const { return state_->rank; }
int ProcessGroup::size() const { return state_->size(); }
const std::string& ProcessGroup::name() const { return state_->name; }
const std::vector<int>& ProcessGroup::world_ranks() const { return state_->world_ranks; }

// The collective's Work, counted on the status board.
Work ProcessGroup::Collective(const char* name, std::string_view what,
                              c10::intrusive_ptr<c10d::Work> work) const {
  const uint64_t sequence = ++state_->sequence;
  Watchdog::Arrive(state_->id, sequence);
  Watchdog::Operation operation{.name = name,
                                .tensor = {},
                                .group = state_->name,
                                .group_id = state_->id,
                                .sequence = sequence,
                                .peers = state_->world_ranks};
  return Work(std::make_unique<Work::Pending>(
      Work::Pending{std::move(work), std::move(operation), std::string(what), state_}));
}

Work ProcessGroup::Message(const char* name, std::string_view what, int peer,
                           c10::intrusive_ptr<c10d::Work> work) const {
  Watchdog::Operation operation{
      .name = name, .tensor = {}, .group = state_->name, .peers = {state_->world_ranks.at(peer)}};
  return Work(std::make_unique<Work::Pending>(
      Work::Pending{std::move(work), std::move(operation), std::string(what), state_}));
}

Work ProcessGroup::AllReduce(at::Tensor t, bool max, std::string_view what) const {
  CheckTensor(t, what);
  if (size() == 1 || t.numel() == 0) return {};
  std::vector<at::Tensor> tensors{std::move(t)};
  c10d::AllreduceOptions options;
  options.reduceOp = max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
  return Collective("all-reduce", what, state_->backend->allreduce(tensors, options));
}

void ProcessGroup::AllReduceSum(at::Tensor& t, std::string_view what) const {
  AllReduce(t, false, what).Wait();
}
void ProcessGroup::AllReduceMax(at::Tensor& t, std::string_view what) const {
  AllReduce(t, true, what).Wait();
}
Work ProcessGroup::AllReduceSumAsync(at::Tensor t, std::string_view what) const {
  return AllReduce(std::move(t), false, what);
}

void ProcessGroup::CheckRoot(int root, std::string_view what) const {
  TORCH_CHECK(root >= 0 && root < size(), what, ": rank ", root, " is not in group ", name(), " of ", size());
}

Work ProcessGroup::ReduceSumAsync(at::Tensor t, int root, std::string_view what) const {
  CheckTensor(t, what);
  CheckRoot(root, what);
  if (size() == 1 || t.numel() == 0) return {};
  std::vector<at::Tensor> tensors{std::move(t)};
  c10d::ReduceOptions options;
  options.rootRank = root;
  return Collective("reduce", what, state_->backend->reduce(tensors, options));
}

void ProcessGroup::Broadcast(at::Tensor& t, int root, std::string_view what) const {
  BroadcastAsync(t, root, what).Wait();
}
Work ProcessGroup::BroadcastAsync(at::Tensor t, int root, std::string_view what) const {
  CheckTensor(t, what);
  CheckRoot(root, what);
  if (size() == 1 || t.numel() == 0) return {};
  std::vector<at::Tensor> tensors{std::move(t)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return Collective("broadcast", what, state_->backend->broadcast(tensors, options));
}

void ProcessGroup::AllGather(at::Tensor& out_flat, const at::Tensor& in_flat, std::string_view what) const {
  AllGatherAsync(out_flat, in_flat, what).Wait();
}
Work ProcessGroup::AllGatherAsync(at::Tensor out_flat, at::Tensor in_flat, std::string_view what) const {
  CheckTensor(out_flat, what);
  CheckTensor(in_flat, what);
  TORCH_CHECK(out_flat.numel() == in_flat.numel() * size() && out_flat.scalar_type() == in_flat.scalar_type(),
              what, ": all-gather of ", in_flat.numel(), " elements over ", size(), " ranks does not fill ",
              out_flat.numel());
  if (out_flat.numel() == 0) return {};
  if (size() > 1)
    return Collective("all-gather", what, state_->backend->_allgather_base(out_flat, in_flat, {}));
  if (out_flat.data_ptr() != in_flat.data_ptr()) out_flat.view({-1}).copy_(in_flat.view({-1}));
  return {};
}

Work ProcessGroup::ReduceScatterSumAsync(at::Tensor out_flat, at::Tensor in_flat,
                                         std::string_view what) const {
  CheckTensor(out_flat, what);
  CheckTensor(in_flat, what);
  TORCH_CHECK(in_flat.numel() == out_flat.numel() * size() && out_flat.scalar_type() == in_flat.scalar_type(),
              what, ": reduce-scatter of ", in_flat.numel(), " elements over ", size(),
              " ranks does not fit ", out_flat.numel());
  if (in_flat.numel() == 0) return {};
  if (size() > 1)
    return Collective("reduce-scatter", what, state_->backend->_reduce_scatter_base(out_flat, in_flat, {}));
  if (out_flat.data_ptr() != in_flat.data_ptr()) out_flat.view({-1}).copy_(in_flat.view({-1}));
  return {};
}

Work ProcessGroup::SendAsync(const at::Tensor& t, int dst, std::string_view what) const {
  CheckTensor(t, what);
  TORCH_CHECK(dst >= 0 && dst < size() && dst != rank(), what, ": rank ", dst, " of group ", name(),
              " cannot be sent to");
  std::vector<at::Tensor> tensors{t};
  c10d::Backend& backend = dst < rank() ? *state_->downward : *state_->backend;
  return Message("send", what, dst, backend.send(tensors, dst, 0));
}

Work ProcessGroup::RecvAsync(at::Tensor& t, int src, std::string_view what) const {
  CheckTensor(t, what);
  TORCH_CHECK(src >= 0 && src < size() && src != rank(), what, ": rank ", src, " of group ", name(),
              " cannot be received from");
  std::vector<at::Tensor> tensors{t};
  c10d::Backend& backend = src > rank() ? *state_->downward : *state_->backend;
  return Message("receive", what, src, backend.recv(tensors, src, 0));
}

}  // namespace cairn
