// 100 random meshes of up to all ranks, each with a random program of tensor, data and pipeline parallel
// operations in one order for all ranks, some of them in flight at once: none may deadlock, and all results
// must be right.
#include <ATen/ATen.h>

#include <numeric>
#include <optional>
#include <random>

#include "runtime/comm/parallel_dims.h"
#include "tests/support/mpi_main.h"

namespace cairn {
namespace {

using at::Tensor;
constexpr int kMeshes = 100;
constexpr int kOperations = 12;

Topology RandomTopology(std::mt19937& random, int ranks) {
  for (;;) {
    Topology t;
    t.tp = 1 << random() % 4;
    t.pp = 1 + static_cast<int>(random() % 8);
    t.dp = 1 + static_cast<int>(random() % 8);
    if (t.world() <= ranks) return t;
  }
}

// The sum over a group of what each rank of it gives: its rank in the world plus one.
void CheckSum(const Tensor& t, const ProcessGroup& group, const char* axis) {
  float sum = 0;
  for (int rank : group.world_ranks()) sum += static_cast<float>(rank + 1);
  TORCH_CHECK((t == sum).all().item<bool>(), "sum over ", axis, " is wrong");
}

class Program {
 public:
  Program(const ParallelDims& dims, int rank, unsigned seed)
      : dims_(dims), own_(static_cast<float>(rank + 1)), random_(seed), delay_(seed * 31 + rank) {}

  void Run() {
    for (int i = 0; i < kOperations; ++i) {
      if (delay_() % 8 == 0) usleep(static_cast<useconds_t>(delay_() % 2000));  // ranks drift apart
      Step(1 + static_cast<int64_t>(random_() % 3) * 20'000);
    }
    FinishGradients();
  }

 private:
  void Step(int64_t n) {
    switch (random_() % 6) {
      case 0:
        return Sum(dims_.tp, n, "tp");
      case 1:
        return Sum(dims_.world, n, "world");
      case 2:
        return Sum(dims_.embedding, n, "embedding");
      case 3:
        return StartGradients(n);
      case 4:
        return Pipeline(n);
      default:
        return GatherParameters(n);
    }
  }

  void Sum(const ProcessGroup& group, int64_t n, const char* axis) {
    Tensor t = at::full({n}, own_);
    group.AllReduceSum(t, axis);
    CheckSum(t, group, axis);
  }

  // A gradient bucket that is reduced while other operations go on.
  void StartGradients(int64_t n) {
    FinishGradients();
    gradients_ = at::full({n}, own_);
    reduction_ = dims_.dp.AllReduceSumAsync(gradients_, "gradients");
  }

  void FinishGradients() {
    reduction_.Wait();
    if (gradients_.defined()) CheckSum(gradients_, dims_.dp, "dp");
    gradients_ = Tensor();
  }

  // Every stage sends to both neighbours before it receives; with a tensor parallel sum in between.
  void Pipeline(int64_t n) {
    const ProcessGroup& pp = dims_.pp;
    const Tensor own = at::full({n}, own_);
    const bool up = pp.rank() + 1 < pp.size(), down = pp.rank() > 0;
    Tensor activation = at::empty({n}), gradient = at::empty({n});
    Work sends[2];
    if (up) sends[0] = pp.SendAsync(own, pp.rank() + 1, "activation");
    if (down) sends[1] = pp.SendAsync(own, pp.rank() - 1, "gradient");
    Sum(dims_.tp, 100, "tp");
    if (down) pp.RecvAsync(activation, pp.rank() - 1, "activation").Wait();
    if (up) pp.RecvAsync(gradient, pp.rank() + 1, "gradient").Wait();
    const auto from = [&](int stage) { return static_cast<float>(pp.world_ranks()[stage] + 1); };
    TORCH_CHECK(!down || (activation == from(pp.rank() - 1)).all().item<bool>(), "activation is wrong");
    TORCH_CHECK(!up || (gradient == from(pp.rank() + 1)).all().item<bool>(), "gradient is wrong");
  }

  void GatherParameters(int64_t n) {
    Tensor part = at::full({n}, own_), all = at::empty({n * dims_.dp.size()});
    dims_.dp.AllGather(all, part, "parameters");
    for (int r = 0; r < dims_.dp.size(); ++r)
      TORCH_CHECK((all.slice(0, r * n, (r + 1) * n) == static_cast<float>(dims_.dp.world_ranks()[r] + 1))
                      .all()
                      .item<bool>(),
                  "gathered parameters are wrong");
  }

  const ParallelDims& dims_;
  float own_;
  std::mt19937 random_;  // the same on all ranks of the mesh
  std::mt19937 delay_;   // this rank's
  Tensor gradients_;
  Work reduction_;
};

void Run(Transport& transport) {
  std::mt19937 random(2024);
  for (int mesh = 0; mesh < kMeshes; ++mesh) {
    Watchdog::SetStep(mesh);
    const Topology topology = RandomTopology(random, transport.size());
    const bool idle = transport.rank() >= topology.world();
    std::vector<int> ranks{transport.rank()};
    if (!idle) {
      ranks.resize(topology.world());
      std::iota(ranks.begin(), ranks.end(), 0);
    }
    const ParallelDims dims = MakeParallelDims(idle ? Topology{} : topology, ranks, transport);
    TORCH_CHECK(idle || dims.world_rank == transport.rank(), "this rank is at another rank's place");
    TORCH_CHECK(dims.tp.rank() == dims.at(Axis::kTp) && dims.dp.rank() == dims.at(Axis::kDp) &&
                    dims.pp.rank() == dims.at(Axis::kPp) && dims.world.rank() == dims.world_rank,
                "a group counts its ranks otherwise than the mesh");
    Program(dims, transport.rank(), random()).Run();
  }
}

}  // namespace
}  // namespace cairn

int main() { return cairn::MpiMain({.timeout_seconds = 60}, cairn::Run); }
