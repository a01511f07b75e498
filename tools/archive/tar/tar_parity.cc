// Writing and repairing go group by group, so memory is that of one group whatever the size of the tar.
// Layout derives every place from the tar's size and the shape of a stripe. In a group, neighbouring blocks
// belong to different stripes, so a burst of damage hits few blocks of each. Group computes the blocks that
// are not good from the others: parity is first made by the same code that later repairs data. A read error
// counts as damage: the block's digest fails either way. Parity is read only for groups with damage.

#include "tools/archive/tar/tar_parity.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>

#include "ckpt/base/byte_codec.h"
#include "ckpt/base/digest.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {
namespace {

constexpr std::string_view kMagic = "CAIRNTPR";
constexpr std::string_view kOldMagic =
    "CAIRNPAR";  // also that of ckpt/parity_file.h: read, no longer written
constexpr uint32_t kVersion = 1;
constexpr uint64_t kFixedBytes = 8 + 4 * 3 + 8 * 3;
constexpr uint64_t kMaxHeaderBytes = uint64_t{1} << 30;

// Sizes that follow from the tar's size and the stripe's shape.
struct Layout {
  StripeShape shape;
  uint64_t tar_bytes = 0;

  uint64_t data_blocks() const { return (tar_bytes + kParityBlockBytes - 1) / kParityBlockBytes; }
  uint64_t group_blocks() const { return shape.data * kStripesOfGroup; }
  uint64_t groups() const { return (data_blocks() + group_blocks() - 1) / group_blocks(); }
  uint64_t first_block(uint64_t group) const { return group * group_blocks(); }
  // Blocks of a group, of which the last may have fewer.
  uint64_t blocks(uint64_t group) const {
    return std::min(group_blocks(), data_blocks() - first_block(group));
  }
  uint64_t stripes(uint64_t group) const { return std::min(kStripesOfGroup, blocks(group)); }
  uint64_t parity_blocks() const {
    uint64_t blocks = 0;
    if (groups() > 0) blocks = (groups() - 1) * kStripesOfGroup + stripes(groups() - 1);
    return blocks * shape.parity;
  }
  uint64_t header_bytes() const { return kFixedBytes + 16 * (data_blocks() + parity_blocks()) + 16; }
  uint64_t file_bytes() const { return header_bytes() + parity_blocks() * kParityBlockBytes; }
  uint64_t block_bytes(uint64_t block) const {
    return std::min(kParityBlockBytes, tar_bytes - block * kParityBlockBytes);
  }
};

using Block = std::vector<std::byte>;

Digest BlockDigest(const Block& block, uint64_t index) { return DigestOf(std::span(block), index); }

// The blocks of one group: data in the order of the tar, and parity stripe by stripe.
class Group {
 public:
  // `layout` must outlive it.
  Group(const Layout& layout, ErasureCode code)
      : layout_(layout),
        code_(std::move(code)),
        blocks_(layout.group_blocks() + kStripesOfGroup * layout.shape.parity, Block(kParityBlockBytes)) {}

  Block& data(uint64_t i) { return blocks_[i]; }
  Block& parity(uint64_t i) { return blocks_[layout_.group_blocks() + i]; }
  uint64_t parity_blocks() const { return layout_.stripes(number_) * layout_.shape.parity; }
  void MarkData(uint64_t i, bool good) { good_[i] = good; }
  void MarkParity(uint64_t i, bool good) { good_[layout_.group_blocks() + i] = good; }

  // Reads the tar's blocks; those beyond its end are zeros. All of them count as good, and no parity does.
  // Continues after a block that cannot be read, and returns the first error.
  Status Read(File& tar, uint64_t tar_bytes_there, uint64_t number) {
    number_ = number;
    good_.assign(blocks_.size(), false);
    Status first;
    for (uint64_t i = 0; i < layout_.group_blocks(); ++i) {
      good_[i] = true;
      std::ranges::fill(data(i), std::byte{0});
      const uint64_t block = layout_.first_block(number) + i, begin = block * kParityBlockBytes;
      if (i >= layout_.blocks(number) || begin >= tar_bytes_there) continue;
      const uint64_t count = std::min(layout_.block_bytes(block), tar_bytes_there - begin);
      const Status read = tar.ReadAt(begin, std::span(data(i)).first(count));
      if (first.ok()) first = read;
    }
    return first;
  }

  // Computes the blocks that are not good. Returns how many of them are data. Errors: Corrupt if a stripe has
  // too few good ones.
  Result<uint64_t> Complete() {
    const auto [data_blocks, parity_blocks] = layout_.shape;
    const uint64_t stripes = layout_.stripes(number_);
    uint64_t computed = 0;
    for (uint64_t stripe = 0; stripe < stripes; ++stripe) {
      const auto index = [&](int i) {
        return i < data_blocks ? i * stripes + stripe
                               : layout_.group_blocks() + stripe * parity_blocks + i - data_blocks;
      };
      std::vector<int> good, bad;
      for (int i = 0; i < data_blocks + parity_blocks; ++i) (good_[index(i)] ? good : bad).push_back(i);
      if (bad.empty()) continue;
      if (good.size() < static_cast<size_t>(data_blocks))
        return Corrupt("more is damaged than its parity can repair, near byte {}",
                       (layout_.first_block(number_) + index(bad.front())) * kParityBlockBytes);
      good.resize(data_blocks);
      std::vector<const std::byte*> in;
      for (const int source : good) in.push_back(blocks_[index(source)].data());
      for (const int target : bad) {
        SumFor(target, good).Compute(in, blocks_[index(target)].data(), kParityBlockBytes);
        computed += target < data_blocks;
      }
    }
    return computed;
  }

 private:
  // Most stripes lack the same blocks as the one before.
  const BlockSum& SumFor(int target, const std::vector<int>& sources) {
    const auto known = sums_.find({target, sources});
    if (known != sums_.end()) return known->second;
    if (sums_.size() >= kMaxSums) sums_.clear();
    return sums_.emplace(std::pair(target, sources), code_.Express(target, sources)).first->second;
  }

  static constexpr size_t kMaxSums = 1024;
  const Layout& layout_;
  const ErasureCode code_;
  std::vector<Block> blocks_;
  std::vector<bool> good_;
  uint64_t number_ = 0;
  std::map<std::pair<int, std::vector<int>>, BlockSum> sums_;
};

struct Header {
  Layout layout;
  std::vector<Digest> data, parity;
};

std::string EncodeHeader(const Header& header) {
  ByteWriter out;
  out.PutRaw(kMagic);
  out.Put(kVersion);
  out.Put(static_cast<uint32_t>(header.layout.shape.data));
  out.Put(static_cast<uint32_t>(header.layout.shape.parity));
  out.Put(header.layout.tar_bytes);
  out.Put(static_cast<uint64_t>(header.data.size()));
  out.Put(static_cast<uint64_t>(header.parity.size()));
  for (const auto* digests : {&header.data, &header.parity})
    for (const Digest& digest : *digests) out.PutDigest(digest);
  std::string text = std::move(out).Take();
  ByteWriter end;
  end.PutDigest(DigestOf(text));
  return text + std::move(end).Take();
}

// Reads and checks the header of an open parity file.
Result<Header> ReadHeader(FileSystem& fs, File& file) {
  const auto corrupt = [&](std::string_view what) { return Corrupt("{}: {}", file.path(), what); };
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(file.path()));
  const uint64_t file_bytes = info.bytes;
  std::string text(kFixedBytes, '\0');
  if (file_bytes < kFixedBytes) return corrupt("is too short for a parity file");
  CAIRN_RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(text))));
  ByteReader in(text);
  if (const std::string_view magic = in.GetRaw(kMagic.size()); magic != kMagic && magic != kOldMagic)
    return corrupt("is not a parity file");
  if (const auto version = in.Get<uint32_t>(); version != kVersion)
    return NotSupported("{}: it has version {}; use a newer cairn", file.path(), version);
  Header header;
  header.layout.shape.data = static_cast<int>(in.Get<uint32_t>());
  header.layout.shape.parity = static_cast<int>(in.Get<uint32_t>());
  header.layout.tar_bytes = in.Get<uint64_t>();
  const auto data = in.Get<uint64_t>(), parity = in.Get<uint64_t>();
  const Layout& layout = header.layout;
  if (layout.shape.data < 1 || layout.shape.parity < 1 ||
      layout.shape.data + layout.shape.parity > kMaxCodeBlocks || layout.tar_bytes > uint64_t{1} << 50 ||
      data != layout.data_blocks() || parity != layout.parity_blocks() ||
      layout.header_bytes() > kMaxHeaderBytes || file_bytes != layout.file_bytes())
    return corrupt("contradicts itself; it is damaged");
  text.resize(layout.header_bytes());
  CAIRN_RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(text))));
  ByteReader digests(std::string_view(text).substr(kFixedBytes));
  for (uint64_t i = 0; i < data; ++i) header.data.push_back(digests.GetDigest());
  for (uint64_t i = 0; i < parity; ++i) header.parity.push_back(digests.GetDigest());
  if (digests.GetDigest() != DigestOf(std::string_view(text).substr(0, text.size() - sizeof(Digest))))
    return corrupt("its digests are damaged");
  return header;
}

// Writes the tar's bytes to `out`, damaged blocks repaired. `there`: bytes of the tar that can be read.
// Returns how many blocks were computed.
Result<uint64_t> Repair(File& tar, uint64_t there, File& parity, const Header& header, ErasureCode code,
                        TarFilesWriter& out) {
  const Layout& layout = header.layout;
  Group group(layout, std::move(code));
  uint64_t repaired = 0, first_parity = 0;
  for (uint64_t number = 0; number < layout.groups(); ++number) {
    (void)group.Read(tar, there, number);  // what cannot be read does not match its digest in the header
    bool whole = true;
    for (uint64_t i = 0; i < layout.blocks(number); ++i) {
      const uint64_t block = layout.first_block(number) + i;
      const bool good = BlockDigest(group.data(i), block) == header.data[block];
      group.MarkData(i, good);
      whole = whole && good;
    }
    for (uint64_t i = 0; !whole && i < group.parity_blocks(); ++i) {
      const uint64_t block = first_parity + i;
      const Status read = parity.ReadAt(layout.header_bytes() + block * kParityBlockBytes, group.parity(i));
      group.MarkParity(i, read.ok() && BlockDigest(group.parity(i), block) == header.parity[block]);
    }
    if (!whole) {
      const Result<uint64_t> computed = group.Complete();
      if (!computed.ok()) return computed.status().WithContext(tar.path());
      repaired += *computed;
    }
    first_parity += group.parity_blocks();
    for (uint64_t i = 0; i < layout.blocks(number); ++i)
      CAIRN_RETURN_IF_ERROR(
          out.Append(std::span(group.data(i)).first(layout.block_bytes(layout.first_block(number) + i))));
  }
  CAIRN_RETURN_IF_ERROR(out.Finish());
  return repaired;
}

}  // namespace

Result<StripeShape> ShapeFor(double fraction) {
  if (fraction > kMaxTarParity)
    return InvalidArgument("parity of {:g} % is more than the maximum of {:g} %", fraction * 100,
                           kMaxTarParity * 100);
  StripeShape shape{.data = kMaxCodeBlocks - 1, .parity = 1};
  while (shape.parity < fraction * shape.data) {
    --shape.data;
    ++shape.parity;
  }
  return shape;
}

Result<uint64_t> ParityFileBytes(uint64_t tar_bytes, double fraction) {
  if (fraction <= 0) return uint64_t{0};
  CAIRN_ASSIGN_OR_RETURN(const StripeShape shape, ShapeFor(fraction));
  return Layout{shape, tar_bytes}.file_bytes();
}

Result<ArchivedParity> WriteTarParity(FileSystem& fs, const std::string& tar, double fraction,
                                      const TarPlace& place) {
  const std::filesystem::path path = tar + std::string(kParitySuffix);
  const std::string partial = path.string() + std::string(kPartialSuffix);
  Header header;
  CAIRN_ASSIGN_OR_RETURN(header.layout.shape, ShapeFor(fraction));
  CAIRN_ASSIGN_OR_RETURN(header.layout.tar_bytes, StatTar(fs, place));
  const Layout& layout = header.layout;
  CAIRN_ASSIGN_OR_RETURN(ErasureCode code, ErasureCode::Make(layout.shape.data, layout.shape.parity));
  CAIRN_ASSIGN_OR_RETURN(const auto source, OpenTar(fs, place, /*past_cache=*/false));
  CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, partial));
  CAIRN_ASSIGN_OR_RETURN(const auto out, fs.Create(partial));
  const auto write = [&]() -> Status {
    Group group(layout, std::move(code));
    uint64_t block = 0;
    for (uint64_t number = 0; number < layout.groups(); ++number) {
      CAIRN_RETURN_IF_ERROR(group.Read(*source, layout.tar_bytes, number));
      CAIRN_RETURN_IF_ERROR(group.Complete().status());
      for (uint64_t i = 0; i < layout.blocks(number); ++i)
        header.data.push_back(BlockDigest(group.data(i), layout.first_block(number) + i));
      for (uint64_t i = 0; i < group.parity_blocks(); ++i, ++block) {
        header.parity.push_back(BlockDigest(group.parity(i), block));
        CAIRN_RETURN_IF_ERROR(
            out->WriteAt(layout.header_bytes() + block * kParityBlockBytes, group.parity(i)));
      }
    }
    const std::string text = EncodeHeader(header);
    CAIRN_RETURN_IF_ERROR(out->WriteAt(0, std::as_bytes(std::span(text))));
    CAIRN_RETURN_IF_ERROR(out->Sync());
    CAIRN_RETURN_IF_ERROR(out->Close());
    CAIRN_RETURN_IF_ERROR(fs.Rename(partial, path));
    return fs.SyncDir(path.parent_path());
  };
  if (const Status status = write(); !status.ok()) {
    (void)fs.RemoveFile(partial);
    return status;
  }
  return ArchivedParity{path.filename(), layout.file_bytes()};
}

Result<double> ReadParityShare(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const auto file, fs.OpenForRead(path));
  CAIRN_ASSIGN_OR_RETURN(const Header header, ReadHeader(fs, *file));
  const StripeShape& shape = header.layout.shape;
  return (shape.parity - 0.5) / shape.data;  // more than one block fewer has, and safe from rounding
}

Result<uint64_t> RepairTar(FileSystem& fs, const TarPlace& place, const TarPlace& target) {
  const std::string path = place.file + std::string(kParitySuffix);
  CAIRN_ASSIGN_OR_RETURN(const auto parity, fs.OpenForRead(path));
  CAIRN_ASSIGN_OR_RETURN(const Header header, ReadHeader(fs, *parity));
  const uint64_t bytes = header.layout.tar_bytes;
  uint64_t there = bytes;  // of pieces: unreadable parts are repaired, too
  if (place.pieces.empty()) {
    CAIRN_ASSIGN_OR_RETURN(there, StatTar(fs, place));
  } else if (std::accumulate(place.pieces.begin(), place.pieces.end(), uint64_t{0}) != bytes) {
    return Corrupt("{}: it belongs to a tar of {} bytes, which is not the size in the sidecar", path, bytes);
  }
  CAIRN_ASSIGN_OR_RETURN(const auto source, OpenTar(fs, place, /*past_cache=*/false));
  CAIRN_ASSIGN_OR_RETURN(ErasureCode code,
                         ErasureCode::Make(header.layout.shape.data, header.layout.shape.parity));
  WriteRing ring(fs);
  const Result<uint64_t> repaired = [&] {
    TarFilesWriter out(fs, ring, target, bytes);
    return Repair(*source, there, *parity, header, std::move(code), out);
  }();
  if (!repaired.ok())
    for (const std::string& file : FilesOf(target)) (void)fs.RemoveFile(file);
  return repaired;
}

}  // namespace cairn
