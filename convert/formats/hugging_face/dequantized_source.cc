// A box of a weight is read as the box of its values and the box of the scales that this one meets; then row
// by row: each value becomes an fp32 number by a table, is multiplied with its scale, and rounded. All of
// that is in the order of the file; [in, out] is transposed at the end.

#include "convert/formats/hugging_face/dequantized_source.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "ckpt/codec/cast.h"
#include "convert/foreign/stored_source.h"
#include "convert/foreign/transpose.h"
#include "convert/formats/hugging_face/config_model.h"
#include "convert/stream/decode_values.h"

namespace cairn {
namespace {

using Form = BlockScaled::Form;

// Twice the numbers, for half the scales: 0.5 times the largest scale, 2^128, is a float, and that scale is
// not.
constexpr std::array<float, 16> kFp4Twice = {0.0f,  1.0f,  2.0f,  3.0f,  4.0f,  6.0f,  8.0f,  12.0f,
                                             -0.0f, -1.0f, -2.0f, -3.0f, -4.0f, -6.0f, -8.0f, -12.0f};

// The number that each byte stands for.
using Numbers = std::array<float, 256>;

template <typename Number>
Numbers NumbersOf(Number number) {
  Numbers numbers;
  for (uint32_t bits = 0; bits < numbers.size(); ++bits) numbers[bits] = static_cast<float>(number(bits));
  return numbers;
}

const Numbers& Fp8Numbers() {
  static const Numbers kNumbers =
      NumbersOf([](uint32_t bits) { return DecodeSmallFloat(bits, 4, 3, /*has_infinity=*/false); });
  return kNumbers;
}

const Numbers& HalfPowersOfTwo() {
  static const Numbers kNumbers =
      NumbersOf([](uint32_t bits) { return std::ldexp(0.5f, static_cast<int>(bits) - 127); });
  return kNumbers;
}

// The blocks of `size` indices that a box meets in dimension `dim`, in place of these indices.
void ToBlocks(int dim, uint64_t size, Box& box) {
  const uint64_t end = box.offset[dim] + box.extent[dim];
  box.offset[dim] /= size;
  box.extent[dim] = BlocksIn(end, size) - box.offset[dim];
}

class DequantizedSource final : public SourceOverAnother {
 public:
  DequantizedSource(std::unique_ptr<ForeignSource> source, const std::vector<BlockScaled>& scaled, Dtype type)
      : SourceOverAnother(std::move(source)), type_(type) {
    if (manifest_.model.rest.contains("config")) manifest_.model.rest["config"].erase(kQuantization);
    const TensorTable& stored = source_->catalog();
    catalog_.files = stored.files;
    std::map<uint32_t, const BlockScaled*> of;
    std::set<uint32_t> scales;
    for (const BlockScaled& one : scaled) {
      of.emplace(one.values, &one);
      if (one.scales) scales.insert(*one.scales);
    }
    for (uint32_t i = 0; i < stored.tensors.size(); ++i) {
      if (scales.contains(i)) continue;
      const auto found = of.find(i);
      TensorEntry entry = stored.tensors[i];
      if (found != of.end()) {
        entry.spec.name = found->second->name;
        entry.spec.shape = found->second->shape;
        if (found->second->scales) entry.dtype = type_;
      }
      const Box whole = Box::Whole(entry.spec.shape);
      parts_.push_back({{whole, whole}, static_cast<uint32_t>(catalog_.tensors.size()), i});
      forms_.push_back(found == of.end() ? std::nullopt : std::optional(*found->second));
      catalog_.tensors.push_back(std::move(entry));
    }
    regions_.emplace(parts_, *source_);
  }

  const TensorTable& catalog() const override { return catalog_; }
  const Regions& regions() const override { return *regions_; }

  uint64_t StoredBytes(uint32_t tensor) const override {
    const auto bytes = [this](uint32_t stored) { return source_->catalog().tensors[stored].bytes(); };
    const bool scaled = forms_[tensor] && forms_[tensor]->scales;
    return bytes(parts_[tensor].array) + (scaled ? bytes(*forms_[tensor]->scales) : 0);
  }

  Status ReadBox(uint32_t tensor, const Box& box, std::span<std::byte> out) override {
    const std::optional<BlockScaled>& form = forms_[tensor];
    if (!form) return source_->ReadBox(parts_[tensor].array, box, out);
    if (out.empty()) return OkStatus();
    if (form->form == Form::kFp8) return ReadScaled(*form, box, out);
    const Box stored{LastTwoSwapped(box.offset), LastTwoSwapped(box.extent)};
    ordered_.resize(out.size());
    CAIRN_RETURN_IF_ERROR(form->form == Form::kMxfp4 ? ReadScaled(*form, stored, ordered_)
                                                     : source_->ReadBox(form->values, stored, ordered_));
    const uint64_t size = SizeOf(catalog_.tensors[tensor].dtype);
    transposer_.MapRuns(
        {stored, box, kLastTwoSwapped}, stored, stored, ordered_, box,
        [&](uint64_t to, std::span<const std::byte> run) { std::ranges::copy(run, &out[to * size]); });
    return OkStatus();
  }

  // Scales are read when they are needed, and boxes that are transposed are not contiguous in the file.
  void ReadAhead(BoxSequence next) override {
    if (!next) return source_->ReadAhead({});
    source_->ReadAhead([this, next = std::move(next)]() -> std::optional<TensorBox> {
      while (std::optional<TensorBox> wanted = next()) {
        const std::optional<BlockScaled>& form = forms_[wanted->tensor];
        if (form && form->form != Form::kFp8) continue;
        return TensorBox{parts_[wanted->tensor].array, wanted->box};
      }
      return std::nullopt;
    });
  }

 private:
  Status Read(uint32_t tensor, const Box& box, std::vector<std::byte>& bytes) {
    bytes.resize(box.Volume() * SizeOf(source_->catalog().tensors[tensor].dtype));
    return source_->ReadBox(tensor, box, bytes);
  }

  // `blocks`: a box of scales.
  Status ReadScales(const BlockScaled& form, const Box& blocks) {
    CAIRN_RETURN_IF_ERROR(Read(*form.scales, blocks, bytes_));
    scales_.resize(blocks.Volume());
    if (form.form == Form::kMxfp4) {
      for (size_t i = 0; i < scales_.size(); ++i)
        scales_[i] = HalfPowersOfTwo()[std::to_integer<uint8_t>(bytes_[i])];
    } else {
      Cast(source_->catalog().tensors[*form.scales].dtype, bytes_, Dtype::kF32,
           std::as_writable_bytes(std::span(scales_)), OnOverflow::kInfinity);
    }
    return OkStatus();
  }

  // `box`: of the values [..., out, in], each of which is an element.
  Status ReadScaled(const BlockScaled& form, const Box& box, std::span<std::byte> out) {
    const int columns = box.rank() - 1, rows = columns - 1;
    Box blocks = box;
    ToBlocks(rows, form.block_rows, blocks);
    ToBlocks(columns, form.block_columns, blocks);
    CAIRN_RETURN_IF_ERROR(ReadScales(form, blocks));
    Box stored = box;
    uint64_t skipped = 0;  // values at the begin of each row
    if (form.form == Form::kMxfp4) {
      stored = blocks;
      stored.offset.push_back(0);
      stored.extent.push_back(kMxBlock / 2);
      skipped = box.offset[columns] - blocks.offset[columns] * kMxBlock;
    }
    CAIRN_RETURN_IF_ERROR(Read(form.values, stored, bytes_));
    const uint64_t matrices = box.Volume() / (box.extent[rows] * box.extent[columns]);
    const uint64_t stride = bytes_.size() / (matrices * box.extent[rows]), size = SizeOf(type_);
    row_.resize(box.extent[columns]);
    uint64_t row = 0;
    for (uint64_t matrix = 0; matrix < matrices; ++matrix)
      for (uint64_t r = 0; r < box.extent[rows]; ++r, ++row) {
        const uint64_t in_blocks = (box.offset[rows] + r) / form.block_rows - blocks.offset[rows];
        const float* scales =
            scales_.data() + (matrix * blocks.extent[rows] + in_blocks) * blocks.extent[columns];
        DecodeRow(form, bytes_.data() + row * stride, skipped, box.offset[columns], scales);
        Cast(Dtype::kF32, std::as_bytes(std::span(row_)), type_,
             out.subspan(row * row_.size() * size, row_.size() * size), OnOverflow::kInfinity);
      }
    return OkStatus();
  }

  // Fills row_, which begins at column `first`.
  void DecodeRow(const BlockScaled& form, const std::byte* values, uint64_t skipped, uint64_t first,
                 const float* scales) {
    const Numbers& fp8 = Fp8Numbers();
    for (uint64_t c = 0; c < row_.size(); ++scales) {
      const uint64_t end = std::min<uint64_t>(
          row_.size(), ((first + c) / form.block_columns + 1) * form.block_columns - first);
      if (form.form == Form::kFp8)
        for (; c < end; ++c) row_[c] = fp8[std::to_integer<uint8_t>(values[c])] * *scales;
      else
        for (; c < end; ++c) {
          const uint64_t at = skipped + c;
          row_[c] = kFp4Twice[std::to_integer<uint8_t>(values[at / 2]) >> at % 2 * 4 & 15] * *scales;
        }
    }
  }

  const Dtype type_;
  TensorTable catalog_;
  std::vector<ArrayPart> parts_;                   // of each tensor; array: a tensor of the source
  std::vector<std::optional<BlockScaled>> forms_;  // of each tensor
  std::optional<PartRegions> regions_;
  std::vector<std::byte> bytes_, ordered_;
  std::vector<float> scales_, row_;
  BoxTransposer transposer_;
};

}  // namespace

std::unique_ptr<ForeignSource> Dequantized(std::unique_ptr<ForeignSource> source,
                                           const std::vector<BlockScaled>& scaled, Dtype type) {
  return std::make_unique<DequantizedSource>(std::move(source), scaled, type);
}

}  // namespace cairn
