// MPI's handles as owners: the library itself, and communicators.
#pragma once

#include <mpi.h>

#include <memory>

#include "runtime/control/progress_thread.h"

namespace cairn {

// Throws c10::Error with MPI's own text unless `code` is MPI_SUCCESS. `what` is the call.
void CheckMpi(int code, const char* what);

// MPI between Init and Finalize. Everything that holds a communicator holds this too, so MPI ends after all
// of them.
class MpiSession {
 public:
  // Initialises MPI for several threads. Once in a process.
  static std::shared_ptr<MpiSession> Start();
  // Finalises, except while an exception unwinds the stack: the other ranks may not be about to do so.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  // Moves messages while their ranks compute.
  ProgressThread& progress() { return *progress_; }

 private:
  MpiSession() = default;
  std::unique_ptr<ProgressThread> progress_ = std::make_unique<ProgressThread>();
};

// An owned communicator; its errors are returned as codes.
class MpiComm {
 public:
  // A copy of `comm`, or its part of one `color` in the order of `key`. Collective over `comm`.
  static std::shared_ptr<MpiComm> Duplicate(std::shared_ptr<MpiSession> session, MPI_Comm comm);
  static std::shared_ptr<MpiComm> Split(std::shared_ptr<MpiSession> session, MPI_Comm comm, int color,
                                        int key);
  ~MpiComm();
  MpiComm(const MpiComm&) = delete;
  MpiComm& operator=(const MpiComm&) = delete;

  MPI_Comm get() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::shared_ptr<MpiSession>& session() const { return session_; }

 private:
  MpiComm(std::shared_ptr<MpiSession> session, MPI_Comm comm);

  std::shared_ptr<MpiSession> session_;
  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace cairn
