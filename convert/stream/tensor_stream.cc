// Run() turns the list of written tensors into one of source tensors: each is read once, however many are
// written from it. The reading thread sums the source; the caller's thread casts, sums what is written, and
// hands the block to the target. A tensor that is written as it is read needs one sum only: a second one of
// the same bytes would take as long as reading.

#include "convert/stream/tensor_stream.h"

#include <algorithm>
#include <cassert>
#include <mutex>
#include <numeric>
#include <set>

namespace cairn {

std::function<void(uint64_t)> Accumulated(std::function<void(uint64_t)> progress) {
  if (!progress) return {};
  struct Sum {
    std::mutex mutex;
    uint64_t bytes = 0;
  };
  return [progress = std::move(progress), done = std::make_shared<Sum>()](uint64_t bytes) {
    const std::lock_guard lock(done->mutex);
    progress(done->bytes += bytes);
  };
}

std::set<uint32_t> SourcesOf(std::span<const WrittenTensor> tensors, const MasterSums* masters) {
  std::set<uint32_t> sources;
  for (const WrittenTensor& tensor : tensors) {
    sources.insert(tensor.source);
    if (const auto other = masters ? masters->OtherOf(tensor.source) : std::nullopt) sources.insert(*other);
  }
  return sources;
}

TensorStream::TensorStream(CheckpointSource& source, const std::vector<WrittenTensor>& tensors,
                           uint64_t block_bytes, const CastOptions& options, bool compare_masters,
                           std::function<void(uint64_t)> advance,
                           const std::map<uint32_t, std::vector<uint32_t>>& by_turns)
    : source_(source),
      tensors_(tensors),
      block_bytes_(block_bytes),
      options_(options),
      advance_(std::move(advance)),
      counts_(tensors_.size()) {
  if (compare_masters) masters_.emplace(source_.catalog());
  for (const WrittenTensor& tensor : tensors_) {
    sums_.emplace_back(tensor.entry);
    source_sums_.try_emplace(tensor.source, TensorFingerprint(source_.catalog().tensors[tensor.source]));
  }
  for (const auto& [number, set] : by_turns)
    for (const uint32_t tensor : set)
      first_of_.try_emplace(tensors_[tensor].source, FirstOf(tensors_[set[0]].source));
}

Status TensorStream::RunAll(BlockTarget& target) {
  std::vector<uint32_t> all(tensors_.size());
  std::iota(all.begin(), all.end(), 0);
  return Run(all, target);
}

Status TensorStream::Run(std::span<const uint32_t> tensors, BlockTarget& target) {
  std::map<uint32_t, std::vector<uint32_t>> written;  // from each tensor of the source
  for (const uint32_t tensor : tensors) {
    const uint32_t from = tensors_[tensor].source;
    written[from].push_back(tensor);
    const auto other = masters_ ? masters_->OtherOf(from) : std::nullopt;
    if (other && !compared_.contains(*other)) written[*other];
  }
  std::map<uint32_t, std::vector<uint32_t>> sets;  // of those that come in turns, by the first
  for (const auto& [tensor, from_it] : written) sets[FirstOf(tensor)].push_back(tensor);
  std::vector<std::vector<uint32_t>> order;
  for (auto& [first, set] : sets) order.push_back(std::move(set));
  std::optional<uint32_t> current;
  CAIRN_RETURN_IF_ERROR(StreamPart(
      source_, BlocksOf(source_.catalog(), std::move(order), block_bytes_),
      [&](const Block& block) -> Status {
        if (current && *current != FirstOf(block.tensor)) CAIRN_RETURN_IF_ERROR(target.EndTensors());
        current = FirstOf(block.tensor);
        if (masters_ && !compared_.contains(block.tensor) && !IsSummedWeight(block.tensor))
          masters_->Add(block);
        return WriteBlock(block, written.at(block.tensor), target);
      },
      [this](const Block& block) {
        const auto sum = source_sums_.find(block.tensor);
        if (sum != source_sums_.end() && !sum->second.complete) sum->second.sum.Add(block.begin, block.bytes);
      }));
  for (const auto& [tensor, from_it] : written) {
    if (const auto sum = source_sums_.find(tensor); sum != source_sums_.end()) sum->second.complete = true;
    if (masters_ && IsSummedWeight(tensor)) masters_->SetSum(tensor, source_sums_.at(tensor).sum);
    compared_.insert(tensor);
  }
  return target.EndTensors();
}

Status TensorStream::WriteBlock(const Block& block, std::span<const uint32_t> tensors, BlockTarget& target) {
  for (const uint32_t tensor : tensors) {
    Block out{tensor, block.box, block.begin, block.bytes};
    CAIRN_RETURN_IF_ERROR(CastBlock(tensor, block, out));
    if (!IsSourceItself(tensor)) sums_[tensor].Add(out.begin, out.bytes);
    CAIRN_RETURN_IF_ERROR(target.Write(out));
  }
  if (advance_) advance_(block.bytes.size());
  return OkStatus();
}

Status TensorStream::CastBlock(uint32_t tensor, const Block& block, Block& out) {
  const TensorEntry& entry = tensors_[tensor].entry;
  const Dtype from = source_.catalog().tensors[block.tensor].dtype;
  if (entry.dtype == from) {
    counts_[tensor].elements += block.box.Volume();
    return OkStatus();
  }
  const uint64_t bytes = block.box.Volume() * SizeOf(entry.dtype);
  if (cast_.size() < bytes) cast_.resize(bytes);
  out.bytes = std::span(cast_).first(bytes);
  counts_[tensor] +=
      Cast(from, block.bytes, entry.dtype, std::span(cast_).first(bytes), options_.on_overflow);
  if (options_.refuse_overflow && counts_[tensor].overflowed > 0)
    return InvalidArgument("tensor {} has values beyond the range of {}; choose --dtype bf16",
                           DisplayName(entry), Name(entry.dtype));
  return OkStatus();
}

bool TensorStream::overflowed() const {
  return options_.on_overflow == OnOverflow::kInfinity &&
         std::ranges::any_of(counts_, [](const CastCounts& counts) { return counts.overflowed > 0; });
}

std::vector<TransferredTensor> TensorStream::Counts(size_t tensors) const {
  std::vector<TransferredTensor> counts;
  for (size_t i = 0; i < tensors; ++i) {
    const TensorEntry& from = source_.catalog().tensors[tensors_[i].source];
    counts.push_back({from.spec.name, from.role, from.dtype, tensors_[i].entry.dtype, counts_[i]});
  }
  return counts;
}

std::vector<std::string> TensorStream::UnlikeMasters() const {
  return masters_ ? masters_->Differing() : std::vector<std::string>();
}

// Sums depend on names and roles.
bool TensorStream::IsSourceItself(uint32_t tensor) const {
  const TensorEntry& entry = tensors_[tensor].entry;
  const TensorEntry& source = source_.catalog().tensors[tensors_[tensor].source];
  return entry.dtype == source.dtype && entry.role == source.role && entry.spec.name == source.spec.name;
}

const TensorFingerprint& TensorStream::SumOf(uint32_t tensor) const {
  return IsSourceItself(tensor) ? source_sums_.at(tensors_[tensor].source).sum : sums_[tensor];
}

void TensorStream::SetSum(uint32_t tensor, const TensorFingerprint& sum) {
  assert(IsSourceItself(tensor));
  source_sums_.at(tensors_[tensor].source).sum = sum;
}

Fingerprints TensorStream::SourceFingerprints() const {
  std::vector<NamedFingerprint> tensors;
  for (const auto& [tensor, sum] : source_sums_) {
    const TensorEntry& entry = source_.catalog().tensors[tensor];
    if (entry.role != Role::kRng) tensors.push_back({DisplayName(entry), sum.sum.Finish(entry)});
  }
  return Combine(std::move(tensors));
}

Status TensorStream::Compare(const std::string& path, const TensorTable& found,
                             const StepFingerprint& sums) const {
  const auto unequal = [&](const std::string& what) {
    return Corrupt("{}: what was read back is not what was written ({}); check the disk and try again", path,
                   what);
  };
  const TensorLookup lookup(found);
  size_t expected = 0;
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].read_back) continue;
    ++expected;
    const TensorEntry& entry = tensors_[i].entry;
    const Result<uint32_t> tensor = lookup.Find(entry.spec.name, entry.role);
    if (!tensor.ok()) return unequal(DisplayName(entry) + " is missing");
    const TensorEntry& other = found.tensors[*tensor];
    if (other.dtype != entry.dtype || !(other.spec.shape == entry.spec.shape) ||
        !(sums.of(*tensor) == SumOf(i)))
      return unequal("tensor " + DisplayName(entry));
  }
  if (expected != found.tensors.size())
    return unequal(fmt::format("{} tensors instead of {}", found.tensors.size(), expected));
  return OkStatus();
}

}  // namespace cairn
