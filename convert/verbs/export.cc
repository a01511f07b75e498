// The format plans all files before a byte is written; cairn.json is one of them. One stream over the source
// then hands each block to every tensor that is written from it, cast where the types differ. Four steps
// follow, in the order of durability: the files and their directories are synced, the format's own reader
// proves them, the directory gets its name, and its parent is synced. The sum of a tensor that is written as
// it is read is taken from the source, on the reading thread: a second sum of the same bytes would take as
// long as reading.

#include "convert/verbs/export.h"

#include <algorithm>
#include <map>

#include "ckpt/codec/cast.h"
#include "ckpt/step/partial_dir.h"
#include "convert/foreign/stored_writer.h"
#include "convert/formats/formats.h"
#include "convert/formats/training/training_state.h"
#include "convert/stream/fingerprint.h"
#include "convert/stream/memory_estimate.h"

namespace cairn {
namespace {

constexpr uint64_t kBufferBytes = 1 << 20;

int ExportWritesInFlight(const ExportOptions& options) { return std::max(4, 2 * options.writer.jobs); }

// Contents of cairn.json: provenance, and state that the format cannot hold.
std::string Record(const CheckpointSource& source, const TargetFormat& format, const TargetFiles& plan) {
  const Manifest& manifest = source.manifest();
  const nlohmann::ordered_json record = {
      {"cairn", CAIRN_VERSION},   {"format", format.name},
      {"run", manifest.run},      {"step", manifest.step},
      {"state", manifest.state},  {"history", HistoryWith(manifest, format.name, plan.notes)},
      {"not_carried", plan.notes}};
  return record.dump(1) + "\n";
}

Result<TargetFiles> PlanExport(const CheckpointSource& source, const TargetFormat& format,
                               const ExportOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(TargetFiles plan, format.plan(source, options.target));
  std::string record = Record(source, format, plan);
  const uint64_t bytes = record.size();
  plan.target.files.push_back({"cairn.json", bytes, std::move(record)});
  return plan;
}

class Exporter {
 public:
  Exporter(FileSystem& fs, CheckpointSource& source, const TargetFormat& format, TargetFiles plan,
           const ExportOptions& options)
      : fs_(fs), source_(source), format_(format), plan_(std::move(plan)), options_(options) {
    for (uint32_t i = 0; i < target().tensors.size(); ++i) {
      const TargetTensor& tensor = target().tensors[i];
      written_[tensor.source].push_back(i);
      sums_.emplace_back(tensor.entry);
    }
    for (const auto& [tensor, indices] : written_) {
      order_.push_back(tensor);
      source_sums_.emplace(tensor, source_.catalog().tensors[tensor]);
    }
  }

  Result<ExportResult> Run(std::string path) {
    while (path.size() > 1 && path.ends_with('/')) path.pop_back();
    if (fs_.Stat(path).ok()) return AlreadyExists("{} is there already; choose another place", path);
    CAIRN_RETURN_IF_ERROR(CheckFreeSpace(fs_, path, target().bytes()));
    CAIRN_ASSIGN_OR_RETURN(PartialDir partial, PartialDir::Make(fs_, path + ".partial-" + NewNonce()));
    CAIRN_RETURN_IF_ERROR(Write(partial.path()));
    CAIRN_RETURN_IF_ERROR(Prove(partial.path()));
    CAIRN_RETURN_IF_ERROR(fs_.Rename(partial.path(), path));
    partial.Keep();
    CAIRN_RETURN_IF_ERROR(fs_.SyncDir(ParentDir(path)));
    return ExportResult{.path = path,
                        .notes = plan_.notes,
                        .tensors = order_.size(),
                        .files = target().files.size(),
                        .bytes_read = source_.bytes_read(),
                        .bytes_written = target().bytes(),
                        .source_fingerprint = SourceFingerprint()};
  }

 private:
  const StoredTarget& target() const { return plan_.target; }

  Status Write(const std::string& directory) {
    WriteRing ring(fs_, {.buffer_bytes = kBufferBytes, .in_flight = ExportWritesInFlight(options_)});
    CAIRN_ASSIGN_OR_RETURN(const auto writer,
                           StoredWriter::Create(fs_, ring, directory, target(), options_.writer.direct));
    source_.SetCacheBytes(ReaderCacheFor(options_.writer.max_memory));
    uint32_t current = UINT32_MAX;
    CAIRN_RETURN_IF_ERROR(StreamBlocks(
        source_, order_, BlockBytesFor(options_.writer.max_memory),
        [&](const Block& block) -> Status {
          if (std::exchange(current, block.tensor) != block.tensor)
            CAIRN_RETURN_IF_ERROR(writer->EndTensor());
          return Visit(block, *writer);
        },
        [this](const Block& block) { source_sums_.at(block.tensor).Add(block.begin, block.bytes); }));
    source_.SetCacheBytes(0);
    CAIRN_RETURN_IF_ERROR(writer->EndTensor());
    return writer->Finish();
  }

  Status Visit(const Block& block, StoredWriter& writer) {
    const Dtype from = source_.catalog().tensors[block.tensor].dtype;
    for (const uint32_t index : written_.at(block.tensor)) {
      const TensorEntry& entry = target().tensors[index].entry;
      Block out{index, block.box, block.begin, block.bytes};
      if (entry.dtype != from) {
        const uint64_t bytes = block.box.Volume() * SizeOf(entry.dtype);
        cast_.resize(std::max(cast_.size(), bytes));
        const CastCounts counts =
            Cast(from, block.bytes, entry.dtype, std::span(cast_).first(bytes), OnOverflow::kInfinity);
        if (counts.overflowed > 0)
          return InvalidArgument("tensor {} has values beyond the range of {}; choose --dtype bf16",
                                 DisplayName(entry), Name(entry.dtype));
        out.bytes = std::span(cast_).first(bytes);
      }
      if (!IsSourceItself(index)) sums_[index].Add(out.begin, out.bytes);
      CAIRN_RETURN_IF_ERROR(writer.Write(out));
    }
    Advance(2 * block.bytes.size());
    return OkStatus();
  }

  // Its sum is then the source's: sums depend on names and roles, and take as long as reading.
  bool IsSourceItself(uint32_t index) const {
    const TensorEntry& entry = target().tensors[index].entry;
    const TensorEntry& source = source_.catalog().tensors[target().tensors[index].source];
    return entry.dtype == source.dtype && entry.role == source.role && entry.spec.name == source.spec.name;
  }
  const TensorFingerprint& SumOf(uint32_t index) const {
    return IsSourceItself(index) ? source_sums_.at(target().tensors[index].source) : sums_[index];
  }

  // The format's own reader must find each tensor, and no other.
  Status Prove(const std::string& directory) {
    const std::string path = plan_.directory.empty() ? directory : JoinPath(directory, plan_.directory);
    OpenOptions open;
    open.format = format_.reader;
    auto written = OpenForeign(fs_, path, open);
    if (!written.ok()) return Unequal(path, written.status().message());
    CheckpointSource& reader = **written;
    StepFingerprint found(reader.catalog());
    reader.SetCacheBytes(ReaderCacheFor(options_.writer.max_memory));
    CAIRN_RETURN_IF_ERROR(StreamBlocks(reader, AllTensors(reader.catalog()),
                                       BlockBytesFor(options_.writer.max_memory), [&](const Block& block) {
                                         found.Add(block);
                                         Advance(block.bytes.size());
                                         return OkStatus();
                                       }));
    const TensorLookup lookup(reader.catalog());
    size_t expected = 0;
    for (uint32_t i = 0; i < target().tensors.size(); ++i) {
      if (!target().tensors[i].read_back) continue;
      ++expected;
      const TensorEntry& entry = target().tensors[i].entry;
      const Result<uint32_t> tensor = lookup.Find(entry.spec.name, entry.role);
      if (!tensor.ok()) return Unequal(path, DisplayName(entry) + " is not there");
      const TensorEntry& other = reader.catalog().tensors[*tensor];
      if (other.dtype != entry.dtype || !(other.spec.shape == entry.spec.shape) ||
          !(found.of(*tensor) == SumOf(i)))
        return Unequal(path, "tensor " + DisplayName(entry));
    }
    if (expected != reader.catalog().tensors.size())
      return Unequal(path,
                     fmt::format("{} tensors instead of {}", reader.catalog().tensors.size(), expected));
    return OkStatus();
  }

  static Status Unequal(const std::string& path, const std::string& what) {
    return Corrupt("{}: what is read back is not what was written ({}); check the disk and try again", path,
                   what);
  }

  Digest SourceFingerprint() const {
    std::vector<NamedFingerprint> tensors;
    for (const auto& [tensor, sum] : source_sums_) {
      const TensorEntry& entry = source_.catalog().tensors[tensor];
      tensors.push_back({DisplayName(entry), sum.Finish(entry)});
    }
    return Combine(std::move(tensors)).overall;
  }

  void Advance(uint64_t bytes) {
    done_ += bytes;
    if (options_.progress) options_.progress(done_);
  }

  FileSystem& fs_;
  CheckpointSource& source_;
  const TargetFormat& format_;
  const TargetFiles plan_;
  const ExportOptions& options_;
  std::map<uint32_t, std::vector<uint32_t>> written_;  // of each source tensor that is read
  std::vector<uint32_t> order_;                        // those tensors
  std::map<uint32_t, TensorFingerprint> source_sums_;
  std::vector<TensorFingerprint> sums_;  // of each written tensor
  std::vector<std::byte> cast_;
  uint64_t done_ = 0;
};

}  // namespace

Result<ExportCost> EstimateExport(const CheckpointSource& source, const TargetFormat& format,
                                  const ExportOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const TargetFiles plan, PlanExport(source, format, options));
  ExportCost cost;
  std::map<uint32_t, uint64_t> read;
  uint64_t read_back = 0;
  for (const TargetTensor& tensor : plan.target.tensors) {
    read[tensor.source] = source.catalog().tensors[tensor.source].bytes();
    if (tensor.read_back) read_back += tensor.entry.bytes();
  }
  for (const auto& [tensor, bytes] : read) cost.read_bytes += bytes;
  cost.file_bytes = plan.target.bytes();
  cost.files = plan.target.files.size();
  cost.moved_bytes = 2 * cost.read_bytes + read_back;
  const uint64_t window = options.writer.max_memory;
  std::vector<uint32_t> tensors;
  for (const auto& [tensor, bytes] : read) tensors.push_back(tensor);
  cost.peak_memory = kProgramMemory + MemoryOfReading(source, tensors, BlockBytesFor(window), window) +
                     MemoryOfWriting(source, tensors, kBufferBytes, ExportWritesInFlight(options), 1);
  return cost;
}

Result<ExportResult> Export(FileSystem& fs, CheckpointSource& source, const TargetFormat& format,
                            const std::string& target, const ExportOptions& options) {
  Result<TargetFiles> plan = PlanExport(source, format, options);
  if (!plan.ok()) return plan.status().WithContext(source.name());
  return Exporter(fs, source, format, std::move(plan).value(), options).Run(target);
}

}  // namespace cairn
