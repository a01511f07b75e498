// A source gives the tokens of sample i, and the sampler says which samples this rank takes; made-up and real
// data differ only in the source. A read that fails does not throw: the batch is zeros and the first error is
// kept, because the other ranks expect this one in the collectives of the step.

#include "runtime/train/data_loader.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "runtime/data/hash.h"
#include "runtime/model/gpt.h"
#include "runtime/train/mock_data.h"

namespace cairn {
namespace {

DataLoader::SampleFunction MockSource(const TrainConfig& config, const char* split) {
  const uint64_t seed = HashNumbers({static_cast<uint64_t>(config.seed), HashName(split)});
  return [seed, vocab = config.vocab_size](uint64_t i, std::span<int64_t> out) {
    MockSample(seed, i, vocab, out);
    return OkStatus();
  };
}

Result<DataRequest> RequestOf(const TrainConfig& config, const SampleCounts& counts) {
  FileSystem& fs = FileSystem::Posix();
  DataRequest request;
  request.data_path = config.data_path;
  request.split = config.split;
  CAIRN_ASSIGN_OR_RETURN(request.train_groups, SplitGroupsOf(fs, config.train_weighted_split_paths,
                                                             config.train_weighted_split_paths_path));
  CAIRN_ASSIGN_OR_RETURN(request.valid_groups, SplitGroupsOf(fs, config.valid_weighted_split_paths,
                                                             config.valid_weighted_split_paths_path));
  CAIRN_ASSIGN_OR_RETURN(request.test_groups, SplitGroupsOf(fs, config.test_weighted_split_paths,
                                                            config.test_weighted_split_paths_path));
  request.train_samples = static_cast<uint64_t>(counts.train);
  request.valid_samples = static_cast<uint64_t>(counts.validation);
  request.test_samples = static_cast<uint64_t>(counts.test);
  request.seq_length = static_cast<uint64_t>(config.seq_length);
  request.seed = static_cast<uint32_t>(config.seed);
  return request;
}

std::unique_ptr<DataLoader> LoaderOf(const TrainConfig& config, const ParallelDims& dims, at::Device device,
                                     const std::shared_ptr<const BlendedDataset>& set) {
  const auto source = [set](uint64_t i, std::span<int64_t> out) { return set->Sample(i, out); };
  return std::make_unique<DataLoader>(config, dims, device, source, set->size());
}

}  // namespace

DataLoader::DataLoader(const TrainConfig& config, const ParallelDims& dims, at::Device device,
                       SampleFunction source, uint64_t total_samples)
    : config_(config),
      device_(device),
      needs_data_(dims.at(Axis::kPp) == 0 || dims.at(Axis::kPp) == dims.topology.pp - 1 ||
                  config.resets_by_document()),
      source_(std::move(source)),
      sampler_{.total_samples = total_samples,
               .micro_batch_size = static_cast<uint64_t>(config.micro_batch_size),
               .dp_rank = static_cast<uint64_t>(dims.at(Axis::kDp)),
               .dp_size = static_cast<uint64_t>(dims.topology.dp)} {}

Status DataLoader::Read(int64_t consumed_samples, int64_t micro_batch, std::span<int64_t> out) const {
  CAIRN_ASSIGN_OR_RETURN(const auto range, sampler_.MicroBatch(consumed_samples, micro_batch));
  for (int64_t i = 0; i < config_.micro_batch_size; ++i)
    CAIRN_RETURN_IF_ERROR(
        source_(range.begin + i, out.subspan(i * (config_.seq_length + 1), config_.seq_length + 1)));
  const auto [least, most] = std::minmax_element(out.begin(), out.end());
  if (*least < 0 || *most >= config_.vocab_size)
    return Corrupt("samples from {}: token {} is outside --vocab-size {}", range.begin,
                   *least < 0 ? *least : *most, config_.vocab_size);
  return OkStatus();
}

MicroBatch DataLoader::Get(int64_t consumed_samples, int64_t micro_batch) {
  if (!needs_data_) return {};
  // Pinned memory lets the copy to the GPU run without waiting for earlier work.
  const at::Tensor samples = at::empty({config_.micro_batch_size, config_.seq_length + 1},
                                       at::TensorOptions(at::kLong).pinned_memory(device_.is_cuda()));
  const std::span<int64_t> all(samples.mutable_data_ptr<int64_t>(), samples.numel());
  const Status read = Read(consumed_samples, micro_batch, all);
  if (!read.ok()) std::ranges::fill(all, 0);
  if (status_.ok()) status_ = read;
  const at::Tensor there = samples.to(device_, /*non_blocking=*/true);
  MicroBatch batch{there.narrow(1, 0, config_.seq_length).contiguous(),
                   there.narrow(1, 1, config_.seq_length).contiguous(),
                   {}};
  if (config_.eod_mask_loss) batch.labels = batch.labels.masked_fill(batch.tokens.eq(config_.eod), kNoLabel);
  if (config_.resets_by_document()) batch.documents = DocumentsOf(batch.tokens);
  return batch;
}

Documents DataLoader::DocumentsOf(const at::Tensor& tokens) const {
  const at::Tensor begins = DocumentBegins(tokens, config_.eod);
  Documents documents;
  if (config_.reset_position_ids)
    documents.positions = at::arange(config_.seq_length, begins.options()) - begins;
  if (config_.reset_attention_mask) documents.first_keys = begins;
  return documents;
}

Status DataLoaders::status() const {
  if (train && !train->status().ok()) return train->status();
  for (const auto* sets : {&validation, &test})
    for (const NamedLoader& set : *sets)
      if (!set.loader->status().ok()) return set.loader->status();
  return OkStatus();
}

Result<DataLoaders> OpenData(const TrainConfig& config, const ParallelDims& dims, at::Device device,
                             const SampleCounts& counts) {
  DataLoaders loaders;
  if (config.mock_data) {
    const auto mock = [&](const char* split, int64_t samples) {
      return std::make_unique<DataLoader>(config, dims, device, MockSource(config, split), samples);
    };
    if (counts.train > 0) loaders.train = mock("train", counts.train);
    loaders.train_data = {"made-up data"};
    if (counts.validation > 0) loaders.validation.push_back({"", mock("validation", counts.validation)});
    return loaders;
  }
  CAIRN_ASSIGN_OR_RETURN(const DataRequest request, RequestOf(config, counts));
  CAIRN_ASSIGN_OR_RETURN(const DataSets sets, OpenDataSets(request));
  if (sets.train) {
    loaders.train = LoaderOf(config, dims, device, sets.train);
    loaders.train_set = sets.train;
    loaders.train_data = sets.train->description();
    loaders.epoch_samples = sets.train->samples_per_epoch();
  }
  for (const NamedDataset& set : sets.valid)
    loaders.validation.push_back({set.name, LoaderOf(config, dims, device, set.samples)});
  for (const NamedDataset& set : sets.test)
    loaders.test.push_back({set.name, LoaderOf(config, dims, device, set.samples)});
  return loaders;
}

}  // namespace cairn
