// Mailbox over MPI point-to-point messages on a communicator of its own.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>

#include "runtime/comm/mpi_comm.h"
#include "runtime/control/mailbox.h"

namespace cairn {

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

}  // namespace cairn
