// Files and records next to a step's tensors: parity headers, unit records of a reshape, receipts
// of shards, encoded chunks. The first byte selects one; digests are corrected, as an attacker would.
#include "ckpt/base/byte_codec.h"
#include "ckpt/codec/plane_codec.h"
#include "ckpt/step/parity_file.h"
#include "ckpt/step/shard_plan.h"
#include "convert/transfer/unit_record.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace cairn {
namespace {

std::string_view Raw(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// After the digest of 16 bytes at byte 20: everything but the blocks. The
// size is that of the header if the header implies no other.
void ReadParity(std::string_view input) {
  constexpr size_t kDigestAt = 8 + 4 + 8, kFieldsAt = kDigestAt + sizeof(Digest);
  if (input.size() < kFieldsAt) return;
  std::string file(input);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data() + 12, sizeof(header_bytes));
  if (header_bytes >= kFieldsAt && header_bytes <= (1 << 16) && header_bytes > file.size())
    file.resize(header_bytes);
  if (header_bytes >= kFieldsAt && header_bytes <= file.size())
    file.replace(kDigestAt, sizeof(Digest),
                 Raw(DigestOf(std::string_view(file).substr(kFieldsAt, header_bytes - kFieldsAt))));
  MemoryFileSystem fs;
  fs.files["parity"] = file;
  const auto header = ReadParityHeader(fs, "parity");
  if (!header.ok()) return FuzzCheck(!header.status().message().empty());
  FuzzCheck(header->member < header->group.size() && header->digests.size() == header->group.parity_blocks());
  (void)VerifyParity(fs, "parity", *header);
}

void ReadUnit(std::string_view body) {
  std::string file(body);
  file.append(Raw(DigestOf(body)));
  MemoryFileSystem fs;
  fs.files["x/" + UnitRecordName(1, 2)] = file;
  const auto record = ReadUnitRecord(fs, "x", Digest{}, 1, 2);
  FuzzCheck(record.ok() ? record->stage == 1 && record->unit == 2 : !record.status().message().empty());
}

void ReadReceipt(std::string_view bytes) {
  const auto receipt = ShardReceipt::Decode(bytes);
  if (!receipt.ok()) return FuzzCheck(!receipt.status().message().empty());
  const auto again = ShardReceipt::Decode(receipt->Encode());
  FuzzCheck(again.ok() && again->catalog == receipt->catalog && again->file == receipt->file);
}

// An element's size, a number of them, a frame.
void DecodeFrame(std::string_view input) {
  if (input.size() < 4) return;
  uint32_t count = 0;
  std::memcpy(&count, input.data() + 1, 3);
  static constexpr size_t kSizes[] = {1, 2, 4, 8};
  const size_t element = kSizes[static_cast<uint8_t>(input[0]) % 4];
  std::vector<std::byte> out(std::min<size_t>(count * element, 1 << 18) / element * element);
  static PlaneDecoder& decoder = *new PlaneDecoder;
  (void)decoder.Decode(std::as_bytes(std::span(input.substr(4))), element, out);
}

std::string ParitySeed(int members, int parity) {
  std::vector<ParityGroup::Member> shards;
  for (int i = 0; i < members; ++i) shards.push_back({fmt::format("shard-{:05}.h5", i), kPageBytes});
  const auto group = ParityGroup::Make({"0123456789abcdef0123456789abcdef", 20}, shards, parity).value();
  ByteWriter out;
  out.PutRaw("CAIRNPAR");
  out.Put(uint32_t{1});
  out.Put(group.header_bytes());
  out.PutRaw(std::string(sizeof(Digest), '\0'));
  out.PutText(group.identity().run);
  out.Put(group.identity().step);
  for (const int number : {0, members, parity}) out.Put(static_cast<uint16_t>(number));
  for (const auto& shard : shards) {
    out.PutText(shard.shard);
    out.Put(shard.bytes);
  }
  std::string file = std::move(out).Take();
  file.resize(group.parity_file_bytes());
  return file;
}

std::string UnitSeed() {
  ByteWriter out;
  out.PutText("cairn reshape unit 1");
  out.PutRaw(std::string(sizeof(Digest), '\0'));
  out.Put(uint32_t{1});
  out.Put(uint32_t{2});
  out.Put(uint64_t{1});
  out.PutRaw(std::string(16, 's'));
  out.Put(uint64_t{2});
  out.PutRaw(std::string(2 * sizeof(Digest), 'c'));
  return std::move(out).Take();
}

std::string ReceiptSeed() {
  ShardReceipt receipt;
  receipt.file = {"shard-00000.h5", 4096, {}};
  receipt.catalog.files = {"shard-00000.h5"};
  TensorEntry tensor;
  tensor.spec.name = "w";
  tensor.spec.shape = {2, 3};
  receipt.catalog.tensors = {tensor};
  receipt.catalog.pieces = {{.tensor = 0,
                             .file = 0,
                             .box = Box::Whole({2, 3}),
                             .range = {0, 6},
                             .stored_bytes = 6 * SizeOf(tensor.dtype),
                             .chunks = {Digest{}}}};
  return receipt.Encode();
}

std::string FrameSeed(size_t element, char step) {
  std::string values(1 << 14, '\0');
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<char>(i / element * step / 64);
  PlaneEncoder encoder;
  const auto frame = encoder.Encode(std::as_bytes(std::span(values)), element);
  return static_cast<char>(std::countr_zero(element)) + Little(values.size() / element, 3) +
         std::string(reinterpret_cast<const char*>(frame.data()), frame.size());
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  return {"p" + ParitySeed(2, 1), "p" + ParitySeed(6, 2), "u" + UnitSeed(),     "r" + ReceiptSeed(),
          "f" + FrameSeed(2, 1),  "f" + FrameSeed(4, 7),  "f" + FrameSeed(8, 0)};
}

std::vector<std::string> FuzzWords() {
  return {"CAIRNPAR",
          "CAIRNCAT",
          "cairn reshape unit 1",
          "\x28\xb5\x2f\xfd",
          Little(14, 2) + "shard-00000.h5",
          Little(4096, 8),
          Little(uint64_t{1} << 50, 8),
          Little(UINT64_MAX / 16 + 1, 8),
          Little(UINT64_MAX, 8),
          Little(255, 2) + Little(1, 2),
          Little(0, 4)};
}

}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  if (size == 0) return 0;
  const std::string_view input = TextOf(data + 1, size - 1);
  switch (data[0]) {
    case 'p':
      ReadParity(input);
      break;
    case 'u':
      ReadUnit(input);
      break;
    case 'r':
      ReadReceipt(input);
      break;
    default:
      DecodeFrame(input);
  }
  return 0;
}
