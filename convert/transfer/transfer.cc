// Cost() compares the source's regions with the target's: this finds missing elements before anything is
// written, and counts the copies. Run() leaves the rest to the writer of the target's kind.

#include "convert/transfer/transfer.h"

#include <algorithm>

#include "ckpt/base/sha256_sums.h"
#include "convert/transfer/memory_estimate.h"
#include "convert/transfer/stage_writer.h"
#include "convert/transfer/step_size.h"
#include "convert/transfer/writers.h"

namespace cairn {
namespace {

constexpr uint64_t kMinTransposedBytes = 64 << 10, kMaxTransposedBytes = 64 << 20;

// Rows of a block become runs of a transposed array: larger blocks make longer runs.
uint64_t BlockBytesOf(const Transfer& transfer) {
  const uint64_t max_memory = transfer.writer.max_memory;
  const auto* files = std::get_if<FilesTarget>(&transfer.target);
  if (files && std::ranges::any_of(files->files.parts, &ArrayPart::reorders))
    return std::clamp(max_memory / 16, kMinTransposedBytes, kMaxTransposedBytes);
  return BlockBytesFor(max_memory);
}

// A block in its new type needs memory beside the blocks that are read.
uint64_t MemoryOfCasts(const Transfer& transfer) {
  uint64_t memory = 0;
  for (const WrittenTensor& tensor : transfer.tensors()) {
    const TensorEntry& from = transfer.source.catalog().tensors[tensor.source];
    if (from.dtype == tensor.entry.dtype) continue;
    const uint64_t block = std::min(BlockBytesOf(transfer), from.bytes());
    memory = std::max(memory, block / SizeOf(from.dtype) * SizeOf(tensor.entry.dtype));
  }
  return memory;
}

// What both kinds of targets read, and the memory for it.
TransferCost CostOfReading(const Transfer& transfer) {
  std::optional<MasterSums> masters;
  if (transfer.compare_masters) masters.emplace(transfer.source.catalog());
  const std::set<uint32_t> read = SourcesOf(transfer.tensors(), masters ? &*masters : nullptr);
  const std::vector<uint32_t> sources(read.begin(), read.end());
  const uint64_t max_memory = transfer.writer.max_memory;
  TransferCost cost;
  uint64_t largest = 0;
  for (const uint32_t tensor : sources) {
    const uint64_t bytes = transfer.source.catalog().tensors[tensor].bytes();
    cost.read_bytes += bytes;
    largest = std::max(largest, bytes);
  }
  if (masters && masters->pairs() > 0) cost.peak_memory = std::min(BlockBytesOf(transfer), largest) / 2;
  cost.peak_memory += kProgramMemory + MemoryOfCasts(transfer) +
                      MemoryOfReading(transfer.source, sources, BlockBytesOf(transfer), max_memory);
  return cost;
}

Result<TransferCost> CostOf(const Transfer& transfer, const StepTarget& target) {
  TransferCost cost = CostOfReading(transfer);
  CAIRN_ASSIGN_OR_RETURN(cost.plan, SizeOfCopies(transfer.source, target.plan, target.tensors));
  const StepSize size = EstimateStepSize(target.plan);
  cost.file_bytes = size.file_bytes;
  cost.files = size.files + transfer.writer.beside.size();
  cost.moved_bytes = cost.read_bytes + (target.read_back ? size.data_bytes : 0);
  const Topology& topology = target.plan.topology();
  const uint64_t max_memory = transfer.writer.max_memory;
  const WriteRingOptions ring = RingFor(max_memory, transfer.writer.jobs, topology);
  cost.peak_memory += MemoryOfNativeWriter(topology, max_memory) +
                      MemoryOfWriting(target.tensors, ring.buffer_bytes,
                                      static_cast<uint64_t>(OpenPieces(topology) + ring.in_flight),
                                      static_cast<uint64_t>(topology.stage_size())) +
                      (target.read_back ? std::min(ProofMemory(max_memory), size.data_bytes / 8) : 0);
  return cost;
}

Result<TransferCost> CostOf(const Transfer& transfer, const FilesTarget& target) {
  const CheckpointSource& source = transfer.source;
  TransferCost cost = CostOfReading(transfer);
  const RegionList wanted = target.files.Wanted();
  CAIRN_ASSIGN_OR_RETURN(const CopyProgram program, PlanCopies(source.catalog(), source.regions(), wanted));
  cost.plan = SizeOf(program, source.catalog(), source.regions(), wanted);
  cost.file_bytes = target.files.bytes();
  cost.moved_bytes = cost.read_bytes + cost.file_bytes;
  cost.files = target.files.files.size();
  if (target.sha256sums) {
    ++cost.files;
    for (const TargetFile& file : target.files.files)
      cost.file_bytes += Sha256Line(std::string(64, '0'), file.name).size();
  }
  const WriteRingOptions ring = RingOfFiles(transfer.writer);
  cost.peak_memory +=
      MemoryOfWriting(target.files.tensors, ring.buffer_bytes, static_cast<uint64_t>(2 + ring.in_flight), 1);
  return cost;
}

// A source that is about to be streamed in a window of memory. Drops its cache at the end.
class CachedSource {
 public:
  CachedSource(CheckpointSource& source, uint64_t max_memory) : source_(source) {
    source_.SetCacheBytes(ReaderCacheFor(max_memory));
  }
  ~CachedSource() { source_.SetCacheBytes(0); }
  CachedSource(const CachedSource&) = delete;
  CachedSource& operator=(const CachedSource&) = delete;

 private:
  CheckpointSource& source_;
};

class NullTarget final : public BlockTarget {
 public:
  Status Write(const Block&) override { return OkStatus(); }
};

}  // namespace

TensorStream StreamOf(const Transfer& transfer, const std::function<void(uint64_t)>& advance) {
  const auto* files = std::get_if<FilesTarget>(&transfer.target);
  return {transfer.source,
          transfer.tensors(),
          BlockBytesOf(transfer),
          transfer.cast,
          transfer.compare_masters,
          advance,
          files ? files->files.by_turns : std::map<uint32_t, std::vector<uint32_t>>()};
}

TransferResult OutcomeOf(const Transfer& transfer, const TensorStream& stream) {
  TransferResult result{.overflowed = stream.overflowed(),
                        .unlike_masters = stream.UnlikeMasters(),
                        .tensors = stream.Counts(transfer.reported),
                        .notes = transfer.notes,
                        .left_behind = transfer.left_behind,
                        .fingerprints = stream.SourceFingerprints(),
                        .bytes_read = transfer.source.bytes_read()};
  if (transfer.quantization) {
    result.quantization = transfer.quantization();
    result.fingerprints = result.quantization.source;
  }
  return result;
}

const std::vector<WrittenTensor>& Transfer::tensors() const {
  if (const auto* step = std::get_if<StepTarget>(&target)) return step->tensors;
  return std::get<FilesTarget>(target).files.tensors;
}

Result<TransferCost> Transfer::Cost() const {
  return std::visit([this](const auto& kind) { return CostOf(*this, kind); }, target);
}

Result<TransferResult> Transfer::Run(FileSystem& fs, std::string path) const {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const CachedSource cached(source, writer.max_memory);
  if (const auto* step = std::get_if<StepTarget>(&target)) return WriteStep(fs, *this, *step, path);
  return WriteFiles(fs, *this, std::get<FilesTarget>(target), path);
}

Result<TransferResult> Transfer::CountOnly() const {
  const CachedSource cached(source, writer.max_memory);
  TensorStream stream = StreamOf(*this, Accumulated(progress));
  NullTarget nothing;
  CAIRN_RETURN_IF_ERROR(stream.RunAll(nothing));
  CAIRN_RETURN_IF_ERROR(source.CheckRead());
  return OutcomeOf(*this, stream);
}

}  // namespace cairn
