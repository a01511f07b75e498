// An operation is a set of MPI requests, one for each piece of its tensors, and what remains to be done when
// they are complete. The progress thread and the waiting thread both test the set, one at a time; only the
// waiting thread does what remains. Long sums are cut into many short ones, for the reason at LongestSum().
// If an error leaves requests behind, their tensors are leaked on purpose, because MPI may still use them.

#include "runtime/comm/mpi_backend.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/base/backoff.h"

namespace cairn {
namespace {

// MPI requests of one operation. The progress thread and the waiting thread test them, one at a time.
class Requests : public Pollable {
 public:
  // Only before they are watched.
  MPI_Request* New() { return &requests_.emplace_back(MPI_REQUEST_NULL); }

  // Called by the progress thread. An error is left to the waiting one.
  bool Poll() override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    return lock.owns_lock() && Test();
  }

  // Called by the owner. Throws MPI's errors.
  bool Done() {
    const std::lock_guard lock(mutex_);
    const bool ended = Test();
    CheckMpi(error_, "MPI_Testall");
    return ended;
  }

 private:
  bool Test() {
    if (requests_.empty() || error_ != MPI_SUCCESS) return true;
    int done = 0;
    error_ = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE);
    if (error_ == MPI_SUCCESS && done) requests_.clear();
    return done || error_ != MPI_SUCCESS;
  }

  std::mutex mutex_;
  std::vector<MPI_Request> requests_;
  int error_ = MPI_SUCCESS;
};

// MPI requests in flight, the tensors they use, and what remains to be done with those when they are
// complete.
class MpiWork : public c10d::Work {
 public:
  MpiWork(int rank, c10d::OpType type, std::vector<at::Tensor> tensors, std::shared_ptr<MpiComm> comm)
      : c10d::Work(rank, type), tensors_(std::move(tensors)), comm_(std::move(comm)) {}

  // Requests left behind by an error still use the tensors, which are therefore leaked.
  ~MpiWork() override {
    if (!done_) new auto(std::move(tensors_));
  }

  MPI_Request* NewRequest() { return requests_->New(); }
  void Then(std::function<void()> finish) { finish_ = std::move(finish); }
  // All requests are complete. CAIRN_MPI_PROGRESS=off leaves them to the waiting thread, for measurements.
  void Watch() {
    static const char* const set = std::getenv("CAIRN_MPI_PROGRESS");
    if (set == nullptr || std::string_view(set) != "off") comm_->session()->progress().Watch(requests_);
  }

  bool isCompleted() override {
    if (done_) return true;
    if (!requests_->Done()) return false;
    done_ = true;
    if (finish_) finish_();
    tensors_.clear();
    return true;
  }
  bool isSuccess() const override { return done_; }

  bool wait(std::chrono::milliseconds /*timeout*/) override {
    Backoff backoff({std::chrono::microseconds(10), std::chrono::microseconds(200), 32});
    while (!isCompleted()) backoff.Pause();
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }

 private:
  std::shared_ptr<Requests> requests_ = std::make_shared<Requests>();
  bool done_ = false;
  std::vector<at::Tensor> tensors_;
  std::shared_ptr<MpiComm> comm_;
  std::function<void()> finish_;
};

struct Piece {
  void* data;
  int count;
  MPI_Datatype type;
};

MPI_Datatype TypeOf(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return MPI_FLOAT;
    case at::kDouble:
      return MPI_DOUBLE;
    case at::kInt:
      return MPI_INT32_T;
    case at::kLong:
      return MPI_INT64_T;
    case at::kShort:
      return MPI_INT16_T;
    case at::kChar:
      return MPI_INT8_T;
    case at::kByte:
      return MPI_UINT8_T;
    default:
      TORCH_CHECK(false, "MPI has no sum of ", type);
  }
}

MPI_Op OpOf(const c10d::ReduceOp& op) {
  if (op.op_ == c10d::ReduceOp::SUM) return MPI_SUM;
  if (op.op_ == c10d::ReduceOp::MAX) return MPI_MAX;
  TORCH_CHECK(false, "this MPI backend only supports sums and maxima");
}

bool IsHalf(const at::Tensor& t) { return t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16; }

// Calls `start(piece)` for each piece of the tensor; as elements to reduce, or as bytes to move.
template <typename Start>
void ForPieces(const at::Tensor& t, int64_t longest, MPI_Datatype type, int64_t element_bytes,
               const Start& start) {
  const int64_t count = static_cast<int64_t>(t.nbytes()) / element_bytes;
  for (int64_t at = 0; at < count; at += longest)
    start(Piece{static_cast<char*>(t.data_ptr()) + at * element_bytes,
                static_cast<int>(std::min(longest, count - at)), type});
}

// Open MPI 4.1's nonblocking sums go along a tree below 64 KiB. Above they go round a ring (all-reduce), or
// segment by segment along a chain (reduce), where every step needs a turn of every rank, and each may sleep
// before it looks. With 4 and 8 ranks on 2 cores the ring took 5 to 7 times as long for 16 MB (209 ms against
// 30 ms, 319 against 61), and 2 ranks took over a second to scatter 26 MB; so that long sums go as many short
// ones.
int64_t LongestSum(const at::Tensor& t) { return 64'000 / t.element_size(); }

template <typename Start>
void ForElements(const at::Tensor& t, int64_t longest, const Start& start) {
  ForPieces(t, longest, TypeOf(t.scalar_type()), t.element_size(), start);
}

template <typename Start>
void ForBytes(const at::Tensor& t, int64_t longest, const Start& start) {
  ForPieces(t, longest, MPI_BYTE, 1, start);
}

// Sums `t` to `root`, in place.
void StartReduce(const at::Tensor& t, int root, MPI_Op op, const MpiComm& comm, int64_t longest,
                 MpiWork& work) {
  ForElements(t, std::min(longest, LongestSum(t)), [&](const Piece& p) {
    const void* from = root == comm.rank() ? MPI_IN_PLACE : p.data;
    CheckMpi(MPI_Ireduce(from, p.data, p.count, p.type, op, root, comm.get(), work.NewRequest()),
             "MPI_Ireduce");
  });
}

}  // namespace

MpiBackend::MpiBackend(std::shared_ptr<MpiComm> comm, int64_t longest_piece)
    : c10d::Backend(comm->rank(), comm->size()), comm_(std::move(comm)), longest_piece_(longest_piece) {}

c10::intrusive_ptr<c10d::Work> MpiBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                     const c10d::AllreduceOptions& options) {
  at::Tensor t = tensors.at(0);
  const at::Tensor sum = IsHalf(t) ? t.to(at::kFloat) : t;
  auto work = c10::make_intrusive<MpiWork>(rank_, c10d::OpType::ALLREDUCE, std::vector{t, sum}, comm_);
  const MPI_Op op = OpOf(options.reduceOp);
  ForElements(sum, std::min(longest_piece_, LongestSum(sum)), [&](const Piece& p) {
    CheckMpi(MPI_Iallreduce(MPI_IN_PLACE, p.data, p.count, p.type, op, comm_->get(), work->NewRequest()),
             "MPI_Iallreduce");
  });
  if (IsHalf(t)) work->Then([t, sum]() mutable { t.copy_(sum); });
  work->Watch();
  return work;
}

c10::intrusive_ptr<c10d::Work> MpiBackend::reduce(std::vector<at::Tensor>& tensors,
                                                  const c10d::ReduceOptions& options) {
  at::Tensor t = tensors.at(0);
  const at::Tensor sum = IsHalf(t) ? t.to(at::kFloat) : t;
  const int root = static_cast<int>(options.rootRank);
  auto work = c10::make_intrusive<MpiWork>(rank_, c10d::OpType::REDUCE, std::vector{t, sum}, comm_);
  StartReduce(sum, root, OpOf(options.reduceOp), *comm_, longest_piece_, *work);
  if (IsHalf(t) && root == rank_) work->Then([t, sum]() mutable { t.copy_(sum); });
  work->Watch();
  return work;
}

c10::intrusive_ptr<c10d::Work> MpiBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                     const c10d::BroadcastOptions& options) {
  auto work = c10::make_intrusive<MpiWork>(rank_, c10d::OpType::BROADCAST, tensors, comm_);
  ForBytes(tensors.at(0), longest_piece_, [&](const Piece& p) {
    CheckMpi(MPI_Ibcast(p.data, p.count, p.type, static_cast<int>(options.rootRank), comm_->get(),
                        work->NewRequest()),
             "MPI_Ibcast");
  });
  work->Watch();
  return work;
}

c10::intrusive_ptr<c10d::Work> MpiBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                           const c10d::AllgatherOptions& /*options*/) {
  auto work = c10::make_intrusive<MpiWork>(rank_, c10d::OpType::_ALLGATHER_BASE, std::vector{output}, comm_);
  const std::vector<at::Tensor> slots = output.view({-1}).chunk(size_);
  if (slots[rank_].data_ptr() != input.data_ptr()) slots[rank_].copy_(input.view({-1}));
  for (int root = 0; root < size_; ++root)
    ForBytes(slots[root], longest_piece_, [&](const Piece& p) {
      CheckMpi(MPI_Ibcast(p.data, p.count, p.type, root, comm_->get(), work->NewRequest()), "MPI_Ibcast");
    });
  work->Watch();
  return work;
}

c10::intrusive_ptr<c10d::Work> MpiBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                const c10d::ReduceScatterOptions& options) {
  const at::Tensor terms = (IsHalf(input) ? input.to(at::kFloat) : input).view({-1});
  const std::vector<at::Tensor> slots = terms.chunk(size_);
  auto work = c10::make_intrusive<MpiWork>(rank_, c10d::OpType::_REDUCE_SCATTER_BASE,
                                           std::vector{output, terms}, comm_);
  const MPI_Op op = OpOf(options.reduceOp);
  for (int root = 0; root < size_; ++root) StartReduce(slots[root], root, op, *comm_, longest_piece_, *work);
  if (slots[rank_].data_ptr() != output.data_ptr())
    work->Then([output, own = slots[rank_]] { output.view({-1}).copy_(own); });
  work->Watch();
  return work;
}

c10::intrusive_ptr<c10d::Work> MpiBackend::send(std::vector<at::Tensor>& tensors, int to, int tag) {
  auto work = c10::make_intrusive<MpiWork>(rank_, c10d::OpType::SEND, tensors, comm_);
  ForBytes(tensors.at(0), longest_piece_, [&](const Piece& p) {
    CheckMpi(MPI_Isend(p.data, p.count, p.type, to, tag, comm_->get(), work->NewRequest()), "MPI_Isend");
  });
  work->Watch();
  return work;
}

c10::intrusive_ptr<c10d::Work> MpiBackend::recv(std::vector<at::Tensor>& tensors, int from, int tag) {
  auto work = c10::make_intrusive<MpiWork>(rank_, c10d::OpType::RECV, tensors, comm_);
  ForBytes(tensors.at(0), longest_piece_, [&](const Piece& p) {
    CheckMpi(MPI_Irecv(p.data, p.count, p.type, from, tag, comm_->get(), work->NewRequest()), "MPI_Irecv");
  });
  work->Watch();
  return work;
}

}  // namespace cairn
