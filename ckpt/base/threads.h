// Threads that share work which fewer of them could do as well. A system that gives no more threads (ulimit
// -u, memory) makes the work slower; it is not an error.
#pragma once

#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace cairn {

// Starts up to `count` threads that run `work`: as many as the system gives, perhaps none.
template <typename Work>
std::vector<std::thread> StartThreads(int count, const Work& work) {
  std::vector<std::thread> threads;
  if (count <= 0) return threads;
  threads.reserve(static_cast<size_t>(count));
  try {
    while (count-- > 0) threads.emplace_back(work);
  } catch (const std::system_error&) {  // those that run do it all
  }
  return threads;
}

// Runs `work` here and on up to `threads` - 1 others, until all have returned.
template <typename Work>
void RunOnThreads(int threads, const Work& work) {
  std::vector<std::thread> helpers = StartThreads(threads - 1, work);
  work();
  for (std::thread& helper : helpers) helper.join();
}

// What an exception of the standard library says to a user: of memory, of threads, else its own words.
std::string TextOf(const std::exception& error);

}  // namespace cairn
