// The heartbeat between the first ranks of a job's hosts: small UDP datagrams, each host to each other.
//
// It only notes on the status board when each host was last heard: it says who is missing, and stops nobody.
// A datagram is a random word of the launch and the sender's rank; whatever else comes is dropped, and a turn
// reads a bounded number. Nothing here waits, so the watchdog's thread does it along with its own work.
#pragma once

#include <netinet/in.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/base/status.h"
#include "ckpt/base/unique_fd.h"

namespace cairn {

class StatusBoard;

class Heartbeat {
 public:
  // Opens the socket. Errors: IoError if this host has no IPv4, or allows none.
  static Result<std::unique_ptr<Heartbeat>> Open();

  // Where it listens, for the others: "PORT ADDRESS ADDRESS...".
  const std::string& place() const { return place_; }

  // Starts to beat every `seconds`. `places` by first rank, this host's `own` among them; those that cannot
  // be read are never heard from. `word`: the launch's.
  void Begin(std::shared_ptr<StatusBoard> board, const std::string& word, int own,
             const std::map<int, std::string>& places, double seconds);

  // Takes what has arrived, and beats when it is time. To be called at least as often as it beats.
  void Turn();

 private:
  struct Peer {
    int first_rank;
    std::vector<sockaddr_in> addresses;
    sockaddr_in heard_from{};  // that of its newest datagram
  };

  explicit Heartbeat(UniqueFd socket, std::string place);
  void Receive();
  void Beat();

  UniqueFd socket_;
  std::string place_;
  std::shared_ptr<StatusBoard> board_;
  int own_ = 0;
  std::string message_;
  std::map<std::string, Peer, std::less<>> peers_;  // by the message that each sends
  double seconds_ = 1, last_turn_ = 0, last_beat_ = 0;
};

}  // namespace cairn
