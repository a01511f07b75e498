#include "runtime/checkpointer.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "ckpt/byte_codec.h"
#include "ckpt/layout.h"
#include "ckpt/verify.h"

namespace cairn {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

std::string RandomHex(int bytes) {
  std::string hex;
  for (int i = 0; i < bytes; ++i) {
    unsigned char byte = 0;
    (void)!::getrandom(&byte, 1, 0);
    hex += fmt::format("{:02x}", byte);
  }
  return hex;
}

void Say(const std::string& line) { fmt::print(stderr, "cairn-train: {}\n", line); }

// A Status on its way between ranks: kind, then message or payload.
std::string EncodeOutcome(const Status& status, std::string_view payload = {}) {
  ByteWriter out;
  out.Put(static_cast<uint8_t>(status.kind()));
  out.PutRaw(status.ok() ? payload : std::string_view(status.message()));
  return std::move(out).Take();
}

Result<std::string> DecodeOutcome(std::string_view blob) {
  ByteReader in(blob);
  const auto kind = static_cast<StatusKind>(in.Get<uint8_t>());
  std::string rest(in.GetRaw(in.left()));
  if (!in.ok()) return Corrupt("truncated message between ranks");
  if (kind != StatusKind::kOk) return Status(kind, std::move(rest));
  return rest;
}

// The random state of one rank: a tensor that only the same rank of the same topology loads.
TensorEntry RngTensor(const Topology& t, int rank, size_t bytes) {
  TensorEntry entry;
  entry.spec.name = fmt::format("rng.tp{}-pp{}-dp{}.rank-{}", t.tp, t.pp, t.dp, rank);
  entry.spec.shape = {bytes};
  entry.role = Role::kRng;
  entry.dtype = Dtype::kU8;
  return entry;
}

// True for failures that another step may not have: damage, not a request that no step can meet.
bool IsDamage(StatusKind kind) {
  return kind == StatusKind::kCorrupt || kind == StatusKind::kNotFound || kind == StatusKind::kIoError;
}

FlatRange Overlap(FlatRange a, FlatRange b) {
  const uint64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace

Checkpointer::Checkpointer(CheckpointerOptions options, std::unique_ptr<ControlPlane> control)
    : options_(std::move(options)), control_(std::move(control)) {}

Checkpointer::~Checkpointer() {
  if (saver_.joinable()) saver_.join();
}

Result<std::unique_ptr<Checkpointer>> Checkpointer::Create(CheckpointerOptions options,
                                                           std::unique_ptr<ControlPlane> control) {
  std::unique_ptr<Checkpointer> checkpointer(new Checkpointer(std::move(options), std::move(control)));
  Status status;
  std::string names;
  if (checkpointer->control_->rank() == 0) {
    status = checkpointer->Open();
    names = RandomHex(16) +
            RandomHex(4);  // of the run, should it be new, and of this session's partial directories
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string told, checkpointer->control_->BroadcastFromRoot(
                                                     EncodeOutcome(status, names), "run directory"));
  CAIRN_ASSIGN_OR_RETURN(names, DecodeOutcome(told));
  checkpointer->run_ = names.substr(0, 32);
  checkpointer->nonce_ = names.substr(32);
  return checkpointer;
}

Status Checkpointer::Open() {
  if (options_.save_dir.empty()) return OkStatus();
  CAIRN_RETURN_IF_ERROR(MakeDirs(fs_, options_.save_dir));
  CAIRN_ASSIGN_OR_RETURN(lock_, RunLock::Take(options_.save_dir));
  return CleanLeftovers(fs_, options_.save_dir);
}

// ---- Resume ----

// Step directories to try, best first. The run directory itself wins over --load, so that the same command
// line goes on where it was when it is started again.
Result<std::vector<std::string>> Checkpointer::Candidates() {
  std::vector<std::string> directories;
  const auto add_steps = [&](const std::string& run_dir) {
    CAIRN_ASSIGN_OR_RETURN(std::vector<int64_t> steps, ListSteps(fs_, run_dir));
    for (; !steps.empty(); steps.pop_back())
      directories.push_back(JoinPath(run_dir, StepDirName(steps.back())));
    return OkStatus();
  };
  if (!options_.save_dir.empty()) CAIRN_RETURN_IF_ERROR(add_steps(options_.save_dir));
  if (!directories.empty() || options_.load.empty()) return directories;
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs_.Stat(options_.load));
  if (!info.is_directory)
    return NotSupported("{} is a file; --load takes a step or run directory", options_.load);
  if (fs_.Stat(JoinPath(options_.load, kManifestName)).ok()) return std::vector{options_.load};
  CAIRN_RETURN_IF_ERROR(add_steps(options_.load));
  if (directories.empty()) return NotFound("{}: no committed step here", options_.load);
  return directories;
}

// Rank 0 proposes one directory after the other; a step counts only where every rank could load its part of
// it.
Result<std::optional<TrainState>> Checkpointer::Resume(StateBuffers& buffers) {
  const bool root = control_->rank() == 0;
  Status failure;
  std::vector<std::string> candidates;
  if (root) {
    Result<std::vector<std::string>> found = Candidates();
    failure = found.status();
    if (found.ok()) candidates = std::move(found).value();
  }
  for (size_t i = 0;; ++i) {
    if (failure.ok() && !candidates.empty() && i == candidates.size())
      failure = Corrupt(
          "{}: none of its {} steps can be loaded; look with `cairn verify`, or move it away to start anew",
          options_.save_dir.empty() ? options_.load : options_.save_dir, candidates.size());
    const std::string proposal = i < candidates.size() ? candidates[i] : "";
    CAIRN_ASSIGN_OR_RETURN(
        const std::string told,
        control_->BroadcastFromRoot(EncodeOutcome(failure, proposal), "step to resume from"));
    CAIRN_ASSIGN_OR_RETURN(const std::string directory, DecodeOutcome(told));
    if (directory.empty()) return std::optional<TrainState>();
    TrainState state;
    const Status status = LoadStep(directory, buffers, state);
    CAIRN_ASSIGN_OR_RETURN(const auto blobs,
                           control_->GatherToRoot(EncodeOutcome(status), "outcome of the load"));
    Status worst;
    for (const std::string& blob : blobs) {
      const Status other = DecodeOutcome(blob).status();
      if (!other.ok() && (worst.ok() || !IsDamage(other.kind()))) worst = other;
    }
    if (root && !worst.ok() && !IsDamage(worst.kind())) failure = worst;
    if (root && !worst.ok() && IsDamage(worst.kind())) Say("skipping a damaged step: " + worst.message());
    CAIRN_ASSIGN_OR_RETURN(const std::string verdict,
                           control_->BroadcastFromRoot(EncodeOutcome(worst), "verdict on the load"));
    const Status agreed = DecodeOutcome(verdict).status();
    if (agreed.ok()) {
      if (root) Say(fmt::format("resumed from {} (iteration {})", directory, state.iteration));
      return std::optional(state);
    }
    if (!IsDamage(agreed.kind())) return agreed;
  }
}

Status Checkpointer::LoadStep(const std::string& directory, StateBuffers& buffers, TrainState& state) {
  CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(fs_, directory));
  Result<TrainState> loaded = TrainState::FromJson(step->manifest().state);
  if (!loaded.ok()) return loaded.status().WithContext(directory);
  CAIRN_RETURN_IF_ERROR(LoadParts(*step, buffers).WithContext(directory));
  LoadRng(*step, buffers);
  state = *loaded;
  const bool goes_on =
      !options_.save_dir.empty() && directory == JoinPath(options_.save_dir, StepDirName(state.iteration));
  if (goes_on) {  // another run directory, or none yet, is a run of its own
    run_ = step->manifest().run;
    newest_saved_ = state.iteration;
  }
  return OkStatus();
}

Status Checkpointer::LoadParts(StepReader& step, StateBuffers& buffers) {
  const TensorLookup lookup(step.catalog());
  std::vector<std::byte> host;
  for (const StateBuffers::Part& part : buffers.parts) {
    for (const LocalParameter& local : buffers.layout.parameters) {
      const ParameterSpec& spec = buffers.specs[local.index];
      Result<uint32_t> tensor = lookup.Find(spec.name, part.role);
      if (!tensor.ok())
        return InvalidArgument("{}; was it trained with another precision or architecture?",
                               tensor.status().message());
      const TensorEntry& entry = step.catalog().tensors[*tensor];
      if (!(entry.spec.shape == spec.shape) || entry.dtype != part.dtype)
        return InvalidArgument(
            "tensor {} is {} {} in the checkpoint, {} {} in this training; check the model's flags",
            DisplayName(entry), Name(entry.dtype), ToString(entry.spec.shape), Name(part.dtype),
            ToString(spec.shape));
      const FlatRange wanted =
          Overlap(part.covers, {local.flat_begin, local.flat_begin + local.box.Volume()});
      const FlatRange in_box{wanted.begin - local.flat_begin, wanted.end - local.flat_begin};
      for (const Segment& segment :
           wanted.size() == 0 ? std::vector<Segment>() : Decompose(local.box, in_box)) {
        const size_t bytes = segment.box.Volume() * SizeOf(part.dtype);
        std::byte* target =
            part.data + (wanted.begin + segment.begin - part.covers.begin) * SizeOf(part.dtype);
        if (part.on_gpu) host.resize(bytes);
        CAIRN_RETURN_IF_ERROR(
            step.ReadBox(*tensor, segment.box, {part.on_gpu ? host.data() : target, bytes}));
        if (part.on_gpu) options_.device_copy(target, host.data(), bytes, /*to_device=*/true);
      }
    }
  }
  return OkStatus();
}

void Checkpointer::LoadRng(StepReader& step, StateBuffers& buffers) {
  const TensorEntry wanted = RngTensor(options_.topology, control_->rank(), 0);
  const Result<uint32_t> tensor = TensorLookup(step.catalog()).Find(wanted.spec.name, Role::kRng);
  buffers.rng_state.clear();
  if (!tensor.ok()) return;
  const TensorEntry& entry = step.catalog().tensors[*tensor];
  buffers.rng_state.resize(entry.bytes());
  const auto out = std::as_writable_bytes(std::span(buffers.rng_state));
  if (!step.ReadBox(*tensor, Box::Whole(entry.spec.shape), out).ok()) buffers.rng_state.clear();
}

// ---- Save ----

std::string Checkpointer::StagingDir(const Pending& save) const {
  return JoinPath(options_.save_dir, PartialDirName(save.info.identity.step, save.nonce));
}

Status Checkpointer::AfterStep(const TrainState& state, StateBuffers& buffers, bool force) {
  if (pending_ && pending_->done) (void)Collect();
  const bool due = options_.save_interval > 0 && state.iteration % options_.save_interval == 0;
  if (options_.save_dir.empty() || !(due || force)) return OkStatus();
  (void)Collect();  // a save that is still on its way is waited for, on all ranks alike
  if (state.iteration == newest_saved_) return OkStatus();
  auto save = std::make_unique<Pending>();
  save->started = Clock::now();
  Status status = PlanSave(state, buffers, *save);
  // Ranks agree before any of them writes: from here on all take part, or none.
  CAIRN_ASSIGN_OR_RETURN(const bool all_ready, control_->AllTrue(status.ok(), "snapshot"));
  if (!all_ready) {
    ++failed_saves_;
    if (!status.ok())
      Say(fmt::format("checkpoint of iteration {} not saved: {}", state.iteration, status.message()));
    return OkStatus();
  }
  Copy(buffers, *save);
  newest_saved_ = state.iteration;
  pending_ = std::move(save);
  saver_ = std::thread([this, pending = pending_.get()] { Flush(*pending); });
  return OkStatus();
}

// What this rank writes, from the placement alone.
Status Checkpointer::PlanSave(const TrainState& state, const StateBuffers& buffers, Pending& save) {
  save.info = {.identity = {run_, state.iteration},
               .topology = options_.topology,
               .model = options_.model,
               .state = state.ToJson(),
               .history = nlohmann::json::array()};
  save.nonce = fmt::format("{}{:x}", nonce_, saves_++);
  for (const ParameterSpec& spec : buffers.specs)
    for (const StateBuffers::Part& part : buffers.parts)
      save.tensors.push_back({spec, part.role, part.dtype});

  size_t arena_bytes = 0;
  const auto roles = static_cast<uint32_t>(buffers.parts.size());
  const auto add = [&](uint32_t tensor, const Box& box, FlatRange range, size_t bytes) {
    save.pieces.push_back({.tensor = tensor, .file = 0, .box = box, .range = range, .chunks = {}});
    save.arena_offsets.push_back(arena_bytes);
    arena_bytes += (bytes + 63) / 64 * 64;
  };
  save.local_tensors = save.tensors;
  for (const PlacedPiece& piece : PiecesOf(buffers.layout, options_.topology.At(control_->rank()).dp))
    for (uint32_t role = 0; role < roles; ++role)
      add(piece.index * roles + role, piece.box, piece.range,
          piece.range.size() * SizeOf(buffers.parts[role].dtype));
  if (!buffers.rng_state.empty()) {
    const TensorEntry rng = RngTensor(options_.topology, control_->rank(), buffers.rng_state.size());
    add(static_cast<uint32_t>(save.local_tensors.size()), Box::Whole(rng.spec.shape), {0, rng.bytes()},
        rng.bytes());
    save.local_tensors.push_back(rng);
  }
  return arena_.Reserve(arena_bytes);
}

void Checkpointer::Copy(const StateBuffers& buffers, Pending& save) {
  const Clock::time_point start = Clock::now();
  size_t next = 0;
  for (const PlacedPiece& piece : PiecesOf(buffers.layout, options_.topology.At(control_->rank()).dp)) {
    for (const StateBuffers::Part& part : buffers.parts) {
      std::byte* to = arena_.data() + save.arena_offsets[next++];
      const std::byte* from = part.data + (piece.flat_begin - part.covers.begin) * SizeOf(part.dtype);
      const size_t bytes = piece.range.size() * SizeOf(part.dtype);
      if (part.on_gpu)
        options_.device_copy(to, from, bytes, /*to_device=*/false);
      else
        std::memcpy(to, from, bytes);
    }
  }
  if (!buffers.rng_state.empty())
    std::memcpy(arena_.data() + save.arena_offsets[next], buffers.rng_state.data(), buffers.rng_state.size());
  save.copy_seconds = Seconds(start);
}

// The saver thread: writes, tells rank 0, and hears from it whether the step was committed.
void Checkpointer::Flush(Pending& save) {
  const Result<ShardReceipt> receipt = WriteShard(save);
  const std::string blob =
      receipt.ok() ? EncodeOutcome(OkStatus(), receipt->Encode()) : EncodeOutcome(receipt.status());
  save.status = [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(const auto blobs, control_->GatherToRoot(blob, "shard receipts"));
    const Status committed = control_->rank() == 0 ? CommitAtRoot(save, blobs) : OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const std::string told,
                           control_->BroadcastFromRoot(EncodeOutcome(committed), "commit"));
    return DecodeOutcome(told).status();
  }();
  save.done = true;
}

Result<ShardReceipt> Checkpointer::WriteShard(const Pending& save) {
  const std::string directory = StagingDir(save);
  CAIRN_RETURN_IF_ERROR(fs_.MakeDir(directory));
  CAIRN_ASSIGN_OR_RETURN(
      const auto writer,
      ShardWriter::Create(fs_, ring_, directory, ShardName(control_->rank()), save.info.identity,
                          save.local_tensors, save.pieces, options_.direct));
  for (size_t i = 0; i < save.pieces.size(); ++i) {
    const size_t bytes =
        save.pieces[i].range.size() * SizeOf(save.local_tensors[save.pieces[i].tensor].dtype);
    CAIRN_RETURN_IF_ERROR(writer->Append(i, {arena_.data() + save.arena_offsets[i], bytes}));
  }
  CAIRN_ASSIGN_OR_RETURN(const ShardReceipt receipt, writer->Finish());
  if (!options_.retention.enabled()) return receipt;
  // Older steps may be deleted once this one is committed, so it is read back first, each rank its own shard.
  VerifyReport report;
  CAIRN_RETURN_IF_ERROR(VerifyShard(fs_, directory, receipt.file, receipt.catalog, 0, save.info.identity.run,
                                    save.info.identity.step, report));
  if (!report.problems.empty()) return Corrupt("read back after writing: {}", ToString(report.problems[0]));
  return receipt;
}

Status Checkpointer::CommitAtRoot(const Pending& save, const std::vector<std::string>& blobs) {
  const std::string directory = StagingDir(save);
  const Status status = [&]() -> Status {
    std::vector<TensorEntry> tensors = save.tensors;
    std::vector<ShardReceipt> receipts;
    for (size_t rank = 0; rank < blobs.size(); ++rank) {
      const Result<std::string> payload = DecodeOutcome(blobs[rank]);
      if (!payload.ok()) return payload.status().WithContext(fmt::format("rank {}", rank));
      CAIRN_ASSIGN_OR_RETURN(ShardReceipt receipt, ShardReceipt::Decode(*payload));
      for (const TensorEntry& tensor : receipt.catalog.tensors)
        if (tensor.role == Role::kRng) tensors.push_back(tensor);
      receipts.push_back(std::move(receipt));
    }
    CAIRN_RETURN_IF_ERROR(SealStep(fs_, directory, save.info, tensors, receipts));
    return PublishStep(fs_, options_.save_dir, save.info.identity.step, save.nonce);
  }();
  if (!status.ok()) {
    AbandonPartial(fs_, directory);
    return status;
  }
  const Status retired = ApplyRetention(fs_, options_.save_dir, options_.retention, save.nonce);
  if (!retired.ok()) Say("old steps not removed: " + retired.message());
  return OkStatus();
}

Status Checkpointer::Collect() {
  if (!pending_) return OkStatus();
  saver_.join();
  const std::unique_ptr<Pending> save = std::move(pending_);
  const int64_t step = save->info.identity.step;
  if (!save->status.ok()) {
    ++failed_saves_;
    newest_saved_ = -1;
    if (control_->rank() == 0)
      Say(
          fmt::format("checkpoint of iteration {} FAILED ({} so far): {}; training goes on, the next "
                      "interval tries again",
                      step, failed_saves_, save->status.message()));
  } else if (control_->rank() == 0) {
    fmt::print(
        " successfully saved checkpoint from iteration {:7} to {} (stall {:.3f} s, durable after {:.3f} s)\n",
        step, options_.save_dir, save->copy_seconds, Seconds(save->started));
    fflush(stdout);
  }
  return save->status;
}

Status Checkpointer::Finish() {
  const Status status = Collect();
  return status.ok() ? status : status.WithContext("the last checkpoint was not saved");
}

}  // namespace cairn
