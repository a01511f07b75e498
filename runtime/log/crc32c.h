// CRC-32C (Castagnoli), as in RFC 3720: reflected, polynomial 0x1EDC6F41, initial and final value all ones.
#pragma once

#include <cstdint>
#include <string_view>

namespace cairn {

uint32_t Crc32c(std::string_view bytes);

}  // namespace cairn
