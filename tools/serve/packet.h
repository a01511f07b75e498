// A JSON object, followed by bytes that its fields point into: the messages between `cairn serve` and its
// trainer, and the files that ranks leave for the rank that commits.
//
// u32 bytes of the JSON, u64 bytes of the tail, the JSON, the tail; little-endian.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "ckpt/base/status.h"

namespace cairn {

struct Packet {
  nlohmann::json head = nlohmann::json::object();
  std::string tail;
};

inline constexpr size_t kPacketHeaderBytes = 4 + 8;
inline constexpr uint64_t kMaxPacketTail = uint64_t{1} << 32;

// On one line; what is not Unicode is replaced.
std::string CompactJson(const nlohmann::json& json);
std::string EncodePacket(const Packet& packet);

// The sizes in the first kPacketHeaderBytes of a packet. Errors: Corrupt if the tail is larger than
// kMaxPacketTail.
struct PacketSize {
  uint32_t head = 0;
  uint64_t tail = 0;
};
Result<PacketSize> SizeOfPacket(std::string_view header);
// Errors: Corrupt if the bytes are not one whole packet.
Result<Packet> DecodePacket(std::string_view bytes);

// head[key]. Errors: Corrupt if it is not an integer that T holds.
template <typename T>
Result<T> IntegerAt(const nlohmann::json& head, const char* key) {
  const auto found = head.find(key);
  const bool fits = found != head.end() && found->is_number_integer() &&
                    (found->is_number_unsigned() ? std::in_range<T>(found->template get<uint64_t>())
                                                 : std::in_range<T>(found->template get<int64_t>()));
  if (!fits) return Corrupt("a request whose \"{}\" is not an integer of its range", key);
  return found->template get<T>();
}

// The bytes of `tail` that [at, n] names. Errors: Corrupt.
Result<std::string_view> TailPart(std::string_view tail, const nlohmann::json& where);

}  // namespace cairn
