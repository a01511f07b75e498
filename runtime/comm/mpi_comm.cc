#include "runtime/comm/mpi_comm.h"

#include <c10/util/Exception.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <utility>

namespace cairn {

void CheckMpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  TORCH_CHECK_WITH(DistBackendError, false, what, " failed: ", text.data());
}

std::shared_ptr<MpiSession> MpiSession::Start() {
  // Open MPI's blocking calls, as in creating groups, spin unless it knows that ranks share cores.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", /*replace=*/0);
  // Fragments of a long message that may be in flight before its receiver must take a turn. With Open MPI's
  // 3, which suit ranks that spin, 16 MiB took 80 times as long as with 64 (9.5 s against 0.12 s on two busy
  // cores).
  setenv("OMPI_MCA_pml_ob1_send_pipeline_depth", "64", /*replace=*/0);
  int provided = MPI_THREAD_SINGLE;
  CheckMpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  TORCH_CHECK(provided == MPI_THREAD_MULTIPLE,
              "this MPI does not support several threads, which saving in the background needs; use one "
              "built with MPI_THREAD_MULTIPLE");
  return std::shared_ptr<MpiSession>(new MpiSession);
}

MpiSession::~MpiSession() {
  progress_.reset();
  if (std::uncaught_exceptions() == 0) MPI_Finalize();
}

std::shared_ptr<MpiComm> MpiComm::Duplicate(std::shared_ptr<MpiSession> session, MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  CheckMpi(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup");
  return std::shared_ptr<MpiComm>(new MpiComm(std::move(session), copy));
}

std::shared_ptr<MpiComm> MpiComm::Split(std::shared_ptr<MpiSession> session, MPI_Comm comm, int color,
                                        int key) {
  MPI_Comm part = MPI_COMM_NULL;
  CheckMpi(MPI_Comm_split(comm, color, key, &part), "MPI_Comm_split");
  return std::shared_ptr<MpiComm>(new MpiComm(std::move(session), part));
}

MpiComm::MpiComm(std::shared_ptr<MpiSession> session, MPI_Comm comm)
    : session_(std::move(session)), comm_(comm) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
}

MpiComm::~MpiComm() {
  if (std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
}

}  // namespace cairn
