#include "convert/formats/hugging_face/block_scaled.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "ckpt/base/box_map.h"
#include "ckpt/base/first_axis.h"
#include "ckpt/codec/cast.h"
#include "convert/formats/hugging_face/config_model.h"
#include "convert/stream/decode_values.h"

namespace cairn {
namespace {

using nlohmann::json;
using Form = BlockScaled::Form;

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";  // ends of names

std::string Replaced(const std::string& name, std::string_view end, std::string_view by) {
  return name.substr(0, name.size() - end.size()) + std::string(by);
}

class Finder {
 public:
  Finder(const TensorTable& tensors, const json& quantization, bool has_family)
      : tensors_(tensors.tensors), has_family_(has_family) {
    for (uint32_t i = 0; i < tensors_.size(); ++i) number_of_.emplace(tensors_[i].spec.name, i);
    method_ = quantization;
    if (!quantization.is_object()) return;
    method_ = quantization.value("quant_method", json(""));
    size_ = quantization.value("weight_block_size", json());
  }

  Result<std::vector<BlockScaled>> Find() {
    CAIRN_RETURN_IF_ERROR(ReadBlockSize());
    for (uint32_t i = 0; i < tensors_.size(); ++i) CAIRN_RETURN_IF_ERROR(Look(i));
    CAIRN_RETURN_IF_ERROR(CheckAllScaled());
    for (const BlockScaled& scaled : found_)
      if (scaled.form != Form::kFp8 && number_of_.contains(scaled.name))
        return Corrupt("{} is stored twice: as {}, too", scaled.name, NameOf(scaled.values));
    return std::move(found_);
  }

 private:
  const std::string& NameOf(uint32_t tensor) const { return tensors_[tensor].spec.name; }
  const Dims& ShapeOf(uint32_t tensor) const { return tensors_[tensor].spec.shape; }
  std::optional<uint32_t> Number(const std::string& name) const {
    const auto found = number_of_.find(name);
    return found == number_of_.end() ? std::nullopt : std::optional(found->second);
  }

  // Else a model without a table may use such a name for anything.
  bool NamesAreOfWeights() const { return has_family_ || !method_.is_null(); }

  Status ReadBlockSize() {
    if (method_ != "fp8" || size_.is_null()) return OkStatus();
    const auto is_size = [](const json& size) {
      return size.is_number_unsigned() && size > 0 && size < (1 << 30);
    };
    if (!size_.is_array() || size_.size() != 2 || !is_size(size_[0]) || !is_size(size_[1]))
      return Corrupt("config.json: weight_block_size is {}; it must be the rows and columns of a block",
                     size_.dump());
    rows_ = size_[0];
    columns_ = size_[1];
    return OkStatus();
  }

  Status Look(uint32_t tensor) {
    const std::string& name = NameOf(tensor);
    const Dtype dtype = tensors_[tensor].dtype;
    if (name.ends_with(kFp8Scales)) return AddFp8(tensor);
    if (name.ends_with(kScales) && dtype == Dtype::kU8) return CheckScalesHaveBlocks(tensor);
    if (!name.ends_with(kBlocks)) return OkStatus();
    if (dtype == Dtype::kU8) return AddMxfp4(tensor);
    return NamesAreOfWeights() && IsFloat(dtype) && ShapeOf(tensor).rank() > 1 ? AddSwapped(tensor)
                                                                               : OkStatus();
  }

  Status AddFp8(uint32_t scales) {
    const std::string weight = Replaced(NameOf(scales), kFp8Scales, "");
    const auto values = Number(weight);
    if (!NamesAreOfWeights() && (!values || tensors_[*values].dtype != Dtype::kF8E4M3)) return OkStatus();
    if (!values) return Corrupt("{} has no weight: {} is missing", NameOf(scales), weight);
    const Dtype dtype = tensors_[*values].dtype;
    if (dtype != Dtype::kF8E4M3)
      return NotSupported("{} is {}, but {} has scales for it, which only fp8_e4m3 can have", weight,
                          Name(dtype), NameOf(scales));
    if (const Dtype of_scales = tensors_[scales].dtype; !CanCast(of_scales, Dtype::kF32))
      return NotSupported("{} is {}; scales must be fp32, bf16 or fp16", NameOf(scales), Name(of_scales));
    const Dims& shape = ShapeOf(*values);
    Dims wanted = shape;
    if (shape.rank() > 1) {
      wanted[shape.rank() - 2] = BlocksIn(shape[shape.rank() - 2], rows_);
      wanted[shape.rank() - 1] = BlocksIn(shape[shape.rank() - 1], columns_);
    }
    if (shape.rank() < 2 || !(ShapeOf(scales) == wanted))
      return Corrupt("{} has shape {}; blocks of {} x {} of {}, which has shape {}, make it {}",
                     NameOf(scales), ToString(ShapeOf(scales)), rows_, columns_, weight, ToString(shape),
                     ToString(wanted));
    found_.push_back({Form::kFp8, *values, scales, weight, shape, rows_, columns_});
    scaled_.insert(*values);
    return OkStatus();
  }

  Status CheckScalesHaveBlocks(uint32_t scales) const {
    const std::string blocks = Replaced(NameOf(scales), kScales, kBlocks);
    const auto values = Number(blocks);
    if (!values && NamesAreOfWeights())
      return Corrupt("{} has no weight: {} is missing", NameOf(scales), blocks);
    if (values && tensors_[*values].dtype != Dtype::kU8)
      return Corrupt("{} is {}, but {} has scales for it, which only blocks of bytes can have", blocks,
                     Name(tensors_[*values].dtype), NameOf(scales));
    return OkStatus();
  }

  Status AddMxfp4(uint32_t values) {
    const Dims& shape = ShapeOf(values);
    const int rank = shape.rank();
    const bool fits = rank > 2 && shape[rank - 1] == kMxBlock / 2;
    const std::string name = Replaced(NameOf(values), kBlocks, kScales);
    const auto scales = Number(name);
    if (!fits && !scales && !NamesAreOfWeights()) return OkStatus();  // bytes of another kind
    if (!scales) return Corrupt("{} has no scales: {} is missing", NameOf(values), name);
    if (!fits || tensors_[*scales].dtype != Dtype::kU8 || !(ShapeOf(*scales) == First(shape, rank - 1)))
      return Corrupt(
          "{} is {} {} and {} is {} {}; these must be bytes [..., out, in / 32, 16] and [..., out, in / 32]",
          NameOf(values), Name(tensors_[values].dtype), ToString(shape), name, Name(tensors_[*scales].dtype),
          ToString(ShapeOf(*scales)));
    Dims weight = First(shape, rank - 2);
    weight.push_back(weight[rank - 3]);
    weight[rank - 3] = shape[rank - 2] * kMxBlock;
    found_.push_back(
        {Form::kMxfp4, values, scales, Replaced(NameOf(values), kBlocks, ""), weight, 1, kMxBlock});
    return OkStatus();
  }

  Status AddSwapped(uint32_t values) {
    found_.push_back(
        {Form::kSwapped, values, {}, Replaced(NameOf(values), kBlocks, ""), LastTwoSwapped(ShapeOf(values))});
    return OkStatus();
  }

  // One weight with scales, or the method, says that each has them.
  Status CheckAllScaled() const {
    if (scaled_.empty() && (method_ != "fp8" || (!has_family_ && size_.is_null()))) return OkStatus();
    for (uint32_t i = 0; i < tensors_.size(); ++i)
      if (tensors_[i].dtype == Dtype::kF8E4M3 && !scaled_.contains(i))
        return Corrupt("{0} is {1} without scales: {0}{2} is missing", NameOf(i), Name(tensors_[i].dtype),
                       kFp8Scales);
    return OkStatus();
  }

  const std::vector<TensorEntry>& tensors_;
  const bool has_family_;
  json method_, size_;
  uint64_t rows_ = kFp8Block, columns_ = kFp8Block;  // of a block of FP8
  std::unordered_map<std::string_view, uint32_t> number_of_;
  std::set<uint32_t> scaled_;  // weights of FP8
  std::vector<BlockScaled> found_;
};

// A weight of integers, whatever they stand for: "qweight", "weight_packed", "weight".
bool HoldsIntegers(const TensorEntry& tensor) {
  const std::string_view name = tensor.spec.name;
  return !IsOptimizerState(tensor.role) && (name.ends_with("weight") || name.ends_with("weight_packed")) &&
         tensor.spec.shape.rank() > 1 && tensor.dtype != Dtype::kBool && !IsFloat(tensor.dtype);
}

using ByName = std::map<std::string_view, const TensorEntry*>;

// The tensor beside an FP8 weight that has its scales; null if there is none.
const TensorEntry* ScalesOf(const TensorEntry& weight, const ByName& by_name) {
  const std::string_view name = weight.spec.name, module = name.substr(0, name.rfind('.') + 1);
  if (module.empty() || name.find("scale", module.size()) != name.npos) return nullptr;
  for (auto at = by_name.lower_bound(module); at != by_name.end() && at->first.starts_with(module); ++at) {
    const std::string_view rest = at->first.substr(module.size());
    const bool of_inputs = rest.find("input") != rest.npos || rest.find("act") != rest.npos;
    if (rest.find("scale") != rest.npos && rest.find('.') == rest.npos && !of_inputs) return at->second;
  }
  return nullptr;
}

}  // namespace

std::string UnreadMethod(const TensorTable& tensors, const json& quantization) {
  if (!quantization.is_null()) {
    const json method = quantization.is_object() ? quantization.value("quant_method", json()) : json();
    if (!method.is_string()) return "a method that config.json does not name";
    if (method != "mxfp4" && method != "fp8") return method;
  }
  ByName by_name;
  for (const TensorEntry& tensor : tensors.tensors) by_name.emplace(tensor.spec.name, &tensor);
  std::string method;
  for (const TensorEntry& tensor : tensors.tensors) {
    if (HoldsIntegers(tensor)) return fmt::format("a method with weights of {}", Name(tensor.dtype));
    const TensorEntry* scales = tensor.dtype == Dtype::kF8E4M3 ? ScalesOf(tensor, by_name) : nullptr;
    if (scales == nullptr) continue;
    const bool ours = scales->spec.name.ends_with(kFp8Scales) && CanCast(scales->dtype, Dtype::kF32) &&
                      scales->spec.shape.rank() == tensor.spec.shape.rank();
    if (ours) return {};
    if (method.empty()) method = fmt::format("a method with scales like {}", scales->spec.name);
  }
  return method;
}

Status CheckReadable(const CheckpointSource& source) {
  const json& config = source.manifest().model.Get("config");
  const json quantization = config.is_object() ? config.value(kQuantization, json()) : json();
  const std::string method = UnreadMethod(source.catalog(), quantization);
  if (method.empty()) return OkStatus();
  return NotSupported(
      "{}: its weights are quantized by {}, which Cairn does not read, so they are neither cast nor cut; "
      "cairn convert to hf, safetensors, dcp or native without --dtype keeps them as they are",
      source.name(), method);
}

Result<std::vector<BlockScaled>> FindBlockScaled(const TensorTable& tensors, const json& quantization,
                                                 bool has_family) {
  if (!UnreadMethod(tensors, quantization).empty()) return std::vector<BlockScaled>();
  return Finder(tensors, quantization, has_family).Find();
}

std::string CountsOfScaled(const std::vector<BlockScaled>& scaled) {
  std::string text;
  for (const auto& [form, name] : {std::pair(Form::kFp8, "fp8"), std::pair(Form::kMxfp4, "mxfp4")})
    if (const auto count = std::ranges::count(scaled, form, &BlockScaled::form); count > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : " and ", count, name);
  return text;
}

}  // namespace cairn
