#include "ckpt/job/job_ranks.h"

#include "ckpt/base/byte_codec.h"

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

// Takes the second step even if the first failed: ranks that see different failures must stay in step.
Status Agree(JobRanks& ranks, const Status& mine, std::string_view what) {
  const Result<std::vector<std::string>> blobs = ranks.GatherToRoot(EncodeOutcome(mine), what);
  Status worst = blobs.status();
  for (size_t rank = 0; blobs.ok() && rank < blobs->size(); ++rank) {
    const Status other =
        DecodeOutcome((*blobs)[rank]).status().WithContext(ranks.NameOf(static_cast<int>(rank)));
    if (!other.ok() && (worst.ok() || (IsDamage(worst.kind()) && !IsDamage(other.kind())))) worst = other;
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string told, ranks.BroadcastFromRoot(EncodeOutcome(worst), what));
  return DecodeOutcome(told).status();
}

Result<std::string> FromRoot(JobRanks& ranks, std::string_view what,
                             const std::function<Result<std::string>()>& make) {
  const Result<std::string> made = ranks.rank() == 0 ? make() : std::string();
  CAIRN_ASSIGN_OR_RETURN(
      const std::string told,
      ranks.BroadcastFromRoot(EncodeOutcome(made.status(), made.ok() ? *made : std::string_view()), what));
  return DecodeOutcome(told);
}

Result<std::vector<std::string>> ShareAll(JobRanks& ranks, std::string blob, std::string_view what) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<std::string> blobs, ranks.GatherToRoot(std::move(blob), what));
  ByteWriter out;
  for (const std::string& each : blobs) {
    out.Put(static_cast<uint64_t>(each.size()));
    out.PutRaw(each);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string all, ranks.BroadcastFromRoot(std::move(out).Take(), what));
  ByteReader in(all);
  blobs.clear();
  while (in.ok() && in.left() > 0) blobs.emplace_back(in.GetRaw(in.Get<uint64_t>()));
  if (!in.ok() || static_cast<int>(blobs.size()) != ranks.size())
    return Corrupt("truncated message between ranks");
  return blobs;
}

}  // namespace cairn
