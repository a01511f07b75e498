#include "runtime/rank_message.h"

#include "ckpt/byte_codec.h"

namespace cairn {

std::string EncodeOutcome(const Status& status, std::string_view payload) {
  ByteWriter out;
  out.Put(static_cast<uint8_t>(status.kind()));
  out.PutRaw(status.ok() ? payload : std::string_view(status.message()));
  return std::move(out).Take();
}

Result<std::string> DecodeOutcome(std::string_view blob) {
  ByteReader in(blob);
  const auto kind = static_cast<StatusKind>(in.Get<uint8_t>());
  std::string rest(in.GetRaw(in.left()));
  if (!in.ok()) return Corrupt("truncated message between ranks");
  if (kind != StatusKind::kOk) return Status(kind, std::move(rest));
  return rest;
}

void Say(const std::string& line) { fmt::print(stderr, "cairn-train: {}\n", line); }

}  // namespace cairn
