// A weight is read a row of blocks at a time, which serves all boxes in it: its numbers are read once, and
// the scales are there when the stream asks for them, after the values. Rows of a fused matrix come from
// several parameters, one matrix of a stack from a part of one. A number is rounded by one float addition, as
// in ckpt/codec/cast.cc.

#include "convert/formats/hugging_face/quantized_source.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "ckpt/base/simd.h"
#include "ckpt/codec/cast.h"
#include "ckpt/families/families.h"
#include "ckpt/model/canonical_modules.h"
#include "convert/formats/hugging_face/block_scaled.h"
#include "convert/formats/hugging_face/config_model.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr float kLargest = 448, kSmallestNormal = 0x1p-6;  // of FP8
constexpr uint32_t kNoSign = 0x7fffffff, kInfinity = 0x7f800000;

CAIRN_SIMD_CLONES uint32_t LargestMagnitude(const float* in, uint64_t count) {  // its bits
  uint32_t largest = 0;
  for (uint64_t i = 0; i < count; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(in[i]) & kNoSign);
  return largest;
}

CAIRN_SIMD_CLONES void Encode(const float* __restrict in, uint64_t count, float scale,
                              std::byte* __restrict out, float* __restrict differences) {
  constexpr auto kMost = std::bit_cast<uint32_t>(kLargest),
                 kNormal = std::bit_cast<uint32_t>(kSmallestNormal);
  for (uint64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(in[i] / scale);
    const uint32_t magnitude = std::min(bits & kNoSign, kMost), exponent = std::max(magnitude, kNormal) >> 23;
    const uint32_t unit = (exponent + 20) << 23;
    const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(unit);
    const uint32_t code = std::bit_cast<uint32_t>(sum) - unit + ((exponent - (kNormal >> 23)) << 3);
    out[i] = static_cast<std::byte>(code | (bits >> 24 & 0x80));
    const float rounded = sum - std::bit_cast<float>(unit);
    differences[i] =
        in[i] - std::bit_cast<float>(std::bit_cast<uint32_t>(rounded) | (bits & ~kNoSign)) * scale;
  }
}

CAIRN_SIMD_CLONES double SquaresOf(const float* in, uint64_t count) {
  double lanes[8] = {};
  uint64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (uint64_t lane = 0; lane < 8; ++lane) lanes[lane] += static_cast<double>(in[i + lane]) * in[i + lane];
  for (; i < count; ++i) lanes[0] += static_cast<double>(in[i]) * in[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// Quantizes `rows` of `columns`, each `stride` behind the one before, and adds their error. The scale;
// nothing if a number is not finite.
std::optional<float> EncodeBlock(const float* in, uint64_t rows, uint64_t columns, uint64_t stride,
                                 std::byte* out, QuantizationError& error) {
  uint32_t bits = 0;
  for (uint64_t row = 0; row < rows; ++row)
    bits = std::max(bits, LargestMagnitude(in + row * stride, columns));
  if (bits >= kInfinity) return std::nullopt;
  const auto largest = std::bit_cast<float>(bits);
  const float scale = bits == 0 ? 1 : std::max(largest / kLargest, std::numeric_limits<float>::denorm_min());
  uint32_t apart = 0;
  for (uint64_t row = 0; row < rows; ++row) {
    float differences[kFp8Block];
    Encode(in + row * stride, columns, scale, out + row * stride, differences);
    apart = std::max(apart, LargestMagnitude(differences, columns));
    error.squares += SquaresOf(in + row * stride, columns);
    error.squares_of_difference += SquaresOf(differences, columns);
  }
  if (bits != 0) error.of_largest = std::max(error.of_largest, double{std::bit_cast<float>(apart)} / largest);
  return scale;
}

// Releases keep convolutions, and matrices with a row for each expert or head.
constexpr std::string_view kKept[] = {"mlp.router",
                                      "mlp.shared_gate",
                                      "delta_net.beta",
                                      "delta_net.decay",
                                      "delta_net.query_convolution",
                                      "delta_net.key_convolution",
                                      "delta_net.value_convolution"};

// The matrix of a linear layer, other than those.
bool IsLinear(const ParameterSpec& spec) {
  const CanonicalModule* module = ModuleOfParameter(spec.name);
  return module && spec.is_matrix() && std::ranges::find(kKept, module->name) == std::end(kKept) &&
         (module->name.starts_with("attention.") || module->name.starts_with("mlp.") ||
          module->name.starts_with("delta_net."));
}

Result<const Family*> FamilyOf(const CheckpointSource& source) {
  const Model& model = source.manifest().model;
  if (const auto* family = FindFamily(model.architecture.value_or(""))) return family;
  if (model.Get("config").contains(kQuantization) ||
      std::ranges::any_of(source.catalog().tensors,
                          [](const TensorEntry& tensor) { return tensor.dtype == Dtype::kF8E4M3; }))
    return InvalidArgument(
        "{}: its weights are quantized already; leave out --quantize to copy them as they are, or add "
        "--dtype to dequantize them and quantize them again",
        source.name());
  return NotSupported("{}: --quantize does not know which tensors of {} are matrices of linear layers",
                      source.name(), FamilyWithoutTable(model));
}

// As in releases. Programs make FP8 of all linear layers that it does not except.
json QuantizationConfig(const Family& family, const TensorTable& tensors) {
  std::set<std::string> others;
  for (const Module& module : family.modules)
    if (module.canonical[0] == "output") others.insert(module.name);
  for (const TensorEntry& tensor : tensors.tensors)
    if (const std::string& name = tensor.spec.name; tensor.dtype != Dtype::kF8E4M3 &&
                                                    tensor.spec.layer >= 0 && tensor.spec.shape.rank() == 2 &&
                                                    name.ends_with(".weight"))
      others.insert(name.substr(0, name.size() - std::string_view(".weight").size()));
  return {{"quant_method", "fp8"},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {kFp8Block, kFp8Block}},
          {"modules_to_not_convert", others}};
}

}  // namespace

Result<QuantizedSource::Release> QuantizedSource::Of(CheckpointSource& source, const std::set<uint32_t>& kept,
                                                     ForeignModel model,
                                                     const std::vector<WrittenTensor>& weights) {
  CAIRN_ASSIGN_OR_RETURN(const Family* family, FamilyOf(source));
  std::unordered_map<std::string_view, const WrittenTensor*> weight_of;
  for (const WrittenTensor& weight : weights) weight_of.emplace(weight.entry.spec.name, &weight);
  std::shared_ptr<QuantizedSource> made(new QuantizedSource(source));
  made->catalog_.files = source.catalog().files;
  std::vector<WrittenTensor> as_stored, quantized;
  for (const ForeignTensor& tensor : model.tensors) {
    const auto first = static_cast<uint32_t>(made->kinds_.size());
    CAIRN_RETURN_IF_ERROR(made->AddTensor(tensor, weight_of, kept).WithContext(family->name));
    for (uint32_t i = first; i < made->kinds_.size(); ++i)
      (made->kinds_[i] == Kind::kAsStored ? as_stored : quantized).push_back({i, made->catalog_.tensors[i]});
    if (made->kinds_[first] == Kind::kAsStored)
      as_stored.back().entry.dtype = weight_of.at(tensor.parts[0].parameter)->entry.dtype;
  }
  if (quantized.empty()) return InvalidArgument("{}: --keep-fp32 leaves nothing to quantize", source.name());
  made->outcome_.weights = quantized.size() / 2;
  made->regions_.emplace(made->parts_, source);
  model.tensors = CanonicalModel(made->catalog_.Parameters()).tensors;
  json config = json::parse(model.files.at("config.json"));
  config[kQuantization] = QuantizationConfig(*family, made->catalog_);
  model.files["config.json"] = config.dump(2) + "\n";
  as_stored.insert(as_stored.end(), quantized.begin(), quantized.end());
  return Release{std::move(made), std::move(model), std::move(as_stored)};
}

Status QuantizedSource::AddTensor(const ForeignTensor& tensor,
                                  const std::unordered_map<std::string_view, const WrittenTensor*>& weight_of,
                                  const std::set<uint32_t>& kept) {
  const auto number = static_cast<uint32_t>(catalog_.tensors.size());
  const WrittenTensor& first = *weight_of.at(tensor.parts[0].parameter);
  const Dtype stored = source_->catalog().tensors[first.source].dtype;
  const bool is_linear = IsLinear(first.entry.spec);
  for (const ForeignPart& part : tensor.parts) {
    const uint32_t from = weight_of.at(part.parameter)->source;
    const TensorEntry& entry = source_->catalog().tensors[from];
    if (part.reorders() || (is_linear && tensor.shape.rank() != 2))
      return NotSupported(
          "{} is not a matrix [out, in]; releases have fp8 with scales for those only, and --quantize cannot "
          "write this family",
          tensor.name);
    if (entry.dtype != stored || !CanCast(stored, Dtype::kF32))
      return NotSupported("{} is {}; --quantize takes fp32, bf16 or fp16, of one type in a tensor",
                          DisplayName(entry), Name(entry.dtype));
    parts_.push_back({part.Inverse(), number, from});
    sums_.try_emplace(from, entry);
  }
  const auto add = [&](Kind kind, std::string name, const Dims& shape, Dtype dtype) {
    kinds_.push_back(kind);
    catalog_.tensors.push_back(
        {{.name = std::move(name), .shape = shape, .layer = first.entry.spec.layer}, Role::kWeight, dtype});
  };
  if (!is_linear || kept.contains(first.source)) {
    add(Kind::kAsStored, tensor.name, tensor.shape, stored);
    return OkStatus();
  }
  const Dims blocks = {BlocksIn(tensor.shape[0], kFp8Block), BlocksIn(tensor.shape[1], kFp8Block)};
  add(Kind::kValues, tensor.name, tensor.shape, Dtype::kF8E4M3);
  add(Kind::kScales, tensor.name + std::string(kFp8Scales), blocks, Dtype::kF32);
  parts_.push_back({{Box::Whole(blocks), Box::Whole(blocks)}, number + 1, parts_.back().array});
  return OkStatus();
}

Status QuantizedSource::ReadBox(uint32_t tensor, const Box& box, std::span<std::byte> out) {
  if (kinds_[tensor] == Kind::kAsStored) return ReadStored(tensor, box, out);
  const bool values = kinds_[tensor] == Kind::kValues;
  const uint64_t columns = catalog_.tensors[tensor].spec.shape[1];
  for (uint64_t row = 0; row < box.extent[0]; ++row) {
    const uint64_t at = box.offset[0] + row;
    CAIRN_RETURN_IF_ERROR(values ? QuantizeRow(tensor, at / kFp8Block) : QuantizeTo(tensor - 1, at));
    const auto from = values ? std::span<const std::byte>(values_).subspan(at % kFp8Block * columns)
                             : std::as_bytes(std::span(scales_).subspan(at * columns));
    const uint64_t size = values ? 1 : sizeof(float), bytes = box.extent[1] * size;
    std::ranges::copy(from.subspan(box.offset[1] * size, bytes), &out[row * bytes]);
  }
  return OkStatus();
}

// `box`: in the type of the source.
Status QuantizedSource::ReadStored(uint32_t tensor, const Box& box, std::span<std::byte> out) {
  const uint64_t size = out.size() / box.Volume();
  for (const auto& [part, common] : regions_->parts().Meet(tensor, box)) {
    const Box stored = part.ToArray(common);
    const auto bytes = out.subspan(FlatIndex(box, common.offset) * size, common.Volume() * size);
    CAIRN_RETURN_IF_ERROR(source_->ReadBox(part.array, stored, bytes));
    const Box whole = Box::Whole(source_->catalog().tensors[part.array].spec.shape);
    sums_.at(part.array).Add(FlatIndex(whole, stored.offset), bytes);
  }
  return OkStatus();
}

// As far as the scales of this row of blocks.
Status QuantizedSource::QuantizeTo(uint32_t tensor, uint64_t row) {
  while (tensor != tensor_ || rows_done_ <= row)
    CAIRN_RETURN_IF_ERROR(QuantizeRow(tensor, tensor == tensor_ ? rows_done_ : 0));
  return OkStatus();
}

Status QuantizedSource::QuantizeRow(uint32_t tensor, uint64_t row) {
  if (tensor == tensor_ && row == row_) return OkStatus();
  const Dims &shape = catalog_.tensors[tensor].spec.shape, &blocks = catalog_.tensors[tensor + 1].spec.shape;
  if (tensor != tensor_) {
    tensor_ = tensor;
    rows_done_ = 0;
    error_ = {};
    scales_.resize(blocks.Volume());
  }
  row_.reset();
  const uint64_t rows = std::min(kFp8Block, shape[0] - row * kFp8Block), columns = shape[1];
  const Dtype stored = source_->catalog().tensors[parts_[regions_->OfTensor(tensor).first].array].dtype;
  stored_.resize(rows * columns * SizeOf(stored));
  numbers_.resize(rows * columns);
  values_.resize(rows * columns);
  CAIRN_RETURN_IF_ERROR(ReadStored(tensor, {{row * kFp8Block, 0}, {rows, columns}}, stored_));
  Cast(stored, stored_, Dtype::kF32, std::as_writable_bytes(std::span(numbers_)), OnOverflow::kInfinity);
  for (uint64_t block = 0; block < blocks[1]; ++block) {
    const uint64_t first = block * kFp8Block;
    const auto scale = EncodeBlock(&numbers_[first], rows, std::min(kFp8Block, columns - first), columns,
                                   &values_[first], error_);
    if (!scale)
      return Corrupt("{}: {} has NaN or infinite values in rows {} to {}, which cannot be quantized", name(),
                     catalog_.tensors[tensor].spec.name, row * kFp8Block, row * kFp8Block + rows - 1);
    scales_[row * blocks[1] + block] = *scale;
  }
  row_ = row;
  if (row == rows_done_ && ++rows_done_ == blocks[0]) AddError(catalog_.tensors[tensor].spec.name);
  return OkStatus();
}

void QuantizedSource::AddError(const std::string& weight) {
  auto& [weights, total, worst, worst_name, source] = outcome_;
  total.squares += error_.squares;
  total.squares_of_difference += error_.squares_of_difference;
  total.of_largest = std::max(total.of_largest, error_.of_largest);
  if (!worst_name.empty() && error_.relative_norm() <= worst.relative_norm()) return;
  worst = error_;
  worst_name = weight;
}

// Whole rows of blocks, which their first box reads; scales come without reading.
void QuantizedSource::ReadAhead(BoxSequence next) {
  ReadAheadBy(std::move(next), [this](const TensorBox& wanted, std::deque<TensorBox>& boxes) {
    const auto add = [&](const Box& box) {
      for (const auto& [part, common] : regions_->parts().Meet(wanted.tensor, box))
        boxes.push_back({part.array, part.ToArray(common)});
    };
    if (kinds_[wanted.tensor] == Kind::kAsStored) add(wanted.box);
    if (kinds_[wanted.tensor] != Kind::kValues) return;
    const Dims &shape = catalog_.tensors[wanted.tensor].spec.shape, &from = wanted.box.offset;
    const bool begins = from[0] % kFp8Block == 0 && from[1] == 0;
    for (uint64_t row = begins ? from[0] : (from[0] / kFp8Block + 1) * kFp8Block;
         row < from[0] + wanted.box.extent[0]; row += kFp8Block)
      add({{row, 0}, {std::min(kFp8Block, shape[0] - row), shape[1]}});
  });
}

Quantization QuantizedSource::Outcome() const {
  std::vector<NamedFingerprint> tensors;
  for (const auto& [tensor, sum] : sums_) {
    const TensorEntry& entry = source_->catalog().tensors[tensor];
    tensors.push_back({DisplayName(entry), sum.Finish(entry)});
  }
  Quantization outcome = outcome_;
  outcome.source = Combine(std::move(tensors));
  return outcome;
}

}  // namespace cairn
