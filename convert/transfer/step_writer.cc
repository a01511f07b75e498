// The partial directory is named after the job, so that a second run finds the units of a killed one.
//
// The work is cut into units: some tensors of one stage, with all their pieces in all of its shards. Per
// stage the units whose record and bytes are still good are kept, and the others go through one stream. A
// thread after the stream finishes each unit: it awaits the writes, reads the unit back, compares the sums,
// and only then writes the record. A single process ends the shards of a stage itself; in a team, rank 0 ends
// all of them from the records. HDF5 takes a tenth of a second and more for a stage, so the next stage is
// laid out while one streams, and the index's views while the last one does. Publish() seals the step, opens
// it again, and renames it last. Overflows are known only at the end of the stream: the step is then left
// unpublished, and its files are removed.

#include <algorithm>
#include <future>
#include <set>

#include "ckpt/base/parse_number.h"
#include "ckpt/base/worker_pool.h"
#include "ckpt/io/fresh_names.h"
#include "ckpt/run/committer.h"
#include "ckpt/run/rendezvous.h"
#include "ckpt/run/tokenizer_files.h"
#include "ckpt/step/step_reader.h"
#include "convert/transfer/shard_proof.h"
#include "convert/transfer/step_size.h"
#include "convert/transfer/unit_record.h"
#include "convert/transfer/writers.h"

namespace cairn {
namespace {

constexpr uint64_t kMinUnitBytes = 64 << 20;  // small: little is left to prove at the end
constexpr uint64_t kMaxUnitBytes = 1 << 30;
constexpr uint64_t kUnitsPerStep = 256;  // if their size then falls between the two

using Unit = std::vector<uint32_t>;  // tensors, in the order of the stream

uint64_t UnitBytesOf(const StepTarget& target) {
  if (target.unit_bytes > 0) return target.unit_bytes;
  uint64_t bytes = 0;
  for (const WrittenTensor& tensor : target.tensors) bytes += tensor.entry.bytes();
  return std::clamp(bytes / kUnitsPerStep, kMinUnitBytes, kMaxUnitBytes);
}

class StepWriting final : public BlockTarget {
 public:
  StepWriting(FileSystem& fs, const Transfer& transfer, const StepTarget& target, const std::string& run_dir)
      : fs_(fs),
        run_dir_(run_dir),
        transfer_(transfer),
        target_(target),
        source_(transfer.source),
        plan_(target.plan),
        team_(target.team),
        max_memory_(transfer.writer.max_memory),
        job_(DigestOf(target.job.empty() ? NewNonce() : target.job)),
        unit_bytes_(UnitBytesOf(target)),
        committer_(fs, run_dir, target.info.identity.step, Nonce()),
        directory_(committer_.partial()),
        rendezvous_(fs, directory_, team_),
        advance_(Accumulated(transfer.progress)),
        stream_(StreamOf(transfer, advance_)),
        found_(plan_.tensors()) {}

  Result<TransferResult> Run() {
    if (!team_.leads()) CAIRN_RETURN_IF_ERROR(committer_.CheckNew());
    if (team_.leads()) CAIRN_RETURN_IF_ERROR(Prepare());
    CAIRN_RETURN_IF_ERROR(rendezvous_.Begin());
    Status status = DoShare();
    if (status.ok()) status = source_.CheckRead();
    if (status.ok() && !team_.leads())
      status = rendezvous_.GatherToRoot(std::to_string(source_.bytes_read())).status();
    TransferResult result = OutcomeOf(transfer_, stream_);
    if (result.overflowed && status.ok()) return result;
    result.path = committer_.step_dir();
    result.bytes_resumed = bytes_resumed_;
    if (status.ok())
      status = team_.leads() ? Publish(result) : rendezvous_.AwaitPublished(team_.patience, [this] {
        return IsListed(fs_, committer_.step_dir());
      });
    if (status.ok()) return result;
    if (laid_out_.valid()) laid_out_.wait();  // it makes files, which nobody removes once this rank has left
    rendezvous_.Fail(status);
    if (team_.leads()) rendezvous_.Dismiss();
    if (target_.resume) committer_.Keep();
    return status;
  }

 private:
  struct Stage {
    int index;
    std::vector<Unit> units;
    std::unique_ptr<StageWriter> writer;
  };

  Status Prepare() {
    CAIRN_ASSIGN_OR_RETURN(
        committer_, Committer::Create(fs_, {.run_dir = run_dir_,
                                            .commit = {target_.info.identity.step, target_.info.identity.run,
                                                       target_.info.descent},
                                            .nonce = Nonce(),
                                            .need_bytes = EstimateStepSize(plan_).file_bytes,
                                            .resume = target_.resume,
                                            .beside = NamesInStep(transfer_.writer.beside)}));
    return OkStatus();
  }

  // Writes the units of this rank. A single process ends the shards, too.
  Status DoShare() {
    ring_ = std::make_unique<WriteRing>(fs_, RingFor(max_memory_, transfer_.writer.jobs, plan_.topology()));
    WorkerPool behind(/*threads=*/1, /*waiting=*/1);
    Status status;
    LayOut(0);
    for (int stage = 0; stage < plan_.topology().pp && status.ok(); ++stage) status = DoStage(stage, behind);
    const Status finished = behind.Finish();
    return status.ok() ? finished : status;
  }

  // Begins the layout of a stage, or after the last one that of the index.
  void LayOut(int index) {
    laid_out_ = std::async([this, index]() -> Result<std::shared_ptr<Stage>> {
      if (index < plan_.topology().pp) return OpenStage(index);
      if (team_.leads()) CAIRN_RETURN_IF_ERROR(views_.Of(plan_.Layout(), {}).status());
      return std::shared_ptr<Stage>();
    });
  }

  Result<std::shared_ptr<Stage>> OpenStage(int index) {
    auto stage = std::make_shared<Stage>();
    stage->index = index;
    CAIRN_ASSIGN_OR_RETURN(stage->writer, StageWriter::Create(fs_, *ring_, directory_, target_.info.identity,
                                                              plan_, index, transfer_.writer.direct));
    stage->units = UnitsOf(stage->writer->tensors());
    return stage;
  }

  Status DoStage(int index, WorkerPool& behind) {
    CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Stage> stage, laid_out_.get());
    LayOut(index + 1);
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
    std::span<const size_t> left = todo;
    const auto end_unit = [&]() -> Status {
      const uint64_t mark = ring_->Mark();
      const size_t unit = left.front();
      left = left.subspan(1);
      return behind.Push([this, stage, unit, mark](size_t) { return EndUnit(*stage, unit, mark); });
    };
    write_ = [&](const Block& block) -> Status {
      while (PlaceOf(block.tensor) > PlaceOf(stage->units[left.front()].back()))
        CAIRN_RETURN_IF_ERROR(end_unit());
      return stage->writer->Append(block);
    };
    CAIRN_RETURN_IF_ERROR(stream_.Run(tensors, *this));
    while (!left.empty()) CAIRN_RETURN_IF_ERROR(end_unit());
    return OkStatus();
  }

  Status Write(const Block& block) override { return write_(block); }

  // The order of the stream.
  std::pair<uint32_t, uint32_t> PlaceOf(uint32_t tensor) const {
    return {target_.tensors[tensor].source, tensor};
  }

  // Tensors of one source go through the stream side by side, and stay in one unit.
  std::vector<Unit> UnitsOf(std::vector<uint32_t> tensors) const {
    std::ranges::sort(tensors, {}, [this](uint32_t tensor) { return PlaceOf(tensor); });
    std::vector<Unit> units;
    uint64_t bytes = unit_bytes_;
    for (const uint32_t tensor : tensors) {
      if (bytes >= unit_bytes_ &&
          (units.empty() || PlaceOf(units.back().back()).first != PlaceOf(tensor).first))
        units.emplace_back(), bytes = 0;
      units.back().push_back(tensor);
      bytes += plan_.tensors()[tensor].bytes();
    }
    return units;
  }

  // Awaits the unit's writes, reads it back and records it. A resumed run reads a unit before it trusts the
  // record, so one process may sync a shard as late as its end. In a team rank 0 ends shards without reading
  // the units of other ranks, so each unit is synced.
  Status EndUnit(Stage& stage, size_t unit, uint64_t mark) {
    CAIRN_RETURN_IF_ERROR(ring_->Await(mark));
    if (!team_.alone()) CAIRN_RETURN_IF_ERROR(SyncShardsOf(stage, unit));
    const Unit& tensors = stage.units[unit];
    if (target_.read_back) {
      if (!proof_) proof_.emplace(fs_, directory_, plan_.tensors(), ProofMemory(max_memory_));
      CAIRN_RETURN_IF_ERROR(
          proof_->Prove(*stage.writer, tensors, found_, [this](uint64_t bytes) { Advance(bytes); }));
      for (uint32_t tensor : tensors)
        if (!(found_.of(tensor) == stream_.SumOf(tensor)))
          return Corrupt("{}: tensor {} read back is not what was written; check the disk and try again",
                         directory_, DisplayName(plan_.tensors()[tensor]));
    }
    if (target_.job.empty()) return OkStatus();
    CAIRN_RETURN_IF_ERROR(WriteUnitRecord(fs_, directory_, RecordOf(stage, unit)));
    return rendezvous_.Check();
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
      record.sums.push_back(stream_.SumOf(tensor).sum());
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
      TensorFingerprint sum(plan_.tensors()[tensors[i]]);
      sum.AddSum(record.sums[i]);
      stream_.SetSum(tensors[i], sum);
    }
    return OkStatus();
  }

  // True if an earlier run wrote the unit and reading it shows that it is still right.
  Result<bool> TakeOver(Stage& stage, size_t unit) {
    const Result<UnitRecord> record = ReadUnitRecord(fs_, directory_, job_, stage.index, unit);
    if (record.status().kind() == StatusKind::kNotFound) return false;
    Status status = record.status();
    if (status.ok()) status = Restore(stage, unit, *record);
    if (status.ok() && !check_) check_.emplace(fs_, directory_, plan_.tensors(), ProofMemory(max_memory_));
    if (status.ok())
      status =
          check_->Prove(*stage.writer, stage.units[unit], found_, [this](uint64_t bytes) { Advance(bytes); });
    uint64_t bytes = 0;
    for (uint32_t tensor : stage.units[unit]) {
      if (status.ok() && !(found_.of(tensor) == stream_.SumOf(tensor))) status = Corrupt("other sums");
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
      found_.of(tensor) = TensorFingerprint(plan_.tensors()[tensor]);
      stream_.SetSum(tensor, found_.of(tensor));
    }
    CAIRN_RETURN_IF_ERROR(fs_.RemoveFile(JoinPath(directory_, UnitRecordName(stage.index, unit))));
    return false;
  }

  Status FinishStage(Stage& stage) {
    CAIRN_ASSIGN_OR_RETURN(std::vector<ShardReceipt> receipts, stage.writer->Finish(transfer_.writer.jobs));
    std::ranges::move(receipts, std::back_inserter(receipts_));
    return OkStatus();
  }

  // Rank 0 of a team ends the shards from the records of all units.
  Status FinishShards() {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> read, rendezvous_.GatherToRoot("0"));
    for (const std::string& bytes : read) bytes_read_by_others_ += ParseNumber<uint64_t>(bytes).value_or(0);
    for (int index = 0; index < plan_.topology().pp; ++index) {
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
    CAIRN_RETURN_IF_ERROR(laid_out_.get().status());
    CAIRN_ASSIGN_OR_RETURN(StepSeal seal, MakeSeal(target_.info, plan_.tensors(), receipts_, &views_));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<BesideFile> beside, ReadCopies(transfer_.writer.beside));
    CAIRN_RETURN_IF_ERROR(committer_.Commit(
        seal, {.scratch = [](auto name) { return IsUnitRecordName(name) || IsTeamFileName(name); },
               .beside = beside,
               .read_back = true}));
    CAIRN_ASSIGN_OR_RETURN(const Manifest written, DecodeManifest(seal.manifest));
    result.fingerprints = stream_.SourceFingerprints();
    result.bytes_read = source_.bytes_read() + bytes_read_by_others_;
    result.bytes_written = written.bytes();
    result.files = written.files.size() + 1;
    return OkStatus();
  }

  std::string Nonce() const { return ToHex(job_).substr(0, 8); }

  void Advance(uint64_t bytes) {
    if (advance_) advance_(bytes);
  }

  FileSystem& fs_;
  const std::string& run_dir_;
  const Transfer& transfer_;
  const StepTarget& target_;
  CheckpointSource& source_;
  const StepPlan& plan_;
  const RankTeam& team_;
  const uint64_t max_memory_;
  const Digest job_;
  const uint64_t unit_bytes_;
  Committer committer_;
  const std::string directory_;  // partial
  const Rendezvous rendezvous_;
  const std::function<void(uint64_t)> advance_;
  std::unique_ptr<WriteRing> ring_;
  TensorStream stream_;
  std::function<Status(const Block&)> write_;  // into the shards of the stage that is streamed
  std::optional<ShardProof> proof_;            // of the units of this run, behind the stream
  std::optional<ShardProof> check_;            // of the units of an earlier run, before the stream
  StepFingerprint found_;                      // of the units that were read back
  std::vector<ShardReceipt> receipts_;
  size_t units_seen_ = 0;
  uint64_t bytes_resumed_ = 0;
  uint64_t bytes_read_by_others_ = 0;
  H5Views views_;                                         // of the index
  std::future<Result<std::shared_ptr<Stage>>> laid_out_;  // last: it uses the others
};

}  // namespace

uint64_t ProofMemory(uint64_t max_memory) { return max_memory / 16; }

Result<TransferResult> WriteStep(FileSystem& fs, const Transfer& transfer, const StepTarget& target,
                                 const std::string& run_dir) {
  return StepWriting(fs, transfer, target, run_dir).Run();
}

}  // namespace cairn
