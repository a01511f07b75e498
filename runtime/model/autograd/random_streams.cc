#include "runtime/model/autograd/random_streams.h"

#include <ATen/ATen.h>

#include <mutex>

#include "runtime/data/hash.h"

namespace cairn {
namespace {

at::Tensor StateOf(at::Generator& generator) {
  std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void SetState(at::Generator& generator, const at::Tensor& state) {
  std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

at::Tensor SeededState(at::Generator& generator, uint64_t seed) {
  std::scoped_lock lock(generator.mutex());
  generator.set_current_seed(seed);
  return generator.get_state();
}

}  // namespace

RandomStreams::RandomStreams(at::Device device, int64_t seed, const Topology& topology, int rank)
    : generator_(at::globalContext().defaultGenerator(device)),
      seed_(seed),
      tp_(static_cast<uint64_t>(topology.Coordinate(rank, Axis::kTp))),
      dp_(static_cast<uint64_t>(topology.Coordinate(rank, Axis::kDp))),
      pp_(static_cast<uint64_t>(topology.Coordinate(rank, Axis::kPp))) {
  Reseed(0);
}

void RandomStreams::Reseed(int64_t iteration) {
  const uint64_t place =
      HashNumbers({static_cast<uint64_t>(seed_), static_cast<uint64_t>(iteration), dp_, pp_});
  own_state_ = SeededState(generator_, HashNumbers({place, 1 + tp_}));
  SeededState(generator_, place);
}

void RandomStreams::Swap() {
  at::Tensor state = StateOf(generator_);
  SetState(generator_, own_state_);
  own_state_ = std::move(state);
}

std::string RandomStreams::SaveState() const {
  at::Generator generator = generator_;
  const at::Tensor shared = StateOf(generator);
  std::string bytes(static_cast<const char*>(shared.const_data_ptr()), shared.nbytes());
  return bytes.append(static_cast<const char*>(own_state_.const_data_ptr()), own_state_.nbytes());
}

Status RandomStreams::LoadState(const std::string& state) {
  at::Tensor shared = StateOf(generator_);
  const size_t half = shared.nbytes();
  if (state.size() != 2 * half)
    return Corrupt("random state of {} bytes, but this device has {}; resume on the device that saved it",
                   state.size(), 2 * half);
  std::memcpy(shared.mutable_data_ptr(), state.data(), half);
  at::Tensor own = at::empty_like(own_state_);
  std::memcpy(own.mutable_data_ptr(), state.data() + half, half);
  try {
    SetState(generator_, own);  // the generator checks both
    SetState(generator_, shared);
  } catch (const c10::Error& error) {
    return Corrupt("random state: {}", error.what_without_backtrace());
  }
  own_state_ = own;
  return OkStatus();
}

}  // namespace cairn
