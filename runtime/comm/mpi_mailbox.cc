#include "runtime/comm/mpi_mailbox.h"

#include <utility>

namespace cairn {
namespace {
constexpr int kTag = 0;
}

MpiMailbox::MpiMailbox(std::shared_ptr<MpiComm> comm) : comm_(std::move(comm)) {}

// MPI still uses the bytes of transfers that have not ended: they are left to it.
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

}  // namespace cairn
