// The bytes of a vector's elements, for functions that take bytes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace cairn {

template <typename T>
std::span<const std::byte> In(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
template <typename T>
std::span<std::byte> Out(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

}  // namespace cairn
