#include "runtime/model/parameters/state_memory.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <charconv>

namespace cairn {
namespace {

constexpr double kGigabyte = 1e9;

// "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to
// allocate 123 bytes. Error code 12 ..."; "CUDA out of memory. Tried to allocate 2.00 GiB ..."
bool SaysOutOfMemory(std::string_view message) {
  return message.find("can't allocate memory") != message.npos ||
         message.find("out of memory") != message.npos;
}

// "2.00 GB" of "allocate 2.00 GiB."; empty: it does not say.
std::string AskedFor(std::string_view message) {
  constexpr std::string_view kMark = "ried to allocate ";
  const size_t mark = message.find(kMark);
  if (mark == message.npos) return "";
  message.remove_prefix(mark + kMark.size());
  uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(message.data(), message.data() + message.size(), bytes);
  if (error == std::errc() && message.substr(static_cast<size_t>(end - message.data())).starts_with(" bytes"))
    return fmt::format("{:.2f} GB", static_cast<double>(bytes) / kGigabyte);
  return std::string(message.substr(0, message.find("iB") + 2));
}

}  // namespace

at::Tensor StateZeros(std::string_view part, Side side, at::Device device, uint64_t elements,
                      at::ScalarType type) {
  try {
    return ZerosOn(side, device, elements, type);
  } catch (const c10::Error& error) {
    if (!SaysOutOfMemory(error.what_without_backtrace())) throw;
    const double bytes = static_cast<double>(elements) * static_cast<double>(c10::elementSize(type));
    C10_THROW_ERROR(
        OutOfMemoryError,
        fmt::format("out of memory: {} of this rank need {:.2f} GB; cut the model over more ranks "
                    "(--tensor-model-parallel-size, --pipeline-model-parallel-size) or the state over data "
                    "parallel ranks (--zero-stage); cairn plan shows what fits",
                    part, bytes / kGigabyte));
  }
}

std::optional<std::string> OutOfMemoryLine(std::string_view message) {
  if (!SaysOutOfMemory(message) || message.starts_with("out of memory")) return std::nullopt;
  const std::string asked = AskedFor(message);
  return fmt::format(
      "out of memory: activations and buffers need {}more; give a smaller --micro-batch-size, "
      "--recompute-granularity full, or more ranks; cairn plan shows what fits",
      asked.empty() ? "" : asked + " ");
}

}  // namespace cairn
