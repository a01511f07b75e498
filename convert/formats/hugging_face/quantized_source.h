// A source with the tensors of a release, in which the weights of linear layers are FP8 with a scale for each
// block (block_scaled.h): the inverse of dequantized_source.h.
//
// The largest magnitude of a block becomes 448, the largest number of FP8: scale = magnitude / 448 in fp32,
// or 1 if the block is zero; value = number / scale, rounded to nearest, ties to even. Numbers are those of
// the source, before any cast.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "ckpt/families/foreign_model.h"
#include "convert/foreign/foreign_source.h"
#include "convert/foreign/stored_source.h"
#include "convert/stream/fingerprint.h"
#include "convert/stream/quantization.h"
#include "convert/stream/tensor_stream.h"

namespace cairn {

class QuantizedSource final : public SourceOverAnother {
 public:
  // The source, and what is written of it.
  struct Release {
    std::shared_ptr<QuantizedSource> source;
    ForeignModel model;
    std::vector<WrittenTensor> weights;
  };
  // `weights` are to be written as `model`, which has passed CheckAgainst(), and become the tensors of the
  // new source; those that are quantized, and their scales, come last. The release's model has their names,
  // and its config.json says what they are. `kept`: tensors of the source that are not quantized. The source
  // must outlive the result. Errors: NotSupported naming a family, or a tensor, that has no such form;
  // InvalidArgument if nothing is to be quantized, or all is already.
  static Result<Release> Of(CheckpointSource& source, const std::set<uint32_t>& kept, ForeignModel model,
                            const std::vector<WrittenTensor>& weights);

  const TensorTable& catalog() const override { return catalog_; }
  const Regions& regions() const override { return *regions_; }
  // Boxes as StreamBlocks() reads them. Errors: Corrupt naming a weight that is not finite.
  Status ReadBox(uint32_t tensor, const Box& box, std::span<std::byte> out) override;
  void ReadAhead(BoxSequence next) override;

  // Once its tensors were read.
  Quantization Outcome() const;
  size_t quantized() const { return outcome_.weights; }

 private:
  enum class Kind { kAsStored, kValues, kScales };  // the scales of a weight follow its values

  explicit QuantizedSource(CheckpointSource& source)
      : SourceOverAnother(std::shared_ptr<CheckpointSource>(&source, [](CheckpointSource*) {})) {}
  Status AddTensor(const ForeignTensor& tensor,
                   const std::unordered_map<std::string_view, const WrittenTensor*>& weight_of,
                   const std::set<uint32_t>& kept);
  Status ReadStored(uint32_t tensor, const Box& box, std::span<std::byte> out);
  Status QuantizeTo(uint32_t tensor, uint64_t row);
  Status QuantizeRow(uint32_t tensor, uint64_t row);
  void AddError(const std::string& weight);

  TensorTable catalog_;
  std::vector<ArrayPart> parts_;  // of each tensor; array: a tensor of the source
  std::vector<Kind> kinds_;       // of each tensor
  std::optional<PartRegions> regions_;
  std::map<uint32_t, TensorFingerprint> sums_;  // of the source's tensors, as far as they were read
  Quantization outcome_;

  // The row of blocks that was quantized last, and the scales of its weight so far.
  std::optional<uint32_t> tensor_;
  std::optional<uint64_t> row_;
  uint64_t rows_done_ = 0;  // in order
  std::vector<std::byte> stored_, values_;
  std::vector<float> numbers_, scales_;
  QuantizationError error_;  // of the weight
};

}  // namespace cairn
