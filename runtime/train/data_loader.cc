// A source gives the tokens of sample i, and the sampler says which samples this rank takes; made-up and real
// data differ in the source alone. A read that fails does not throw: the batch is zeros and the first error
// is kept, because the other ranks expect this one in the collectives of the step.

#include "runtime/train/data_loader.h"

#include <torch/torch.h>

#include <algorithm>

#include "runtime/data/data_split.h"
#include "runtime/data/gpt_dataset.h"
#include "runtime/data/hash.h"
#include "runtime/train/mock_data.h"

namespace cairn {
namespace {

// In code that uses libtorch a failure is an exception; main turns it back into one line.
void CheckOk(const Status& status) { TORCH_CHECK(status.ok(), status.message()); }

Sampler MakeSampler(const TrainConfig& config, const ParallelDims& dims, uint64_t total_samples) {
  auto sampler = Sampler::Create({.total_samples = total_samples,
                                  .micro_batch_size = static_cast<uint64_t>(config.micro_batch_size),
                                  .dp_rank = static_cast<uint64_t>(dims.at.dp),
                                  .dp_size = static_cast<uint64_t>(dims.topology.dp)});
  CheckOk(sampler.status());
  return *sampler;
}

DataLoader::SampleFunction MockSource(const TrainConfig& config, const char* split) {
  const uint64_t seed = HashNumbers({static_cast<uint64_t>(config.seed), HashName(split)});
  return [seed, vocab = config.vocab_size](uint64_t i, std::span<int64_t> out) {
    MockSample(seed, i, vocab, out);
    return OkStatus();
  };
}

Result<std::unique_ptr<DataLoader>> OpenSplit(const TrainConfig& config, const ParallelDims& dims,
                                              at::Device device,
                                              const std::shared_ptr<const IndexedDataset>& indexed,
                                              SequenceRange range, int64_t samples,
                                              std::shared_ptr<const GptDataset>* set = nullptr) {
  CAIRN_ASSIGN_OR_RETURN(GptDataset dataset, GptDataset::Create(indexed, range, samples, config.seq_length,
                                                                static_cast<uint32_t>(config.seed)));
  const uint64_t size = dataset.size();
  auto shared = std::make_shared<const GptDataset>(std::move(dataset));
  if (set != nullptr) *set = shared;
  const auto source = [shared](uint64_t i, std::span<int64_t> out) { return shared->Sample(i, out); };
  return std::make_unique<DataLoader>(config, dims, device, source, size);
}

}  // namespace

DataLoader::DataLoader(const TrainConfig& config, const ParallelDims& dims, at::Device device,
                       SampleFunction source, uint64_t total_samples)
    : micro_batch_size_(config.micro_batch_size),
      seq_length_(config.seq_length),
      vocab_size_(config.vocab_size),
      device_(device),
      needs_data_(dims.at.pp == 0 || dims.at.pp == dims.topology.pp - 1),
      source_(std::move(source)),
      sampler_(MakeSampler(config, dims, total_samples)) {}

Status DataLoader::Read(int64_t consumed_samples, int64_t micro_batch, std::span<int64_t> out) const {
  CAIRN_ASSIGN_OR_RETURN(const auto range, sampler_.MicroBatch(consumed_samples, micro_batch));
  for (int64_t i = 0; i < micro_batch_size_; ++i)
    CAIRN_RETURN_IF_ERROR(source_(range.begin + i, out.subspan(i * (seq_length_ + 1), seq_length_ + 1)));
  const auto [least, most] = std::minmax_element(out.begin(), out.end());
  if (*least < 0 || *most >= vocab_size_)
    return Corrupt("samples from {}: token {} is outside --vocab-size {}", range.begin,
                   *least < 0 ? *least : *most, vocab_size_);
  return OkStatus();
}

MicroBatch DataLoader::Get(int64_t consumed_samples, int64_t micro_batch) {
  if (!needs_data_) return {};
  // Pinned for a GPU: the copy then waits for nothing that was launched before it.
  const at::Tensor samples = at::empty({micro_batch_size_, seq_length_ + 1},
                                       at::TensorOptions(at::kLong).pinned_memory(device_.is_cuda()));
  const std::span<int64_t> all(samples.mutable_data_ptr<int64_t>(), samples.numel());
  const Status read = Read(consumed_samples, micro_batch, all);
  if (!read.ok()) std::ranges::fill(all, 0);
  if (status_.ok()) status_ = read;
  const at::Tensor there = samples.to(device_, /*non_blocking=*/true);
  return {there.narrow(1, 0, seq_length_).contiguous(), there.narrow(1, 1, seq_length_).contiguous()};
}

Result<DataLoaders> OpenData(const TrainConfig& config, const ParallelDims& dims, at::Device device,
                             int64_t train_samples, int64_t validation_samples) {
  DataLoaders loaders;
  if (config.mock_data) {
    loaders.train =
        std::make_unique<DataLoader>(config, dims, device, MockSource(config, "train"), train_samples);
    if (validation_samples > 0)
      loaders.validation = std::make_unique<DataLoader>(config, dims, device,
                                                        MockSource(config, "validation"), validation_samples);
    return loaders;
  }
  if (config.data_path.size() != 1)
    return NotSupported("--data-path takes one prefix, {} were given; merge the datasets",
                        config.data_path.size());
  CAIRN_ASSIGN_OR_RETURN(IndexedDataset opened, IndexedDataset::Open(config.data_path[0]));
  const auto indexed = std::make_shared<const IndexedDataset>(std::move(opened));
  CAIRN_ASSIGN_OR_RETURN(const auto ranges, SplitSequences(config.split, indexed->sequence_count()));
  CAIRN_ASSIGN_OR_RETURN(loaders.train,
                         OpenSplit(config, dims, device, indexed, ranges[static_cast<int>(Split::kTrain)],
                                   train_samples, &loaders.train_set));
  if (validation_samples > 0) {
    CAIRN_ASSIGN_OR_RETURN(loaders.validation,
                           OpenSplit(config, dims, device, indexed, ranges[static_cast<int>(Split::kValid)],
                                     validation_samples));
  }
  return loaders;
}

}  // namespace cairn
