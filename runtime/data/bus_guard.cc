// The signal comes to the thread that reads, so the handler may jump back to the start of the guard: no
// object in between owns anything. The handler calls only what POSIX lists as safe in one.
#include "runtime/data/bus_guard.h"

#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

namespace cairn {
namespace {

constexpr size_t kMaxPath = 512;  // the end of a longer one

struct Slot {
  std::atomic<bool> taken = false;
  std::atomic<uintptr_t> begin = 0;
  std::atomic<uintptr_t> end = 0;  // 0: not filled in
  std::array<char, kMaxPath> path{};
};
std::array<Slot, 16> slots;

struct Guard {
  sigjmp_buf entry;
  uintptr_t failed = 0;
};
thread_local Guard* guard = nullptr;

const char* PathAt(uintptr_t address) {
  for (const Slot& slot : slots)
    if (address >= slot.begin && address < slot.end) return slot.path.data();
  return "";
}

void WriteAll(const char* text) { (void)!::write(STDERR_FILENO, text, std::strlen(text)); }

// Returning from here runs the instruction again, which then ends the process as usual.
void OnBusError(int signal, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (guard != nullptr) {
    guard->failed = address;
    siglongjmp(guard->entry, 1);
  }
  const char* path = PathAt(address);
  WriteAll("cairn: ");
  WriteAll(*path == '\0' ? "bus error: a mapped file" : path);
  WriteAll(" was truncated, or its file system failed or is full, while it was read\n");
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(signal, &standard, nullptr);
}

}  // namespace

// Not deferred: it stays unblocked if the handler does not return.
void HandleBusErrors() {
  struct sigaction action {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

NamedMapping::NamedMapping(const void* begin, size_t bytes, const std::string& path) {
  for (size_t i = 0; i < slots.size() && slot_ < 0; ++i)
    if (!slots[i].taken.exchange(true)) slot_ = static_cast<int>(i);
  if (slot_ < 0) return;
  Slot& slot = slots[slot_];
  slot.path[path.copy(slot.path.data(), kMaxPath - 1,
                      path.size() < kMaxPath ? 0 : path.size() - kMaxPath + 1)] = '\0';
  slot.begin = reinterpret_cast<uintptr_t>(begin);
  slot.end = slot.begin + bytes;
}

NamedMapping::NamedMapping(NamedMapping&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}

NamedMapping& NamedMapping::operator=(NamedMapping&& other) noexcept {
  std::swap(slot_, other.slot_);
  return *this;
}

NamedMapping::~NamedMapping() {
  if (slot_ < 0) return;
  slots[slot_].end = 0;
  slots[slot_].taken = false;
}

bool ReadMapped(void (*read)(void*), void* context, std::string* file) {
  Guard own;
  Guard* const outer = std::exchange(guard, &own);
  const bool whole = sigsetjmp(own.entry, 0) == 0;
  if (whole) read(context);
  guard = outer;
  if (!whole && file != nullptr) *file = PathAt(own.failed);
  return whole;
}

}  // namespace cairn
