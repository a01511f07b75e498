#include "runtime/control/heartbeat.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <sstream>
#include <thread>

#include "runtime/control/status_board.h"

namespace cairn {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kWord = "0123456789abcdef";
constexpr double kBeat = 0.02;  // seconds

// Hosts of one rank each, like processes: each has its own board and socket.
struct Hosts {
  std::vector<std::shared_ptr<StatusBoard>> boards;
  std::vector<std::unique_ptr<Heartbeat>> heartbeats;

  explicit Hosts(int count) {
    std::map<int, std::string> places;
    std::vector<std::string> names;
    std::vector<int> first_ranks;
    for (int host = 0; host < count; ++host) {
      names.push_back("n" + std::to_string(host));
      first_ranks.push_back(host);
      heartbeats.push_back(Heartbeat::Open().value());
      places[host] = heartbeats.back()->place();
    }
    for (int host = 0; host < count; ++host) {
      boards.push_back(StatusBoard::Private(host, names));
      boards[host]->SetFirstRanks(first_ranks, 1);
      heartbeats[host]->Begin(boards[host], kWord, host, places, kBeat);
    }
  }
  void Turn() {
    for (const auto& each : heartbeats)
      if (each) each->Turn();
    usleep(5000);
  }
  // False after a deadline that no machine should need.
  bool Turns(const std::function<bool()>& until) {
    for (const auto start = Clock::now(); Clock::now() - start < std::chrono::minutes(1);) {
      Turn();
      if (until()) return true;
    }
    return false;
  }
  bool Hears(int host, int other) const { return boards[host]->Silence(other).value_or(1) < 1; }
};

// A foreign process that knows host 0's address.
void SendToHostZero(const Hosts& hosts, const std::string& bytes) {
  std::istringstream place(hosts.heartbeats[0]->place());
  uint16_t port = 0;
  place >> port;
  const UniqueFd fd(socket(AF_INET, SOCK_DGRAM, 0));
  sockaddr_in to{
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  EXPECT_EQ(sendto(fd.get(), bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&to), sizeof(to)),
            static_cast<ssize_t>(bytes.size()));
}

TEST(Heartbeat, EachHostHearsTheOthersUntilOneIsSilent) {
  Hosts hosts(3);
  ASSERT_TRUE(hosts.Turns([&] {
    bool all = true;
    for (int host = 0; host < 3; ++host)
      for (int other = 0; other < 3; ++other) all &= hosts.Hears(host, other);
    return all;
  }));
  hosts.heartbeats[2].reset();
  EXPECT_TRUE(hosts.Turns([&] { return !hosts.Hears(0, 2) && !hosts.Hears(1, 2); }));
  EXPECT_TRUE(hosts.Turns([&] { return hosts.Hears(0, 1) && hosts.Hears(1, 0); }));
}

TEST(Heartbeat, IgnoresMessagesWithoutTheLaunchsWord) {
  Hosts hosts(2);
  hosts.heartbeats[1].reset();
  const std::string word = kWord;
  for (const std::string& bytes :
       {std::string(), std::string(1, '\0'), std::string(60000, 'x'), word, word + "/", word + "/2",
        word + "/-1", word + "/1/", std::string("fedcba9876543210/1"), word + "/0"}) {
    SendToHostZero(hosts, bytes);
    for (int turn = 0; turn < 3; ++turn) hosts.Turn();
    EXPECT_FALSE(hosts.boards[0]->Silence(1)) << bytes.substr(0, 40);
  }
  SendToHostZero(hosts, word + "/1");
  EXPECT_TRUE(hosts.Turns([&] { return hosts.Hears(0, 1); }));
}

TEST(Heartbeat, AFloodOfForeignMessagesDoesNotDelayATurn) {
  Hosts hosts(2);
  std::atomic<bool> stop = false;
  std::thread stranger([&] {
    while (!stop) SendToHostZero(hosts, "noise");
  });
  EXPECT_TRUE(hosts.Turns([&] { return hosts.Hears(1, 0); }));  // each turn of host 0 ends
  stop = true;
  stranger.join();
  EXPECT_TRUE(hosts.Turns([&] { return hosts.Hears(0, 1) && hosts.Hears(1, 0); }));
}

TEST(Heartbeat, MalformedAddressesAreNeverHeard) {
  auto heartbeat = Heartbeat::Open().value();
  std::shared_ptr<StatusBoard> board = StatusBoard::Private(0, {"n0", "n1", "n2", "n3"});
  heartbeat->Begin(board, kWord, 0,
                   {{0, heartbeat->place()}, {1, ""}, {2, "port"}, {3, "1 ::1 localhost 1.2.3"}}, kBeat);
  for (int turn = 0; turn < 10; ++turn) heartbeat->Turn();
  EXPECT_TRUE(board->Silence(0));
  for (int other = 1; other < 4; ++other) EXPECT_FALSE(board->Silence(other));
}

// As when a scheduler suspends a whole job: after it continues, no host is blamed for the time in between.
TEST(Heartbeat, SuspendedTimeDoesNotCount) {
  Hosts hosts(2);
  ASSERT_TRUE(hosts.Turns([&] { return hosts.Hears(0, 1); }));
  hosts.heartbeats[1].reset();
  usleep(1'500'000);  // no turn
  hosts.heartbeats[0]->Turn();
  EXPECT_TRUE(hosts.Hears(0, 1));
  EXPECT_TRUE(hosts.Turns([&] { return !hosts.Hears(0, 1); }));
}

}  // namespace
}  // namespace cairn
