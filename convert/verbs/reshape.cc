// The partial directory is named after the job (source, topology, padding), so that a second run finds the
// units of a killed one. Per stage: units whose record and bytes are still good are kept, the others go
// through one stream. A thread behind the stream ends each unit: it awaits the writes, reads the unit back,
// compares the sums, and only then writes the record. If the process is alone it ends the shards of a
// stage itself; in a team rank 0 ends all of them from the records. Publish() seals the step, opens it
// again, and renames it last.

#include "convert/verbs/reshape.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "ckpt/base/worker_pool.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/committer.h"
#include "ckpt/run/tokenizer_files.h"
#include "convert/stream/memory_estimate.h"
#include "convert/stream/shard_proof.h"
#include "convert/stream/unit_record.h"

namespace cairn {
namespace {

constexpr uint64_t kMinUnitBytes = 64 << 20;  // small: little is left to prove at the end
constexpr uint64_t kMaxUnitBytes = 1 << 30;
constexpr uint64_t kUnitsPerReshape = 256;  // if their size then falls between the two

using Unit = std::vector<uint32_t>;  // tensors, in catalog order

uint64_t ProofMemory(uint64_t max_memory) { return max_memory / 16; }

std::vector<TensorEntry> TargetTensors(const CheckpointSource& source, const ReshapeOptions& options) {
  std::vector<TensorEntry> tensors = source.catalog().tensors;
  for (TensorEntry& tensor : tensors)
    if (options.vocab_multiple > 0 && tensor.spec.pad_multiple > 0)
      tensor.spec.pad_multiple = options.vocab_multiple;
  return tensors;
}

// An unknown model would be whole on each tensor parallel rank, and all of it on the first stage.
Status CheckKnownCuts(const CheckpointSource& source, const Topology& target) {
  const auto& tensors = source.catalog().tensors;
  const Topology& now = source.manifest().topology;
  const bool cut = std::ranges::any_of(tensors, [](const auto& t) { return t.spec.tp_dim != kReplicated; });
  if (target.tp > 1 && target.tp != now.tp && !cut)
    return InvalidArgument(
        "{}: nothing says how its tensors are cut, so that TP={} cannot be made of it; "
        "TP=1 can",
        source.name(), target.tp);
  const bool layers =
      std::ranges::any_of(tensors, [](const auto& t) { return t.spec.layer != kBeforeLayers; });
  if (target.pp > 1 && target.pp != now.pp && !layers)
    return InvalidArgument(
        "{}: nothing says which layer its tensors are of, so that PP={} cannot be made of "
        "it; PP=1 can",
        source.name(), target.pp);
  return OkStatus();
}

uint64_t UnitBytes(const TensorTable& catalog, const ReshapeOptions& options) {
  if (options.unit_bytes > 0) return options.unit_bytes;
  return std::clamp(catalog.bytes() / kUnitsPerReshape, kMinUnitBytes, kMaxUnitBytes);
}

std::vector<Unit> UnitsOf(const TensorTable& catalog, const std::vector<uint32_t>& tensors,
                          uint64_t unit_bytes) {
  std::vector<Unit> units;
  uint64_t bytes = unit_bytes;
  for (uint32_t tensor : tensors) {
    if (bytes >= unit_bytes) units.emplace_back(), bytes = 0;
    units.back().push_back(tensor);
    bytes += catalog.tensors[tensor].bytes();
  }
  return units;
}

// Identifies a reshape: equal only for the same source and the same target.
Digest JobOf(const CheckpointSource& source, const ReshapeOptions& options) {
  return DigestOf(fmt::format("{}|{}|{}", EncodeManifest(source.manifest()), ToString(options.target),
                              options.vocab_multiple));
}

class ReshapeRun {
 public:
  ReshapeRun(FileSystem& fs, CheckpointSource& source, const std::string& run_dir,
             const ReshapeOptions& options, const StepPlan& plan)
      : fs_(fs),
        source_(source),
        run_dir_(run_dir),
        options_(options),
        plan_(plan),
        team_(options.team),
        info_{.identity = {source.manifest().run, source.manifest().step},
              .topology = options.target,
              .model = source.manifest().model,
              .state = source.manifest().state,
              .history = source.manifest().history,
              .branches = source.manifest().branches},
        job_(JobOf(source, options)),
        unit_bytes_(UnitBytes(source.catalog(), options)),
        committer_(fs, run_dir, info_.identity.step, ToHex(job_).substr(0, 8)),
        directory_(committer_.partial()),
        sums_(source.catalog()),
        found_(source.catalog()) {
    if (!options.read_back)
      info_.history.push_back({{"verb", "reshape"}, {"allowed", nlohmann::json::array({"no-read-back"})}});
  }

  Result<TransferResult> Run() {
    CAIRN_RETURN_IF_ERROR(committer_.CheckNew());
    CAIRN_RETURN_IF_ERROR(team_.leads() ? Prepare() : AwaitTeamRoom(fs_, directory_, team_));
    Status status = DoShare();
    if (status.ok()) status = source_.CheckRead();
    if (!team_.alone()) LeaveTeam(fs_, directory_, team_, status, source_.bytes_read());
    TransferResult result{.path = committer_.step_dir(), .bytes_resumed = bytes_resumed_};
    if (status.ok())
      status = team_.leads() ? Publish(result) : AwaitPublished(fs_, directory_, team_.patience, [this] {
        return !committer_.CheckNew().ok();
      });
    if (status.ok()) return result;
    if (team_.leads() && !team_.alone()) {
      LeaveTeam(fs_, directory_, team_, status, 0);
      DismissTeam(fs_, directory_, team_);
    }
    if (options_.resume) committer_.Keep();
    return status;
  }

 private:
  struct Stage {
    int index;
    std::vector<Unit> units;
    std::unique_ptr<StageWriter> writer;
  };

  Status Prepare() {
    CAIRN_ASSIGN_OR_RETURN(committer_,
                           Committer::Create(fs_, {.run_dir = run_dir_,
                                                   .step = info_.identity.step,
                                                   .nonce = ToHex(job_).substr(0, 8),
                                                   .need_bytes = EstimateStepSize(plan_).file_bytes,
                                                   .resume = options_.resume}));
    CAIRN_RETURN_IF_ERROR(committer_.RemoveFiles(IsTeamFileName));  // of a killed run
    return team_.alone() ? OkStatus() : OpenTeamRoom(fs_, directory_, team_);
  }

  // Writes the units of this rank. Ends the shards too if it is alone.
  Status DoShare() {
    ring_ = std::make_unique<WriteRing>(
        fs_, RingFor(options_.writer.max_memory, options_.writer.jobs, options_.target.tp));
    source_.SetCacheBytes(ReaderCacheFor(options_.writer.max_memory));
    WorkerPool behind(/*threads=*/1, /*waiting=*/1);
    Status status;
    for (int stage = 0; stage < options_.target.pp && status.ok(); ++stage) status = DoStage(stage, behind);
    const Status finished = behind.Finish();
    source_.SetCacheBytes(0);
    return status.ok() ? finished : status;
  }

  Result<std::shared_ptr<Stage>> OpenStage(int index) {
    auto stage = std::make_shared<Stage>();
    stage->index = index;
    CAIRN_ASSIGN_OR_RETURN(stage->writer,
                           StageWriter::Create(fs_, *ring_, directory_, info_.identity, plan_, index,
                                               options_.writer.direct, Existing::kResume));
    stage->units = UnitsOf(source_.catalog(), stage->writer->tensors(), unit_bytes_);
    return stage;
  }

  Status DoStage(int index, WorkerPool& behind) {
    CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Stage> stage, OpenStage(index));
    std::vector<size_t> todo;
    for (size_t unit = 0; unit < stage->units.size(); ++unit) {
      if (units_seen_++ % team_.size != static_cast<size_t>(team_.rank)) continue;
      CAIRN_ASSIGN_OR_RETURN(const bool done, TakeOver(*stage, unit));
      if (!done) todo.push_back(unit);
    }
    CAIRN_RETURN_IF_ERROR(StreamUnits(stage, todo, behind));
    if (!team_.alone()) return OkStatus();
    return behind.Push([this, stage](size_t) { return FinishStage(*stage); });
  }

  // Streams all units at once: reading never pauses between two of them.
  Status StreamUnits(const std::shared_ptr<Stage>& stage, const std::vector<size_t>& todo,
                     WorkerPool& behind) {
    std::vector<uint32_t> tensors;
    for (size_t unit : todo)
      tensors.insert(tensors.end(), stage->units[unit].begin(), stage->units[unit].end());
    auto current = todo.begin();
    const auto end_unit = [&]() -> Status {
      const uint64_t mark = ring_->Mark();
      return behind.Push(
          [this, stage, unit = *current++, mark](size_t) { return EndUnit(*stage, unit, mark); });
    };
    const auto append = [&](const Block& block) -> Status {
      while (block.tensor > stage->units[*current].back()) CAIRN_RETURN_IF_ERROR(end_unit());
      Advance(block.bytes.size());
      return stage->writer->Append(block);
    };
    CAIRN_RETURN_IF_ERROR(StreamBlocks(source_, tensors, BlockBytesFor(options_.writer.max_memory), append,
                                       [this](const Block& block) { sums_.Add(block); }));
    while (current != todo.end()) CAIRN_RETURN_IF_ERROR(end_unit());
    return OkStatus();
  }

  // Awaits the unit's writes, reads it back and records it. A resumed run reads a unit before it trusts the
  // record, so one process may sync a shard as late as its end. In a team rank 0 ends shards without reading
  // the units of other ranks, so each unit is synced.
  Status EndUnit(Stage& stage, size_t unit, uint64_t mark) {
    CAIRN_RETURN_IF_ERROR(ring_->Await(mark));
    if (!team_.alone()) CAIRN_RETURN_IF_ERROR(SyncShardsOf(stage, unit));
    const Unit& tensors = stage.units[unit];
    if (options_.read_back) {
      if (!proof_) proof_.emplace(fs_, directory_, plan_.tensors(), ProofMemory(options_.writer.max_memory));
      CAIRN_RETURN_IF_ERROR(
          proof_->Prove(*stage.writer, tensors, found_, [this](uint64_t bytes) { Advance(bytes); }));
      for (uint32_t tensor : tensors)
        if (!(found_.of(tensor) == sums_.of(tensor)))
          return Corrupt("{}: tensor {} read back is not what was written; check the disk and try again",
                         directory_, DisplayName(plan_.tensors()[tensor]));
    }
    CAIRN_RETURN_IF_ERROR(WriteUnitRecord(fs_, directory_, RecordOf(stage, unit)));
    return team_.alone() ? OkStatus() : CheckTeam(fs_, directory_);
  }

  static Status SyncShardsOf(Stage& stage, size_t unit) {
    std::set<size_t> shards;
    for (uint32_t tensor : stage.units[unit])
      for (const StageWriter::Target& target : stage.writer->targets(tensor)) shards.insert(target.shard);
    for (size_t shard : shards) CAIRN_RETURN_IF_ERROR(stage.writer->shard(shard).Sync());
    return OkStatus();
  }

  UnitRecord RecordOf(const Stage& stage, size_t unit) const {
    UnitRecord record{
        .job = job_, .stage = static_cast<uint32_t>(stage.index), .unit = static_cast<uint32_t>(unit)};
    for (uint32_t tensor : stage.units[unit]) {
      record.sums.push_back(sums_.of(tensor).sum());
      for (const StageWriter::Target& target : stage.writer->targets(tensor)) {
        const Piece& piece = stage.writer->shard(target.shard).plan().piece(target.piece);
        record.chunks.insert(record.chunks.end(), piece.chunks.begin(), piece.chunks.end());
      }
    }
    return record;
  }

  // Marks the pieces of a recorded unit as written. Errors: Corrupt if the record does not fit the unit.
  Status Restore(Stage& stage, size_t unit, const UnitRecord& record) {
    const Unit& tensors = stage.units[unit];
    size_t chunks = 0;
    for (uint32_t tensor : tensors)
      for (const StageWriter::Target& target : stage.writer->targets(tensor))
        chunks += stage.writer->shard(target.shard).plan().piece(target.piece).chunks.size();
    if (record.sums.size() != tensors.size() || record.chunks.size() != chunks)
      return Corrupt("{}: {} does not fit its unit", directory_, UnitRecordName(stage.index, unit));
    std::span<const Digest> left = record.chunks;
    for (uint32_t tensor : tensors)
      for (const StageWriter::Target& target : stage.writer->targets(tensor)) {
        ShardWriter& shard = stage.writer->shard(target.shard);
        const size_t count = shard.plan().piece(target.piece).chunks.size();
        shard.Restore(target.piece, left.first(count));
        left = left.subspan(count);
      }
    for (size_t i = 0; i < tensors.size(); ++i) {
      sums_.of(tensors[i]) = TensorFingerprint(plan_.tensors()[tensors[i]]);
      sums_.of(tensors[i]).AddSum(record.sums[i]);
    }
    return OkStatus();
  }

  // True if an earlier run wrote the unit and reading it shows that it is still right.
  Result<bool> TakeOver(Stage& stage, size_t unit) {
    const Result<UnitRecord> record = ReadUnitRecord(fs_, directory_, job_, stage.index, unit);
    if (record.status().kind() == StatusKind::kNotFound) return false;
    Status status = record.status();
    if (status.ok()) status = Restore(stage, unit, *record);
    if (status.ok() && !check_)
      check_.emplace(fs_, directory_, plan_.tensors(), ProofMemory(options_.writer.max_memory));
    if (status.ok())
      status =
          check_->Prove(*stage.writer, stage.units[unit], found_, [this](uint64_t bytes) { Advance(bytes); });
    uint64_t bytes = 0;
    for (uint32_t tensor : stage.units[unit]) {
      if (status.ok() && !(found_.of(tensor) == sums_.of(tensor))) status = Corrupt("other sums");
      bytes += plan_.tensors()[tensor].bytes();
    }
    if (status.ok()) {
      Advance(bytes);
      bytes_resumed_ += bytes;
      return true;
    }
    if (status.kind() != StatusKind::kCorrupt) return status;
    for (uint32_t tensor : stage.units[unit]) {
      for (const StageWriter::Target& target : stage.writer->targets(tensor))
        stage.writer->shard(target.shard).Forget(target.piece);
      sums_.of(tensor) = found_.of(tensor) = TensorFingerprint(plan_.tensors()[tensor]);
    }
    CAIRN_RETURN_IF_ERROR(fs_.RemoveFile(JoinPath(directory_, UnitRecordName(stage.index, unit))));
    return false;
  }

  Status FinishStage(Stage& stage) {
    CAIRN_ASSIGN_OR_RETURN(std::vector<ShardReceipt> receipts, stage.writer->Finish());
    std::ranges::move(receipts, std::back_inserter(receipts_));
    return OkStatus();
  }

  // Rank 0 of a team ends the shards from the records of all units.
  Status FinishShards() {
    CAIRN_ASSIGN_OR_RETURN(bytes_read_by_others_, AwaitTeam(fs_, directory_, team_));
    for (int index = 0; index < options_.target.pp; ++index) {
      CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Stage> stage, OpenStage(index));
      for (size_t unit = 0; unit < stage->units.size(); ++unit) {
        CAIRN_ASSIGN_OR_RETURN(const UnitRecord record, ReadUnitRecord(fs_, directory_, job_, index, unit));
        CAIRN_RETURN_IF_ERROR(Restore(*stage, unit, record));
      }
      CAIRN_RETURN_IF_ERROR(FinishStage(*stage));
    }
    return OkStatus();
  }

  // Reads index and manifest again, too: they must hold the digests that were proven.
  Status Publish(TransferResult& result) {
    if (!team_.alone()) CAIRN_RETURN_IF_ERROR(FinishShards());
    CAIRN_ASSIGN_OR_RETURN(StepSeal seal, MakeSeal(info_, plan_.tensors(), receipts_));
    CAIRN_RETURN_IF_ERROR(committer_.RemoveFiles(
        [](std::string_view name) { return IsUnitRecordName(name) || IsTeamFileName(name); }));
    CAIRN_RETURN_IF_ERROR(CopyBeside(fs_, directory_, options_.writer.beside, seal));
    CAIRN_RETURN_IF_ERROR(committer_.Seal(seal));
    CAIRN_ASSIGN_OR_RETURN(const auto written, committer_.ReadBack(seal));
    CAIRN_RETURN_IF_ERROR(committer_.Publish());
    result.fingerprints = sums_.Finish();
    result.bytes_read = source_.bytes_read() + bytes_read_by_others_;
    result.bytes_written = written->manifest().bytes();
    result.files = written->manifest().files.size() + 1;
    return OkStatus();
  }

  void Advance(uint64_t bytes) {
    const std::lock_guard lock(progress_mutex_);
    done_ += bytes;
    if (options_.progress) options_.progress(done_);
  }

  FileSystem& fs_;
  CheckpointSource& source_;
  const std::string& run_dir_;
  const ReshapeOptions& options_;
  const StepPlan& plan_;
  const RankTeam& team_;
  StepInfo info_;
  const Digest job_;
  const uint64_t unit_bytes_;
  Committer committer_;
  const std::string directory_;  // partial
  std::unique_ptr<WriteRing> ring_;
  StepFingerprint sums_;             // of the source
  std::optional<ShardProof> proof_;  // of the units of this run, behind the stream
  std::optional<ShardProof> check_;  // of the units of an earlier run, before the stream
  StepFingerprint found_;            // of the units that were read back
  std::vector<ShardReceipt> receipts_;
  size_t units_seen_ = 0;
  uint64_t bytes_resumed_ = 0;
  uint64_t bytes_read_by_others_ = 0;
  std::mutex progress_mutex_;
  uint64_t done_ = 0;
};

}  // namespace

Result<StepPlan> PlanReshape(const CheckpointSource& source, const ReshapeOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckKnownCuts(source, options.target));
  return StepPlan::Make(TargetTensors(source, options), source.manifest().model, options.target);
}

Result<TransferCost> EstimateReshape(const CheckpointSource& source, const ReshapeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const StepPlan plan, PlanReshape(source, options));
  const StepSize size = EstimateStepSize(plan);
  const uint64_t max_memory = options.writer.max_memory;
  const Topology& target = options.target;
  const std::vector<uint32_t> all = AllTensors(source.catalog());
  const WriteRingOptions ring = RingFor(max_memory, options.writer.jobs, target.tp);
  const uint64_t buffers = static_cast<uint64_t>(target.tp + 1 + ring.in_flight);
  const auto shards = static_cast<uint64_t>(target.tp * target.dp);  // of a stage
  const uint64_t peak_memory = kProgramMemory + MemoryOfNativeWriter(target, max_memory) +
                               MemoryOfReading(source, all, BlockBytesFor(max_memory), max_memory) +
                               MemoryOfWriting(source, all, ring.buffer_bytes, buffers, shards) +
                               std::min(ProofMemory(max_memory), size.data_bytes / 8);
  CAIRN_ASSIGN_OR_RETURN(ProgramSize program, SizeOfStep(source, plan));
  return TransferCost{.plan = std::move(program),
                      .read_bytes = size.data_bytes,
                      .file_bytes = size.file_bytes,
                      .moved_bytes = (options.read_back ? 2 : 1) * size.data_bytes,
                      .files = size.files + options.writer.beside.size(),
                      .peak_memory = peak_memory};
}

Result<TransferResult> Reshape(FileSystem& fs, CheckpointSource& source, const std::string& run_dir,
                               const ReshapeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const StepPlan plan, PlanReshape(source, options));
  return ReshapeRun(fs, source, run_dir, options, plan).Run();
}

}  // namespace cairn
