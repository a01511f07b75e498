// A message of any size and a sum arrive while their sender does something else: rank 0 starts them and then
// calls MPI no more until the others have said, by files, that they have them.
#include <torch/torch.h>
#include <unistd.h>

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
    world.Barrier("next");
  }
}

}  // namespace
}  // namespace cairn

int main() {
  return cairn::MpiMain({.timeout_seconds = 90}, [](cairn::Transport& t) { cairn::Run(t); });
}
