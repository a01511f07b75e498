#include "ckpt/job/peer_files.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "ckpt/job/socket_place.h"
#include "runtime/control/control_plane.h"
#include "tests/support/temp_dir.h"
#include "tests/support/thread_world.h"

namespace cairn {
namespace {

// Runs `body(peers)` as every rank.
template <typename Body>
void RunPeers(ThreadWorld& world, double timeout_seconds, const Body& body) {
  world.Run([&](std::shared_ptr<Mailbox> mailbox) {
    const auto peers = PeerFiles::Open(
        FileSystem::Posix(), std::make_unique<ControlPlane>(std::move(mailbox), 10 * timeout_seconds),
        timeout_seconds, [] {});
    ASSERT_TRUE(peers.ok()) << peers.status().message();
    body(**peers);
  });
}

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
  ThreadWorld world(kRanks);
  std::atomic<int> reads = 0;
  RunPeers(world, 60, [&](PeerFiles& peers) {
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
  ThreadWorld world(2);
  RunPeers(world, 60, [&](PeerFiles& peers) {
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
  ThreadWorld world(2);
  RunPeers(world, 0.2, [&](PeerFiles& peers) {
    if (peers.rank() == 1) return;  // never comes
    const Status status = peers.Session({}, [] { return OkStatus(); });
    EXPECT_EQ(status.kind(), StatusKind::kAborted) << status.message();
  });
}

// The only rank of a job. Keeps what it sends.
class LoneRank final : public JobRanks {
 public:
  explicit LoneRank(std::vector<std::string>& sent) : sent_(sent) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string NameOf(int rank) const override { return fmt::format("rank {}", rank); }
  Result<std::vector<std::string>> GatherToRoot(std::string blob, std::string_view /*what*/) override {
    sent_.push_back(blob);
    return std::vector<std::string>{std::move(blob)};
  }
  Result<std::string> BroadcastFromRoot(std::string blob, std::string_view /*what*/) override { return blob; }

 private:
  std::vector<std::string>& sent_;
};

// Who does not know the secret is not answered, whatever he sends, and does not disturb the others.
TEST(PeerFiles, AStrangerIsNotAnswered) {
  std::vector<std::string> sent;
  const auto peers = PeerFiles::Open(FileSystem::Posix(), std::make_unique<LoneRank>(sent), 10, [] {});
  ASSERT_TRUE(peers.ok()) << peers.status().message();
  const std::vector<sockaddr_in> place = ParsePlace(sent.back());
  ASSERT_FALSE(place.empty()) << sent.back();
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
    const Status read = (*peers)->Session({{"memory", {std::as_bytes(std::span(own)), ""}}}, [&] {
      const PeerFiles::Read all{0, "memory", 0, std::as_writable_bytes(std::span(got))};
      return (*peers)->ReadAll({&all, 1});
    });
    EXPECT_TRUE(read.ok()) << read.message();
    EXPECT_TRUE(got == own);
  }
}

}  // namespace
}  // namespace cairn
