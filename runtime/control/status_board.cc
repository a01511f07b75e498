// The shared page is a plain array with a row for each rank. A rank writes only its own row (and one flag for
// all), with atomics and no lock, so the board works even if other ranks have died. A page of zeros is empty
// and valid, so ranks may map it in any order; a row counts once its pid is set, which is stored last. The
// description of another rank combines its row with the kernel's facts about the process. The start time of
// the process shows whether the pid is still that rank's.

#include "runtime/control/status_board.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>

#include "runtime/control/process_info.h"

namespace cairn {
namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The reason why a process does not run, as far as the kernel knows.
const char* Ailment(int pid, uint64_t process_start) {
  if (ProcessStart(pid) != process_start) return ", its process is gone";
  switch (ProcessState(pid)) {
    case 'Z':
      return ", its process is gone";
    case 'T':
    case 't':
      return ", stopped by a signal";
    case 'D':
      return ", waiting for a device";
    default:
      return "";
  }
}

constexpr int kSlots =
    4;  // operations of one rank at a time: its main thread's and its saver's, with room to spare
constexpr size_t kTextBytes = 160;

}  // namespace

// All-zero bytes are a valid, empty page, as a new file has them. The text is not guarded: it is read only to
// be printed, and always ends in a zero.
struct StatusBoard::Slot {
  std::atomic<int32_t> active;
  std::atomic<int64_t> changed_ns;  // when the operation was entered, or left
  std::array<char, kTextBytes> text;
};

struct StatusBoard::Row {
  std::atomic<int32_t> pid;
  std::atomic<uint64_t> process_start;
  std::atomic<uint64_t>
      pid_namespace;  // pids of another one (containers that share /dev/shm) mean nothing here
  std::atomic<int32_t> finished;
  std::atomic<int64_t> step;
  std::atomic<int64_t> heard_ns;  // of a first rank: when this host heard it; 0: never
  std::array<std::atomic<uint64_t>, kMaxGroups> arrived;
  std::array<Slot, kSlots> slots;
};

struct StatusBoard::Page {
  std::atomic<int32_t> stopping;
  Row rows[1];  // as many as ranks
  static size_t Bytes(size_t ranks) { return sizeof(Page) + (ranks - 1) * sizeof(Row); }
};

static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<int32_t>::is_always_lock_free);

Result<std::unique_ptr<StatusBoard>> StatusBoard::Open(const std::string& key, int rank,
                                                       std::vector<std::string> hosts) {
  std::string path = "/dev/shm/cairn-" + key;
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return IoError("{}: cannot open: {}", path, strerror(errno));
  const size_t bytes = Page::Bytes(hosts.size());
  // posix_fallocate rather than ftruncate: a full /dev/shm must be an error here, not SIGBUS at the first
  // store.
  const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  void* memory = error != 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int map_error = error != 0 ? error : errno;
  close(fd);
  if (memory == MAP_FAILED) {
    unlink(path.c_str());
    return IoError("{}: cannot map {} bytes: {}", path, bytes, strerror(map_error));
  }
  return std::unique_ptr<StatusBoard>(new StatusBoard(rank, std::move(hosts), memory, std::move(path)));
}

std::unique_ptr<StatusBoard> StatusBoard::Private(int rank, std::vector<std::string> hosts) {
  void* memory =
      mmap(nullptr, Page::Bytes(hosts.size()), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return std::unique_ptr<StatusBoard>(new StatusBoard(rank, std::move(hosts), memory, ""));
}

StatusBoard::StatusBoard(int rank, std::vector<std::string> hosts, void* memory, std::string path)
    : rank_(rank), hosts_(std::move(hosts)), page_(static_cast<Page*>(memory)), path_(std::move(path)) {
  Row& own = row(rank_);
  own.step = -1;
  own.slots[0].changed_ns = NowNs();
  own.process_start = ProcessStart(getpid());
  own.pid_namespace = PidNamespace();
  own.pid = getpid();
}

StatusBoard::~StatusBoard() {
  Unlink();
  munmap(page_, Page::Bytes(hosts_.size()));
}

void StatusBoard::Unlink() {
  if (!path_.empty()) unlink(path_.c_str());  // a peer may have been first
  path_.clear();
}

StatusBoard::Row& StatusBoard::row(int rank) const { return page_->rows[rank]; }

void StatusBoard::SetStep(int64_t step) { row(rank_).step.store(step, std::memory_order_relaxed); }
int64_t StatusBoard::step() const { return row(rank_).step.load(std::memory_order_relaxed); }

void StatusBoard::Arrive(int group_id, uint64_t sequence) {
  if (group_id >= 0 && group_id < kMaxGroups)
    row(rank_).arrived[group_id].store(sequence, std::memory_order_relaxed);
}

int StatusBoard::Enter(std::string_view text) {
  for (int slot = 0; slot < kSlots; ++slot) {
    Slot& s = row(rank_).slots[slot];
    int32_t free = 0;
    if (!s.active.compare_exchange_strong(free, 1)) continue;
    const size_t length = std::min(text.size(), kTextBytes - 1);
    std::memcpy(s.text.data(), text.data(), length);
    s.text[length] = 0;
    s.changed_ns.store(NowNs(), std::memory_order_release);
    return slot;
  }
  return kNoSlot;
}

void StatusBoard::Leave(int slot) {
  if (slot == kNoSlot) return;
  Slot& s = row(rank_).slots[slot];
  s.changed_ns.store(NowNs(), std::memory_order_relaxed);
  s.active.store(0, std::memory_order_release);
}

void StatusBoard::Finish() { row(rank_).finished = 1; }
bool StatusBoard::ClaimStopping() { return page_->stopping.exchange(1) == 0; }
bool StatusBoard::stopping() const { return page_->stopping.load(std::memory_order_relaxed) != 0; }

void StatusBoard::SetFirstRanks(std::vector<int> first_ranks, double silence_limit) {
  first_ranks_ = std::move(first_ranks);
  silence_limit_ = silence_limit;
}

std::optional<double> StatusBoard::Silence(int first_rank) const {
  const int64_t heard = row(first_rank).heard_ns;
  if (heard == 0) return std::nullopt;
  return std::max(0.0, static_cast<double>(NowNs() - heard) * 1e-9);
}

void StatusBoard::Hear(int first_rank) { row(first_rank).heard_ns = NowNs(); }

void StatusBoard::ForgiveSilence(double seconds) {
  for (int rank = 0; rank < size(); ++rank)
    if (row(rank).heard_ns != 0) row(rank).heard_ns += static_cast<int64_t>(seconds * 1e9);
}

bool StatusBoard::Knows(int rank) const { return row(rank).pid.load() != 0; }

bool StatusBoard::Arrived(int rank, int group_id, uint64_t sequence) const {
  return group_id >= 0 && group_id < kMaxGroups && row(rank).arrived[group_id].load() >= sequence;
}

bool StatusBoard::Waits(int rank) const {
  const auto& slots = row(rank).slots;
  return std::any_of(slots.begin(), slots.end(), [](const Slot& s) { return s.active.load() != 0; });
}

bool StatusBoard::Died(int rank) const {
  const Row& r = row(rank);
  return r.pid != 0 && r.finished == 0 && r.pid_namespace == row(rank_).pid_namespace &&
         kill(r.pid, 0) != 0 && errno == ESRCH;
}

bool StatusBoard::Halted(int rank) const {
  const Row& r = row(rank);
  if (r.pid == 0 || r.finished != 0 || ProcessStart(r.pid) != r.process_start) return false;
  const char state = ProcessState(r.pid);
  return state == 'T' || state == 't';
}

std::string StatusBoard::Name(int rank) const {
  const bool one_host =
      std::ranges::all_of(hosts_, [&](const std::string& host) { return host == hosts_[0]; }) &&
      std::ranges::all_of(first_ranks_, [](int first) { return first == 0; });
  return one_host ? fmt::format("rank {}", rank) : fmt::format("rank {} (host {})", rank, hosts_[rank]);
}

std::string StatusBoard::Describe(int rank) const {
  const Row& r = row(rank);
  if (!Knows(rank)) {
    const auto silence = first_ranks_.empty() ? std::nullopt : Silence(first_ranks_[rank]);
    if (!silence || *silence <= silence_limit_) return fmt::format("rank {} (host {})", rank, hosts_[rank]);
    return fmt::format("rank {} (host {}, which is silent for {:.1f} s)", rank, hosts_[rank], *silence);
  }
  const char* ailment = r.pid_namespace == row(rank_).pid_namespace ? Ailment(r.pid, r.process_start) : "";
  const Slot* shown = &r.slots[0];  // the longest in progress, or else the last one left
  for (const Slot& s : r.slots) {
    const bool earlier = s.changed_ns < shown->changed_ns;
    if (s.changed_ns != 0 && (s.active != shown->active ? s.active != 0 : (s.active != 0) == earlier))
      shown = &s;
  }
  const double seconds = static_cast<double>(NowNs() - shown->changed_ns) * 1e-9;
  const std::string text(shown->text.data());
  std::string where = r.step >= 0 ? fmt::format("in step {}, ", r.step.load()) : "";
  if (shown->active) {
    where += fmt::format("for {:.1f} s in {}", seconds, text);
  } else if (text.empty()) {
    where += fmt::format("in no operation since it started {:.1f} s ago", seconds);
  } else {
    where += fmt::format("in no operation since it left {} {:.1f} s ago", text, seconds);
  }
  return fmt::format("rank {} (pid {}, host {}{}), last seen {}", rank, r.pid.load(), hosts_[rank], ailment,
                     where);
}

void StatusBoard::KillPeers() const {
  for (int rank = 0; rank < size(); ++rank) {
    const Row& r = row(rank);
    if (rank == rank_ || r.pid == 0 || r.finished || r.pid_namespace != row(rank_).pid_namespace) continue;
    if (ProcessStart(r.pid) == r.process_start) kill(r.pid, SIGKILL);
  }
}

}  // namespace cairn
