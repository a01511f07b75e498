#include "tests/fuzz/limits.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <utility>

// From a sanitizer's run time, if the program has one.
extern "C" {
__attribute__((weak)) void __sanitizer_set_death_callback(void (*)());
__attribute__((weak)) void __sanitizer_print_stack_trace();
// Crashes that no sanitizer reports itself (FuzzCheck, an uncaught exception) are reported as
// such.
const char* __asan_default_options() {
  return "handle_abort=1:handle_sigill=1:handle_sigfpe=1:quarantine_size_mb=16:detect_stack_use_after_return="
         "0";
}
}

namespace cairn {
namespace {

const std::string* g_input = nullptr;  // at work
std::string g_keep;
std::atomic<int64_t> g_live{0};  // bytes; below 0 if an input frees older memory
std::atomic<int64_t> g_most{0};  // of the input at work
InputPeaks g_peaks;
double g_begin = 0;

double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void Say(const char* text) { (void)!write(STDERR_FILENO, text, std::strlen(text)); }

void Keep() {
  const std::string* input = std::exchange(g_input, nullptr);
  if (!input) return;
  if (g_keep.empty()) return Say("fuzz: --keep FILE would have kept the input\n");
  const int file = open(g_keep.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0 || write(file, input->data(), input->size()) < 0) return Say("fuzz: cannot keep the input\n");
  close(file);
  Say("fuzz: the input is in ");
  Say(g_keep.c_str());
  Say("\n");
}

[[noreturn]] void Break(const char* what) {
  Say(what);
  if (&__sanitizer_print_stack_trace) __sanitizer_print_stack_trace();
  Keep();
  _exit(1);
}

void OnSignal(int signal) {
  if (signal == SIGPROF) Break("fuzz: an input takes more than a second\n");
  Keep();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// For the rest of the program: an input that recurses without end leaves no stack for the handler.
void Handle(int signal) {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_ONSTACK;
  sigaction(signal, &action, nullptr);
}

void Count(void* memory) {
  const int64_t live = g_live += static_cast<int64_t>(malloc_usable_size(memory));
  if (live <= g_most.load(std::memory_order_relaxed)) return;
  g_most = live;
  if (g_input && live > static_cast<int64_t>(kInputBytes))
    Break("fuzz: an input takes more than 512 MiB of memory\n");
}

}  // namespace

void WatchInputs(const std::string& keep) {
  g_keep = keep;
  Handle(SIGPROF);
  if (&__sanitizer_set_death_callback) return __sanitizer_set_death_callback(Keep);
  static std::array<char, 1 << 16> memory;
  const stack_t stack{.ss_sp = memory.data(), .ss_flags = 0, .ss_size = memory.size()};
  sigaltstack(&stack, nullptr);
  for (const int signal : {SIGILL, SIGTRAP, SIGSEGV, SIGBUS, SIGFPE, SIGABRT}) Handle(signal);
}

InputAtWork::InputAtWork(const std::string& input) {
  g_live = g_most = 0;
  g_begin = ProcessorSeconds();
  g_input = &input;
  const itimerval once{.it_interval = {}, .it_value = {.tv_sec = kInputSeconds, .tv_usec = 0}};
  setitimer(ITIMER_PROF, &once, nullptr);
}

InputAtWork::~InputAtWork() {
  const itimerval never{};
  setitimer(ITIMER_PROF, &never, nullptr);
  g_input = nullptr;
  g_peaks.seconds = std::max(g_peaks.seconds, ProcessorSeconds() - g_begin);
  g_peaks.bytes = std::max(g_peaks.bytes, static_cast<uint64_t>(std::max<int64_t>(g_most, 0)));
}

InputPeaks PeaksOfInputs() { return g_peaks; }

}  // namespace cairn

namespace {

void* TryNew(std::size_t bytes, std::size_t alignment) {
  bytes = std::max<std::size_t>(bytes, 1);
  // Before it is tried: the counter counts existing memory, which this would never be.
  if (bytes > cairn::kInputBytes && cairn::g_input)
    cairn::Break("fuzz: an input asks for more than 512 MiB of memory at once\n");
  void* memory = alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__
                     ? std::malloc(bytes)
                     : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory) cairn::Count(memory);
  return memory;
}

void* New(std::size_t bytes, std::size_t alignment) {
  void* memory = TryNew(bytes, alignment);
  return memory ? memory : throw std::bad_alloc();
}

void Delete(void* memory) {
  if (!memory) return;
  cairn::g_live -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

// The other forms of the standard library end in these.
void* operator new(std::size_t bytes) { return New(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return New(bytes, static_cast<std::size_t>(alignment));
}
// Under a sanitizer these would be its own, whose memory the forms of delete below may not get.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return TryNew(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return TryNew(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { Delete(memory); }
void operator delete(void* memory, std::size_t) noexcept { Delete(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Delete(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { Delete(memory); }
