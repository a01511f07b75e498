// Several large reads and writes in flight against open files.
//
// The posix file system serves it by io_uring, or by a few threads of pread and pwrite if the kernel refuses
// that (containers often do); every other file system by such threads over its own files, so that faults can
// be injected there too. Used by one thread at a time, apart from AwaitOne().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ckpt/base/status.h"

namespace cairn {

class File;

struct IoQueueOptions {
  int depth = 4;      // transfers in flight; more gained nothing on the machines measured
  bool uring = true;  // false: threads, whatever the kernel offers
};

class IoQueue {
 public:
  // What became of a transfer: `tag` is the caller's. Errors are those of File::WriteAt and ReadAt.
  struct Completion {
    uint64_t tag = 0;
    Status status;
  };

  virtual ~IoQueue() = default;  // waits for what is in flight

  // Starts a transfer; `bytes` and `file` must stay until its completion. Requires in_flight() < depth().
  virtual void Write(File& file, uint64_t offset, std::span<const std::byte> bytes, uint64_t tag) = 0;
  virtual void Read(File& file, uint64_t offset, std::span<std::byte> bytes, uint64_t tag) = 0;
  // The next transfer to finish, in any order. Requires in_flight() > 0.
  virtual Completion Wait() = 0;
  // Returns when Wait() need not wait for the disk. Requires that something is in flight. One thread may call
  // it while another one starts transfers.
  virtual void AwaitOne() = 0;

  virtual int in_flight() const = 0;
  virtual int depth() const = 0;
  // "io_uring", or "threads" and the reason; shown to the user once.
  virtual const std::string& engine() const = 0;
};

// Threads over File::WriteAt and ReadAt. `engine`: what engine() says.
std::unique_ptr<IoQueue> NewThreadQueue(int depth, std::string engine = "threads");
// Errors: NotSupported with the kernel's reason if it refuses.
Result<std::unique_ptr<IoQueue>> NewUringQueue(int depth);

}  // namespace cairn
