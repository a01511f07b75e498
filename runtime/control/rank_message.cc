#include "runtime/control/rank_message.h"

#include "ckpt/base/byte_codec.h"
#include "runtime/control/control_plane.h"

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

bool IsDamage(StatusKind kind) {
  return kind == StatusKind::kCorrupt || kind == StatusKind::kNotFound || kind == StatusKind::kIoError;
}

// Takes both steps whatever becomes of the first, so that ranks that see different failures stay in step.
Status Agree(ControlPlane& control, const Status& mine, std::string_view what) {
  const Result<std::vector<std::string>> blobs = control.GatherToRoot(EncodeOutcome(mine), what);
  Status worst = blobs.status();
  for (size_t rank = 0; blobs.ok() && rank < blobs->size(); ++rank) {
    const Status other = DecodeOutcome((*blobs)[rank]).status().WithContext(fmt::format("rank {}", rank));
    if (!other.ok() && (worst.ok() || (IsDamage(worst.kind()) && !IsDamage(other.kind())))) worst = other;
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string told, control.BroadcastFromRoot(EncodeOutcome(worst), what));
  return DecodeOutcome(told).status();
}

}  // namespace cairn
