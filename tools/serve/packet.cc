#include "tools/serve/packet.h"

#include "ckpt/base/byte_codec.h"
#include "ckpt/io/strict_json.h"

namespace cairn {
namespace {

constexpr int kMaxDepth = 32;

}  // namespace

std::string CompactJson(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string EncodePacket(const Packet& packet) {
  const std::string head = CompactJson(packet.head);
  ByteWriter out;
  out.Put(static_cast<uint32_t>(head.size()));
  out.Put(uint64_t{packet.tail.size()});
  out.PutRaw(head);
  out.PutRaw(packet.tail);
  return std::move(out).Take();
}

Result<PacketSize> SizeOfPacket(std::string_view header) {
  ByteReader in(header);
  PacketSize size;
  size.head = in.Get<uint32_t>();
  size.tail = in.Get<uint64_t>();
  if (!in.ok() || size.tail > kMaxPacketTail) return Corrupt("not the begin of a packet");
  return size;
}

Result<Packet> DecodePacket(std::string_view bytes) {
  CAIRN_ASSIGN_OR_RETURN(const PacketSize size, SizeOfPacket(bytes.substr(0, kPacketHeaderBytes)));
  bytes.remove_prefix(std::min(bytes.size(), kPacketHeaderBytes));
  if (bytes.size() < size.head || bytes.size() - size.head != size.tail)
    return Corrupt("a packet of {} bytes, but {} were announced", bytes.size(), size.head + size.tail);
  CAIRN_ASSIGN_OR_RETURN(nlohmann::json head, ParseStrictJson(bytes.substr(0, size.head), kMaxDepth));
  if (!head.is_object()) return Corrupt("a packet that is not a JSON object");
  return Packet{std::move(head), std::string(bytes.substr(size.head))};
}

Result<std::string_view> TailPart(std::string_view tail, const nlohmann::json& where) {
  const bool two =
      where.is_array() && where.size() == 2 && where[0].is_number_unsigned() && where[1].is_number_unsigned();
  const uint64_t at = two ? where[0].get<uint64_t>() : 0, count = two ? where[1].get<uint64_t>() : 0;
  if (!two || at > tail.size() || count > tail.size() - at)
    return Corrupt("a place that is not in the packet's tail");
  return tail.substr(at, count);
}

}  // namespace cairn
