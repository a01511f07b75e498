// Gathers, broadcasts and votes in a background thread while the main thread runs collectives; and a rank
// that arrives too late is named, after which the control plane works again.
#include <ATen/ATen.h>

#include <thread>

#include "ckpt/job/job_ranks.h"
#include "tests/support/mpi_main.h"

namespace cairn {
namespace {

constexpr int kRounds = 50;

template <typename T>
T Take(Result<T> result) {
  TORCH_CHECK(result.ok(), result.status().message());
  return std::move(result).value();
}

std::string Blob(int rank, int round) {
  const size_t bytes = round % 10 == 9 ? 3'000'000 : static_cast<size_t>(round) * 100;
  return std::to_string(rank) + "/" + std::to_string(round) +
         std::string(bytes, static_cast<char>('a' + rank));
}

void Save(ControlPlane& plane, int round) {
  const std::vector<std::string> blobs = Take(plane.GatherToRoot(Blob(plane.rank(), round), "receipts"));
  if (plane.rank() == 0)
    for (int rank = 0; rank < plane.size(); ++rank)
      TORCH_CHECK(blobs.at(rank) == Blob(rank, round), "gathered another blob of rank ", rank);
  TORCH_CHECK(
      Take(plane.BroadcastFromRoot(plane.rank() == 0 ? Blob(0, round) : "", "verdict")) == Blob(0, round),
      "another blob was broadcast");
  TORCH_CHECK(Agree(plane, OkStatus(), "vote").ok(), "a vote of all was lost");
  const bool against = plane.rank() == round % plane.size();
  TORCH_CHECK(Agree(plane, against ? NoSpace("full") : OkStatus(), "vote").kind() == StatusKind::kNoSpace,
              "one vote against was lost");
}

void SaveWhileTraining(Transport& transport, ControlPlane& plane) {
  std::vector<int> all(transport.size());
  for (int rank = 0; rank < transport.size(); ++rank) all[rank] = rank;
  const ProcessGroup world = transport.Split("all", all);
  std::exception_ptr failure;
  std::thread saver([&] {
    try {
      for (int round = 0; round < kRounds; ++round) Save(plane, round);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  for (int step = 0; step < 200; ++step) {
    at::Tensor t = at::full({10'000}, 1.0F);
    world.AllReduceSum(t, "t");
    if ((t != static_cast<float>(world.size())).any().item<bool>()) std::terminate();
  }
  saver.join();
  if (failure) std::rethrow_exception(failure);
}

// Rank 1 sleeps through the deadline of one vote.
void SurviveALateRank(ControlPlane& plane) {
  if (plane.rank() == 1) usleep(1'500'000);
  const Status late = Agree(plane, OkStatus(), "commit of step 7");
  TORCH_CHECK(late.kind() == StatusKind::kAborted, "a vote without rank 1 passed");
  const std::string& message = late.message();
  TORCH_CHECK(message.find("commit of step 7") != std::string::npos &&
                  message.find("rank 1 ") != std::string::npos && message.find("rank 2") == std::string::npos,
              "the message names other ranks: ", message);
  if (plane.rank() == 0) std::printf("late: %s\n", message.c_str());
  // The others wait for rank 1 outside, as a trainer does until its next save.
  usleep(plane.rank() == 1 ? 0 : 2'000'000);
  for (int round = 0; round < 3; ++round) Save(plane, round);
}

void Run(Transport& transport) {
  auto plane = transport.NewControlPlane("main");
  auto saver = plane->Create("saver");
  const auto impatient = plane->Create("impatient", 1.0 / 60);
  SaveWhileTraining(transport, *saver);
  SurviveALateRank(*impatient);
}

}  // namespace
}  // namespace cairn

int main() { return cairn::MpiMain({.timeout_seconds = 60}, cairn::Run); }
