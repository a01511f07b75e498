// The catalog as bytes. FORMAT.md, "Catalog", is the specification; this file follows its tables.
#include <algorithm>

#include "ckpt/base/byte_codec.h"
#include "ckpt/model/catalog.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/slice.h"

namespace cairn {
namespace {

constexpr std::string_view kCatalogMagic = "CAIRNCAT";
constexpr uint32_t kPlainVersion = 1;      // no piece has a codec; read by all versions
constexpr uint32_t kCodecVersion = 2;      // all roles have a number
constexpr uint32_t kNamedRoleVersion = 3;  // all parameters are those of dense models
constexpr uint32_t kVersion = 4;
constexpr uint8_t kNamedRole = 255;  // the role's name follows
constexpr uint32_t kEncodedBit = uint32_t{1} << 31;
constexpr uint64_t kHeaderBytes = 8 + 4 + 4 + 4 + 8;
constexpr uint64_t kMinTensorBytes = 2 + 1 + 1 + 1 + 1 + 1 + 1 + 4;
constexpr uint64_t kMinPieceBytes = 4 + 4 + 8 + 8 + 1 + 8 + 8 + 4;
constexpr uint64_t kStoredChunkBytes = 8 + 4 + sizeof(Digest);
constexpr uint64_t kExceptionCountBytes = 4;
constexpr uint64_t kExceptionBytes = 4 + 2;
static_assert(kChunkBytes < kEncodedBit);

uint32_t VersionFor(const Catalog& catalog) {
  if (!std::ranges::all_of(catalog.tensors, [](const auto& tensor) { return tensor.spec.is_dense(); }))
    return kVersion;
  const auto is_named = [](const TensorEntry& tensor) { return !tensor.role.has_number(); };
  if (std::ranges::any_of(catalog.tensors, is_named)) return kNamedRoleVersion;
  const bool plain = std::ranges::all_of(
      catalog.pieces, [](Codec c) { return c == Codec::kNone; }, &Piece::codec);
  return plain ? kPlainVersion : kCodecVersion;
}

void PutRole(ByteWriter& out, const Role& role) {
  out.Put(role.has_number() ? role.number() : kNamedRole);
  if (!role.has_number()) out.PutText(Name(role));
}

// Before version 4 a parameter is cut by tensor parallelism only, along dimension -1 if it is not cut.
void PutPlacement(ByteWriter& out, const ParameterSpec& spec, uint32_t version) {
  if (version >= kVersion) {
    out.Put(static_cast<uint8_t>(spec.cuts.size()));
    for (const Cut& cut : spec.cuts) {
      out.Put(static_cast<uint8_t>(cut.axis));
      out.Put(cut.dim);
      out.Put(cut.unit);
      out.Put(cut.pad);
    }
    out.Put(static_cast<uint8_t>(spec.tied_to_last));
    out.Put(static_cast<uint8_t>(spec.of_experts));
  } else {
    const Cut cut = TpCut(spec);
    out.Put(cut.dim);
    out.Put(static_cast<uint8_t>(spec.tied_to_last));
    out.Put(cut.unit);
    out.Put(cut.pad);
  }
  out.Put(static_cast<int32_t>(spec.layer));
}

void PutTensor(ByteWriter& out, const TensorEntry& tensor, uint32_t version) {
  out.PutText(tensor.spec.name);
  PutRole(out, tensor.role);
  out.Put(static_cast<uint8_t>(tensor.dtype));
  out.Put(static_cast<uint8_t>(tensor.spec.shape.rank()));
  out.PutDims(tensor.spec.shape);
  PutPlacement(out, tensor.spec, version);
}

void PutExceptions(ByteWriter& out, std::span<const MasterException> exceptions) {
  out.Put(static_cast<uint32_t>(exceptions.size()));
  for (const MasterException& exception : exceptions) {
    out.Put(exception.index);
    out.Put(exception.high);
  }
}

void PutPiece(ByteWriter& out, const Piece& piece) {
  out.Put(piece.tensor);
  out.Put(piece.file);
  out.Put(piece.file_offset);
  out.Put(piece.stored_bytes);
  out.Put(static_cast<uint8_t>(piece.codec));
  out.PutDims(piece.box.offset);
  out.PutDims(piece.box.extent);
  out.Put(piece.range.begin);
  out.Put(piece.range.end);
  out.Put(static_cast<uint32_t>(piece.chunks.size()));
  for (const Digest& digest : piece.chunks) out.PutDigest(digest);
  for (const StoredChunk& chunk : piece.stored) {
    if (piece.codec != Codec::kDerived) {
      out.Put(chunk.file_offset);
      out.Put(chunk.bytes | (chunk.encoded ? kEncodedBit : 0));
      out.PutDigest(chunk.digest);
    }
    if (IsJoined(piece.codec)) PutExceptions(out, ExceptionsOf(piece, chunk));
  }
}

// Adds the next piece; they come in the order of their tensors. Requires file_ends of all files.
void AddPiece(StepCatalog& catalog, const Piece& piece) {
  catalog.first_pieces.resize(piece.tensor + 1, catalog.pieces.size());
  uint64_t& end = catalog.file_ends[piece.file];
  end = std::max(end, EndOf(piece));
  catalog.pieces.push_back(piece);
}
// After the last piece.
void EndPieces(StepCatalog& catalog) {
  catalog.first_pieces.resize(catalog.tensors.size() + 1, catalog.pieces.size());
}

// Reads one catalog; every failure names the offset and the record.
class Decoder {
 public:
  explicit Decoder(ByteReader bytes) : in_(bytes) {}

  Result<StepCatalog> Decode() {
    CAIRN_RETURN_IF_ERROR(Header());
    for (uint32_t i = 0; i < tensor_count_; ++i) CAIRN_RETURN_IF_ERROR(Tensor());
    for (uint32_t i = 0; i < file_count_; ++i) CAIRN_RETURN_IF_ERROR(FileName());
    catalog_.file_ends.resize(catalog_.files.size());
    for (uint64_t i = 0; i < piece_count_; ++i) CAIRN_RETURN_IF_ERROR(OnePiece());
    if (in_.left() != 0) return Bad("bytes are left over");
    EndPieces(catalog_);
    return std::move(catalog_);
  }

 private:
  Status Bad(std::string_view what) const { return Corrupt("catalog at byte {}: {}", in_.offset(), what); }

  Status Header() {
    if (in_.GetRaw(kCatalogMagic.size()) != kCatalogMagic) return Bad("not a Cairn catalog");
    const auto version = in_.Get<uint32_t>();
    if (!in_.ok()) return Bad("truncated header");
    if (version < kPlainVersion || version > kVersion)
      return NotSupported("catalog version {}, this program reads {}; use a newer cairn", version, kVersion);
    version_ = version;
    tensor_count_ = in_.Get<uint32_t>();
    file_count_ = in_.Get<uint32_t>();
    piece_count_ = in_.Get<uint64_t>();
    if (!in_.ok()) return Bad("truncated header");
    if (tensor_count_ > in_.left() / kMinTensorBytes || file_count_ > in_.left() / 2 ||
        piece_count_ > in_.left() / kMinPieceBytes)
      return Bad("counts exceed the catalog's size");
    catalog_.tensors.reserve(tensor_count_);
    catalog_.pieces.reserve(piece_count_);
    catalog_.index = TensorIndex(tensor_count_);
    return OkStatus();
  }

  // Errors: Corrupt for an invalid name. The caller checks for an unknown number and for the end of the
  // table.
  Result<Role> ReadRole() {
    const auto number = in_.Get<uint8_t>();
    if (number != kNamedRole || version_ < kNamedRoleVersion)
      return number == kNamedRole ? Role() : Role(number);
    const std::string name(in_.GetText());
    Result<Role> role = RoleNamed(name);
    if (!role.ok()) return Bad(role.status().message());
    return !role->has_number() ? role : Bad("role " + name + " has a number");
  }

  // False if no writer writes it.
  bool ReadPlacement(ParameterSpec& spec) {
    const bool one_cut = version_ < kVersion;
    uint8_t tied = 0, of_experts = 0;
    const uint8_t cuts = one_cut ? 1 : in_.Get<uint8_t>();
    if (cuts > kMaxRank) return false;
    for (uint8_t i = 0; i < cuts; ++i) {
      Cut cut;
      if (!one_cut) cut.axis = static_cast<Axis>(in_.Get<uint8_t>());
      cut.dim = in_.Get<int8_t>();
      if (one_cut) tied = in_.Get<uint8_t>();
      cut.unit = in_.Get<uint64_t>();
      cut.pad = in_.Get<uint64_t>();
      if (cut.unit == 0 || cut.pad > uint64_t{1} << 32) return false;
      if (!one_cut || cut.dim != -1) spec.cuts.push_back(cut);
    }
    if (!one_cut) tied = in_.Get<uint8_t>();
    if (!one_cut) of_experts = in_.Get<uint8_t>();
    spec.layer = in_.Get<int32_t>();
    spec.tied_to_last = tied != 0;
    spec.of_experts = of_experts != 0;
    return tied <= 1 && of_experts <= 1 && spec.layer >= kBeforeLayers && HasValidCuts(spec);
  }

  Status Tensor() {
    TensorEntry tensor;
    tensor.spec.name = in_.GetText();
    CAIRN_ASSIGN_OR_RETURN(tensor.role, ReadRole());
    tensor.dtype = static_cast<Dtype>(in_.Get<uint8_t>());
    const int rank = in_.Get<uint8_t>();
    if (rank > kMaxRank) return Bad("tensor of more dimensions than any checkpoint has");
    tensor.spec.shape = in_.GetDims(rank);
    const bool is_placed = ReadPlacement(tensor.spec);
    if (!in_.ok()) return Bad("truncated tensor table");
    if (tensor.spec.name.empty() || tensor.spec.name.find('\0') != std::string::npos)
      return Bad("bad tensor name");
    if (Name(tensor.role) == "?" || SizeOf(tensor.dtype) == 0) return Bad("unknown role or dtype");
    if (!CheckedBytes(tensor.spec.shape, SizeOf(tensor.dtype))) return Bad("tensor larger than 2^63 bytes");
    if (!is_placed) return Bad("bad placement of a tensor");
    catalog_.tensors.push_back(std::move(tensor));
    if (!catalog_.index.Add(catalog_, static_cast<uint32_t>(catalog_.tensors.size() - 1)))
      return Bad("tensor listed twice: " + DisplayName(catalog_.tensors.back()));
    return OkStatus();
  }

  Status FileName() {
    catalog_.files.emplace_back(in_.GetText());
    if (!in_.ok() || !IsPlainFileName(catalog_.files.back())) return Bad("bad file name");
    return OkStatus();
  }

  Status OnePiece() {
    Piece& piece = piece_;
    const uint32_t last_tensor = piece.tensor;
    piece.tensor = in_.Get<uint32_t>();
    piece.file = in_.Get<uint32_t>();
    piece.file_offset = in_.Get<uint64_t>();
    piece.stored_bytes = in_.Get<uint64_t>();
    const auto codec = in_.Get<uint8_t>();
    if (!in_.ok()) return Bad("truncated piece table");
    if (piece.tensor >= catalog_.tensors.size() || piece.file >= catalog_.files.size())
      return Bad("piece of an unknown tensor or file");
    piece.codec = static_cast<Codec>(codec);
    if (Name(piece.codec) == "?")
      return NotSupported("catalog at byte {}: codec {} is unknown; use a newer cairn", in_.offset(), codec);
    const TensorEntry& tensor = catalog_.tensors[piece.tensor];
    piece.box.offset = in_.GetDims(tensor.spec.shape.rank());
    piece.box.extent = in_.GetDims(tensor.spec.shape.rank());
    piece.range.begin = in_.Get<uint64_t>();
    piece.range.end = in_.Get<uint64_t>();
    const auto chunks = in_.Get<uint32_t>();
    if (!in_.ok()) return Bad("truncated piece table");
    if (!Contains(Box::Whole(tensor.spec.shape), piece.box))
      return Bad("piece outside of tensor " + DisplayName(tensor));
    if (piece.range.begin >= piece.range.end || piece.range.end > piece.box.Volume())
      return Bad("piece outside of its box");
    const uint64_t decoded_bytes = DecodedBytes(piece, tensor.dtype);
    if (piece.codec == Codec::kNone && piece.stored_bytes != decoded_bytes)
      return Bad("piece of the wrong size");
    if (piece.file_offset > INT64_MAX || piece.stored_bytes > INT64_MAX - piece.file_offset)
      return Bad("piece beyond the end of any file");
    if (chunks != ChunkCount(decoded_bytes)) return Bad("wrong number of digests");
    const std::string_view raw = in_.GetRaw(uint64_t{chunks} * sizeof(Digest));
    if (!in_.ok()) return Bad("truncated digests");
    piece.chunks.resize(chunks);
    std::memcpy(piece.chunks.data(), raw.data(), raw.size());
    if (piece.codec == Codec::kMasterLow && (tensor.role != Role::kMaster || tensor.dtype != Dtype::kF32))
      return Bad("codec 2 on a tensor that is not an fp32 master");
    if (piece.codec == Codec::kDerived && (tensor.role != Role::kWeight || tensor.dtype != Dtype::kF16))
      return Bad("codec 3 on a tensor that is not an fp16 weight");
    piece.stored.clear();
    piece.exceptions.clear();
    if (piece.codec == Codec::kDerived)
      CAIRN_RETURN_IF_ERROR(DerivedChunks(piece, decoded_bytes));
    else if (piece.codec != Codec::kNone)
      CAIRN_RETURN_IF_ERROR(StoredChunks(piece, decoded_bytes));
    if (last_tensor > piece.tensor) return Bad("pieces out of order");
    AddPiece(catalog_, piece);
    return OkStatus();
  }

  // A plain chunk has its decoded size, an encoded one is smaller, low halves are half of it. Nothing larger
  // is ever read or decoded.
  Status StoredChunks(Piece& piece, uint64_t decoded_bytes) {
    if (piece.chunks.size() > in_.left() / kStoredChunkBytes) return Bad("truncated chunk table");
    piece.stored.assign(piece.chunks.size(), {});
    uint64_t sum = 0;
    for (uint64_t i = 0; i < piece.stored.size(); ++i) {
      StoredChunk& chunk = piece.stored[i];
      chunk.file_offset = in_.Get<uint64_t>();
      const auto bytes = in_.Get<uint32_t>();
      chunk.bytes = bytes & ~kEncodedBit;
      chunk.encoded = (bytes & kEncodedBit) != 0;
      chunk.digest = in_.GetDigest();
      if (!in_.ok()) return Bad("truncated chunk table");  // exceptions of earlier chunks took the rest
      const uint64_t decoded = DecodedChunkBytes(decoded_bytes, i);
      const bool is_low = piece.codec == Codec::kMasterLow;
      if (chunk.encoded ? chunk.bytes == 0 || chunk.bytes >= decoded : chunk.bytes != decoded)
        return Bad("chunk of the wrong size");
      if (is_low && (!chunk.encoded || chunk.bytes * uint64_t{2} != decoded))
        return Bad("chunk of the wrong size");
      if (is_low) CAIRN_RETURN_IF_ERROR(Exceptions(decoded / 4, piece.exceptions, chunk));
      if (chunk.file_offset > static_cast<uint64_t>(INT64_MAX) - chunk.bytes)
        return Bad("chunk beyond the end of any file");
      sum += chunk.bytes;
    }
    if (sum != piece.stored_bytes || piece.stored[0].file_offset != piece.file_offset)
      return Bad("piece whose chunks do not add up to it");
    return OkStatus();
  }

  Status DerivedChunks(Piece& piece, uint64_t decoded_bytes) {
    if (piece.file_offset != 0 || piece.stored_bytes != 0) return Bad("derived piece with bytes of its own");
    if (piece.chunks.size() > in_.left() / kExceptionCountBytes) return Bad("truncated chunk table");
    piece.stored.assign(piece.chunks.size(), {.encoded = true});
    for (uint64_t i = 0; i < piece.stored.size(); ++i)
      CAIRN_RETURN_IF_ERROR(
          Exceptions(DecodedChunkBytes(decoded_bytes, i) / 2, piece.exceptions, piece.stored[i]));
    return OkStatus();
  }

  Status Exceptions(uint64_t elements, std::vector<MasterException>& exceptions, StoredChunk& chunk) {
    const auto count = in_.Get<uint32_t>();
    if (count > MaxMasterExceptions(elements) || count > in_.left() / kExceptionBytes)
      return Bad("too many exceptions");
    chunk.first_exception = static_cast<uint32_t>(exceptions.size());
    chunk.exceptions = count;
    for (uint32_t i = 0; i < count; ++i) {
      const auto index = in_.Get<uint32_t>();
      if (index >= elements || (i > 0 && index <= exceptions.back().index))
        return Bad("exception out of order");
      exceptions.push_back({index, in_.Get<uint16_t>()});
    }
    return in_.ok() ? OkStatus() : Bad("truncated exceptions");
  }

  ByteReader in_;
  StepCatalog catalog_;
  Piece piece_;  // the last one
  uint32_t version_ = 0;
  uint32_t tensor_count_ = 0;
  uint32_t file_count_ = 0;
  uint64_t piece_count_ = 0;
};

}  // namespace

StepCatalog PackCatalog(const Catalog& catalog) {
  StepCatalog packed;
  static_cast<TensorTable&>(packed) = catalog;
  packed.index = TensorIndex(packed.tensors.size());
  for (uint32_t i = 0; i < packed.tensors.size(); ++i) packed.index.Add(packed, i);
  packed.file_ends.resize(packed.files.size());
  for (const Piece& piece : catalog.pieces) AddPiece(packed, piece);
  EndPieces(packed);
  return packed;
}

std::string EncodeCatalog(const Catalog& catalog) {
  ByteWriter out;
  out.PutRaw(kCatalogMagic);
  const uint32_t version = VersionFor(catalog);
  out.Put(version);
  out.Put(static_cast<uint32_t>(catalog.tensors.size()));
  out.Put(static_cast<uint32_t>(catalog.files.size()));
  out.Put(static_cast<uint64_t>(catalog.pieces.size()));
  for (const TensorEntry& tensor : catalog.tensors) PutTensor(out, tensor, version);
  for (const std::string& file : catalog.files) out.PutText(file);
  for (const Piece& piece : catalog.pieces) PutPiece(out, piece);
  return std::move(out).Take();
}

uint64_t EncodedCatalogBytes(const Catalog& catalog) {
  ByteWriter tensors;
  const uint32_t version = VersionFor(catalog);
  for (const TensorEntry& tensor : catalog.tensors) PutTensor(tensors, tensor, version);
  uint64_t bytes = kHeaderBytes + std::move(tensors).Take().size();
  for (const std::string& file : catalog.files) bytes += 2 + file.size();
  for (const Piece& p : catalog.pieces) {
    bytes += kMinPieceBytes + 16 * p.box.rank() + sizeof(Digest) * p.chunks.size();
    if (p.codec != Codec::kDerived) bytes += kStoredChunkBytes * p.stored.size();
    if (IsJoined(p.codec))
      bytes += kExceptionCountBytes * p.stored.size() + kExceptionBytes * p.exceptions.size();
  }
  return bytes;
}

Result<Catalog> DecodeCatalog(std::string_view bytes) {
  CAIRN_ASSIGN_OR_RETURN(StepCatalog packed, DecodeStepCatalog(ByteReader(bytes)));
  Catalog catalog;
  for (const Piece& piece : packed.pieces) catalog.pieces.push_back(piece);
  static_cast<TensorTable&>(catalog) = std::move(packed);
  return catalog;
}

Result<StepCatalog> DecodeStepCatalog(ByteReader bytes) { return Decoder(bytes).Decode(); }

}  // namespace cairn
