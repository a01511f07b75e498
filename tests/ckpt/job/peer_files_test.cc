#include "ckpt/job/peer_files.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "ckpt/job/socket_place.h"
#include "tests/support/peer_world.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

std::string Content(int rank, int round) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>(i * 7 + rank * 31 + round);
  return text;
}

// All ranks read from all, several threads at once, in many sessions one after another: a rank that
// has finished one gets messages of the next.
TEST(PeerFiles, EveryRankReadsFromEveryOther) {
  constexpr int kRanks = 4, kRounds = 30;
  TempDir dir;
  PeerWorld world(kRanks);
  std::atomic<int> reads = 0;
  world.Run([&](JobRanks&, PeerFiles& peers) {
    for (int round = 0; round < kRounds; ++round) {
      const std::string own = Content(peers.rank(), round);
      const std::string path = dir / fmt::format("{}-{}", peers.rank(), round);
      if (!WriteSmallFile(FileSystem::Posix(), path, own).ok()) ADD_FAILURE() << path;
      const auto work = [&]() -> Status {
        const auto read_all = [&](uint64_t offset) {
          std::vector<std::string> got(kRanks, std::string(1000, '\0'));
          std::vector<PeerFiles::Read> asked;
          for (int rank = 0; rank < kRanks; ++rank)
            asked.push_back({rank, (rank + round) % 2 ? "file" : "memory", offset,
                             std::as_writable_bytes(std::span(got[rank]))});
          const Status status = peers.ReadAll(asked);
          EXPECT_TRUE(status.ok()) << status.message();
          for (int rank = 0; rank < kRanks; ++rank)
            EXPECT_TRUE(got[rank] == Content(rank, round).substr(offset, 1000)) << rank;
          reads += kRanks;
        };
        std::thread other([&] { read_all(2000); });
        read_all(peers.rank() * 300);
        other.join();
        return OkStatus();
      };
      const Status status =
          peers.Session({{"memory", {std::as_bytes(std::span(own)), ""}}, {"file", {{}, path}}}, work);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  });
  EXPECT_EQ(reads, kRanks * kRanks * kRounds * 2);
}

TEST(PeerFiles, AMissingFileIsAnErrorOnlyOfTheReader) {
  PeerWorld(2).Run([&](JobRanks&, PeerFiles& peers) {
    std::string got(10, '\0');
    const auto read = [&](const std::string& name, uint64_t offset) {
      const PeerFiles::Read one{1 - peers.rank(), name, offset, std::as_writable_bytes(std::span(got))};
      return peers.ReadAll({&one, 1});
    };
    const std::string own(100, 'x');
    const Status status =
        peers.Session({{"memory", {std::as_bytes(std::span(own)), ""}}, {"gone", {{}, "/nonexistent/file"}}},
                      [&]() -> Status {
                        if (peers.rank() == 1) return OkStatus();
                        EXPECT_EQ(read("other", 0).kind(), StatusKind::kNotFound);
                        EXPECT_EQ(read("gone", 0).kind(), StatusKind::kNotFound);
                        EXPECT_EQ(read("memory", 91).kind(), StatusKind::kCorrupt);
                        EXPECT_EQ(read("memory", UINT64_MAX).kind(), StatusKind::kCorrupt);
                        EXPECT_NE(read("gone", 0).message().find("rank 1"), std::string::npos);
                        EXPECT_TRUE(read("memory", 90).ok());
                        return NotFound("of rank 0");
                      });
    EXPECT_EQ(status.message(), peers.rank() == 0 ? "of rank 0" : "");
  });
}

TEST(PeerFiles, AnUnresponsiveRankEndsTheSession) {
  PeerWorld(2, 0.2).Run([&](JobRanks&, PeerFiles& peers) {
    if (peers.rank() == 1) return;  // never comes
    const Status status = peers.Session({}, [] { return OkStatus(); });
    EXPECT_EQ(status.kind(), StatusKind::kAborted) << status.message();
  });
}

// A message waits at its rank until it is fetched, or is waited for until it comes. Results come to all
// ranks.
TEST(PeerRanks, GatherAndBroadcast) {
  constexpr int kRanks = 5;
  PeerWorld(kRanks).Run([&](JobRanks& ranks, PeerFiles&) {
    for (int round = 0; round < 50; ++round) {
      const std::string own = Content(ranks.rank(), round);
      const auto all = ShareAll(ranks, own, "round");
      ASSERT_TRUE(all.ok()) << all.status().message();
      for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE((*all)[rank] == Content(rank, round));
      const Status worst =
          Agree(ranks, ranks.rank() == round % kRanks ? IoError("no disk") : OkStatus(), "x");
      EXPECT_EQ(worst.message(), fmt::format("rank {}: no disk", round % kRanks));
    }
  });
}

TEST(PeerRanks, ALateRankIsNamedAndOneThatHasEndedAtOnce) {
  for (const bool ended : {false, true}) {
    PeerFiles::Job job{.secret = "s"};
    std::vector<std::unique_ptr<PeerFiles>> peers;
    for (int rank = 0; rank < 3; ++rank) {
      peers.push_back(std::make_unique<PeerFiles>(FileSystem::Posix(), 60, [] {}));
      job.places.push_back(peers.back()->Listen().value());
      job.names.push_back(fmt::format("rank {}", rank));
    }
    for (job.rank = 0; job.rank < 3; ++job.rank) peers[job.rank]->Join(job, nullptr);
    PeerRanks root(*peers[0], "c", [&] { return ended ? 60 : 0.3; });
    PeerRanks other(*peers[1], "c", [] { return 60; });
    ASSERT_TRUE(other.GatherToRoot("1", "votes").ok());
    if (ended) peers[2].reset();
    const auto votes = root.GatherToRoot("0", "votes");
    EXPECT_EQ(votes.status().kind(), StatusKind::kAborted);
    EXPECT_NE(votes.status().message().find("rank 2"), std::string::npos) << votes.status().message();
    EXPECT_NE(votes.status().message().find("votes"), std::string::npos) << votes.status().message();
    // The next operation does not see a message of this one.
    ASSERT_TRUE(other.GatherToRoot("again", "votes").ok());
    if (ended) continue;
    PeerRanks third(*peers[2], "c", [] { return 60; });
    ASSERT_TRUE(third.GatherToRoot("late", "votes").ok());
    ASSERT_TRUE(third.GatherToRoot("in time", "votes").ok());
    EXPECT_EQ(root.GatherToRoot("0", "votes").value(), (std::vector<std::string>{"0", "again", "in time"}));
  }
}

TEST(SocketPlace, IsOfTheInterfaceThatIsNamed) {
  ASSERT_EQ(::setenv(kInterfaceVariable, "lo", 1), 0);
  const auto of_loopback = OpenPlace(SOCK_STREAM);
  ASSERT_EQ(::setenv(kInterfaceVariable, "no-such", 1), 0);
  const auto of_none = OpenPlace(SOCK_STREAM);
  ASSERT_EQ(::unsetenv(kInterfaceVariable), 0);
  ASSERT_TRUE(of_loopback.ok()) << of_loopback.status().message();
  EXPECT_TRUE(of_loopback->second.ends_with(" 127.0.0.1")) << of_loopback->second;
  sockaddr_in bound{};
  socklen_t length = sizeof(bound);
  ASSERT_EQ(::getsockname(of_loopback->first.get(), reinterpret_cast<sockaddr*>(&bound), &length), 0);
  EXPECT_EQ(bound.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
  EXPECT_EQ(of_none.status().kind(), StatusKind::kInvalidArgument);
  for (const char* words : {"CAIRN_SOCKET_IFNAME=no-such", "lo (127.0.0.1)"})
    EXPECT_NE(of_none.status().message().find(words), std::string::npos) << of_none.status().message();
}

// Who does not know the secret is not answered, whatever he sends, and does not disturb the others.
TEST(PeerFiles, AStrangerIsNotAnswered) {
  PeerWorld world(1, 10);
  const std::vector<sockaddr_in> place = ParsePlace(world.job().places[0]);
  ASSERT_FALSE(place.empty());
  const std::string own(3 << 20, 'x');
  for (const std::string& greeting : {std::string("\5\0\0\0wrong", 9), std::string("\xff\xff\xff\xff", 4),
                                      std::string("GET / HTTP/1.1\r\n\r\n"), std::string()}) {
    const UniqueFd stranger(socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect(stranger.get(), reinterpret_cast<const sockaddr*>(&place[0]), sizeof(place[0])), 0);
    ASSERT_EQ(send(stranger.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(greeting.size()));
    (void)shutdown(stranger.get(), SHUT_WR);
    char answer = 0;
    EXPECT_LE(recv(stranger.get(), &answer, 1, 0), 0) << greeting;
    std::string got(own.size(), '\0');
    world.Run([&](JobRanks&, PeerFiles& peers) {
      const Status read = peers.Session({{"memory", {std::as_bytes(std::span(own)), ""}}}, [&] {
        PeerFiles reader(FileSystem::Posix(), 10, [] {});
        PeerFiles::Job job = world.job();
        job.rank = -1;
        reader.Join(std::move(job), nullptr);
        const PeerFiles::Read all{0, "memory", 0, std::as_writable_bytes(std::span(got))};
        return reader.ReadAll({&all, 1});
      });
      EXPECT_TRUE(read.ok()) << read.message();
    });
    EXPECT_TRUE(got == own);
  }
}

}  // namespace
}  // namespace cairn
