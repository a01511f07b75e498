// One thread accepts connections; each has a thread that answers its requests, one after the other. So a rank
// that waits never keeps another from being served. A rank that reads takes an idle connection, or makes one.
//
// A connection begins with the secret and the number of the rank that is meant: another host may have the
// same address in a network of its own. A request is the name, the offset and the length; the answer comes in
// parts of at most kPartBytes, each after a byte that says whether it could be read. If not, the rest of the
// answer is an outcome (job_ranks.h) with its length. A request of only a name is for a message: the answer,
// its length and then its bytes, comes once it is posted.
//
// The ranks agree before a session's work, so no rank asks for files that are not offered yet, and after it,
// so no rank leaves while another may still ask.

#include "ckpt/job/peer_files.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <system_error>

#include "ckpt/base/byte_codec.h"
#include "ckpt/base/nonce.h"
#include "ckpt/base/stopwatch.h"
#include "ckpt/job/socket_place.h"

namespace cairn {
namespace {

constexpr uint64_t kPartBytes = 1 << 20;
constexpr uint32_t kMaxHeadBytes = 1 << 16;  // of a request, of a failure
constexpr double kConnectSeconds = 5;        // for each address
constexpr double kSecretSeconds = 5;
constexpr double kLingerSeconds = 2;
constexpr int kLookMilliseconds = 100;
constexpr size_t kMaxPosted = 256;  // older messages are of operations that were abandoned
constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 32;
constexpr char kGood = 'g', kBad = 'b';

void SetTimeout(int socket, double seconds) {
  const double whole = std::floor(seconds);
  const timeval time{.tv_sec = static_cast<time_t>(whole),
                     .tv_usec = std::max<suseconds_t>(1, static_cast<suseconds_t>((seconds - whole) * 1e6))};
  for (const int side : {SO_RCVTIMEO, SO_SNDTIMEO})
    (void)setsockopt(socket, SOL_SOCKET, side, &time, sizeof(time));
}

void SendAtOnce(int socket) {
  const int on = 1;
  (void)setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
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

std::string Greeting(const std::string& secret, int rank) { return fmt::format("{} {}", secret, rank); }

}  // namespace

std::string PeerFiles::NewSecret() {
  std::string secret;
  for (int i = 0; i < 4; ++i) secret += NewNonce();
  return secret;
}

PeerFiles::PeerFiles(FileSystem& fs, double timeout_seconds, std::function<void()> begin_thread)
    : fs_(fs), timeout_seconds_(timeout_seconds), begin_thread_(std::move(begin_thread)) {}

PeerFiles::~PeerFiles() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(kLingerSeconds),
                      [this] { return posted_.empty(); });
    stop_ = true;
    (void)shutdown(listener_.get(), SHUT_RDWR);
    for (const Served& served : served_) (void)shutdown(served.socket.get(), SHUT_RDWR);
  }
  changed_.notify_all();
  if (accepter_.joinable()) accepter_.join();
  for (Served& served : served_) served.thread.join();
}

Result<std::string> PeerFiles::Listen() {
  std::string place;
  CAIRN_ASSIGN_OR_RETURN(std::tie(listener_, place), OpenPlace(SOCK_STREAM));
  if (listen(listener_.get(), SOMAXCONN) != 0) return IoError("no socket: {}", strerror(errno));
  try {
    accepter_ = std::thread([this] { Accept(); });
  } catch (const std::system_error& error) {
    return IoError("no thread: {}", error.what());
  }
  return place;
}

void PeerFiles::Join(Job job, std::unique_ptr<JobRanks> ranks) {
  ranks_ = std::move(ranks);
  const std::lock_guard lock(mutex_);
  job_ = std::move(job);
  joined_ = true;
  changed_.notify_all();
}

Result<std::unique_ptr<PeerFiles>> PeerFiles::Open(FileSystem& fs, std::unique_ptr<JobRanks> ranks,
                                                   double timeout_seconds,
                                                   std::function<void()> begin_thread) {
  constexpr std::string_view kWhat = "files of other ranks";
  auto peers = std::make_unique<PeerFiles>(fs, timeout_seconds, std::move(begin_thread));
  Job job{.rank = ranks->rank()};
  CAIRN_ASSIGN_OR_RETURN(job.secret,
                         FromRoot(*ranks, kWhat, []() -> Result<std::string> { return NewSecret(); }));
  const Result<std::string> place = peers->Listen();
  CAIRN_RETURN_IF_ERROR(Agree(*ranks, place.status(), kWhat));
  CAIRN_ASSIGN_OR_RETURN(job.places, ShareAll(*ranks, *place, kWhat));
  for (int rank = 0; rank < ranks->size(); ++rank) job.names.push_back(ranks->NameOf(rank));
  peers->Join(std::move(job), std::move(ranks));
  return peers;
}

Status PeerFiles::Session(std::map<std::string, Offer> offers, const std::function<Status()>& work) {
  {
    const std::lock_guard lock(offers_mutex_);
    offers_ = std::move(offers);
  }
  Status status = Agree(*ranks_, OkStatus(), "files of other ranks");
  if (status.ok()) status = work();
  const Status ended = Agree(*ranks_, OkStatus(), "files of other ranks");
  const std::scoped_lock lock(offers_mutex_, files_mutex_, mutex_);
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
  SendAtOnce(socket);
  SetTimeout(socket, kSecretSeconds);
  const std::optional<std::string> greeting = ReceiveText(socket);
  if (!greeting || *greeting != SecretOnceJoined() || !SendAll(socket, std::string(1, kGood))) return;
  SetTimeout(socket, timeout_seconds_);
  const timeval never{};  // until the next request
  (void)setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof(never));
  while (const auto request = ReceiveText(socket)) {
    ByteReader in(*request);
    const std::string name(in.GetText());
    if (in.ok() && in.left() == 0) {
      if (!AnswerMessage(socket, name)) return;
      continue;
    }
    const auto offset = in.Get<uint64_t>(), bytes = in.Get<uint64_t>();
    if (!in.ok() || !Answer(socket, name, offset, bytes)) return;
  }
}

// Others may learn this rank's place before it has joined. Empty: it ends.
std::string PeerFiles::SecretOnceJoined() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(timeout_seconds_),
                    [this] { return joined_ || stop_; });
  return joined_ && !stop_ ? Greeting(job_.secret, job_.rank) : "";
}

// Waits for the message. False: the connection is lost.
bool PeerFiles::AnswerMessage(int socket, const std::string& name) {
  std::shared_ptr<const std::string> message;
  {
    std::unique_lock lock(mutex_);
    auto found = posted_.end();
    changed_.wait(lock, [&] {
      found = std::ranges::find(posted_, name, &Posted::name);
      return stop_ || found != posted_.end();
    });
    if (stop_) return false;
    message = found->message;
  }
  ByteWriter head;
  head.Put(static_cast<uint64_t>(message->size()));
  if (!SendAll(socket, std::move(head).Take()) || !SendAll(socket, *message)) return false;
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(posted_, name, &Posted::name);
  if (found != posted_.end() && --found->readers == 0) posted_.erase(found);
  changed_.notify_all();
  return true;
}

void PeerFiles::Post(std::string name, std::string message, int readers) {
  if (readers == 0) return;
  const std::lock_guard lock(mutex_);
  posted_.push_back({std::move(name), std::make_shared<const std::string>(std::move(message)), readers});
  if (posted_.size() > kMaxPosted) posted_.pop_front();
  changed_.notify_all();
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
      const std::string outcome = EncodeOutcome(read.WithContext(job_.names[rank()]));
      return SendAll(socket, std::string(1, kBad)) && SendText(socket, outcome.substr(0, kMaxHeadBytes));
    }
    if (!SendAll(socket, part)) return false;
    done += size;
  }
  return true;
}

Status PeerFiles::ReadOffer(const std::string& name, uint64_t offset, std::span<std::byte> out) {
  const std::shared_lock lock(offers_mutex_);
  const auto offer = offers_.find(name);
  if (offer == offers_.end()) return NotFound("{} does not exist on this rank", name);
  if (const auto memory = offer->second.memory; !memory.empty()) {
    if (offset > memory.size() || out.size() > memory.size() - offset)
      return Corrupt("{} ends before byte {}", name, offset + out.size());
    std::memcpy(out.data(), memory.data() + offset, out.size());
    return OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(File* const file, OpenedOffer(name, offer->second.path));
  return file->ReadAt(offset, out);
}

// Opened once in a session.
Result<File*> PeerFiles::OpenedOffer(const std::string& name, const std::string& path) {
  const std::lock_guard lock(files_mutex_);
  std::unique_ptr<File>& file = files_[name];
  if (!file) {
    CAIRN_ASSIGN_OR_RETURN(file, fs_.OpenForRead(path));
  }
  return file.get();
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
    ByteWriter request;
    request.PutText(read.name);
    request.Put(read.offset);
    request.Put(static_cast<uint64_t>(read.out.size()));
    Result<UniqueFd> connection = Request(read.rank, std::move(request).Take());
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
  const Status silent =
      Aborted("files of other ranks: no answer within {} s from {}", timeout_seconds_, job_.names[read.rank]);
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

// The connection on which the answer comes.
Result<UniqueFd> PeerFiles::Request(int rank, std::string request) {
  CAIRN_ASSIGN_OR_RETURN(UniqueFd connection, ConnectionTo(rank));
  if (!SendText(connection.get(), request)) return Aborted("{} does not answer", job_.names[rank]);
  return connection;
}

Result<std::vector<std::string>> PeerFiles::Take(std::span<const int> ranks, const std::string& name,
                                                 const std::function<double()>& seconds) {
  const Stopwatch watch;
  ByteWriter request;
  request.PutText(name);
  const std::string text = std::move(request).Take();
  std::vector<UniqueFd> connections;
  for (const int rank : ranks) {
    CAIRN_ASSIGN_OR_RETURN(UniqueFd connection, Request(rank, text));
    connections.push_back(std::move(connection));
  }
  std::vector<std::string> messages;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int socket = connections[i].get();
    pollfd answer{.fd = socket, .events = POLLIN, .revents = 0};
    while (poll(&answer, 1, kLookMilliseconds) <= 0)
      if (watch.Seconds() > seconds())
        return Aborted("no answer within {:g} s from {}", seconds(), job_.names[ranks[i]]);
    uint64_t bytes = 0;
    bool good = ReceiveAll(socket, std::as_writable_bytes(std::span(&bytes, 1))) && bytes <= kMaxMessageBytes;
    std::string message(good ? bytes : 0, '\0');
    good = good && ReceiveAll(socket, std::as_writable_bytes(std::span(message)));
    if (!good) return Aborted("{}{}", job_.names[ranks[i]], kHasEnded);
    messages.push_back(std::move(message));
  }
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < ranks.size(); ++i) idle_.emplace(ranks[i], std::move(connections[i]));
  return messages;
}

Result<UniqueFd> PeerFiles::ConnectionTo(int rank) {
  {
    const std::lock_guard lock(mutex_);
    if (auto idle = idle_.extract(rank); idle) return std::move(idle.mapped());
  }
  return Connect(rank);
}

// Tries all addresses again until one answers; not if all refuse, for then the rank has ended.
Result<UniqueFd> PeerFiles::Connect(int rank) const {
  const std::vector<sockaddr_in> addresses = ParsePlace(job_.places[rank]);
  const Stopwatch watch;
  size_t refused = 0;
  while (refused < addresses.size() && watch.Seconds() < timeout_seconds_) {
    refused = 0;
    for (const sockaddr_in& address : addresses) {
      UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      SetTimeout(socket.get(), std::min(kConnectSeconds, timeout_seconds_));
      char answer = 0;
      if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        refused += errno == ECONNREFUSED;
      } else if (SendText(socket.get(), Greeting(job_.secret, rank)) &&
                 ReceiveAll(socket.get(), std::as_writable_bytes(std::span(&answer, 1))) && answer == kGood) {
        SendAtOnce(socket.get());
        SetTimeout(socket.get(), timeout_seconds_);
        return socket;
      }
    }
  }
  if (refused == addresses.size()) return Aborted("{}{}", job_.names[rank], kHasEnded);
  return Aborted("{} cannot be reached at any of its {} addresses within {:g} s", job_.names[rank],
                 addresses.size(), timeout_seconds_);
}

// ---- Parity ----

std::string ParityNameOf(const std::string& shard) { return shard.substr(0, shard.rfind('.')) + ".parity"; }

int WriterOf(const std::string& name) {
  return name.starts_with("shard-") ? std::atoi(name.c_str() + 6) : -1;
}

MemberFiles FilesOf(const ParityGroup& group, const std::map<std::string, int>& rank_of, PeerFiles& peers) {
  const auto name = [&group](int member, bool parity) {
    const std::string& shard = group.members()[member].shard;
    return parity ? ParityNameOf(shard) : shard;
  };
  return {.has =
              [&group, &rank_of, name](int member, bool parity) {
                const bool none = !parity && group.members()[member].bytes == 0;  // its rank wrote no shard
                return none || rank_of.contains(name(member, parity));
              },
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
