// All collectives for all dtypes and sizes against sums made locally, in groups of 1 to all ranks.
#include <ATen/ATen.h>

#include <cmath>
#include <numeric>

#include "tests/support/mpi_main.h"

namespace cairn {
namespace {

using at::Tensor;

const std::vector<at::ScalarType> kSummed = {at::kFloat,    at::kDouble, at::kHalf,
                                             at::kBFloat16, at::kInt,    at::kLong};
const std::vector<at::ScalarType> kMoved = {at::kFloat, at::kHalf, at::kBFloat16,
                                            at::kLong,  at::kByte, at::kBool};

// What `rank` contributes: small integers, so that sums are exact in every dtype and order.
Tensor Term(int rank, int64_t n, at::ScalarType type) {
  return (at::arange(n, at::kLong).mul(7 + rank).add(rank) % 13).to(type);
}

Tensor SumOfTerms(int ranks, int64_t n, at::ScalarType type) {
  Tensor sum = at::zeros({n}, at::kLong);
  for (int rank = 0; rank < ranks; ++rank) sum += Term(rank, n, at::kLong);
  return sum.to(type);
}

void CheckEqual(const Tensor& found, const Tensor& wanted, const char* what) {
  TORCH_CHECK(at::equal(found, wanted), what, " of ", found.numel(), " ", found.scalar_type(), " is wrong");
}

void CheckReductions(const ProcessGroup& group, int64_t n, at::ScalarType type) {
  const int ranks = group.size();
  Tensor t = Term(group.rank(), n, type);
  group.AllReduceSum(t, "sum");
  CheckEqual(t, SumOfTerms(ranks, n, type), "all-reduce");

  Tensor async = Term(group.rank(), n, type);
  Work work = group.AllReduceSumAsync(async, "async sum");
  Tensor max = Term(group.rank(), n, type);
  group.AllReduceMax(max, "max");
  work.Wait();
  CheckEqual(async, SumOfTerms(ranks, n, type), "asynchronous all-reduce");
  Tensor greatest = Term(0, n, type);
  for (int rank = 1; rank < ranks; ++rank) greatest = at::maximum(greatest, Term(rank, n, type));
  CheckEqual(max, greatest, "maximum");

  const Tensor wanted = SumOfTerms(ranks, n * ranks, type).slice(0, group.rank() * n, (group.rank() + 1) * n);
  Tensor in = Term(group.rank(), n * ranks, type);
  Tensor out = at::empty({n}, type);
  group.ReduceScatterSumAsync(out, in, "reduce-scatter").Wait();
  CheckEqual(out, wanted, "reduce-scatter");
  in = Term(group.rank(), n * ranks, type);
  out = in.slice(0, group.rank() * n, (group.rank() + 1) * n);
  group.ReduceScatterSumAsync(out, in, "reduce-scatter in place").Wait();
  CheckEqual(out, wanted, "reduce-scatter in place");
}

// All kinds in flight together, waited for in the opposite order. `bucket` is reduced to every rank in turn,
// as ZeRO-2 does with its gradients.
void CheckInFlight(const ProcessGroup& group, int64_t n, at::ScalarType type) {
  const int ranks = group.size();
  const Tensor total = SumOfTerms(ranks, n * ranks, type);
  Tensor terms = Term(group.rank(), n * ranks, type), sum = terms.clone(), share = at::empty({n}, type);
  Tensor gathered = at::empty({n * ranks}, type), bucket = terms.clone(), told = terms.clone();
  std::vector<Work> works;
  for (int root = 0; root < ranks; ++root) {
    works.push_back(group.ReduceSumAsync(bucket.slice(0, root * n, (root + 1) * n), root, "bucket"));
    works.push_back(group.BroadcastAsync(told.slice(0, root * n, (root + 1) * n), root, "weights"));
  }
  works.push_back(group.AllReduceSumAsync(sum, "sum"));
  works.push_back(group.AllGatherAsync(gathered, terms.slice(0, 0, n), "parts"));
  works.push_back(group.ReduceScatterSumAsync(share, terms.clone(), "share"));
  for (; !works.empty(); works.pop_back()) works.back().Wait();
  const auto mine = [&](const Tensor& t) { return t.slice(0, group.rank() * n, (group.rank() + 1) * n); };
  CheckEqual(mine(bucket), mine(total), "reduce to a root");
  CheckEqual(sum, total, "all-reduce among others");
  CheckEqual(share, mine(total), "asynchronous reduce-scatter");
  for (int root = 0; root < ranks; ++root) {
    const auto part = [&](const Tensor& t) { return t.slice(0, root * n, (root + 1) * n); };
    CheckEqual(part(told), part(Term(root, n * ranks, type)), "asynchronous broadcast");
    CheckEqual(part(gathered), Term(root, n, type), "asynchronous all-gather");
  }
}

void CheckMoves(const ProcessGroup& group, int64_t n, at::ScalarType type) {
  const int ranks = group.size();
  for (int root = 0; root < ranks; ++root) {
    Tensor t = Term(group.rank(), n, type);
    group.Broadcast(t, root, "broadcast");
    CheckEqual(t, Term(root, n, type), "broadcast");
  }
  Tensor wanted = at::empty({n * ranks}, type);
  for (int rank = 0; rank < ranks; ++rank)
    wanted.slice(0, rank * n, (rank + 1) * n).copy_(Term(rank, n, type));
  Tensor out = at::empty({n * ranks}, type);
  group.AllGather(out, Term(group.rank(), n, type), "all-gather");
  CheckEqual(out, wanted, "all-gather");
  out = at::zeros({n * ranks}, type);
  Tensor slot = out.slice(0, group.rank() * n, (group.rank() + 1) * n);
  slot.copy_(Term(group.rank(), n, type));
  group.AllGather(out, slot, "all-gather in place");
  CheckEqual(out, wanted, "all-gather in place");

  if (ranks == 1) return;  // round the ring, both directions at once
  const int next = (group.rank() + 1) % ranks, previous = (group.rank() + ranks - 1) % ranks;
  Tensor from_previous = at::empty({n}, type), from_next = at::empty({n}, type);
  const Tensor own = Term(group.rank(), n, type), twice = Term(group.rank() + ranks, n, type);
  Work sent_up = group.SendAsync(own, next, "up");
  Work sent_down = group.SendAsync(twice, previous, "down");
  group.RecvAsync(from_previous, previous, "up").Wait();
  group.RecvAsync(from_next, next, "down").Wait();
  CheckEqual(from_previous, Term(previous, n, type), "message up");
  CheckEqual(from_next, Term(next + ranks, n, type), "message down");
}

// fp16 and bf16 sums are the fp32 sum rounded once; all ranks hold the same bits, and so does a second run.
void CheckRounding(const ProcessGroup& group, at::ScalarType type) {
  const int64_t n = 30'011;
  const auto term = [&](int rank) {
    return at::sin(at::arange(n, at::kFloat) * (0.37F + static_cast<float>(rank))).to(type);
  };
  Tensor reference = at::zeros({n}, at::kDouble);
  for (int rank = 0; rank < group.size(); ++rank) reference += term(rank).to(at::kDouble);
  const double unit = type == at::kBFloat16 ? 0x1p-8 : type == at::kHalf ? 0x1p-11 : 0;
  Tensor first = term(group.rank());
  group.AllReduceSum(first, "rounded sum");
  for (int repeat = 0; repeat < 3; ++repeat) {
    usleep(static_cast<useconds_t>((group.rank() * 7919 + repeat * 104729) % 5000));
    Tensor again = term(group.rank());
    group.AllReduceSum(again, "the same sum");
    TORCH_CHECK(at::equal(first, again), "a repeated sum has other bits");
    Tensor to_root = term(group.rank());
    group.ReduceSumAsync(to_root, 0, "the same sum to rank 0").Wait();
    TORCH_CHECK(
        group.rank() != 0 || at::allclose(first.to(at::kDouble), to_root.to(at::kDouble), unit, 0x1p-20),
        "a sum to a root is another one");
  }
  Tensor from_root = first.clone();
  group.Broadcast(from_root, 0, "sum of rank 0");
  TORCH_CHECK(at::equal(first, from_root), "ranks hold different bits of one sum");
  // One rounding to the dtype, and the fp32 sum's own error: at most (ranks - 1) roundings of values up to
  // `ranks`.
  const double slack = group.size() * group.size() * 0x1p-24;
  const Tensor limit = reference.abs() * (unit * 1.001) + (slack + 0x1p-26);
  TORCH_CHECK((first.to(at::kDouble) - reference).abs().le(limit).all().item<bool>(), "a sum in ", type,
              " was rounded more than once");
}

void CheckGroup(const ProcessGroup& group) {
  for (int64_t n : {0, 1, 7, 20'011}) {
    for (at::ScalarType type : kSummed) CheckReductions(group, n, type);
    for (at::ScalarType type : kSummed) CheckInFlight(group, n, type);
    for (at::ScalarType type : kMoved) CheckMoves(group, n, type);
  }
  if (group.size() == 2) {  // several pieces of a message
    CheckReductions(group, 1'500'000, at::kBFloat16);
    CheckMoves(group, 3'000'000, at::kFloat);
  }
  for (at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16}) CheckRounding(group, type);
  Meet(group, "after all");
}

void Run(Transport& transport) {
  for (int size = 1; size <= transport.size(); ++size) {
    std::vector<int> members{transport.rank()};
    if (transport.rank() < size) {
      members.resize(size);
      std::iota(members.begin(), members.end(), 0);
    }
    CheckGroup(transport.Split("of" + std::to_string(size), members));
  }
}

}  // namespace
}  // namespace cairn

int main() { return cairn::MpiMain({.timeout_seconds = 60}, cairn::Run); }
