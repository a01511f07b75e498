// A virtual dataset for each tensor (h5_views.h), then attributes, then the catalog. HDF5 only reserves the
// catalog's place; its bytes are put into the finished image.

#include "ckpt/h5/h5_index.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ckpt/h5/h5_handle.h"
#include "ckpt/h5/h5_image.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

bool AddAttribute(const H5Handle& group, const std::string& name, const nlohmann::json& value) {
  const auto add = [&](hid_t type, const void* data) {
    const H5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
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
                           const std::string& shards, H5Views* kept) {
  H5Views fresh;
  CAIRN_ASSIGN_OR_RETURN(const H5Layout* views, (kept != nullptr ? *kept : fresh).Of(catalog, shards));
  const std::string blob = EncodeCatalog(catalog);
  CAIRN_ASSIGN_OR_RETURN(const H5Layout layout, ExtendH5(*views, [&](int64_t file, H5Layout& out) {
                           CAIRN_RETURN_IF_ERROR(AddOpaqueViews(file, catalog, shards));
                           CAIRN_RETURN_IF_ERROR(AddAttributes(file, "/model", model));
                           CAIRN_RETURN_IF_ERROR(AddAttributes(file, "/state", state));
                           return AddH5Dataset(file, {kCatalogPath, Dtype::kU8, {blob.size()}}, out);
                         }));
  H5Index index{std::string(layout.file_bytes, '\0'), layout.offsets[0], blob.size(), DigestOf(blob)};
  for (const H5Extent& extent : layout.metadata)
    index.bytes.replace(extent.offset, extent.bytes.size(), extent.bytes);
  index.bytes.replace(index.catalog_offset, blob.size(), blob);
  return index;
}

}  // namespace cairn
