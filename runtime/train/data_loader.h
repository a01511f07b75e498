// Micro-batches for this rank: from an indexed dataset, or from a synthetic sequence (--mock-data).
//
// Sample i of a split is the same tokens on every topology; which rank takes it is Sampler's arithmetic.
// Tensor parallel ranks read the same samples, each for itself; of a pipeline only the first and the last
// stage do, or all if attention or positions restart with each document.
#pragma once

#include <ATen/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/parallel_dims.h"
#include "runtime/config/train_config.h"
#include "runtime/data/data_sets.h"
#include "runtime/data/sampler.h"
#include "runtime/model/layers/documents.h"

namespace cairn {

struct MicroBatch {
  at::Tensor tokens;    // int64 [b, s]
  at::Tensor labels;    // int64 [b, s]: the tokens that follow; kNoLabel (gpt.h) if they are not counted
  Documents documents;  // what the model needs of them
};

class DataLoader {
 public:
  // Copies the s + 1 tokens of sample i.
  using SampleFunction = std::function<Status(uint64_t i, std::span<int64_t> out)>;

  // `source` has `total_samples` samples; micro-batches are put on `device`.
  DataLoader(const TrainConfig& config, const ParallelDims& dims, at::Device device, SampleFunction source,
             uint64_t total_samples);

  // Micro-batch number `micro_batch` of the step that begins after `consumed_samples`. On a stage that needs
  // no data: undefined tensors. If the data cannot be read: tokens of 0, and status() then says why, because
  // ranks that compute together must all reach the end of the step.
  MicroBatch Get(int64_t consumed_samples, int64_t micro_batch);

  // The first failure so far: of the data's files, their end, a token outside the vocabulary.
  const Status& status() const { return status_; }

 private:
  Status Read(int64_t consumed_samples, int64_t micro_batch, std::span<int64_t> out) const;
  Documents DocumentsOf(const at::Tensor& tokens) const;

  const TrainConfig config_;
  at::Device device_;
  bool needs_data_;
  SampleFunction source_;
  const Sampler sampler_;
  Status status_;
};

struct NamedLoader {
  std::string name;  // of its weighted split; empty: that of --split
  std::unique_ptr<DataLoader> loader;
};

// The loaders of a training: none if nothing is trained, or evaluated.
struct DataLoaders {
  std::unique_ptr<DataLoader> train;
  std::vector<NamedLoader> validation;
  std::vector<NamedLoader> test;
  std::shared_ptr<const BlendedDataset> train_set;  // null: made up data, whose order depends on nothing
  std::vector<std::string> train_data;              // what it consists of (BlendedDataset::description)
  double epoch_samples = 0;                         // of one pass over the training data; 0: not known

  // The first failure of any.
  Status status() const;
};

// How many samples each kind of data gives in all. The order of an indexed dataset depends on its number. 0:
// no loader.
struct SampleCounts {
  int64_t train = 0, validation = 0, test = 0;
};

// Errors: those of the dataset.
Result<DataLoaders> OpenData(const TrainConfig& config, const ParallelDims& dims, at::Device device,
                             const SampleCounts& counts);

}  // namespace cairn
