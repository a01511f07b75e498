// The world of mpirun, or of srun with PMIx.
#include <list>
#include <map>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "runtime/comm/mpi_backend.h"
#include "runtime/comm/mpi_comm.h"
#include "runtime/comm/world.h"
#include "runtime/control/mailbox.h"

namespace cairn {
namespace {

constexpr int kTag = 0;

// Mailbox over MPI point-to-point messages on a communicator of its own.
class MpiMailbox : public Mailbox {
 public:
  explicit MpiMailbox(std::shared_ptr<MpiComm> comm);
  ~MpiMailbox() override;

  int rank() const override { return comm_->rank(); }
  int size() const override { return comm_->size(); }
  void Post(int to, std::string message) override;
  bool Delivered() override;
  std::optional<std::string> Poll(int from) override;
  std::shared_ptr<Mailbox> Duplicate(const std::string& name) override;

 private:
  struct Transfer {
    std::string message;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  std::shared_ptr<MpiComm> comm_;
  std::list<Transfer> outgoing_;
  std::map<int, Transfer> incoming_;  // by sender
};

MpiMailbox::MpiMailbox(std::shared_ptr<MpiComm> comm) : comm_(std::move(comm)) {}

// MPI still uses the bytes of unfinished transfers: they are leaked.
MpiMailbox::~MpiMailbox() {
  if (!outgoing_.empty()) new auto(std::move(outgoing_));
  for (const auto& [from, transfer] : incoming_)
    if (transfer.request != MPI_REQUEST_NULL) {
      new auto(std::move(incoming_));
      break;
    }
}

void MpiMailbox::Post(int to, std::string message) {
  Transfer& out = outgoing_.emplace_back(Transfer{std::move(message)});
  CheckMpi(MPI_Isend(out.message.data(), static_cast<int>(out.message.size()), MPI_BYTE, to, kTag,
                     comm_->get(), &out.request),
           "MPI_Isend");
}

bool MpiMailbox::Delivered() {
  outgoing_.remove_if([](Transfer& out) {
    int done = 0;
    CheckMpi(MPI_Test(&out.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  });
  return outgoing_.empty();
}

// Long messages arrive in pieces, between calls.
std::optional<std::string> MpiMailbox::Poll(int from) {
  Transfer& in = incoming_[from];
  int done = 0;
  if (in.request == MPI_REQUEST_NULL) {
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    CheckMpi(MPI_Improbe(from, kTag, comm_->get(), &done, &message, &status), "MPI_Improbe");
    if (!done) return std::nullopt;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    in.message.resize(bytes);
    CheckMpi(MPI_Imrecv(in.message.data(), bytes, MPI_BYTE, &message, &in.request), "MPI_Imrecv");
  }
  CheckMpi(MPI_Test(&in.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  if (!done) return std::nullopt;
  return std::exchange(in.message, {});
}

std::shared_ptr<Mailbox> MpiMailbox::Duplicate(const std::string& /*name*/) {
  return std::make_shared<MpiMailbox>(MpiComm::Duplicate(comm_->session(), comm_->get()));
}

class MpiWorld : public World {
 public:
  MpiWorld() : session_(MpiSession::Start()), comm_(MpiComm::Duplicate(session_, MPI_COMM_WORLD)) {
    rank_ = comm_->rank();
    size_ = comm_->size();
    MPI_Comm host = MPI_COMM_NULL;
    CheckMpi(MPI_Comm_split_type(comm_->get(), MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
             "MPI_Comm_split_type");
    MPI_Comm_rank(host, &local_rank_);
    MPI_Comm_free(&host);
  }

  c10::intrusive_ptr<c10d::Backend> NewBackend(const std::string& /*name*/,
                                               const std::vector<int>& members) override {
    int key = 0;
    while (members[key] != rank_) ++key;
    auto comm = MpiComm::Split(session_, comm_->get(), members.front(), key);
    if (members.size() == 1) return {};
    return c10::make_intrusive<MpiBackend>(std::move(comm));
  }

  std::shared_ptr<Mailbox> NewMailbox(const std::string& /*name*/) override {
    return std::make_shared<MpiMailbox>(MpiComm::Duplicate(session_, comm_->get()));
  }

  std::function<void(int)> Aborter() const override {
    return [](int status) { MPI_Abort(MPI_COMM_WORLD, status); };
  }

 private:
  std::shared_ptr<MpiSession> session_;
  std::shared_ptr<MpiComm> comm_;
};

}  // namespace

std::unique_ptr<World> MakeMpiWorld() { return std::make_unique<MpiWorld>(); }

}  // namespace cairn
