// Every message starts with the session's number and its kind. A rank that is still leaving a session may
// find messages of the next one, and keeps them.
#include "runtime/saving/peer_files.h"

#include <chrono>
#include <cstring>

#include "ckpt/base/byte_codec.h"
#include "runtime/control/background_thread.h"
#include "runtime/control/backoff.h"
#include "runtime/control/mailbox.h"
#include "runtime/control/rank_message.h"
#include "runtime/control/watchdog.h"

namespace cairn {
namespace {

constexpr char kRequest = 'r', kReply = 'a', kDone = 'd', kOver = 'o';
constexpr long kPeerSleepNs = 500'000;
constexpr double kPatience = 10;

using PeerClock = std::chrono::steady_clock;

}  // namespace

PeerFiles::PeerFiles(FileSystem& fs, std::shared_ptr<Mailbox> mailbox, double timeout_seconds)
    : fs_(fs),
      mailbox_(std::move(mailbox)),
      timeout_seconds_(timeout_seconds),
      server_([this] { ServeSessions(); }) {}

PeerFiles::~PeerFiles() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  server_.join();
}

int PeerFiles::rank() const { return mailbox_->rank(); }
int PeerFiles::size() const { return mailbox_->size(); }

Status PeerFiles::Session(std::map<std::string, Offer> offers, const std::function<Status()>& work) {
  ++session_;
  offers_ = std::move(offers);
  working_ = true;
  told_ = over_ = false;
  failure_ = OkStatus();
  ranks_working_ = size();
  {
    const std::lock_guard lock(mutex_);
    serving_ = true;
  }
  changed_.notify_all();
  const Status status = work();
  {
    std::unique_lock lock(mutex_);
    working_ = false;
    changed_.wait(lock, [this] { return !serving_; });
  }
  files_.clear();
  offers_.clear();
  return status.ok() ? failure_ : status;
}

Status PeerFiles::ReadAll(std::span<const Read> reads) {
  std::unique_lock lock(mutex_);
  CAIRN_RETURN_IF_ERROR(failure_);  // no rank serves any more
  const uint64_t first = next_id_;
  for (const Read& read : reads) {
    ByteWriter out;
    out.PutRaw(Start(kRequest));
    out.Put(next_id_);
    out.PutText(read.name);
    out.Put(read.offset);
    out.Put(static_cast<uint64_t>(read.out.size()));
    waiting_[next_id_++] = {read.out, {}};
    requests_.emplace_back(read.rank, std::move(out).Take());
  }
  Status status;
  for (uint64_t id = first; id < first + reads.size(); ++id) {
    changed_.wait(lock, [&] { return waiting_[id].outcome.has_value(); });
    if (status.ok()) status = *waiting_[id].outcome;
    waiting_.erase(id);
  }
  return status;
}

void PeerFiles::ServeSessions() {
  BecomeBackgroundThread();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || serving_; });
    if (!serving_) return;
    lock.unlock();
    Serve();
    lock.lock();
    serving_ = false;
    changed_.notify_all();
  }
}

void PeerFiles::Serve() {
  Backoff backoff(kPeerSleepNs);
  auto heard = PeerClock::now();
  while (!over_ || !mailbox_->Delivered()) {
    if (Turn()) {
      heard = PeerClock::now();
      backoff = Backoff(kPeerSleepNs);
      continue;
    }
    // The work of this rank may take any time. The work of others may be silent for long, but not forever.
    const bool asks = [this] {
      const std::lock_guard lock(mutex_);
      return !waiting_.empty();
    }();
    if (!asks && !told_) heard = PeerClock::now();
    const double patience = asks ? timeout_seconds_ : kPatience * timeout_seconds_;
    if (std::chrono::duration<double>(PeerClock::now() - heard).count() > patience) break;
    backoff.Pause();
  }
  const std::lock_guard lock(mutex_);
  if (!over_) failure_ = Aborted("files of other ranks: no answer within {} s", timeout_seconds_);
  over_ = true;
  for (auto& [id, waiting] : waiting_)
    if (!waiting.outcome) waiting.outcome = failure_;
  changed_.notify_all();
}

bool PeerFiles::Turn() {
  std::deque<std::pair<int, std::string>> requests;
  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    requests.swap(requests_);
    ended = !working_;
  }
  bool busy = !requests.empty();
  for (auto& [to, message] : requests) Post(to, std::move(message));
  if (ended && !told_) {
    told_ = busy = true;
    Post(0, Start(kDone));
  }
  std::deque<std::pair<int, std::string>> messages = std::exchange(early_, {});
  for (int from = 0; from < size(); ++from) {
    if (from == rank()) continue;
    if (auto message = mailbox_->Poll(from)) messages.emplace_back(from, *std::move(message));
  }
  for (const auto& [from, message] : messages) {
    uint64_t session = 0;
    if (message.size() > sizeof(session)) std::memcpy(&session, message.data(), sizeof(session));
    if (session == session_) Take(from, message);
    if (session == session_) busy = true;
    if (session > session_) early_.emplace_back(from, message);
  }
  return busy;
}

void PeerFiles::Take(int from, const std::string& message) {
  ByteReader in(message);
  (void)in.Get<uint64_t>();
  const char kind = in.Get<char>();
  if (kind == kRequest) {
    const auto id = in.Get<uint64_t>();
    const std::string name(in.GetText());
    const auto offset = in.Get<uint64_t>();
    Answer(from, id, name, offset, in.Get<uint64_t>());
  } else if (kind == kReply) {
    const auto id = in.Get<uint64_t>();
    const Result<std::string> bytes = DecodeOutcome(in.GetRaw(in.left()));
    Resolve(id, bytes.status(), bytes.ok() ? std::string_view(*bytes) : std::string_view());
  } else if (kind == kDone && --ranks_working_ == 0) {
    for (int to = 0; to < size(); ++to) Post(to, Start(kOver));
  } else if (kind == kOver) {
    over_ = true;
  }
}

void PeerFiles::Answer(int from, uint64_t id, const std::string& name, uint64_t offset, uint64_t bytes) {
  Status status;
  std::string data;
  if (bytes > kMaxMessageBytes / 2) {
    status = InvalidArgument("{}: a read of {} bytes at once", name, bytes);
  } else {
    data.resize(bytes);
    status = ReadOffer(name, offset, std::as_writable_bytes(std::span(data)));
  }
  ByteWriter out;
  out.PutRaw(Start(kReply));
  out.Put(id);
  out.PutRaw(EncodeOutcome(status.WithContext(fmt::format("rank {}", rank())), data));
  Post(from, std::move(out).Take());
}

void PeerFiles::Resolve(uint64_t id, const Status& status, std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return;
  if (status.ok() && bytes.size() == found->second.out.size())
    std::memcpy(found->second.out.data(), bytes.data(), bytes.size());
  found->second.outcome =
      status.ok() && bytes.size() != found->second.out.size() ? Corrupt("a reply of another length") : status;
  changed_.notify_all();
}

Status PeerFiles::ReadOffer(const std::string& name, uint64_t offset, std::span<std::byte> out) {
  const auto offer = offers_.find(name);
  if (offer == offers_.end()) return NotFound("{} is not here", name);
  if (const auto memory = offer->second.memory; !memory.empty()) {
    if (offset > memory.size() || out.size() > memory.size() - offset)
      return Corrupt("{} ends before byte {}", name, offset + out.size());
    std::memcpy(out.data(), memory.data() + offset, out.size());
    return OkStatus();
  }
  std::unique_ptr<File>& file = files_[name];
  if (!file) {
    CAIRN_ASSIGN_OR_RETURN(file, fs_.OpenForRead(offer->second.path));
  }
  return file->ReadAt(offset, out);
}

std::string PeerFiles::Start(char kind) const {
  ByteWriter out;
  out.Put(session_);
  out.Put(kind);
  return std::move(out).Take();
}

void PeerFiles::Post(int to, std::string message) {
  if (to == rank())
    Take(to, message);
  else
    mailbox_->Post(to, std::move(message));
}

std::string ParityNameOf(const std::string& shard) { return shard.substr(0, shard.rfind('.')) + ".parity"; }

MemberFiles FilesOf(const ParityGroup& group, const std::map<std::string, int>& rank_of, PeerFiles& peers) {
  const auto name = [&group](int member, bool parity) {
    const std::string& shard = group.members()[member].shard;
    return parity ? ParityNameOf(shard) : shard;
  };
  return {.has = [&rank_of, name](int member, bool parity) { return rank_of.contains(name(member, parity)); },
          .read =
              [&rank_of, name, &peers](std::span<const MemberRead> reads) {
                std::vector<PeerFiles::Read> asked;
                for (const MemberRead& read : reads) {
                  const std::string file = name(read.member, read.parity);
                  asked.push_back({rank_of.at(file), file, read.offset, read.out});
                }
                return peers.ReadAll(asked);
              }};
}

}  // namespace cairn
