// Each float tensor is read in blocks; a 16-bit weight with an fp32 master is read together with the same
// blocks of the master. The master's block is rounded, and the two are compared as a whole; single elements
// are compared only if they differ. The source is given the whole sequence first, so that it reads ahead. A
// fault keeps its count and its first element, whose place in the files is looked up once, when the tensor is
// done.

#include "tools/check/value_check.h"

#include <optional>

#include "ckpt/codec/cast.h"
#include "ckpt/model/layout.h"
#include "convert/stream/block_stream.h"
#include "convert/stream/decode_values.h"
#include "tools/check/expert_verdict.h"

namespace cairn {
namespace {

// Elements of one tensor that share a fault.
struct Fault {
  uint64_t count = 0;
  uint64_t first = 0;  // row-major index
  void Add(uint64_t index) {
    if (count++ == 0) first = index;
  }
};

class ValueChecker {
 public:
  ValueChecker(CheckpointSource& step, const ExpertCensus& census, uint64_t max_memory,
               const std::function<void(uint64_t)>& progress)
      : step_(step),
        catalog_(step.catalog()),
        census_(census),
        block_bytes_(BlockBytesFor(max_memory)),
        progress_(progress) {
    step_.SetCacheBytes(ReaderCacheFor(max_memory));
  }

  ValueReport Check() {
    const std::vector<std::vector<uint32_t>> sets = TensorsToCheck();
    step_.ReadAhead(BlocksOf(catalog_, sets, block_bytes_));
    for (const std::vector<uint32_t>& set : sets) {
      const Status status = CheckTensor(set);
      if (!status.ok()) report_.Add(status, step_.name(), {}, DisplayName(catalog_.tensors[set[0]]));
      read_all_ = read_all_ && status.ok();
    }
    step_.ReadAhead({});
    if (const Status status = step_.CheckRead(); !status.ok()) report_.Add(status, step_.name());
    if (read_all_) TellExperts();
    return std::move(report_);
  }

 private:
  // Each with the master to compare it with, if it has one.
  std::vector<std::vector<uint32_t>> TensorsToCheck() const {
    const TensorLookup lookup(catalog_);
    std::vector<std::vector<uint32_t>> sets;
    for (uint32_t i = 0; i < catalog_.tensors.size(); ++i) {
      const TensorEntry& tensor = catalog_.tensors[i];
      // A training may well remember that its best loss so far is infinite.
      if (!IsFloat(tensor.dtype) || IsOpaque(tensor.role)) continue;
      sets.push_back({i});
      const Result<uint32_t> master = lookup.Find(tensor.spec.name, Role::kMaster);
      const bool rounded =
          tensor.role == Role::kWeight && (tensor.dtype == Dtype::kBF16 || tensor.dtype == Dtype::kF16);
      if (rounded && master.ok() && catalog_.tensors[*master].dtype == Dtype::kF32 &&
          catalog_.tensors[*master].spec.shape == tensor.spec.shape)
        sets.back().push_back(*master);
    }
    return sets;
  }

  // A tensor, and perhaps its master.
  Status CheckTensor(const std::vector<uint32_t>& set) {
    const TensorEntry& entry = catalog_.tensors[set[0]];
    Fault not_finite, not_rounded;
    std::vector<std::byte> values, masters, rounded;
    uint64_t begin = 0;
    BoxSequence blocks = BlocksOf(catalog_, {set}, block_bytes_);
    while (const std::optional<TensorBox> block = blocks()) {
      CAIRN_RETURN_IF_ERROR(Read(*block, values));
      if (!census_.mixtures.empty()) experts_.Add(set[0], values);
      VisitValues(entry.dtype, values, [&](size_t i, double value) {
        if (!std::isfinite(value)) not_finite.Add(begin + i);
      });
      if (set.size() > 1) {
        CAIRN_RETURN_IF_ERROR(Read(*blocks(), masters));
        rounded.resize(values.size());
        Cast(Dtype::kF32, masters, entry.dtype, rounded, OnOverflow::kInfinity);
        Compare(values, rounded, begin, not_rounded);
      }
      begin += block->box.Volume();
    }
    Report(set[0], not_finite, "NaN or infinite");
    Report(set[0], not_rounded, "not the fp32 master rounded to the weight's dtype");
    return OkStatus();
  }

  void TellExperts() {
    ExpertVerdict verdict = JudgeExperts(step_.manifest(), census_, experts_);
    for (std::string& lost : verdict.lost) report_.experts.push_back({step_.name(), {}, "", std::move(lost)});
    std::ranges::move(verdict.notes, std::back_inserter(report_.notes));
  }

  Status Read(const TensorBox& block, std::vector<std::byte>& bytes) {
    const auto& [tensor, box] = block;
    bytes.resize(box.Volume() * SizeOf(catalog_.tensors[tensor].dtype));
    CAIRN_RETURN_IF_ERROR(step_.ReadBox(tensor, box, bytes));
    report_.bytes_checked += bytes.size();
    if (progress_) progress_(report_.bytes_checked);
    return OkStatus();
  }

  static void Compare(std::span<const std::byte> a, std::span<const std::byte> b, uint64_t begin,
                      Fault& fault) {
    if (std::memcmp(a.data(), b.data(), a.size()) == 0) return;
    for (size_t i = 0; i < a.size(); i += 2)
      if (a[i] != b[i] || a[i + 1] != b[i + 1]) fault.Add(begin + i / 2);
  }

  void Report(uint32_t tensor, const Fault& fault, std::string_view what) {
    if (fault.count == 0) return;
    const StepReader* native = step_.native_step();
    const StoredAt at = native ? LocateElement(native->catalog(), tensor, fault.first) : StoredAt{};
    report_.problems.push_back(
        {native ? JoinPath(native->DirectoryOf(catalog_.files[at.file]), catalog_.files[at.file])
                : step_.name(),
         native ? std::optional(at.offset) : std::nullopt, DisplayName(catalog_.tensors[tensor]),
         fmt::format("{} of {} elements are {}, the first is element {}", fault.count,
                     catalog_.tensors[tensor].spec.shape.Volume(), what, fault.first)});
  }

  CheckpointSource& step_;
  const TensorTable& catalog_;
  const ExpertCensus& census_;
  ExpertValues experts_{catalog_.tensors, census_};
  bool read_all_ = true;  // tensors
  const uint64_t block_bytes_;
  const std::function<void(uint64_t)>& progress_;
  ValueReport report_;
};

}  // namespace

ValueReport CheckValues(CheckpointSource& step, const ExpertCensus& census, uint64_t max_memory,
                        const std::function<void(uint64_t)>& progress) {
  return ValueChecker(step, census, max_memory, progress).Check();
}

StoredAt LocateElement(const StepCatalog& catalog, uint32_t tensor, uint64_t index) {
  const TensorEntry& entry = catalog.tensors[tensor];
  const Box element = ElementAt(Box::Whole(entry.spec.shape), index);
  const auto [first, last] = catalog.PiecesOfTensor(tensor);
  for (size_t i = first; i < last; ++i) {
    const Piece& piece = catalog.pieces[i];
    if (!Contains(piece.box, element)) continue;
    const uint64_t flat = FlatIndex(piece.box, element.offset);
    if (flat < piece.range.begin || flat >= piece.range.end) continue;
    const uint64_t byte = (flat - piece.range.begin) * SizeOf(entry.dtype);
    const ChunkPlace place = PlaceOfChunk(piece, byte / kChunkBytes, SizeOf(entry.dtype));
    return {piece.file, place.offset + (place.encoded ? 0 : byte % kChunkBytes)};
  }
  return {};
}

}  // namespace cairn
