#include "tests/runtime/snapshot/fake/fake_cuda.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

#include "runtime/snapshot/cuda/snapshot_kernels.h"
#include "tests/runtime/snapshot/snapshot_twin.h"

namespace {
std::atomic<int64_t> calls, fail_at;

bool Fails() { return ++calls == fail_at; }
}  // namespace

#define FAKE_CALL() \
  if (Fails()) return cudaErrorUnknown

struct CUstream_st {
 public:
  CUstream_st() : thread_([this] { Work(); }) {}
  ~CUstream_st() {
    Enqueue(nullptr);
    thread_.join();
  }
  void Enqueue(std::function<void()> operation) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(operation));
    changed_.notify_all();
  }

 private:
  void Work() {
    std::minstd_rand random(static_cast<unsigned>(reinterpret_cast<uintptr_t>(this) >> 4));
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty(); });
      const std::function<void()> operation = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (!operation) return;
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      operation();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::thread thread_;
};

namespace {
// Records are numbered; one is complete when its stream has reached it.
struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t recorded = 0, complete = 0;

  int64_t Newest() {
    const std::lock_guard lock(mutex);
    return recorded;
  }
  void WaitFor(int64_t record) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return complete >= record; });
  }
};
}  // namespace

// An event may be destroyed before streams have reached it.
struct CUevent_st {
  std::shared_ptr<Event> event = std::make_shared<Event>();
};

namespace {

cudaStream_t Real(cudaStream_t stream) {
  static CUstream_st default_stream;
  return stream == nullptr ? &default_stream : stream;
}

void* Garbage(size_t bytes) {
  void* memory = ::operator new (bytes, std::align_val_t{256});
  std::memset(memory, static_cast<int>(cairn::kGarbage), bytes);
  return memory;
}

void Release(void* memory) { ::operator delete (memory, std::align_val_t{256}); }

}  // namespace

extern "C" {
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorUnknown ? "unknown error" : "?";
}
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorUnknown"; }
cudaError_t cudaGetDeviceCount(int* count) {
  FAKE_CALL();
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  FAKE_CALL();
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_CALL();
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  FAKE_CALL();
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  FAKE_CALL();
  std::atomic<bool> done = false;
  Real(stream)->Enqueue([&] {
    done = true;
    done.notify_all();
  });
  done.wait(false);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  FAKE_CALL();
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  FAKE_CALL();
  const std::lock_guard lock(handle->event->mutex);
  Real(stream)->Enqueue([event = handle->event, record = ++handle->event->recorded] {
    const std::lock_guard inner(event->mutex);
    event->complete = std::max(event->complete, record);
    event->changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  FAKE_CALL();
  handle->event->WaitFor(handle->event->Newest());
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned) {
  FAKE_CALL();
  Real(stream)->Enqueue(
      [event = handle->event, record = handle->event->Newest()] { event->WaitFor(record); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  FAKE_CALL();
  Real(stream)->Enqueue([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  FAKE_CALL();
  *memory = Garbage(bytes);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  FAKE_CALL();
  *memory = Garbage(bytes);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void*, size_t, unsigned) {
  FAKE_CALL();
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaFree(void* memory) {
  Release(memory);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  Release(memory);
  return cudaSuccess;
}
}  // extern "C"

namespace cairn {

cudaError_t LaunchPack(const SlotView& slot, cudaStream_t stream) {
  FAKE_CALL();
  Real(stream)->Enqueue([slot] { TwinPack(slot); });
  return cudaSuccess;
}

cudaError_t LaunchChain(const SlotView& slot, cudaStream_t stream) {
  FAKE_CALL();
  Real(stream)->Enqueue([slot] { TwinChain(slot); });
  return cudaSuccess;
}

namespace fake_cuda {
void FailCall(int64_t call) {
  calls = 0;
  fail_at = call;
}
int64_t Calls() { return calls; }
}  // namespace fake_cuda
}  // namespace cairn
