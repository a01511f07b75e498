// CRC-32C (Castagnoli), as in RFC 3720: reflected, polynomial 0x1EDC6F41, initial and final value all ones.
#pragma once

#include <isa-l/crc.h>

#include <cstdint>
#include <string_view>

namespace cairn {

// ISA-L takes the initial value and leaves the final inversion to its caller.
inline uint32_t Crc32c(std::string_view bytes) {
  auto* data = reinterpret_cast<unsigned char*>(const_cast<char*>(bytes.data()));
  return ~crc32_iscsi(data, static_cast<int>(bytes.size()), UINT32_MAX);
}

}  // namespace cairn
