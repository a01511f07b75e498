// c10d::Backend over a Mailbox, for CPU ranks that were started with torchrun's variables and without MPI.
//
// Correct and slow: every tensor travels through the store's one server, and a reduction sends each rank's
// terms to every other rank, which adds them in rank order (fp16 and bf16 in fp32). It is meant for trying
// things out; use mpirun where speed matters. Like MPI's, messages do not wait for the receiver.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "runtime/control/mailbox.h"

namespace cairn {

class StoreBackend : public c10d::Backend {
 public:
  explicit StoreBackend(std::shared_ptr<Mailbox> mailbox);  // its ranks are the group's

  const std::string getBackendName() const override { return "store"; }

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
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

  // A message that is awaited from another rank. Those of one sender are filled in the order of Expect().
  using Expected = std::shared_ptr<std::optional<std::string>>;
  void Progress();

 private:
  Expected Expect(int from);
  std::vector<Expected> ExpectAll();  // by rank; null for this one
  using Finish = std::function<void(const std::vector<Expected>&)>;
  c10::intrusive_ptr<c10d::Work> Start(c10d::OpType type, std::vector<Expected> expected, Finish finish);

  std::shared_ptr<Mailbox> mailbox_;
  std::vector<std::deque<Expected>> awaited_;  // by sender
};

}  // namespace cairn
