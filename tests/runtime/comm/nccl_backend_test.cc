// libcairn_nccl.so on one GPU: NCCL wants one for each rank, so that a group here has one rank.
#include "runtime/comm/nccl_backend.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "runtime/comm/process_group.h"
#include "tests/support/gpu.h"

namespace cairn {
namespace {

TEST(NcclBackendTest, DoesTheCollectivesOfOneRank) {
  if (!HasGpu()) GTEST_SKIP() << "no GPU here";
  const auto nccl = NcclModule::Load(0);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto backend = nccl->NewBackend(store, "test", 0, 1, 60);
  const at::Tensor wanted =
      at::arange(1 << 20, at::TensorOptions(at::Device(at::kCUDA, nccl->device())).dtype(at::kFloat));
  at::Tensor t = wanted.clone(), gathered = at::zeros_like(wanted), scattered = at::zeros_like(wanted);
  // A group that claims a second rank, which has nothing to add: with one, ProcessGroup asks no backend. Its
  // operations end on the device, long after they returned.
  const ProcessGroup group("world", 0, {0, 1}, 0, backend, backend);
  group.AllReduceSum(t, "sum");
  group.AllReduceMax(t, "maximum");
  group.Broadcast(t, 0, "broadcast");
  group.AllReduceSumAsync(t, "sum behind").Wait();
  backend->_allgather_base(gathered, t, {})->wait();
  backend->_reduce_scatter_base(scattered, gathered, {})->wait();
  EXPECT_TRUE(at::equal(scattered, wanted));
}

}  // namespace
}  // namespace cairn
