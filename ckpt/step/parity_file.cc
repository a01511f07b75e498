// ParityGroup says which block each member holds in each stripe. Rebuilder computes one member's blocks, data
// or parity, from K - M blocks that others hold; so parity is first made by the same code that later
// rebuilds. It goes stripe by stripe, which bounds the memory. Bytes beyond the end of a shorter shard count
// as zeros and are not stored. The header of a parity file is written last, because it holds the digests of
// the blocks.

#include "ckpt/step/parity_file.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "ckpt/base/parse_number.h"
#include "ckpt/io/write_ring.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

constexpr std::string_view kParityMagic = "CAIRNPAR";
constexpr uint32_t kParityVersion = 1;
constexpr uint64_t kMaxParityBlockBytes = 1 << 20;
constexpr uint64_t kMaxHeaderBytes = 64 << 20;
constexpr uint64_t kStartBytes = 8 + 4 + 8 + 16;  // magic, version, header bytes, digest of what follows
constexpr uint64_t kMaxShardBytes = uint64_t{1} << 50;

uint64_t CeilDiv(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

Digest BlockDigest(std::span<const std::byte> block, uint64_t index) { return DigestOf(block, index); }

std::string EncodeFields(const ParityGroup& group, int member, const std::vector<Digest>& digests) {
  ByteWriter out;
  out.PutText(group.identity().run);
  out.Put(group.identity().step);
  out.Put(static_cast<uint16_t>(member));
  group.EncodeMembers(out);
  for (const Digest& digest : digests) out.PutDigest(digest);
  return std::move(out).Take();
}

std::string EncodeHeader(const ParityGroup& group, int member, const std::vector<Digest>& digests) {
  std::string fields = EncodeFields(group, member, digests);
  fields.resize(group.header_bytes() - kStartBytes, '\0');
  const Digest digest = DigestOf(fields);
  ByteWriter out;
  out.PutRaw(kParityMagic);
  out.Put(kParityVersion);
  out.Put(group.header_bytes());
  out.PutDigest(digest);
  out.PutRaw(fields);
  return std::move(out).Take();
}

// `fields` matched its digest, so fields that do not fit together are a bug, not damage.
Result<ParityHeader> DecodeFields(std::string_view fields) {
  ByteReader in(fields);
  StepIdentity identity;
  identity.run = in.GetText();
  identity.step = in.Get<int64_t>();
  const int member = in.Get<uint16_t>();
  CAIRN_ASSIGN_OR_RETURN(ParityGroup group, ParityGroup::DecodeMembers(std::move(identity), in));
  if (member >= group.size()) return Corrupt("no such group");
  if (group.header_bytes() != kStartBytes + fields.size()) return Corrupt("its header has another length");
  ParityHeader header{std::move(group), member, {}};
  header.digests.resize(header.group.parity_blocks());
  for (Digest& digest : header.digests) digest = in.GetDigest();
  if (!in.ok()) return Corrupt("its header is too short");
  return header;
}

// Computes all blocks of one kind of one member, each from the others' blocks of its stripe.
class Rebuilder {
 public:
  Rebuilder(const ParityGroup& group, int member, bool parity, const MemberFiles& files)
      : group_(group), member_(member), parity_(parity), files_(files) {
    for (int i = 0; i < group.code().data(); ++i) sources_.emplace_back(group.block_bytes());
  }

  const ParityGroup& group() const { return group_; }

  // Computes the member's block of this stripe; nullopt if that block is of the other kind.
  Result<std::optional<uint64_t>> Next(uint64_t stripe, std::byte* out) {
    const ParityGroup::Place target = group_.At(stripe, member_);
    if (target.parity != parity_) return std::optional<uint64_t>();
    std::vector<int> numbers;
    std::vector<MemberRead> reads;
    for (int m = 0; m < group_.size() && static_cast<int>(numbers.size()) < group_.code().data(); ++m) {
      const ParityGroup::Place place = group_.At(stripe, m);
      if (m == member_ || !files_.has(m, place.parity)) continue;
      AddRead(m, place, sources_[numbers.size()], reads);
      numbers.push_back(place.code_block);
    }
    if (static_cast<int>(numbers.size()) < group_.code().data())
      return Corrupt("{}: more members of its group are lost than its parity ({}) can rebuild",
                     group_.members()[member_].shard, group_.code().parity());
    CAIRN_RETURN_IF_ERROR(files_.read(reads));
    std::vector<const std::byte*> blocks;
    for (size_t i = 0; i < numbers.size(); ++i) blocks.push_back(sources_[i].data());
    SumFor(stripe, target.code_block, numbers).Compute(blocks, out, group_.block_bytes());
    return std::optional(target.index);
  }

 private:
  // Bytes beyond the end of a shard count as zeros.
  void AddRead(int m, const ParityGroup::Place& place, std::vector<std::byte>& block,
               std::vector<MemberRead>& reads) const {
    const uint64_t begin = place.index * group_.block_bytes();
    const uint64_t end = place.parity ? begin + block.size() : group_.members()[m].bytes;
    const uint64_t there = end > begin ? std::min<uint64_t>(block.size(), end - begin) : 0;
    std::fill(block.begin() + static_cast<ptrdiff_t>(there), block.end(), std::byte{0});
    if (there > 0)
      reads.push_back({m, place.parity, (place.parity ? group_.header_bytes() : 0) + begin,
                       std::span(block).first(there)});
  }

  // Places repeat after K stripes, and the same files stay available.
  const BlockSum& SumFor(uint64_t stripe, int target, const std::vector<int>& numbers) {
    const uint64_t turn = stripe % group_.size();
    auto found = sums_.find(turn);
    if (found == sums_.end()) found = sums_.emplace(turn, group_.code().Express(target, numbers)).first;
    return found->second;
  }

  const ParityGroup& group_;
  const int member_;
  const bool parity_;
  const MemberFiles& files_;
  std::vector<std::vector<std::byte>> sources_;
  std::map<uint64_t, BlockSum> sums_;
};

// Writes all blocks of `rebuilder`, the first at `base` and none beyond `file_bytes`. Returns their digests.
Result<std::vector<Digest>> WriteBlocks(FileSystem& fs, File& file, Rebuilder& rebuilder, uint64_t base,
                                        uint64_t file_bytes) {
  const ParityGroup& group = rebuilder.group();
  WriteRing ring(fs, {.buffer_bytes = group.block_bytes()});
  std::vector<Digest> digests;
  for (uint64_t stripe = 0; stripe < group.stripes(); ++stripe) {
    auto buffer = ring.Acquire();
    Result<std::optional<uint64_t>> index = rebuilder.Next(stripe, buffer->data());
    if (!index.ok()) {
      (void)ring.Drain();
      return index.status();
    }
    if (!*index) continue;
    const uint64_t offset = base + **index * group.block_bytes();
    if (offset >= file_bytes) continue;  // zeros beyond the end of a shorter shard
    buffer->size = std::min(group.block_bytes(), file_bytes - offset);
    digests.push_back(BlockDigest({buffer->data(), buffer->size}, digests.size()));
    ring.Submit(&file, offset, std::move(buffer));
  }
  CAIRN_RETURN_IF_ERROR(ring.Drain());
  return digests;
}

}  // namespace

Result<Redundancy> ParseRedundancy(std::string_view text) {
  if (text.empty()) return Redundancy{};
  const bool is_xor = text.starts_with("xor:"), is_rs = text.starts_with("rs:");
  std::string_view rest = text.substr(std::min(text.size(), text.find(':') + 1));
  const int group = TakeNumber<int>(rest).value_or(-1);
  int parity = is_xor ? 1 : -1;
  if (is_rs && rest.starts_with(',')) {
    rest.remove_prefix(1);
    parity = TakeNumber<int>(rest).value_or(-1);
  }
  if (!(is_xor || is_rs) || group < 0 || parity < 0 || !rest.empty())
    return InvalidArgument("redundancy '{}' must be xor:K or rs:K,M", text);
  if (parity < 1 || group <= parity || group > kMaxCodeBlocks)
    return InvalidArgument("redundancy {}: K must be at most {}, and M at least 1 and below K", text,
                           kMaxCodeBlocks);
  return Redundancy{group, parity};
}

ParityGroup::ParityGroup(StepIdentity identity, std::vector<Member> members, ErasureCode code)
    : identity_(std::move(identity)), members_(std::move(members)), code_(std::move(code)) {
  uint64_t largest = 0;
  for (const Member& member : members_) largest = std::max(largest, member.bytes);
  block_bytes_ = std::clamp(PageUp(CeilDiv(largest, code_.data())), kPageBytes, kMaxParityBlockBytes);
  cycles_ = CeilDiv(largest, block_bytes_ * code_.data());
}

Result<ParityGroup> ParityGroup::Make(StepIdentity identity, std::vector<Member> members, int parity) {
  CAIRN_ASSIGN_OR_RETURN(ErasureCode code,
                         ErasureCode::Make(static_cast<int>(members.size()) - parity, parity));
  return ParityGroup(std::move(identity), std::move(members), std::move(code));
}

void ParityGroup::EncodeMembers(ByteWriter& out) const {
  out.Put(static_cast<uint16_t>(size()));
  out.Put(static_cast<uint16_t>(code_.parity()));
  for (const Member& member : members_) {
    out.PutText(member.shard);
    out.Put(member.bytes);
  }
}

Result<ParityGroup> ParityGroup::DecodeMembers(StepIdentity identity, ByteReader& in) {
  const int size = in.Get<uint16_t>();
  const int parity = in.Get<uint16_t>();
  if (!in.ok() || size > kMaxCodeBlocks) return Corrupt("no such group");
  std::vector<Member> members(size);
  for (Member& member : members) {
    member.shard = in.GetText();
    member.bytes = in.Get<uint64_t>();
    if (!IsPlainFileName(member.shard) || member.bytes > kMaxShardBytes || member.bytes % kPageBytes != 0)
      return Corrupt("no such shard");
  }
  return Make(std::move(identity), std::move(members), parity);
}

uint64_t ParityGroup::header_bytes() const {
  return PageUp(kStartBytes + EncodeFields(*this, 0, {}).size() + parity_blocks() * sizeof(Digest));
}

// In stripe s, parity lies with members s, s + 1, ... (modulo K), data with the rest in the same order.
ParityGroup::Place ParityGroup::At(uint64_t stripe, int member) const {
  const int k = size(), m = code_.parity();
  const int turn = static_cast<int>(stripe % k);
  const auto position = [&](int t) { return (member - t + k) % k; };
  uint64_t parity_before = 0;
  for (int t = 0; t < turn; ++t) parity_before += position(t) < m;
  const uint64_t cycle = stripe / k;
  if (position(turn) < m) return {true, code_.data() + position(turn), cycle * m + parity_before};
  return {false, position(turn) - m, cycle * code_.data() + (turn - parity_before)};
}

bool CanRebuild(const ParityGroup& group, const MemberFiles& files) {
  for (int turn = 0; turn < group.size(); ++turn) {
    int there = 0;
    for (int m = 0; m < group.size(); ++m) there += files.has(m, group.At(turn, m).parity);
    if (there < group.code().data()) return false;
  }
  return true;
}

Status WriteParity(FileSystem& fs, const std::string& path, const ParityGroup& group, int member,
                   const MemberFiles& files, const std::string& spare) {
  if (!spare.empty()) CAIRN_RETURN_IF_ERROR(fs.AddName(spare, path));
  CAIRN_ASSIGN_OR_RETURN(
      const auto file, spare.empty() ? fs.Create(path, Direct::kAuto) : fs.OpenForWrite(path, Direct::kAuto));
  CAIRN_RETURN_IF_ERROR(file->Allocate(group.parity_file_bytes()));
  Rebuilder rebuilder(group, member, /*parity=*/true, files);
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Digest> digests,
                         WriteBlocks(fs, *file, rebuilder, group.header_bytes(), group.parity_file_bytes()));
  const std::string header = EncodeHeader(group, member, digests);
  WriteRing ring(fs, {.buffer_bytes = header.size(), .in_flight = 1});
  WriteExtent(ring, file.get(), 0, header);
  CAIRN_RETURN_IF_ERROR(ring.Drain());
  CAIRN_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

Status RebuildShard(FileSystem& fs, const std::string& path, const ParityGroup& group, int member,
                    const MemberFiles& files) {
  const uint64_t bytes = group.members()[member].bytes;
  CAIRN_ASSIGN_OR_RETURN(const auto file, fs.Create(path, Direct::kAuto));
  CAIRN_RETURN_IF_ERROR(file->Allocate(bytes));
  Rebuilder rebuilder(group, member, /*parity=*/false, files);
  CAIRN_RETURN_IF_ERROR(WriteBlocks(fs, *file, rebuilder, 0, bytes).status());
  CAIRN_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

Result<ParityHeader> ReadParityHeader(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  CAIRN_ASSIGN_OR_RETURN(const auto file, fs.OpenForRead(path));
  std::string start(kStartBytes, '\0');
  CAIRN_RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(start))));
  ByteReader in(start);
  if (in.GetRaw(kParityMagic.size()) != kParityMagic) return Corrupt("{} at byte 0: not a parity file", path);
  if (const auto version = in.Get<uint32_t>(); version != kParityVersion)
    return NotSupported("{}: parity version {}, this program reads version {}", path, version,
                        kParityVersion);
  const auto header_bytes = in.Get<uint64_t>();
  const Digest digest = in.GetDigest();
  if (header_bytes < kStartBytes || header_bytes > std::min(info.bytes, kMaxHeaderBytes))
    return Corrupt("{} at byte 12: a header of {} bytes in a file of {}", path, header_bytes, info.bytes);
  std::string fields(header_bytes - kStartBytes, '\0');
  CAIRN_RETURN_IF_ERROR(file->ReadAt(kStartBytes, std::as_writable_bytes(std::span(fields))));
  if (DigestOf(fields) != digest)
    return Corrupt("{} at byte {}: the header does not match its digest", path, kStartBytes);
  Result<ParityHeader> header = DecodeFields(fields);
  if (!header.ok()) return header.status().WithContext(path);
  if (header->group.parity_file_bytes() != info.bytes)
    return Corrupt("{} has {} bytes, but its header says {}; it was truncated or replaced", path, info.bytes,
                   header->group.parity_file_bytes());
  return header;
}

Status VerifyParity(FileSystem& fs, const std::string& path, const ParityHeader& header) {
  CAIRN_ASSIGN_OR_RETURN(const auto file, fs.OpenForRead(path));
  std::vector<std::byte> block(header.group.block_bytes());
  for (uint64_t i = 0; i < header.digests.size(); ++i) {
    const uint64_t offset = header.group.header_bytes() + i * block.size();
    CAIRN_RETURN_IF_ERROR(file->ReadAt(offset, block));
    if (BlockDigest(block, i) != header.digests[i])
      return Corrupt("{} at byte {}: parity block {} does not match its digest", path, offset, i);
  }
  return OkStatus();
}

}  // namespace cairn
