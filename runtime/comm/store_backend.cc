// An operation posts its messages at once, and becomes a list of messages that it awaits and a function for
// when all are there. The awaited messages of one sender are filled in the order of the calls, whichever
// operation looks first. A reduction adds in rank order, the own term in its place, so that all ranks get the
// same bits.

#include "runtime/comm/store_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/control/backoff.h"

namespace cairn {
namespace {

class StoreWork : public c10d::Work {
 public:
  using Finish = std::function<void(const std::vector<StoreBackend::Expected>&)>;
  StoreWork(int rank, c10d::OpType type, c10::intrusive_ptr<StoreBackend> backend,
            std::vector<StoreBackend::Expected> expected, Finish finish)
      : c10d::Work(rank, type),
        backend_(std::move(backend)),
        expected_(std::move(expected)),
        finish_(std::move(finish)) {}

  bool isCompleted() override {
    if (done_) return true;
    backend_->Progress();
    for (const auto& message : expected_)
      if (message && !message->has_value()) return false;
    if (finish_) finish_(expected_);
    expected_.clear();
    finish_ = nullptr;
    return done_ = true;
  }
  bool isSuccess() const override { return done_; }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    Backoff backoff(1'000'000);
    while (!isCompleted()) backoff.Pause();
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }

 private:
  c10::intrusive_ptr<StoreBackend> backend_;
  std::vector<StoreBackend::Expected> expected_;
  Finish finish_;
  bool done_ = false;
};

std::string BytesOf(const at::Tensor& t) { return {static_cast<const char*>(t.data_ptr()), t.nbytes()}; }

void CopyBytes(const std::string& bytes, const at::Tensor& t) {
  TORCH_CHECK(bytes.size() == t.nbytes(), "a message of ", bytes.size(), " bytes came for a tensor of ",
              t.nbytes(), "; the ranks of the group do not agree on its shape");
  std::memcpy(t.data_ptr(), bytes.data(), bytes.size());
}

// The terms of all ranks, `own` among them, added (or compared) in rank order; fp16 and bf16 in fp32.
at::Tensor Reduce(const at::Tensor& own, int rank, const std::vector<StoreBackend::Expected>& terms,
                  const c10d::ReduceOp& op) {
  TORCH_CHECK(op.op_ == c10d::ReduceOp::SUM || op.op_ == c10d::ReduceOp::MAX,
              "this backend sums and takes maxima only");
  const bool half = own.scalar_type() == at::kHalf || own.scalar_type() == at::kBFloat16;
  at::Tensor result;
  for (size_t from = 0; from < terms.size(); ++from) {
    at::Tensor term = own;
    if (static_cast<int>(from) != rank) CopyBytes(**terms[from], term = at::empty_like(own));
    if (half) term = term.to(at::kFloat);
    if (!result.defined())
      result = term.clone();
    else if (op.op_ == c10d::ReduceOp::SUM)
      result.add_(term);
    else
      result = at::maximum(result, term);
  }
  return result;
}

}  // namespace

StoreBackend::StoreBackend(std::shared_ptr<Mailbox> mailbox)
    : c10d::Backend(mailbox->rank(), mailbox->size()), mailbox_(std::move(mailbox)), awaited_(size_) {}

void StoreBackend::Progress() {
  for (int from = 0; from < size_; ++from)
    while (!awaited_[from].empty()) {
      std::optional<std::string> message = mailbox_->Poll(from);
      if (!message) break;
      *awaited_[from].front() = std::move(message);
      awaited_[from].pop_front();
    }
}

StoreBackend::Expected StoreBackend::Expect(int from) {
  return awaited_[from].emplace_back(std::make_shared<std::optional<std::string>>());
}

std::vector<StoreBackend::Expected> StoreBackend::ExpectAll() {
  std::vector<Expected> expected(size_);
  for (int from = 0; from < size_; ++from)
    if (from != rank_) expected[from] = Expect(from);
  return expected;
}

c10::intrusive_ptr<c10d::Work> StoreBackend::Start(c10d::OpType type, std::vector<Expected> expected,
                                                   Finish finish) {
  return c10::make_intrusive<StoreWork>(rank_, type,
                                        c10::intrusive_ptr<StoreBackend>::unsafe_reclaim_from_nonowning(this),
                                        std::move(expected), std::move(finish));
}

c10::intrusive_ptr<c10d::Work> StoreBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                       const c10d::AllreduceOptions& options) {
  at::Tensor t = tensors.at(0);
  for (int to = 0; to < size_; ++to)
    if (to != rank_) mailbox_->Post(to, BytesOf(t));
  return Start(c10d::OpType::ALLREDUCE, ExpectAll(),
               [t, rank = rank_, op = options.reduceOp](const std::vector<Expected>& terms) mutable {
                 t.copy_(Reduce(t, rank, terms, op));
               });
}

c10::intrusive_ptr<c10d::Work> StoreBackend::reduce(std::vector<at::Tensor>& tensors,
                                                    const c10d::ReduceOptions& options) {
  at::Tensor t = tensors.at(0);
  const int root = static_cast<int>(options.rootRank);
  if (rank_ != root) {
    mailbox_->Post(root, BytesOf(t));
    return Start(c10d::OpType::REDUCE, {}, nullptr);
  }
  return Start(c10d::OpType::REDUCE, ExpectAll(),
               [t, rank = rank_, op = options.reduceOp](const std::vector<Expected>& terms) mutable {
                 t.copy_(Reduce(t, rank, terms, op));
               });
}

c10::intrusive_ptr<c10d::Work> StoreBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                       const c10d::BroadcastOptions& options) {
  const at::Tensor t = tensors.at(0);
  const int root = static_cast<int>(options.rootRank);
  if (rank_ != root)
    return Start(c10d::OpType::BROADCAST, {Expect(root)},
                 [t](const std::vector<Expected>& messages) { CopyBytes(**messages[0], t); });
  for (int to = 0; to < size_; ++to)
    if (to != rank_) mailbox_->Post(to, BytesOf(t));
  return Start(c10d::OpType::BROADCAST, {}, nullptr);
}

c10::intrusive_ptr<c10d::Work> StoreBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                             const c10d::AllgatherOptions& /*options*/) {
  const std::vector<at::Tensor> slots = output.view({-1}).chunk(size_);
  if (slots[rank_].data_ptr() != input.data_ptr()) slots[rank_].copy_(input.view({-1}));
  for (int to = 0; to < size_; ++to)
    if (to != rank_) mailbox_->Post(to, BytesOf(slots[rank_]));
  return Start(c10d::OpType::_ALLGATHER_BASE, ExpectAll(), [slots](const std::vector<Expected>& parts) {
    for (size_t from = 0; from < parts.size(); ++from)
      if (parts[from]) CopyBytes(**parts[from], slots[from]);
  });
}

c10::intrusive_ptr<c10d::Work> StoreBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                  const c10d::ReduceScatterOptions& options) {
  const std::vector<at::Tensor> slots = input.view({-1}).chunk(size_);
  for (int to = 0; to < size_; ++to)
    if (to != rank_) mailbox_->Post(to, BytesOf(slots[to]));
  return Start(c10d::OpType::_REDUCE_SCATTER_BASE, ExpectAll(),
               [out = output, own = slots[rank_], rank = rank_,
                op = options.reduceOp](const std::vector<Expected>& terms) mutable {
                 out.view({-1}).copy_(Reduce(own, rank, terms, op));
               });
}

c10::intrusive_ptr<c10d::Work> StoreBackend::send(std::vector<at::Tensor>& tensors, int to, int /*tag*/) {
  mailbox_->Post(to, BytesOf(tensors.at(0)));
  return Start(c10d::OpType::SEND, {}, nullptr);
}

c10::intrusive_ptr<c10d::Work> StoreBackend::recv(std::vector<at::Tensor>& tensors, int from, int /*tag*/) {
  const at::Tensor t = tensors.at(0);
  return Start(c10d::OpType::RECV, {Expect(from)},
               [t](const std::vector<Expected>& messages) { CopyBytes(**messages[0], t); });
}

c10::intrusive_ptr<c10d::Work> StoreBackend::barrier(const c10d::BarrierOptions& /*options*/) {
  for (int to = 0; to < size_; ++to)
    if (to != rank_) mailbox_->Post(to, "");
  return Start(c10d::OpType::BARRIER, ExpectAll(), nullptr);
}

}  // namespace cairn
