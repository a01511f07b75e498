// Every message starts with the number of its operation. A rank that is late finds the messages of operations
// that its peers have abandoned, and drops them; a rank that its peers have overtaken finds a message of a
// later operation, keeps it, and fails its current operation.
#include "runtime/control/control_plane.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "ckpt/base/backoff.h"
#include "runtime/control/mailbox.h"
#include "runtime/control/watchdog.h"

namespace cairn {
namespace {

constexpr size_t kHeaderBytes = sizeof(uint64_t);
constexpr double kRootGraceSeconds = 2;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string Encode(uint64_t sequence, std::string_view blob) {
  std::string message(kHeaderBytes, '\0');
  std::memcpy(message.data(), &sequence, sizeof(sequence));
  return message.append(blob);
}

uint64_t SequenceOf(const std::string& message) {
  uint64_t sequence = 0;
  if (message.size() >= kHeaderBytes) std::memcpy(&sequence, message.data(), sizeof(sequence));
  return sequence;
}

Status CheckSize(const std::string& blob, std::string_view what) {
  if (blob.size() + kHeaderBytes <= kMaxMessageBytes) return OkStatus();
  return InvalidArgument("{}: a message of {} bytes is more than the {} that fit", what, blob.size(),
                         kMaxMessageBytes - kHeaderBytes);
}

}  // namespace

ControlPlane::ControlPlane(std::shared_ptr<Mailbox> mailbox, double timeout_seconds)
    : mailbox_(std::move(mailbox)), timeout_seconds_(timeout_seconds), early_(mailbox_->size()) {}
ControlPlane::~ControlPlane() = default;

int ControlPlane::rank() const { return mailbox_->rank(); }
int ControlPlane::size() const { return mailbox_->size(); }
std::string ControlPlane::NameOf(int rank) const { return Watchdog::Name(rank); }

std::unique_ptr<ControlPlane> ControlPlane::Create(const std::string& name, double patience) const {
  return std::make_unique<ControlPlane>(mailbox_->Duplicate(name), patience * timeout_seconds_);
}

Status ControlPlane::Flush(double deadline, std::string_view what) {
  Backoff backoff(kMessagePauses);
  while (!mailbox_->Delivered()) {
    if (Now() > deadline)
      return Aborted("{}: {} could not deliver its message within {} s", what, NameOf(rank()),
                     timeout_seconds_);
    backoff.Pause();
  }
  return OkStatus();
}

// The next message of operation `sequence` from a rank, with its header.
Result<std::string> ControlPlane::Receive(int from, uint64_t sequence, double deadline,
                                          std::string_view what) {
  Backoff backoff(kMessagePauses);
  for (;;) {
    std::optional<std::string> message;
    if (!early_[from].empty())
      message = std::exchange(early_[from], {});
    else
      message = mailbox_->Poll(from);
    if (message && SequenceOf(*message) == sequence) return *std::move(message);
    if (message && SequenceOf(*message) > sequence) {
      early_[from] = *std::move(message);
      return Aborted("{}: {} continued without {}", what, NameOf(from), NameOf(rank()));
    }
    if (message) continue;
    if (Now() > deadline)
      return Aborted("{}: no answer within {} s from {}", what, timeout_seconds_, Watchdog::Describe(from));
    backoff.Pause();
  }
}

// The root names every rank that is missing, not only the first.
Result<std::vector<std::string>> ControlPlane::GatherToRoot(std::string blob, std::string_view what) {
  CAIRN_RETURN_IF_ERROR(CheckSize(blob, what));
  const Watchdog::Scope scope(
      {.name = "gather", .tensor = what, .group = "control", .peers = {}, .fatal = false});
  const uint64_t sequence = ++sequence_;
  const double deadline = Now() + timeout_seconds_;
  if (rank() != 0) {
    mailbox_->Post(0, Encode(sequence, blob));
    CAIRN_RETURN_IF_ERROR(Flush(deadline, what));
    return std::vector<std::string>{};
  }
  std::vector<std::string> blobs(size());
  std::vector<std::string> failures;
  blobs[0] = std::move(blob);
  for (int from = 1; from < size(); ++from) {
    Result<std::string> message = Receive(from, sequence, deadline, what);
    if (message.ok())
      blobs[from] = message->substr(kHeaderBytes);
    else
      failures.push_back(message.status().message());
  }
  if (!failures.empty()) return Aborted("{}", fmt::join(failures, "; "));
  return blobs;
}

Result<std::string> ControlPlane::BroadcastFromRoot(std::string blob, std::string_view what) {
  CAIRN_RETURN_IF_ERROR(CheckSize(blob, what));
  const Watchdog::Scope scope(
      {.name = "broadcast", .tensor = what, .group = "control", .peers = {}, .fatal = false});
  const uint64_t sequence = ++sequence_;
  const double deadline = Now() + timeout_seconds_;
  if (rank() != 0) {
    // The root may itself wait for a third rank until its deadline, and then reports that.
    CAIRN_ASSIGN_OR_RETURN(const std::string message,
                           Receive(0, sequence, deadline + kRootGraceSeconds, what));
    return message.substr(kHeaderBytes);
  }
  const std::string message = Encode(sequence, blob);
  for (int to = 1; to < size(); ++to) mailbox_->Post(to, message);
  CAIRN_RETURN_IF_ERROR(Flush(deadline, what));
  return blob;
}

}  // namespace cairn
