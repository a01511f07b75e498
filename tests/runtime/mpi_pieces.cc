// Tensors longer than an MPI count travel in pieces. Here the longest piece is 1000 elements, which needs no
// 8 GB.
#include <ATen/ATen.h>

#include <numeric>

#include "runtime/comm/mpi_backend.h"
#include "runtime/comm/process_group.h"
#include "runtime/model/autograd/kept_activation.h"
#include "tests/support/live_bytes.h"
#include "tests/support/separated_sides.h"

namespace cairn {
namespace {

void Check(bool ok, const char* what) { TORCH_CHECK(ok, what, " in pieces is wrong"); }

// Each rank keeps its part alone, where it is told to; what comes back is whole.
void CheckKeptActivations(const ProcessGroup& group) {
  const at::Tensor x = at::arange(17 * 59, at::kFloat).view({17, 59});
  const int64_t part = (x.numel() + group.size() - 1) / group.size() * 4;
  const SidesApart apart;
  for (const bool in_host_memory : {false, true}) {
    const LiveBytes live;
    const KeptActivation kept(x, {.cut_across = group, .in_host_memory = in_host_memory});
    TORCH_CHECK(live.now() == (in_host_memory ? 0 : part), "an activation's part takes ", live.now());
    TORCH_CHECK(BytesOn(Side::kHost) == static_cast<uint64_t>(in_host_memory ? part : 0));
    Check(at::equal(kept.Get(), x), "a kept activation");
  }
}

void Run() {
  auto comm = MpiComm::Duplicate(MpiSession::Start(), MPI_COMM_WORLD);
  const int rank = comm->rank(), ranks = comm->size();
  std::vector<int> members(ranks);
  std::iota(members.begin(), members.end(), 0);
  auto backend = c10::make_intrusive<MpiBackend>(comm, /*longest_piece=*/1000);
  const ProcessGroup group("world", 0, members, rank, backend, backend);
  const int64_t n = 12'345;
  const auto term = [&](int of) { return at::arange(n * ranks, at::kFloat).remainder(11).add(of); };
  at::Tensor sum = at::zeros({n * ranks});
  for (int of = 0; of < ranks; ++of) sum += term(of);

  at::Tensor t = term(rank);
  group.AllReduceSum(t, "t");
  Check(at::equal(t, sum), "all-reduce");
  at::Tensor in = term(rank), out = at::empty({n});
  group.ReduceScatterSumAsync(out, in, "t").Wait();
  Check(at::equal(out, sum.slice(0, rank * n, (rank + 1) * n)), "reduce-scatter");
  at::Tensor half = term(rank).to(at::kHalf);
  group.AllReduceSum(half, "t");
  Check(at::equal(half, sum.to(at::kHalf)), "all-reduce of fp16");
  at::Tensor all = at::empty({n * ranks});
  group.AllGather(all, out, "t");
  Check(at::equal(all, sum), "all-gather");
  at::Tensor root = term(rank);
  group.Broadcast(root, ranks - 1, "t");
  Check(at::equal(root, term(ranks - 1)), "broadcast");
  at::Tensor came = at::empty({n * ranks});
  const Work sent = group.SendAsync(term(rank), (rank + 1) % ranks, "t");
  group.RecvAsync(came, (rank + ranks - 1) % ranks, "t").Wait();
  Check(at::equal(came, term((rank + ranks - 1) % ranks)), "message");
  CheckKeptActivations(group);
}

}  // namespace
}  // namespace cairn

int main() { cairn::Run(); }
