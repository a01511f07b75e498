// The world of mpirun, or of srun with PMIx.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "runtime/comm/mpi_backend.h"
#include "runtime/comm/mpi_mailbox.h"
#include "runtime/comm/world.h"

namespace cairn {
namespace {

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
