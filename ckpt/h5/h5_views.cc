// A piece that is a whole box maps as that box; a flat range, or a packed piece, maps as the boxes that it
// decomposes into. HDF5 cannot join: low halves of masters get a dataset of their own, and derived pieces are
// in none.

#include "ckpt/h5/h5_views.h"

#include <algorithm>

#include "ckpt/base/byte_codec.h"
#include "ckpt/h5/h5_handle.h"
#include "ckpt/io/file_system.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

// A view costs HDF5 several times what a link does. With more tensors than this, those that are one dataset
// of a shard are links.
constexpr size_t kMostViews = 8192;

using Sizes = std::vector<hsize_t>;
using Files = std::vector<std::string>;  // of the catalog, relative to the index

Sizes ToSizes(const Dims& dims) { return Sizes(dims.begin(), dims.end()); }

H5Handle Space(const Sizes& shape) {
  return {shape.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(shape.size(), shape.data(), nullptr),
          H5Sclose};
}

void SelectBox(const H5Handle& space, const Sizes& offset, const Sizes& extent) {
  if (offset.empty()) return;
  H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, offset.data(), nullptr, extent.data(), nullptr);
}

// HDF5 takes the names of a source as formats: "%b" is the number of a block, and "%%" a percent sign.
std::string AsH5Format(const std::string& name) {
  std::string format;
  for (const char c : name) format.append(c == '%' ? 2 : 1, c);
  return format;
}

bool AddSource(const Files& files, const Piece& piece, const std::string& path, const H5Handle& source,
               const H5Handle& create_list, const H5Handle& whole) {
  return H5Pset_virtual(create_list.get(), whole.get(), AsH5Format(files[piece.file]).c_str(),
                        AsH5Format(path).c_str(), source.get()) >= 0;
}

// Maps each box of a flat range of the piece to where it lies in a vector.
bool MapVector(const Files& files, const Piece& piece, FlatRange range, const std::string& path,
               const H5Handle& create_list, const H5Handle& whole) {
  const H5Handle source = Space({range.size()});
  for (const Segment& segment : Decompose(piece.box, range)) {
    SelectBox(whole, ToSizes(segment.box.offset), ToSizes(segment.box.extent));
    SelectBox(source, {segment.begin}, {segment.box.Volume()});
    if (!AddSource(files, piece, path, source, create_list, whole)) return false;
  }
  return true;
}

// Maps a piece to the datasets that hold it.
bool MapPiece(const Catalog& catalog, const Files& files, const Piece& piece, const H5Handle& create_list,
              const H5Handle& whole) {
  const TensorEntry& tensor = catalog.tensors[piece.tensor];
  if (piece.codec != Codec::kNone) {
    const std::string base = piece.codec == Codec::kMasterLow ? LowHalvesPath(tensor) : TensorPath(tensor);
    return std::ranges::all_of(PackedParts(piece, tensor.dtype), [&](FlatRange part) {
      return MapVector(files, piece, part, PackedPath(base, piece.box, part.begin), create_list, whole);
    });
  }
  const std::string path = PiecePath(tensor, piece.box, piece.range);
  if (piece.range.size() != piece.box.Volume())
    return MapVector(files, piece, piece.range, path, create_list, whole);
  SelectBox(whole, ToSizes(piece.box.offset), ToSizes(piece.box.extent));
  return AddSource(files, piece, path, Space(ToSizes(piece.box.extent)), create_list, whole);
}

// Derived pieces are in no dataset.
bool IsWhole(const Piece& piece) { return !IsJoined(piece.codec); }
bool IsLow(const Piece& piece) { return piece.codec == Codec::kMasterLow; }

// A dataset over those pieces of a tensor that hold whole elements, or over those that hold low halves.
Status AddView(int64_t file, const Catalog& catalog, const Files& files, uint32_t index, bool low_halves) {
  const TensorEntry& tensor = catalog.tensors[index];
  const std::string path = low_halves ? LowHalvesPath(tensor) : TensorPath(tensor);
  CAIRN_RETURN_IF_ERROR(AddH5Groups(file, path));
  const H5Handle create_list(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(create_list.get(), false);
  const H5Handle whole = Space(ToSizes(tensor.spec.shape));
  const auto [first, last] = catalog.PiecesOfTensor(index);
  const bool is_virtual = tensor.spec.shape.rank() > 0;  // HDF5 has no virtual scalars
  for (size_t i = first; is_virtual && i < last; ++i) {
    const Piece& piece = catalog.pieces[i];
    if (!(low_halves ? IsLow(piece) : IsWhole(piece))) continue;
    if (!MapPiece(catalog, files, piece, create_list, whole)) return H5Error("map " + path);
  }
  if (is_virtual) H5Sselect_all(whole.get());
  const H5Handle type = H5TypeOf(low_halves ? Dtype::kI16 : tensor.dtype);
  const H5Handle dataset(
      H5Dcreate2(file, path.c_str(), type.get(), whole.get(), H5P_DEFAULT, create_list.get(), H5P_DEFAULT),
      H5Dclose);
  return dataset.ok() ? OkStatus() : H5Error("create " + path);
}

// One dataset of a shard that is the whole tensor.
bool IsOneDataset(const TensorEntry& tensor, std::span<const Piece> pieces) {
  return pieces.size() == 1 && pieces[0].codec == Codec::kNone && pieces[0].box.extent == tensor.spec.shape &&
         pieces[0].range.size() == pieces[0].box.Volume();
}

Status AddLink(int64_t file, const TensorEntry& tensor, const Files& files, const Piece& piece) {
  const std::string path = TensorPath(tensor);
  CAIRN_RETURN_IF_ERROR(AddH5Groups(file, path));
  const std::string target = PiecePath(tensor, piece.box, piece.range);
  if (H5Lcreate_external(files[piece.file].c_str(), target.c_str(), file, path.c_str(), H5P_DEFAULT,
                         H5P_DEFAULT) < 0)
    return H5Error("link " + path);
  return OkStatus();
}

Status AddTensor(int64_t file, const Catalog& catalog, const Files& files, uint32_t index) {
  const auto [first, last] = catalog.PiecesOfTensor(index);
  const auto pieces = std::span(catalog.pieces).subspan(first, last - first);
  if (catalog.tensors.size() > kMostViews && IsOneDataset(catalog.tensors[index], pieces))
    return AddLink(file, catalog.tensors[index], files, pieces[0]);
  if (std::ranges::any_of(pieces, IsLow)) CAIRN_RETURN_IF_ERROR(AddView(file, catalog, files, index, true));
  if (!pieces.empty() && std::ranges::none_of(pieces, IsWhole)) return OkStatus();
  return AddView(file, catalog, files, index, false);
}

Status AddTensors(int64_t file, const Catalog& catalog, const Files& files, bool opaque) {
  for (uint32_t i = 0; i < catalog.tensors.size(); ++i)
    if (IsOpaque(catalog.tensors[i].role) == opaque)
      CAIRN_RETURN_IF_ERROR(AddTensor(file, catalog, files, i));
  return OkStatus();
}

Files FilesOf(const Catalog& catalog, const std::string& shards) {
  Files files;
  for (const std::string& name : catalog.files) files.push_back(JoinPath(shards, name));
  return files;
}

// Everything that the views depend on; neither the bytes nor their places.
std::string LayoutOf(const Catalog& catalog, const Files& files) {
  ByteWriter out;
  for (const std::string& file : files) out.PutText(file);
  for (const TensorEntry& tensor : catalog.tensors) {
    if (IsOpaque(tensor.role)) continue;
    out.PutText(TensorPath(tensor));
    out.Put(static_cast<uint8_t>(tensor.dtype));
    out.Put(static_cast<uint8_t>(tensor.spec.shape.rank()));
    out.PutDims(tensor.spec.shape);
  }
  for (const Piece& piece : catalog.pieces) {
    if (IsOpaque(catalog.tensors[piece.tensor].role)) continue;
    out.Put(piece.tensor);
    out.Put(piece.file);
    out.PutDims(piece.box.offset);
    out.PutDims(piece.box.extent);
    out.Put(piece.range.begin);
    out.Put(piece.range.end);
    out.Put(static_cast<uint8_t>(piece.codec));
  }
  return std::move(out).Take();
}

}  // namespace

Result<const H5Layout*> H5Views::Of(const Catalog& catalog, const std::string& shards) {
  const Files files = FilesOf(catalog, shards);
  std::string layout = LayoutOf(catalog, files);
  if (image_ && layout == layout_) return &*image_;
  image_.reset();
  ++made_;
  CAIRN_ASSIGN_OR_RETURN(
      image_, BuildH5([&](int64_t file, H5Layout&) { return AddTensors(file, catalog, files, false); }));
  layout_ = std::move(layout);
  return &*image_;
}

Status AddOpaqueViews(int64_t file, const Catalog& catalog, const std::string& shards) {
  return AddTensors(file, catalog, FilesOf(catalog, shards), true);
}

}  // namespace cairn
