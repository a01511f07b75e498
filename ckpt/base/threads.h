// Threads that share work which fewer of them could do as well. A system that gives no more threads (ulimit
// -u, memory) makes the work slower; it is not an error.
#pragma once

#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

// Starts up to `count` threads that run `work`: as many as the system gives, perhaps none.
template <typename Work>
std::vector<std::thread> StartThreads(int count, const Work& work) {
  std::vector<std::thread> threads;
  if (count <= 0) return threads;
  threads.reserve(static_cast<size_t>(count));
  try {
    while (count-- > 0) threads.emplace_back(work);
  } catch (const std::exception&) {  // no thread, or no memory for one: those that run do it all
  }
  return threads;
}

// Runs `work` here and on up to `threads` - 1 others, until all have returned. Throws what one of them threw.
template <typename Work>
void RunOnThreads(int threads, const Work& work) {
  std::mutex mutex;
  std::exception_ptr thrown;
  const auto guarded = [&] {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex);
      thrown = std::current_exception();
    }
  };
  std::vector<std::thread> helpers = StartThreads(threads - 1, guarded);
  guarded();
  for (std::thread& helper : helpers) helper.join();
  if (thrown) std::rethrow_exception(thrown);
}

// An exception of the standard library as an error: NoSpace without memory or threads, IoError of a system
// call, InvalidArgument with the exception's message for any other.
Status StatusOf(const std::exception& error);
inline std::string TextOf(const std::exception& error) { return StatusOf(error).message(); }

// The result of `work`, or the exception that it threw as a Status: no exception may leave a thread.
template <typename Work>
Status Caught(const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return StatusOf(error);
  }
}

}  // namespace cairn
