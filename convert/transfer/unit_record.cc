#include "convert/transfer/unit_record.h"

#include <cstring>

#include "ckpt/base/byte_codec.h"

namespace cairn {
namespace {

constexpr std::string_view kMagic = "cairn reshape unit 1";
constexpr uint64_t kMaxUnitRecordBytes = 256 << 20;

std::string_view Raw(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

Digest GetDigest(ByteReader& in) {
  Digest digest{};
  const std::string_view raw = in.GetRaw(digest.size());
  if (raw.size() == digest.size()) std::memcpy(digest.data(), raw.data(), digest.size());
  return digest;
}

std::string Encode(const UnitRecord& record) {
  ByteWriter out;
  out.PutText(kMagic);
  out.PutRaw(Raw(record.job));
  out.Put(record.stage);
  out.Put(record.unit);
  out.Put(static_cast<uint64_t>(record.sums.size()));
  for (const auto& sum : record.sums)
    for (uint64_t half : sum) out.Put(half);
  out.Put(static_cast<uint64_t>(record.chunks.size()));
  for (const Digest& chunk : record.chunks) out.PutRaw(Raw(chunk));
  std::string bytes = std::move(out).Take();
  return bytes.append(Raw(DigestOf(bytes)));
}

Result<UnitRecord> Decode(std::string_view bytes) {
  const Status damaged = Corrupt("damaged or cut short");
  if (bytes.size() < sizeof(Digest)) return damaged;
  const std::string_view body = bytes.substr(0, bytes.size() - sizeof(Digest));
  if (bytes.substr(body.size()) != Raw(DigestOf(body))) return damaged;
  ByteReader in(body);
  if (in.GetText() != kMagic) return Corrupt("not a record of this version");
  UnitRecord record;
  record.job = GetDigest(in);
  record.stage = in.Get<uint32_t>();
  record.unit = in.Get<uint32_t>();
  const auto sums = in.Get<uint64_t>();
  if (sums > in.left() / 16) return damaged;
  for (uint64_t i = 0; i < sums; ++i) {
    const auto low = in.Get<uint64_t>();
    record.sums.push_back({low, in.Get<uint64_t>()});
  }
  const auto chunks = in.Get<uint64_t>();
  if (chunks > in.left() / sizeof(Digest)) return damaged;
  for (uint64_t i = 0; i < chunks; ++i) record.chunks.push_back(GetDigest(in));
  return in.ok() ? Result<UnitRecord>(std::move(record)) : damaged;
}

}  // namespace

std::string UnitRecordName(int stage, size_t unit) {
  return fmt::format("unit-{:05}-{:05}.done", stage, unit);
}

bool IsUnitRecordName(std::string_view name) { return name.starts_with("unit-") && name.ends_with(".done"); }

Status WriteUnitRecord(FileSystem& fs, const std::string& directory, const UnitRecord& record) {
  return WriteSmallFile(fs, JoinPath(directory, UnitRecordName(static_cast<int>(record.stage), record.unit)),
                        Encode(record));
}

Result<UnitRecord> ReadUnitRecord(FileSystem& fs, const std::string& directory, const Digest& job, int stage,
                                  size_t unit) {
  const std::string path = JoinPath(directory, UnitRecordName(stage, unit));
  CAIRN_ASSIGN_OR_RETURN(const std::string bytes, ReadSmallFile(fs, path, kMaxUnitRecordBytes));
  Result<UnitRecord> record = Decode(bytes);
  if (!record.ok()) return record.status().WithContext(path);
  if (record->job != job || static_cast<int>(record->stage) != stage || record->unit != unit)
    return Corrupt("{}: this is the record of another reshape", path);
  return record;
}

}  // namespace cairn
