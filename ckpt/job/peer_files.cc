// One thread accepts connections; each has a thread that answers its requests, one after the other. So a rank
// that waits never keeps another from being served. A rank that reads takes an idle connection, or makes one.
//
// A connection begins with the secret and the number of the rank that is meant: another host may have the
// same address in a network of its own. A request is the name, the offset and the length; the answer comes in
// parts of at most kPartBytes, each after a byte that says whether it could be read. If not, the rest of the
// answer is an outcome (job_ranks.h) with its length.
//
// The ranks agree before a session's work, so no rank asks for files that are not offered yet, and after it,
// so no rank leaves while another may still ask.

#include "ckpt/job/peer_files.h"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <system_error>

#include "ckpt/base/byte_codec.h"
#include "ckpt/base/nonce.h"
#include "ckpt/job/socket_place.h"

namespace cairn {
namespace {

constexpr uint64_t kPartBytes = 1 << 20;
constexpr uint32_t kMaxHeadBytes = 1 << 16;  // of a request, of a failure
constexpr double kConnectSeconds = 5;        // for each address
constexpr double kSecretSeconds = 5;
constexpr char kGood = 'g', kBad = 'b';

void SetTimeout(int socket, double seconds) {
  const double whole = std::floor(seconds);
  const timeval time{.tv_sec = static_cast<time_t>(whole),
                     .tv_usec = std::max<suseconds_t>(1, static_cast<suseconds_t>((seconds - whole) * 1e6))};
  for (const int side : {SO_RCVTIMEO, SO_SNDTIMEO})
    (void)setsockopt(socket, SOL_SOCKET, side, &time, sizeof(time));
}

bool SendAll(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool ReceiveAll(int socket, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = recv(socket, bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return true;
}

// A text after its length.
bool SendText(int socket, std::string_view text) {
  ByteWriter out;
  out.Put(static_cast<uint32_t>(text.size()));
  out.PutRaw(text);
  return SendAll(socket, std::move(out).Take());
}
std::optional<std::string> ReceiveText(int socket) {
  uint32_t length = 0;
  if (!ReceiveAll(socket, std::as_writable_bytes(std::span(&length, 1))) || length > kMaxHeadBytes)
    return std::nullopt;
  std::string text(length, '\0');
  if (!ReceiveAll(socket, std::as_writable_bytes(std::span(text)))) return std::nullopt;
  return text;
}

std::string NewSecret() {
  std::string secret;
  for (int i = 0; i < 4; ++i) secret += NewNonce();
  return secret;
}

std::string Greeting(const std::string& secret, int rank) { return fmt::format("{} {}", secret, rank); }

}  // namespace

PeerFiles::PeerFiles(FileSystem& fs, std::unique_ptr<JobRanks> ranks, double timeout_seconds,
                     std::function<void()> begin_thread)
    : fs_(fs),
      ranks_(std::move(ranks)),
      timeout_seconds_(timeout_seconds),
      begin_thread_(std::move(begin_thread)) {}

PeerFiles::~PeerFiles() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    (void)shutdown(listener_.get(), SHUT_RDWR);
    for (const Served& served : served_) (void)shutdown(served.socket.get(), SHUT_RDWR);
  }
  if (accepter_.joinable()) accepter_.join();
  for (Served& served : served_) served.thread.join();
}

Result<std::unique_ptr<PeerFiles>> PeerFiles::Open(FileSystem& fs, std::unique_ptr<JobRanks> ranks,
                                                   double timeout_seconds,
                                                   std::function<void()> begin_thread) {
  std::unique_ptr<PeerFiles> peers(
      new PeerFiles(fs, std::move(ranks), timeout_seconds, std::move(begin_thread)));
  CAIRN_RETURN_IF_ERROR(peers->Listen());
  return peers;
}

Status PeerFiles::Listen() {
  CAIRN_ASSIGN_OR_RETURN(secret_, FromRoot(*ranks_, "files of other ranks",
                                           []() -> Result<std::string> { return NewSecret(); }));
  std::string place;
  const Status opened = [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(auto socket, OpenPlace(SOCK_STREAM));
    std::tie(listener_, place) = std::move(socket);
    if (listen(listener_.get(), SOMAXCONN) != 0) return IoError("no socket: {}", strerror(errno));
    try {
      accepter_ = std::thread([this] { Accept(); });
    } catch (const std::system_error& error) {
      return IoError("no thread: {}", error.what());
    }
    return OkStatus();
  }();
  CAIRN_RETURN_IF_ERROR(Agree(*ranks_, opened, "files of other ranks"));
  CAIRN_ASSIGN_OR_RETURN(const auto places, ShareAll(*ranks_, place, "files of other ranks"));
  for (const std::string& each : places) places_.push_back(ParsePlace(each));
  return OkStatus();
}

Status PeerFiles::Session(std::map<std::string, Offer> offers, const std::function<Status()>& work) {
  {
    const std::lock_guard lock(offers_mutex_);
    offers_ = std::move(offers);
  }
  Status status = Agree(*ranks_, OkStatus(), "files of other ranks");
  if (status.ok()) status = work();
  const Status ended = Agree(*ranks_, OkStatus(), "files of other ranks");
  const std::scoped_lock lock(offers_mutex_, mutex_);
  offers_.clear();
  files_.clear();
  idle_.clear();
  return status.ok() ? ended : status;
}

// ---- Serving others ----

void PeerFiles::Accept() {
  begin_thread_();
  while (true) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.ok()) std::this_thread::sleep_for(std::chrono::milliseconds(10));  // too many open files
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    for (auto served = served_.begin(); served != served_.end();) {
      if (served->ended) served->thread.join();
      served = served->ended ? served_.erase(served) : std::next(served);
    }
    if (!socket.ok()) continue;
    Served& served = served_.emplace_back(Served{std::move(socket), {}});
    try {
      served.thread = std::thread([this, &served] {
        begin_thread_();
        Serve(served.socket.get());
        const std::lock_guard lock(mutex_);
        (void)shutdown(served.socket.get(), SHUT_RDWR);
        served.ended = true;
      });
    } catch (const std::system_error&) {
      served_.pop_back();  // the other rank reports that it gets no answer
    }
  }
}

void PeerFiles::Serve(int socket) {
  SetTimeout(socket, kSecretSeconds);
  if (ReceiveText(socket) != Greeting(secret_, rank()) || !SendAll(socket, std::string(1, kGood))) return;
  SetTimeout(socket, timeout_seconds_);
  const timeval never{};  // until the next request
  (void)setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof(never));
  while (const auto request = ReceiveText(socket)) {
    ByteReader in(*request);
    const std::string name(in.GetText());
    const auto offset = in.Get<uint64_t>(), bytes = in.Get<uint64_t>();
    if (!in.ok() || !Answer(socket, name, offset, bytes)) return;
  }
}

// False: the connection is lost.
bool PeerFiles::Answer(int socket, const std::string& name, uint64_t offset, uint64_t bytes) {
  std::string part;
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t size = std::min(kPartBytes, bytes - done);
    part.resize(1 + size);
    part[0] = kGood;
    const Status read = ReadOffer(name, offset + done, std::as_writable_bytes(std::span(part).subspan(1)));
    if (!read.ok()) {
      const std::string outcome = EncodeOutcome(read.WithContext(ranks_->NameOf(rank())));
      return SendAll(socket, std::string(1, kBad)) && SendText(socket, outcome.substr(0, kMaxHeadBytes));
    }
    if (!SendAll(socket, part)) return false;
    done += size;
  }
  return true;
}

Status PeerFiles::ReadOffer(const std::string& name, uint64_t offset, std::span<std::byte> out) {
  const std::lock_guard lock(offers_mutex_);
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

// ---- Reading from others ----

Status PeerFiles::ReadAll(std::span<const Read> reads) {
  Status status;
  std::vector<UniqueFd> connections;
  for (const Read& read : reads) {
    if (read.rank == rank()) {
      CAIRN_RETURN_IF_ERROR(ReadOffer(read.name, read.offset, read.out));
      connections.emplace_back();
      continue;
    }
    Result<UniqueFd> connection = ConnectionTo(read.rank);
    ByteWriter request;
    request.PutText(read.name);
    request.Put(read.offset);
    request.Put(static_cast<uint64_t>(read.out.size()));
    if (connection.ok() && !SendText(connection->get(), std::move(request).Take()))
      connection = Aborted("files of other ranks: {} does not answer", ranks_->NameOf(read.rank));
    if (!connection.ok()) status = connection.status();
    if (!connection.ok()) break;
    connections.push_back(*std::move(connection));
  }
  for (size_t i = 0; status.ok() && i < reads.size(); ++i)
    if (connections[i].ok()) status = Receive(connections[i].get(), reads[i]);
  if (!status.ok()) return status;  // answers may still come on these connections
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < reads.size(); ++i)
    if (connections[i].ok()) idle_.emplace(reads[i].rank, std::move(connections[i]));
  return status;
}

Status PeerFiles::Receive(int socket, const Read& read) const {
  const Status silent = Aborted("files of other ranks: no answer within {} s from {}", timeout_seconds_,
                                ranks_->NameOf(read.rank));
  for (std::span<std::byte> left = read.out; !left.empty();) {
    char kind = 0;
    if (!ReceiveAll(socket, std::as_writable_bytes(std::span(&kind, 1)))) return silent;
    if (kind != kGood) {
      const auto outcome = ReceiveText(socket);
      return outcome ? DecodeOutcome(*outcome).status() : silent;
    }
    const auto part = left.first(std::min<uint64_t>(kPartBytes, left.size()));
    if (!ReceiveAll(socket, part)) return silent;
    left = left.subspan(part.size());
  }
  return OkStatus();
}

Result<UniqueFd> PeerFiles::ConnectionTo(int rank) {
  {
    const std::lock_guard lock(mutex_);
    if (auto idle = idle_.extract(rank); idle) return std::move(idle.mapped());
  }
  return Connect(rank);
}

Result<UniqueFd> PeerFiles::Connect(int rank) const {
  for (const sockaddr_in& address : places_[rank]) {
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    SetTimeout(socket.get(), std::min(kConnectSeconds, timeout_seconds_));
    char answer = 0;
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
        !SendText(socket.get(), Greeting(secret_, rank)) ||
        !ReceiveAll(socket.get(), std::as_writable_bytes(std::span(&answer, 1))) || answer != kGood)
      continue;
    const int on = 1;
    (void)setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    SetTimeout(socket.get(), timeout_seconds_);
    return socket;
  }
  return Aborted("files of other ranks: {} cannot be reached at any of its {} addresses",
                 ranks_->NameOf(rank), places_[rank].size());
}

// ---- Parity ----

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
