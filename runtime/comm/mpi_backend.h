// c10d::Backend over MPI, for tensors on the CPU.
//
// All operations are nonblocking MPI calls; wait() polls them and sleeps in between (backoff.h), because CPU
// ranks share cores; a thread polls them while no rank waits (progress_thread.h). fp16 and bf16 are summed in
// fp32 and rounded once. Tensors of any size: MPI counts are ints, so long ones go in pieces. all-gather is
// one broadcast per slot, reduce-scatter one reduction per slot: their pieces are then adjacent at any size,
// and Open MPI's reduce-scatter moves no less. Open MPI chooses an algorithm only by sizes, and its
// nonblocking reductions have a fixed order, so sums repeat bit for bit. No deadline here: the watchdog keeps
// it.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "runtime/comm/mpi_comm.h"

namespace cairn {

class MpiBackend : public c10d::Backend {
 public:
  static constexpr int64_t kLongestPiece = int64_t{1}
                                           << 28;  // elements; leaves MPI room to multiply within an int

  // Only tests pass a smaller `longest_piece`.
  explicit MpiBackend(std::shared_ptr<MpiComm> comm, int64_t longest_piece = kLongestPiece);

  const std::string getBackendName() const override { return "mpi"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                        const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override;

 private:
  std::shared_ptr<MpiComm> comm_;
  int64_t longest_piece_;
};

}  // namespace cairn
