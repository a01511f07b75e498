// A group of ranks on one axis of the mesh, and the operations they do together.
//
// Thin over c10d::Backend (MPI, NCCL or the TCP store): it adds names for the watchdog, the deadline, and the
// checks that turn a wrong shape into an error instead of a hang. Every rank of a group must call the same
// operations in the same order. `what` names the tensor in the line that the watchdog prints when an
// operation does not complete.
//
// Tensors are contiguous. Sums of fp16 and bf16 over MPI and the store are accumulated in fp32 and rounded
// once. The result of a sum is bit-identical on all ranks of the group, and from run to run for the same
// sizes. If size() is 1, all operations return at once, copying if input and output differ. One thread at a
// time may use a group; different groups may be used by different threads. Errors: c10::Error for a wrong
// shape, dtype or peer. A deadline that passes stops all ranks (watchdog.h).
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace at {
class Tensor;
}
namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace cairn {

// An operation that has been started. Holds its tensors until it is complete.
class Work {
 public:
  Work();  // complete already
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();  // waits, except while an exception unwinds the stack

  // Returns once the result may be used (on a GPU: once the current stream is ordered after it).
  void Wait();

  // True if Wait() would return at once (on a GPU: if the operation is complete).
  bool IsComplete() const;

 private:
  friend class ProcessGroup;
  struct Pending;
  explicit Work(std::unique_ptr<Pending> pending);
  std::unique_ptr<Pending> pending_;
};

class ProcessGroup {
 public:
  ProcessGroup();  // a group of this rank alone

  // For Transport::Split. `world_ranks` is in group order and `rank` this one's place in it; `id` is the same
  // on all ranks. `downward` carries the messages to lower ranks. If a backend does all messages of a pair in
  // order (NCCL), a second backend lets two peers both send first; otherwise it is `backend` again.
  ProcessGroup(std::string name, int id, std::vector<int> world_ranks, int rank,
               c10::intrusive_ptr<c10d::Backend> backend, c10::intrusive_ptr<c10d::Backend> downward);

  int rank() const;
  int size() const;
  const std::string& name() const;              // "tp", "dp", "pp", "embedding", "world"
  const std::vector<int>& world_ranks() const;  // by rank in the group

  // Those that end in Async only start the operation: its tensors must not be touched before Wait(). Several
  // may be in flight; they start in the same order on all ranks, and may be waited for in any order.
  void AllReduceSum(at::Tensor& t, std::string_view what) const;
  Work AllReduceSumAsync(at::Tensor t, std::string_view what) const;
  void AllReduceMax(at::Tensor& t, std::string_view what) const;

  // `t` of `root` gets the sum; the tensors of the others are unspecified afterwards.
  Work ReduceSumAsync(at::Tensor t, int root, std::string_view what) const;

  void Broadcast(at::Tensor& t, int root, std::string_view what) const;
  Work BroadcastAsync(at::Tensor t, int root, std::string_view what) const;

  // `out_flat` has size() equal parts, in rank order; `in_flat` may be this rank's own part of it.
  void AllGather(at::Tensor& out_flat, const at::Tensor& in_flat, std::string_view what) const;
  Work AllGatherAsync(at::Tensor out_flat, at::Tensor in_flat, std::string_view what) const;

  // `out_flat` gets this rank's part of the sum of `in_flat` over the ranks; it may be that part of
  // `in_flat`, whose contents are unspecified afterwards.
  Work ReduceScatterSumAsync(at::Tensor out_flat, at::Tensor in_flat, std::string_view what) const;

  // Messages between a pair of ranks arrive in the order sent; both give tensors of the same size. Neither
  // call blocks.
  Work SendAsync(const at::Tensor& t, int dst, std::string_view what) const;
  Work RecvAsync(at::Tensor& t, int src, std::string_view what) const;

 private:
  friend class Work;
  struct State;

  Work AllReduce(at::Tensor t, bool max, std::string_view what) const;
  void CheckRoot(int root, std::string_view what) const;
  Work Collective(const char* name, std::string_view what, c10::intrusive_ptr<c10d::Work> work) const;
  Work Message(const char* name, std::string_view what, int peer, c10::intrusive_ptr<c10d::Work> work) const;

  std::shared_ptr<const State> state_;
};

}  // namespace cairn
