// The length is checked against the file before the header is read. A SAX parser then takes the JSON apart
// as it comes: it keeps tensors and metadata, and stops at the first thing that the format does not have, so
// that no tree is built from untrusted JSON. Last, the tensors are sorted by offset: each must begin where
// the one before it ends, and the last must end with the file.

#include "convert/formats/hugging_face/safetensors_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

namespace cairn {
namespace {

using nlohmann::json;

constexpr uint64_t kGitLfs = std::bit_cast<uint64_t>(std::array{'v', 'e', 'r', 's', 'i', 'o', 'n', ' '});

struct Type {
  std::string_view name;
  int bits;
  std::optional<Dtype> dtype;
};
// In the order of the format's enumeration.
constexpr Type kTypes[] = {{"BOOL", 8, Dtype::kBool},
                           {"U8", 8, Dtype::kU8},
                           {"I8", 8, Dtype::kI8},
                           {"F8_E5M2", 8, Dtype::kF8E5M2},
                           {"F8_E4M3", 8, Dtype::kF8E4M3},
                           {"I16", 16, Dtype::kI16},
                           {"F16", 16, Dtype::kF16},
                           {"BF16", 16, Dtype::kBF16},
                           {"I32", 32, Dtype::kI32},
                           {"F32", 32, Dtype::kF32},
                           {"F64", 64, Dtype::kF64},
                           {"I64", 64, Dtype::kI64},
                           {"U16", 16, {}},
                           {"U32", 32, {}},
                           {"U64", 64, {}},
                           {"C64", 64, {}},
                           {"F8_E8M0", 8, Dtype::kF8E8M0},
                           {"F8_E4M3FNUZ", 8, {}},
                           {"F8_E5M2FNUZ", 8, {}},
                           {"F6_E2M3", 6, {}},
                           {"F6_E3M2", 6, {}},
                           {"F4", 4, Dtype::kF4x2}};

// The file counts elements of four bits; Cairn and torch count pairs. False if a row has an odd number.
bool HalveLast(Dims& shape) {
  if (shape.rank() == 0 || shape[shape.rank() - 1] % 2 != 0) return false;
  shape[shape.rank() - 1] /= 2;
  return true;
}

// Takes a header apart while it is being parsed: nothing is kept but the tensors.
class HeaderParser final : public nlohmann::json_sax<json> {
 public:
  explicit HeaderParser(SafetensorsHeader& header) : header_(header) {}

  const std::string& error() const { return error_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return Unexpected("a fraction"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return Unexpected("a number");
    if (key_ == "shape") {
      if (tensor_.shape.rank() == kMaxRank)
        return Fail(fmt::format("tensor {} has more than {} dimensions", tensor_.name, kMaxRank));
      tensor_.shape.push_back(value);
    } else if (offsets_.size() < 2) {
      offsets_.push_back(value);
    } else {
      return Fail(fmt::format("tensor {} has more than two data_offsets", tensor_.name));
    }
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) {
      header_.metadata[key_] = value;
      return true;
    }
    if (depth_ != 2 || in_array_ || key_ != "dtype") return Unexpected("a text");
    type_ = value;
    return true;
  }

  bool start_object(size_t) override {
    if (in_array_ || depth_ == 2) return Unexpected("an object");
    if (++depth_ == 1) return true;
    in_metadata_ = tensor_.name == kSafetensorsMetadataKey;
    return true;
  }

  bool end_object() override {
    const bool is_tensor = depth_-- == 2 && !std::exchange(in_metadata_, false);
    const bool ok = !is_tensor || FinishTensor();
    fields_.clear();
    return ok;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_array_ || in_metadata_ || (key_ != "shape" && key_ != "data_offsets"))
      return Unexpected("a list");
    return in_array_ = true;
  }

  bool end_array() override {
    in_array_ = false;
    return true;
  }

  bool key(string_t& key) override {
    if (depth_ == 1) {
      if (!names_.insert(key).second) return Fail(fmt::format("tensor {} occurs twice", key));
      tensor_ = {};
      tensor_.name = key;
      offsets_.clear();
      return true;
    }
    key_ = key;
    if (!fields_.insert(key).second) return Fail(fmt::format("{} of {} occurs twice", key, tensor_.name));
    if (in_metadata_ || key == "dtype" || key == "shape" || key == "data_offsets") return true;
    return Fail(fmt::format("tensor {} has an unknown field {}", tensor_.name, key));
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return Fail(fmt::format("the header is not JSON at its byte {}", position));
  }

 private:
  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }

  bool Unexpected(std::string_view what) {
    return Fail(depth_ == 0
                    ? fmt::format("the header is {}, not an object", what)
                    : fmt::format("the header has {} in {}, which must not have it", what, tensor_.name));
  }

  bool FinishTensor() {
    if (fields_.size() != 3 || offsets_.size() != 2)
      return Fail(fmt::format("tensor {} lacks its dtype, shape or two data_offsets", tensor_.name));
    const auto type = std::ranges::find(kTypes, type_, &Type::name);
    if (type == std::end(kTypes))
      return Fail(fmt::format("tensor {} has the unknown dtype {}", tensor_.name, type_));
    if (offsets_[1] < offsets_[0])
      return Fail(fmt::format("tensor {} ends at byte {}, before it begins at {}", tensor_.name, offsets_[1],
                              offsets_[0]));
    const uint64_t bytes = offsets_[1] - offsets_[0];
    const auto bits = CheckedBytes(tensor_.shape, type->bits);
    if (!bits || *bits % 8 != 0 || *bits / 8 != bytes)
      return Fail(fmt::format("tensor {} of shape {} and dtype {} has {} bytes", tensor_.name,
                              ToString(tensor_.shape), type_, bytes));
    const bool known = type->dtype && (type->dtype != Dtype::kF4x2 || HalveLast(tensor_.shape));
    tensor_.dtype = known ? *type->dtype : Dtype::kU8;
    if (!known) tensor_.unknown_type = type_;
    tensor_.extents = {{{0, bytes / SizeOf(tensor_.dtype)}, 0, offsets_[0]}};
    header_.tensors.push_back(tensor_);
    return true;
  }

  SafetensorsHeader& header_;
  int depth_ = 0;  // of objects
  bool in_array_ = false;
  bool in_metadata_ = false;
  std::string key_;                        // of the object that is open
  std::unordered_set<std::string> names_;  // of tensors
  std::unordered_set<std::string> fields_;
  StoredArray tensor_;
  std::string type_;  // as the file spells it
  std::vector<uint64_t> offsets_;
  std::string error_;
};

// The tensors follow each other from the first byte of the data to the last one of the file.
Status PlaceInFile(uint64_t data_offset, uint64_t file_bytes, SafetensorsHeader& header) {
  std::ranges::sort(header.tensors, {}, [](const StoredArray& tensor) {
    return std::pair(tensor.extents[0].file_offset, tensor.bytes());
  });
  uint64_t at = 0;
  for (StoredArray& tensor : header.tensors) {
    uint64_t& offset = tensor.extents[0].file_offset;
    const uint64_t bytes = tensor.bytes();
    if (offset != at)
      return Corrupt("{} before tensor {}, at byte {} of the data", offset > at ? "a hole" : "an overlap",
                     tensor.name, at);
    if (bytes > file_bytes - data_offset - at)
      return Corrupt("tensor {} ends {} bytes beyond the end of the file; it was truncated", tensor.name,
                     bytes - (file_bytes - data_offset - at));
    at += bytes;
    offset += data_offset;
  }
  if (at == file_bytes - data_offset) return OkStatus();
  return Corrupt("{} bytes after its last tensor belong to no tensor", file_bytes - data_offset - at);
}

}  // namespace

size_t SafetensorsTypeOrder(Dtype dtype) {
  return std::ranges::find(kTypes, std::optional(dtype), &Type::dtype) - std::begin(kTypes);
}

std::string_view SafetensorsTypeName(Dtype dtype) { return kTypes[SafetensorsTypeOrder(dtype)].name; }

Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view text, uint64_t data_offset,
                                                 uint64_t file_bytes) {
  if (!text.starts_with('{'))
    return Corrupt("the header does not start with {{; is this a safetensors file?");
  SafetensorsHeader header;
  HeaderParser parser(header);
  if (!json::sax_parse(text.begin(), text.end(), &parser)) return Corrupt("{}", parser.error());
  CAIRN_RETURN_IF_ERROR(PlaceInFile(data_offset, file_bytes, header));
  return header;
}

Result<SafetensorsHeader> ReadSafetensorsHeader(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const auto file, fs.OpenForRead(path));
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  uint64_t length = 0;
  if (info.bytes < sizeof(length))
    return Corrupt("{}: {} bytes are too few for a safetensors file", path, info.bytes);
  CAIRN_RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(&length, 1))));
  // Its pointers begin with this text in place of the length.
  if (length == kGitLfs)
    return InvalidArgument("{}: it is a pointer of Git LFS, not the file itself; run `git lfs pull`", path);
  if (length > kMaxSafetensorsHeaderBytes || length > info.bytes - sizeof(length))
    return Corrupt("{}: a header of {} bytes in a file of {}; it is truncated, or not a safetensors file",
                   path, length, info.bytes);
  std::string text(length, '\0');
  CAIRN_RETURN_IF_ERROR(file->ReadAt(sizeof(length), std::as_writable_bytes(std::span(text))));
  Result<SafetensorsHeader> header = ParseSafetensorsHeader(text, sizeof(length) + length, info.bytes);
  if (!header.ok()) return header.status().WithContext(path);
  return header;
}

}  // namespace cairn
