#include "runtime/resume.h"

#include <algorithm>

#include "ckpt/layout.h"
#include "ckpt/run_dir.h"
#include "runtime/rank_message.h"

namespace cairn {
namespace {

// True for failures that another step may not have: damage, not a request that no step can meet.
bool IsDamage(StatusKind kind) {
  return kind == StatusKind::kCorrupt || kind == StatusKind::kNotFound || kind == StatusKind::kIoError;
}

FlatRange Overlap(FlatRange a, FlatRange b) {
  const uint64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace

TensorEntry RngTensor(const Topology& t, int rank, size_t bytes) {
  TensorEntry entry;
  entry.spec.name = fmt::format("rng.tp{}-pp{}-dp{}.rank-{}", t.tp, t.pp, t.dp, rank);
  entry.spec.shape = {bytes};
  entry.role = Role::kRng;
  entry.dtype = Dtype::kU8;
  return entry;
}

// Step directories to try, best first. The run directory itself wins over --load, so that the same command
// line goes on where it was when it is started again.
Result<std::vector<std::string>> Resumer::Candidates() {
  std::vector<std::string> directories;
  const auto add_steps = [&](const std::string& run_dir) {
    CAIRN_ASSIGN_OR_RETURN(std::vector<int64_t> steps, ListSteps(fs_, run_dir));
    for (; !steps.empty(); steps.pop_back())
      directories.push_back(JoinPath(run_dir, StepDirName(steps.back())));
    return OkStatus();
  };
  if (!places_.save_dir.empty()) CAIRN_RETURN_IF_ERROR(add_steps(places_.save_dir));
  if (!directories.empty() || places_.load.empty()) return directories;
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs_.Stat(places_.load));
  if (!info.is_directory)
    return NotSupported("{} is a file; --load takes a step or run directory", places_.load);
  if (fs_.Stat(JoinPath(places_.load, kManifestName)).ok()) return std::vector{places_.load};
  CAIRN_RETURN_IF_ERROR(add_steps(places_.load));
  if (directories.empty()) return NotFound("{}: no committed step here", places_.load);
  return directories;
}

// Rank 0 proposes one directory after the other; a step counts only where every rank could load its part of
// it.
Result<std::optional<Resumed>> Resumer::Run(StateBuffers& buffers) {
  const bool root = control_.rank() == 0;
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
          places_.save_dir.empty() ? places_.load : places_.save_dir, candidates.size());
    const std::string proposal = i < candidates.size() ? candidates[i] : "";
    CAIRN_ASSIGN_OR_RETURN(
        const std::string told,
        control_.BroadcastFromRoot(EncodeOutcome(failure, proposal), "step to resume from"));
    CAIRN_ASSIGN_OR_RETURN(const std::string directory, DecodeOutcome(told));
    if (directory.empty()) return std::optional<Resumed>();
    Resumed resumed;
    const Status status = LoadStep(directory, buffers, resumed);
    CAIRN_ASSIGN_OR_RETURN(const auto blobs,
                           control_.GatherToRoot(EncodeOutcome(status), "outcome of the load"));
    Status worst;
    for (const std::string& blob : blobs) {
      const Status other = DecodeOutcome(blob).status();
      if (!other.ok() && (worst.ok() || !IsDamage(other.kind()))) worst = other;
    }
    if (root && !worst.ok() && !IsDamage(worst.kind())) failure = worst;
    if (root && !worst.ok() && IsDamage(worst.kind())) Say("skipping a damaged step: " + worst.message());
    CAIRN_ASSIGN_OR_RETURN(const std::string verdict,
                           control_.BroadcastFromRoot(EncodeOutcome(worst), "verdict on the load"));
    const Status agreed = DecodeOutcome(verdict).status();
    if (agreed.ok()) {
      if (root) Say(fmt::format("resumed from {} (iteration {})", directory, resumed.state.iteration));
      return std::optional(std::move(resumed));
    }
    if (!IsDamage(agreed.kind())) return agreed;
  }
}

Status Resumer::LoadStep(const std::string& directory, StateBuffers& buffers, Resumed& resumed) {
  CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(fs_, directory));
  Result<TrainState> loaded = TrainState::FromJson(step->manifest().state);
  if (!loaded.ok()) return loaded.status().WithContext(directory);
  CAIRN_RETURN_IF_ERROR(LoadParts(*step, buffers).WithContext(directory));
  LoadRng(*step, buffers);
  resumed.state = *loaded;
  const bool goes_on =
      !places_.save_dir.empty() && directory == JoinPath(places_.save_dir, StepDirName(loaded->iteration));
  if (goes_on) resumed.run = step->manifest().run;  // another run directory, or none yet, is a run of its own
  return OkStatus();
}

Status Resumer::LoadParts(StepReader& step, StateBuffers& buffers) {
  const TensorLookup lookup(step.catalog());
  std::vector<ReadRequest> requests;
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
        if (!part.on_gpu) {
          requests.push_back({*tensor, segment.box, {target, bytes}});
          continue;
        }
        host.resize(bytes);
        CAIRN_RETURN_IF_ERROR(step.ReadBox(*tensor, segment.box, host));
        device_copy_(target, host.data(), bytes);
      }
    }
  }
  return step.Load(requests);
}

void Resumer::LoadRng(StepReader& step, StateBuffers& buffers) {
  const TensorEntry wanted = RngTensor(topology_, control_.rank(), 0);
  const Result<uint32_t> tensor = TensorLookup(step.catalog()).Find(wanted.spec.name, Role::kRng);
  buffers.rng_state.clear();
  if (!tensor.ok()) return;
  const TensorEntry& entry = step.catalog().tensors[*tensor];
  buffers.rng_state.resize(entry.bytes());
  const auto out = std::as_writable_bytes(std::span(buffers.rng_state));
  if (!step.ReadBox(*tensor, Box::Whole(entry.spec.shape), out).ok()) buffers.rng_state.clear();
}

}  // namespace cairn
