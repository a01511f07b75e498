// The thread wakes every tick (a twentieth of the deadline, at most 100 ms), and keeps a clock of its own
// that never advances by more than kLongestTick at a time: a process that was suspended does not find its
// deadlines passed.
#include "runtime/control/watchdog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "ckpt/base/short_list.h"
#include "runtime/control/heartbeat.h"
#include "runtime/control/silent_hosts.h"
#include "runtime/control/status_board.h"

namespace cairn {

struct Watchdog::Scope::Entry {
  std::string name, tensor, group;
  int group_id;
  uint64_t sequence;
  std::vector<int> peers;
  bool fatal;
  double start_seconds;  // of the watchdog's clock
  int slot;              // on the board
  std::list<Entry*>::iterator place;

  std::string Text() const { return fmt::format("{} of {}/{}", name, group, tensor); }
};

namespace {

using std::chrono::steady_clock;
using Entry = Watchdog::Scope::Entry;

constexpr double kLongestTick = 1.0;  // seconds
constexpr std::chrono::seconds kLauncherGrace{
    3};  // for the launcher to stop the ranks, before we do it by force
constexpr std::chrono::milliseconds kPeerGrace{1000};  // for a rank that sees another one stop
constexpr double kCheckSeconds = 0.5;                  // between looks at the other ranks
constexpr int kHaltedChecks = 10;  // a rank that is found halted this many times in a row is reported

struct Adopted {
  Watchdog::Scope scope;
  std::function<bool()> done;
};

struct Core {
  std::mutex mutex;
  std::condition_variable wake;
  bool running = false;
  std::atomic<bool> stopping = false;  // this rank is stopping all of them
  Watchdog::Options options;
  std::thread thread;
  double clock_seconds = 0;
  int halted_checks = 0;      // times in a row that the neighbour was found so
  bool silence_said = false;  // that a host is silent
  bool never_heard_said = false;
  std::list<Entry*> entries;  // oldest first
  std::list<Adopted> adopted;
};

// Never destroyed: threads may still use it while the process exits.
Core& TheCore() {
  static Core* core = new Core;
  return *core;
}

void WriteLine(const std::string& line) {
  const std::string text = "cairn: " + line + "\n";
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, text.data(), text.size());  // one piece, unbuffered
}

std::string JoinDescriptions(const StatusBoard& board, const std::vector<int>& ranks) {
  return ShortList(
      ranks.size(), [&](size_t i) { return board.Describe(ranks[i]); }, 4, "; ");
}

// The ranks that the operation waits for, as far as this host's board says, or the host that they all wait
// for.
std::string Missing(const StatusBoard& board, int own_rank, const Entry& entry) {
  const HostsReport hosts = ReportHosts(board, own_rank);
  std::vector<int> absent, elsewhere, idle;
  for (int rank : entry.peers) {
    if (rank == own_rank) continue;
    if (!board.Knows(rank))
      elsewhere.push_back(rank);
    else if (entry.sequence == 0 || !board.Arrived(rank, entry.group_id, entry.sequence))
      absent.push_back(rank);
  }
  std::string text;
  if (!absent.empty())
    text += (entry.sequence ? "not arrived: " : "waits for ") + JoinDescriptions(board, absent);
  if (!hosts.silent.empty())
    text = hosts.silent + (text.empty() ? "" : "; ") + text;
  else if (!elsewhere.empty())
    text += fmt::format("{}on other hosts, {}: {}", text.empty() ? "" : "; ",
                        hosts.all_heard ? "all of which are heard" : "state unknown",
                        JoinDescriptions(board, elsewhere));
  if (text.empty()) text = "all its ranks have arrived, the network does not deliver";
  for (int rank = 0; rank < board.size(); ++rank)
    if (board.Knows(rank) && !board.Waits(rank) && std::count(absent.begin(), absent.end(), rank) == 0)
      idle.push_back(rank);
  if (!idle.empty()) text += "; ranks outside any operation: " + JoinDescriptions(board, idle);
  return text;
}

std::string ExpiryLine(const Watchdog::Options& options, const Entry& entry) {
  const StatusBoard& board = *options.board;
  const std::string when =
      board.step() < 0 ? "before the first step" : fmt::format("in step {}", board.step());
  const std::string number = entry.sequence == 0 ? "a message" : fmt::format("operation {}", entry.sequence);
  return fmt::format("rank {} (host {}, pid {}) {}: {} ({}, ranks {}) did not complete within {} s; {}; {}",
                     options.rank, options.host, getpid(), when, entry.Text(), number,
                     fmt::join(entry.peers, ","), options.timeout_seconds,
                     Missing(board, options.rank, entry), "stopping all ranks");
}

// Ends this rank, and the others of this host, if the launcher has not done so after `grace`.
void EndByForce(std::chrono::milliseconds grace, int status) {
  std::this_thread::sleep_for(grace);
  if (auto board = TheCore().options.board) board->KillPeers();
  _exit(status);
}

[[noreturn]] void StopRanks(int status) {
  const Watchdog::Options options = TheCore().options;
  TheCore().stopping = true;
  if (options.board) options.board->ClaimStopping();
  try {
    std::thread(EndByForce, kLauncherGrace, status).detach();
  } catch (const std::system_error&) {
    EndByForce(std::chrono::milliseconds(0), status);
  }
  if (options.abort) options.abort(status);
  if (!options.board) _exit(status);
  for (;;) pause();
}

// The first rank of a host to see the end speaks for all.
[[noreturn]] void StopWithLine(const std::string& line) {
  if (TheCore().options.board->ClaimStopping()) {
    WriteLine(line);
    StopRanks(kExitLostPeer);
  }
  EndByForce(kLauncherGrace, kExitLostPeer);
  std::abort();  // not reached
}

// A rank that was stopped holds up all others until the deadline. Its neighbour on the host says so,
// once, long before; each looks after one, so that the cost does not grow with the ranks of a host.
void WatchNeighbour(Core& core) {
  const StatusBoard& board = *core.options.board;
  int neighbour = (core.options.rank + 1) % board.size();
  while (neighbour != core.options.rank && !board.Knows(neighbour))
    neighbour = (neighbour + 1) % board.size();
  core.halted_checks = board.Halted(neighbour) ? core.halted_checks + 1 : 0;
  if (core.halted_checks != kHaltedChecks) return;
  WriteLine(fmt::format("{}: {} holds up the others; all ranks stop when an operation has waited {} s",
                        board.Name(core.options.rank), board.Describe(neighbour),
                        core.options.timeout_seconds));
}

// The same for hosts, by the first of those that are not silent.
void WatchHosts(Core& core) {
  const StatusBoard& board = *core.options.board;
  const HostsReport report = ReportHosts(board, core.options.rank);
  const std::string name = board.Name(core.options.rank);
  if (report.silent.empty() == core.silence_said) {
    core.silence_said = !core.silence_said;
    if (report.speaks)
      WriteLine(core.silence_said ? fmt::format("{}: {}; all ranks stop when an operation has waited {} s",
                                                name, report.silent, core.options.timeout_seconds)
                                  : fmt::format("{}: every host is heard again", name));
  }
  if (!core.never_heard_said && core.clock_seconds > board.silence_limit()) {
    core.never_heard_said = true;
    if (core.options.rank == 0 && !report.never_heard.empty())
      WriteLine(
          fmt::format("{}: no heartbeat of {} arrives (UDP); if a host is lost, messages may name another "
                      "that only waits",
                      name, report.never_heard));
  }
}

void CheckPeers(Core& core) {
  const StatusBoard& board = *core.options.board;
  if (core.stopping) return;
  if (board.stopping()) {
    std::this_thread::sleep_for(kPeerGrace);
    _exit(kExitLostPeer);
  }
  WatchNeighbour(core);
  if (core.options.heartbeat || core.options.rank == 0) WatchHosts(core);
  for (int rank = 0; rank < board.size(); ++rank)
    if (board.Died(rank)) {
      std::this_thread::sleep_for(kPeerGrace);  // the launcher has seen it too, and may end us
      StopWithLine(
          fmt::format("{}: {}; stopping all ranks", board.Name(core.options.rank), board.Describe(rank)));
    }
}

// Scopes of adopted work that is complete; destroyed by the caller, without the lock.
std::list<Adopted> TakeDone(Core& core) {
  std::list<Adopted> done;
  for (auto item = core.adopted.begin(); item != core.adopted.end();) {
    const auto next = std::next(item);
    if (item->done()) done.splice(done.end(), core.adopted, item);
    item = next;
  }
  return done;
}

// The line for the oldest operation, if it has outlived the deadline.
std::string Overdue(const Core& core) {
  for (const Entry* entry : core.entries)
    if (entry->fatal)
      return core.clock_seconds - entry->start_seconds > core.options.timeout_seconds
                 ? ExpiryLine(core.options, *entry)
                 : "";
  return "";
}

void Run(Core& core) {
  const double tick = std::clamp(core.options.timeout_seconds / 20, 0.005, 0.1);
  auto last = steady_clock::now();
  double since_check = 0;
  std::unique_lock lock(core.mutex);
  while (!core.wake.wait_for(lock, std::chrono::duration<double>(tick), [&] { return !core.running; })) {
    const auto now = steady_clock::now();
    const double elapsed = std::min(std::chrono::duration<double>(now - last).count(), kLongestTick);
    last = now;
    core.clock_seconds += elapsed;
    std::list<Adopted> done = TakeDone(core);
    const std::string line = Overdue(core);
    lock.unlock();
    done.clear();  // takes the lock
    if (core.options.heartbeat) core.options.heartbeat->Turn();
    if (!line.empty()) StopWithLine(line);
    if ((since_check += elapsed) >= kCheckSeconds) {
      since_check = 0;
      CheckPeers(core);
    }
    lock.lock();
  }
}

}  // namespace

void Watchdog::Start(Options options) {
  Core& core = TheCore();
  core.options = std::move(options);
  core.running = true;
  core.thread = std::thread(Run, std::ref(core));
}

void Watchdog::Stop() {
  Core& core = TheCore();
  if (!core.thread.joinable()) return;
  {
    const std::lock_guard lock(core.mutex);
    core.running = false;
  }
  core.wake.notify_all();
  core.thread.join();
  core.options.board->Finish();
  core.options = {};
}

void Watchdog::SetStep(int64_t step) {
  if (const auto& board = TheCore().options.board) board->SetStep(step);
}

double Watchdog::timeout_seconds() { return TheCore().options.timeout_seconds; }

std::string Watchdog::Name(int world_rank) {
  const auto& board = TheCore().options.board;
  return board ? board->Name(world_rank) : fmt::format("rank {}", world_rank);
}

std::string Watchdog::Describe(int world_rank) {
  const auto& board = TheCore().options.board;
  return board ? board->Describe(world_rank) : Name(world_rank);
}

void Watchdog::StopAllRanks(int status) { StopRanks(status); }

void Watchdog::Arrive(int group_id, uint64_t sequence) {
  if (const auto& board = TheCore().options.board) board->Arrive(group_id, sequence);
}

Watchdog::Scope::Scope(const Operation& operation) {
  Core& core = TheCore();
  if (!core.options.board) return;
  entry_ = std::make_unique<Entry>(Entry{std::string(operation.name),
                                         std::string(operation.tensor),
                                         std::string(operation.group),
                                         operation.group_id,
                                         operation.sequence,
                                         operation.peers,
                                         operation.fatal,
                                         0,
                                         StatusBoard::kNoSlot,
                                         {}});
  entry_->slot = core.options.board->Enter(entry_->Text());
  const std::lock_guard lock(core.mutex);
  entry_->start_seconds = core.clock_seconds;
  entry_->place = core.entries.insert(core.entries.end(), entry_.get());
}

Watchdog::Scope::Scope(Scope&&) noexcept = default;

Watchdog::Scope::~Scope() {
  if (!entry_) return;
  Core& core = TheCore();
  if (core.options.board) core.options.board->Leave(entry_->slot);
  const std::lock_guard lock(core.mutex);
  core.entries.erase(entry_->place);
}

void Watchdog::Adopt(Scope scope, std::function<bool()> done) {
  Core& core = TheCore();
  const std::lock_guard lock(core.mutex);
  if (core.running) core.adopted.push_back({std::move(scope), std::move(done)});
}

}  // namespace cairn
