// Writing and repairing go group by group, so memory is that of one group whatever the size of the tar.
// Layout derives every place from the tar's size and the shape of a stripe. In a group, neighbouring blocks
// belong to different stripes, so a burst of damage hits few blocks of each. A read error counts as damage:
// the block's digest fails either way. Parity is read only for groups with damage, and parity blocks have
// digests, too.

#include "tools/archive/tar/tar_parity.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
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

// The blocks of one group, data and parity, and which of them are good.
struct Group {
  explicit Group(const Layout& layout)
      : data(layout.group_blocks(), Block(kParityBlockBytes)),
        parity(kStripesOfGroup * layout.shape.parity, Block(kParityBlockBytes)) {}
  std::vector<Block> data, parity;
  std::vector<bool> data_good, parity_good;
};

// The blocks of stripe `stripe`, data first, in the order of the code.
std::vector<Block*> StripeOf(Group& group, const Layout& layout, uint64_t stripes, uint64_t stripe) {
  std::vector<Block*> blocks;
  for (int i = 0; i < layout.shape.data; ++i) blocks.push_back(&group.data[i * stripes + stripe]);
  for (int i = 0; i < layout.shape.parity; ++i)
    blocks.push_back(&group.parity[stripe * layout.shape.parity + i]);
  return blocks;
}

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
  if (file_bytes < kFixedBytes) return corrupt("is too short to be parity");
  CAIRN_RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(text))));
  ByteReader in(text);
  if (const std::string_view magic = in.GetRaw(kMagic.size()); magic != kMagic && magic != kOldMagic)
    return corrupt("is not a parity file");
  if (const auto version = in.Get<uint32_t>(); version != kVersion)
    return NotSupported("{}: version {}; use a newer cairn", file.path(), version);
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

// Reads the tar's blocks of a group; those beyond its end are zeros. Continues after a block that cannot be
// read, and returns the first error.
Status ReadGroup(File& tar, uint64_t tar_bytes_there, const Layout& layout, uint64_t number, Group& group) {
  Status first;
  for (Block& block : group.data) std::ranges::fill(block, std::byte{0});
  for (uint64_t i = 0; i < layout.blocks(number); ++i) {
    const uint64_t block = layout.first_block(number) + i, begin = block * kParityBlockBytes;
    if (begin >= tar_bytes_there) break;
    const uint64_t count = std::min(layout.block_bytes(block), tar_bytes_there - begin);
    const Status read = tar.ReadAt(begin, std::span(group.data[i]).first(count));
    if (first.ok()) first = read;
  }
  return first;
}

void ComputeParity(const ErasureCode& code, const Layout& layout, uint64_t stripes, Group& group) {
  std::vector<int> sources;
  for (int i = 0; i < layout.shape.data; ++i) sources.push_back(i);
  for (int p = 0; p < layout.shape.parity; ++p) {
    const BlockSum sum = code.Express(layout.shape.data + p, sources);
    for (uint64_t stripe = 0; stripe < stripes; ++stripe) {
      const auto blocks = StripeOf(group, layout, stripes, stripe);
      std::vector<const std::byte*> in;
      for (int i = 0; i < layout.shape.data; ++i) in.push_back(blocks[i]->data());
      sum.Compute(in, blocks[layout.shape.data + p]->data(), kParityBlockBytes);
    }
  }
}

}  // namespace

Result<StripeShape> ShapeFor(double fraction) {
  if (fraction > kMaxTarParity)
    return InvalidArgument("parity of {:g} % is more than the {:g} % that can be had", fraction * 100,
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
  CAIRN_ASSIGN_OR_RETURN(const ErasureCode code, ErasureCode::Make(layout.shape.data, layout.shape.parity));
  CAIRN_ASSIGN_OR_RETURN(const auto source, OpenTar(fs, place, /*past_cache=*/false));
  CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, partial));
  CAIRN_ASSIGN_OR_RETURN(const auto out, fs.Create(partial));
  const auto write = [&]() -> Status {
    Group group(layout);
    uint64_t parity_block = 0;
    for (uint64_t number = 0; number < layout.groups(); ++number) {
      const uint64_t stripes = layout.stripes(number);
      CAIRN_RETURN_IF_ERROR(ReadGroup(*source, layout.tar_bytes, layout, number, group));
      ComputeParity(code, layout, stripes, group);
      for (uint64_t i = 0; i < layout.blocks(number); ++i)
        header.data.push_back(DigestOf(std::span(group.data[i]), layout.first_block(number) + i));
      for (uint64_t i = 0; i < stripes * layout.shape.parity; ++i, ++parity_block) {
        header.parity.push_back(DigestOf(std::span(group.parity[i]), parity_block));
        CAIRN_RETURN_IF_ERROR(
            out->WriteAt(layout.header_bytes() + parity_block * kParityBlockBytes, group.parity[i]));
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

namespace {

// Repairs a tar group by group into `out`.
class Repairer {
 public:
  Repairer(File& tar, uint64_t tar_bytes, File& parity, Header header, ErasureCode code)
      : tar_(tar),
        tar_bytes_(tar_bytes),
        parity_(parity),
        header_(std::move(header)),
        code_(std::move(code)),
        group_(header_.layout) {}

  Status Run(TarFilesWriter& out) {
    const Layout& layout = header_.layout;
    for (uint64_t number = 0; number < layout.groups(); ++number) {
      CAIRN_RETURN_IF_ERROR(RepairGroup(number));
      for (uint64_t i = 0; i < layout.blocks(number); ++i)
        CAIRN_RETURN_IF_ERROR(
            out.Append(std::span(group_.data[i]).first(layout.block_bytes(layout.first_block(number) + i))));
    }
    return out.Finish();
  }
  uint64_t repaired_blocks() const { return repaired_blocks_; }

 private:
  Status RepairGroup(uint64_t number) {
    const Layout& layout = header_.layout;
    const uint64_t stripes = layout.stripes(number);
    // A block that cannot be read is repaired like a damaged one: its digest differs from the header's.
    (void)ReadGroup(tar_, tar_bytes_, layout, number, group_);
    group_.data_good.assign(layout.group_blocks(), true);
    bool whole = true;
    for (uint64_t i = 0; i < layout.blocks(number); ++i) {
      const uint64_t block = layout.first_block(number) + i;
      group_.data_good[i] = DigestOf(std::span(group_.data[i]), block) == header_.data[block];
      whole = whole && group_.data_good[i];
    }
    if (whole) return OkStatus();
    const uint64_t first = number * kStripesOfGroup * layout.shape.parity;
    group_.parity_good.assign(group_.parity.size(), false);
    for (uint64_t i = 0; i < stripes * layout.shape.parity; ++i) {
      const Status read =
          parity_.ReadAt(layout.header_bytes() + (first + i) * kParityBlockBytes, group_.parity[i]);
      group_.parity_good[i] =
          read.ok() && DigestOf(std::span(group_.parity[i]), first + i) == header_.parity[first + i];
    }
    for (uint64_t stripe = 0; stripe < stripes; ++stripe)
      CAIRN_RETURN_IF_ERROR(RepairStripe(number, stripes, stripe));
    return OkStatus();
  }

  Status RepairStripe(uint64_t number, uint64_t stripes, uint64_t stripe) {
    const Layout& layout = header_.layout;
    const auto blocks = StripeOf(group_, layout, stripes, stripe);
    std::vector<int> good, bad;
    for (int i = 0; i < layout.shape.data + layout.shape.parity; ++i) {
      const bool is_good = i < layout.shape.data
                               ? group_.data_good[i * stripes + stripe]
                               : group_.parity_good[stripe * layout.shape.parity + i - layout.shape.data];
      if (is_good)
        good.push_back(i);
      else if (i < layout.shape.data)
        bad.push_back(i);
    }
    if (bad.empty()) return OkStatus();
    if (static_cast<int>(good.size()) < layout.shape.data)
      return Corrupt("{}: more is damaged than its parity repairs, near byte {}", tar_.path(),
                     (layout.first_block(number) + bad.front() * stripes + stripe) * kParityBlockBytes);
    good.resize(layout.shape.data);
    for (const int target : bad) {
      std::vector<const std::byte*> in;
      for (const int source : good) in.push_back(blocks[source]->data());
      code_.Express(target, good).Compute(in, blocks[target]->data(), kParityBlockBytes);
      ++repaired_blocks_;
    }
    return OkStatus();
  }

  File& tar_;
  const uint64_t tar_bytes_;
  File& parity_;
  const Header header_;
  const ErasureCode code_;
  Group group_;
  uint64_t repaired_blocks_ = 0;
};

}  // namespace

Result<double> ReadParityShare(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const auto file, fs.OpenForRead(path));
  CAIRN_ASSIGN_OR_RETURN(const Header header, ReadHeader(fs, *file));
  const StripeShape& shape = header.layout.shape;
  return (shape.parity - 0.5) / shape.data;  // more than one block fewer has, and safe from rounding
}

Result<uint64_t> RepairTar(FileSystem& fs, const TarPlace& place, const TarPlace& target) {
  const std::string path = place.file + std::string(kParitySuffix);
  CAIRN_ASSIGN_OR_RETURN(const auto parity, fs.OpenForRead(path));
  CAIRN_ASSIGN_OR_RETURN(Header header, ReadHeader(fs, *parity));
  const uint64_t bytes = header.layout.tar_bytes;
  uint64_t there = bytes;  // of pieces: unreadable parts are repaired, too
  if (place.pieces.empty()) {
    CAIRN_ASSIGN_OR_RETURN(there, StatTar(fs, place));
  } else if (std::accumulate(place.pieces.begin(), place.pieces.end(), uint64_t{0}) != bytes) {
    return Corrupt("{}: belongs to a tar of {} bytes, the sidecar says otherwise", path, bytes);
  }
  CAIRN_ASSIGN_OR_RETURN(const auto source, OpenTar(fs, place, /*past_cache=*/false));
  CAIRN_ASSIGN_OR_RETURN(ErasureCode code,
                         ErasureCode::Make(header.layout.shape.data, header.layout.shape.parity));
  WriteRing ring(fs);
  Repairer repairer(*source, there, *parity, std::move(header), std::move(code));
  const Status status = [&] {
    TarFilesWriter out(fs, ring, target, bytes);
    return repairer.Run(out);
  }();
  if (!status.ok()) {
    for (const std::string& file : FilesOf(target)) (void)fs.RemoveFile(file);
    return status;
  }
  return repairer.repaired_blocks();
}

}  // namespace cairn
