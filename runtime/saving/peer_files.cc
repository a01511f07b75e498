// The ranks agree before a session's work, so no rank asks for files that are not offered yet, and after it,
// so no rank leaves while another may still ask. In between each rank's thread sends this rank's requests,
// and answers those of others.
#include "runtime/saving/peer_files.h"

#include <cstring>

#include "ckpt/base/backoff.h"
#include "ckpt/base/byte_codec.h"
#include "runtime/control/background_thread.h"
#include "runtime/control/mailbox.h"
#include "ckpt/job/job_ranks.h"
#include "runtime/control/watchdog.h"

namespace cairn {
namespace {

constexpr char kRequest = 'r', kReply = 'a';
constexpr double kPatience =
    10;  // the work of others may be silent for longer than an answer, but not forever

}  // namespace

PeerFiles::PeerFiles(FileSystem& fs, std::shared_ptr<Mailbox> mailbox, double timeout_seconds)
    : fs_(fs),
      mailbox_(std::move(mailbox)),
      control_(mailbox_->Duplicate("sessions"), kPatience * timeout_seconds),
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
  {
    const std::lock_guard lock(mutex_);
    offers_ = std::move(offers);
    failure_ = OkStatus();
    serving_ = true;
  }
  changed_.notify_all();
  Status status = Agree(control_, OkStatus(), "files of other ranks");
  if (status.ok()) status = work();
  const Status ended = Agree(control_, OkStatus(), "files of other ranks");
  {
    std::unique_lock lock(mutex_);
    serving_ = false;
    changed_.wait(lock, [this] { return idle_; });
  }
  files_.clear();
  offers_.clear();
  return status.ok() ? ended : status;
}

Status PeerFiles::ReadAll(std::span<const Read> reads) {
  std::unique_lock lock(mutex_);
  CAIRN_RETURN_IF_ERROR(failure_);  // a rank did not answer
  const uint64_t first = next_id_;
  for (const Read& read : reads) {
    ByteWriter out;
    out.Put(kRequest);
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
    idle_ = false;
    lock.unlock();
    Serve();
    lock.lock();
    idle_ = true;
    changed_.notify_all();
  }
}

void PeerFiles::Serve() {
  Backoff backoff(kMessagePauses);
  while (true) {
    if (Turn()) {
      backoff = Backoff(kMessagePauses);
      continue;
    }
    const auto [serving, asks] = [this] {
      const std::lock_guard lock(mutex_);
      return std::pair(serving_, !waiting_.empty());
    }();
    if (!serving && mailbox_->Delivered()) return;
    if (serving && !asks) backoff.Renew();
    if (std::chrono::duration<double>(backoff.elapsed()).count() > timeout_seconds_) {
      GiveUp();
      if (!serving) return;
    }
    backoff.Pause();
  }
}

void PeerFiles::GiveUp() {
  const std::lock_guard lock(mutex_);
  failure_ = Aborted("files of other ranks: no answer within {} s", timeout_seconds_);
  for (auto& [id, waiting] : waiting_)
    if (!waiting.outcome) waiting.outcome = failure_;
  changed_.notify_all();
}

bool PeerFiles::Turn() {
  std::deque<std::pair<int, std::string>> requests;
  {
    const std::lock_guard lock(mutex_);
    requests.swap(requests_);
  }
  bool busy = !requests.empty();
  for (auto& [to, message] : requests) Post(to, std::move(message));
  for (int from = 0; from < size(); ++from) {
    if (from == rank()) continue;
    if (const auto message = mailbox_->Poll(from)) {
      Take(from, *message);
      busy = true;
    }
  }
  return busy;
}

void PeerFiles::Take(int from, const std::string& message) {
  ByteReader in(message);
  const char kind = in.Get<char>();
  const auto id = in.Get<uint64_t>();
  if (kind == kRequest) {
    const std::string name(in.GetText());
    const auto offset = in.Get<uint64_t>();
    Answer(from, id, name, offset, in.Get<uint64_t>());
  } else if (kind == kReply) {
    const Result<std::string> bytes = DecodeOutcome(in.GetRaw(in.left()));
    Resolve(id, bytes.status(), bytes.ok() ? std::string_view(*bytes) : std::string_view());
  }
}

void PeerFiles::Answer(int from, uint64_t id, const std::string& name, uint64_t offset, uint64_t bytes) {
  Status status;
  std::string data;
  if (bytes > kMaxMessageBytes / 2) {
    status = InvalidArgument("{}: a read of {} bytes is too large", name, bytes);
  } else {
    data.resize(bytes);
    status = ReadOffer(name, offset, std::as_writable_bytes(std::span(data)));
  }
  ByteWriter out;
  out.Put(kReply);
  out.Put(id);
  out.PutRaw(EncodeOutcome(status.WithContext(Watchdog::Name(rank())), data));
  Post(from, std::move(out).Take());
}

void PeerFiles::Resolve(uint64_t id, const Status& status, std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return;
  if (status.ok() && bytes.size() == found->second.out.size())
    std::memcpy(found->second.out.data(), bytes.data(), bytes.size());
  found->second.outcome =
      status.ok() && bytes.size() != found->second.out.size() ? Corrupt("a reply of wrong length") : status;
  changed_.notify_all();
}

Status PeerFiles::ReadOffer(const std::string& name, uint64_t offset, std::span<std::byte> out) {
  const auto offer = offers_.find(name);
  if (offer == offers_.end()) return NotFound("{} does not exist on this rank", name);
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
