// Attributes first, then a virtual dataset for each tensor, then the catalog. A piece that is a whole box
// maps as that box; a flat range, or a packed piece, maps as the boxes that it decomposes into. HDF5 cannot
// join: low halves of masters get a dataset of their own, and derived pieces are in none. HDF5 only reserves
// the catalog's place; its bytes are put into the finished image.

#include "ckpt/h5/h5_index.h"

#include <algorithm>

#include "ckpt/h5/h5_handle.h"
#include "ckpt/h5/h5_image.h"
#include "ckpt/io/file_system.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

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

bool AddSource(const Files& files, const Piece& piece, const std::string& path, const H5Handle& source,
               const H5Handle& create_list, const H5Handle& whole) {
  return H5Pset_virtual(create_list.get(), whole.get(), files[piece.file].c_str(), path.c_str(),
                        source.get()) >= 0;
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

Status AddTensor(int64_t file, const Catalog& catalog, const Files& files, uint32_t index) {
  const auto [first, last] = catalog.PiecesOfTensor(index);
  const auto pieces = std::span(catalog.pieces).subspan(first, last - first);
  if (std::ranges::any_of(pieces, IsLow)) CAIRN_RETURN_IF_ERROR(AddView(file, catalog, files, index, true));
  if (!pieces.empty() && std::ranges::none_of(pieces, IsWhole)) return OkStatus();
  return AddView(file, catalog, files, index, false);
}

bool AddAttribute(const H5Handle& group, const std::string& name, const nlohmann::json& value) {
  const auto add = [&](hid_t type, const void* data) {
    const H5Handle space = Space({});
    const H5Handle attribute(
        H5Acreate2(group.get(), name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    return attribute.ok() && H5Awrite(attribute.get(), type, data) >= 0;
  };
  if (value.is_number_float()) {
    const double number = value;
    return add(H5T_IEEE_F64LE, &number);
  }
  if (value.is_number() || value.is_boolean()) {
    const int64_t number = value.is_boolean() ? int64_t{value.get<bool>()} : value.get<int64_t>();
    return add(H5T_STD_I64LE, &number);
  }
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  const H5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), std::max<size_t>(1, text.size()));
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  return add(type.get(), text.empty() ? "" : text.data());
}

Status AddAttributes(int64_t file, const char* path, const nlohmann::json& values) {
  CAIRN_RETURN_IF_ERROR(AddH5Groups(file, std::string(path) + "/"));
  const H5Handle group(H5Gopen2(file, path, H5P_DEFAULT), H5Gclose);
  if (!group.ok()) return H5Error(path);
  for (const auto& [name, value] : values.items())
    if (!AddAttribute(group, name, value)) return H5Error(fmt::format("attribute {} of {}", name, path));
  return OkStatus();
}

}  // namespace

Result<H5Index> BuildIndex(const Catalog& catalog, const nlohmann::json& model, const nlohmann::json& state,
                           const std::string& shards) {
  std::vector<std::string> files;
  for (const std::string& name : catalog.files) files.push_back(JoinPath(shards, name));
  const std::string blob = EncodeCatalog(catalog);
  CAIRN_ASSIGN_OR_RETURN(const H5Layout layout, BuildH5([&](int64_t file, H5Layout& out) {
                           CAIRN_RETURN_IF_ERROR(AddAttributes(file, "/model", model));
                           CAIRN_RETURN_IF_ERROR(AddAttributes(file, "/state", state));
                           for (uint32_t i = 0; i < catalog.tensors.size(); ++i)
                             CAIRN_RETURN_IF_ERROR(AddTensor(file, catalog, files, i));
                           return AddH5Dataset(file, {kCatalogPath, Dtype::kU8, {blob.size()}}, out);
                         }));
  H5Index index{std::string(layout.file_bytes, '\0'), layout.offsets[0]};
  for (const H5Extent& extent : layout.metadata)
    index.bytes.replace(extent.offset, extent.bytes.size(), extent.bytes);
  index.bytes.replace(index.catalog_offset, blob.size(), blob);
  return index;
}

}  // namespace cairn
