// A message of any size and a sum arrive while their sender does something else: rank 0 starts them and then
// calls MPI no more until the others have said, by files, that they have them.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "tests/support/mpi_main.h"

namespace cairn {
namespace {

constexpr int kPatience = 60'000;  // milliseconds, then it is stuck

void Await(const std::filesystem::path& file, const char* what) {
  for (int i = 0; !std::filesystem::exists(file); ++i) {
    TORCH_CHECK(i < kPatience, what, " did not arrive while its sender was busy");
    usleep(1000);
  }
  std::filesystem::remove(file);
}

void Run(Transport& transport) {
  const ProcessGroup world = transport.Split("world", {0, 1});
  const int other = 1 - transport.rank();
  // mpirun's number is the same for all ranks
  const auto file = std::filesystem::temp_directory_path() / fmt::format("cairn-mpi-overlap-{}", getppid());
  for (const int64_t elements : {100, 16'384, 3'000'000}) {
    at::Tensor t = at::full({elements}, static_cast<float>(transport.rank() + 1));
    if (transport.rank() == 0) {
      Work sent = world.SendAsync(t, other, "message");
      Await(file, "a message");
      sent.Wait();
    } else {
      at::Tensor got = at::empty({elements});
      world.RecvAsync(got, other, "message").Wait();
      TORCH_CHECK((got == 1).all().item<bool>(), "the message is wrong");
      std::ofstream(file).put('x');
    }
    Work sum = world.AllReduceSumAsync(t, "sum");
    if (transport.rank() == 0) Await(file, "a sum");
    sum.Wait();
    TORCH_CHECK((t == 3).all().item<bool>(), "the sum is wrong");
    if (transport.rank() == 1) std::ofstream(file).put('x');
    Meet(world, "next");
  }
}

// ---- mpi_overlap --measure: what of a message to the next stage is hidden behind its sender's computation.

constexpr double kComputeSeconds = 0.1;

double Now() {  // the same clock in both ranks
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void Compute(double seconds) {
  const at::Tensor a = at::ones({64, 64});
  for (const double end = Now() + seconds; Now() < end;) (void)a.mm(a);
}

// Seconds from the start of a message to its arrival, and to the end of what its sender computes meanwhile.
std::pair<double, double> Message(const ProcessGroup& world, int rank, int64_t bytes, double compute) {
  at::Tensor data = at::ones({bytes / 4}), times = at::zeros({2}, at::kDouble);
  if (rank == 0) {
    Meet(world, "posted");
    const double start = Now();
    Work sent = world.SendAsync(data, 1, "message");
    if (compute > 0) Compute(compute);
    times[1] = Now() - start;
    sent.Wait();
    at::Tensor arrived = at::zeros({1}, at::kDouble);
    world.RecvAsync(arrived, 1, "arrival").Wait();
    times[0] = arrived.item<double>() - start;
  } else {
    Work got = world.RecvAsync(data, 0, "message");
    Meet(world, "posted");
    got.Wait();
    world.SendAsync(at::full({1}, Now(), at::kDouble), 0, "arrival").Wait();
  }
  return {times[0].item<double>(), times[1].item<double>()};
}

void Measure(Transport& transport) {
  const ProcessGroup world = transport.Split("world", {0, 1});
  for (const int64_t bytes : {64 << 10, 1 << 20, 16 << 20}) {
    Message(world, transport.rank(), bytes, 0);
    const auto [alone, none] = Message(world, transport.rank(), bytes, 0);
    const auto [behind, computed] = Message(world, transport.rank(), bytes, kComputeSeconds);
    const double hidden = std::clamp(1 - (behind - computed) / alone, 0.0, 1.0);
    if (transport.rank() == 0)
      fmt::print("{{\"bytes\": {}, \"alone_ms\": {:.3f}, \"behind_ms\": {:.3f}, \"hidden\": {:.3f}}}\n",
                 bytes, alone * 1e3, behind * 1e3, hidden);
  }
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  const bool measure = argc > 1 && std::string_view(argv[1]) == "--measure";
  return cairn::MpiMain({.timeout_seconds = 90}, measure ? cairn::Measure : cairn::Run);
}
