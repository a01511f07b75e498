// Rank 0 lists the steps to try: those of the run directory and the local ones, newest first, or those of
// --load if the run directory has none. It leaves out the unhealthy ones. All ranks load one proposal after
// the other. A step counts only if every rank loaded its part, so no two ranks continue from different steps.
// Damage leads to the next proposal; any other error ends the start. Boxes in host memory are loaded in
// parallel, all at once. Boxes for a GPU are loaded in batches, through a buffer; boxes that are cast, one by
// one.

#include "runtime/saving/resume.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <ranges>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/flat_range.h"
#include "ckpt/codec/cast.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/model_function.h"
#include "ckpt/run/run_dir.h"
#include "runtime/control/rank_message.h"

namespace cairn {
namespace {

constexpr uint64_t kWindowElements = 1 << 20;
constexpr uint64_t kGpuBatchBytes = 1 << 30;  // of host memory, or the largest box

bool IsMoment(Role role) { return role == Role::kExpAvg || role == Role::kExpAvgSq; }

struct Stretch {
  Box box;            // of the tensor
  std::byte* target;  // of the part
};

// The stretches of a parameter that a part of this rank's state covers.
std::vector<Stretch> StretchesOf(const StateBuffers::Part& part, const LocalParameter& local) {
  const FlatRange wanted = Overlap(part.covers, {local.flat_begin, local.flat_begin + local.box.Volume()});
  std::vector<Stretch> stretches;
  if (wanted.size() == 0) return stretches;
  const FlatRange in_box{wanted.begin - local.flat_begin, wanted.end - local.flat_begin};
  for (const Segment& segment : Decompose(local.box, in_box))
    stretches.push_back(
        {segment.box, part.data + (wanted.begin + segment.begin - part.covers.begin) * SizeOf(part.dtype)});
  return stretches;
}

Status DoesNotFit(const TensorEntry& entry, const StateBuffers::Part& part, const ParameterSpec& spec,
                  std::string_view hint) {
  return InvalidArgument(
      "tensor {} is {} {} in the checkpoint, {} {} in this training; check the model's flags{}",
      DisplayName(entry), Name(entry.dtype), ToString(entry.spec.shape), Name(part.dtype),
      ToString(spec.shape), hint);
}

bool IsOwn(const nlohmann::json& state) {
  return state.is_object() && state.contains("nan_iterations") && state.contains("optimizer_steps");
}

// Iteration and data stay. The schedule and the loss scale belong to the optimizer, as in Megatron.
TrainState WithoutOptimizer(TrainState state) {
  const TrainState begins;
  state.optimizer_steps = begins.optimizer_steps;
  state.scheduled_samples = begins.scheduled_samples;
  state.loss_scale = begins.loss_scale;
  state.loss_scale_good_steps = begins.loss_scale_good_steps;
  state.loss_scale_hysteresis = begins.loss_scale_hysteresis;
  return state;
}

std::string NameOf(int64_t local_step, const std::string& directory) {
  return local_step >= 0 ? fmt::format("local step {}", local_step) : directory;
}

// Checks that its model computes the function that is trained: names and shapes do not show that.
Status CheckFunction(const nlohmann::json& model, const nlohmann::json& trained) {
  if (trained.empty() || model.empty()) return OkStatus();
  if (model.contains("hugging_face") && !model.contains("function"))
    return NotSupported(
        "it was imported by an earlier Cairn, which did not record everything that decides what a model "
        "computes; "
        "import "
        "it again with cairn convert --to native");
  const std::string family = model.value("architecture", ""), own = trained.value("architecture", "");
  if (family != own && !family.empty())
    return NotSupported("it is a model of the family {}, this training computes {}", family, own);
  const Status same = SameFunction(model, trained, "this training");
  return same.ok() ? same
                   : NotSupported("{}; leave the flags of the model out, and it is trained as it is",
                                  same.message());
}

// The step that `latest` names.
std::optional<int64_t> LatestOf(FileSystem& fs, const std::string& run_dir) {
  if (run_dir.empty()) return std::nullopt;
  const Result<std::string> text = ReadSmallFile(fs, JoinPath(run_dir, kLatestName), 64);
  return text.ok() ? ParseStepDirName(text->substr(0, text->find('\n'))) : std::nullopt;
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

// Adds the current steps of a run directory, newest first. A local step comes before the step of the same
// number.
Status Resumer::AddSteps(const std::string& run_dir, std::vector<Candidate>& candidates) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(fs_, run_dir));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<StepFacts> facts, ReadStepFacts(fs_, run_dir));
  std::vector<int64_t> local;
  if (local_ != nullptr && run_dir == options_.save_dir) local = local_->steps();
  std::vector<JudgedStep> judged;
  std::vector<BranchedStep> commits;
  for (const int64_t step : local) {
    judged.push_back({step, local_->HealthAt(step), run_});
    commits.push_back({step, local_->BranchesAt(step)});
  }
  for (const StepFacts& fact : facts) {
    judged.push_back({fact.step, fact.health, fact.run});
    commits.push_back({fact.step, fact.branches});
  }
  const std::vector<std::string> verdicts = Verdicts(judged, ReadCondemnations(fs_, run_dir));
  const std::vector<bool> superseded = Superseded(commits);
  if (run_dir == options_.save_dir) {
    newest_ = NewestCommit(facts, steps);
    for (size_t i = 0; i < local.size(); ++i)
      if (!newest_ || *newest_ < commits[i]) newest_ = commits[i];
  }

  std::map<std::pair<int64_t, bool>, Candidate> found;  // by number and whether it is local
  for (const int64_t step : steps) found[{step, false}] = {.directory = JoinPath(run_dir, StepDirName(step))};
  for (size_t i = 0; i < local.size(); ++i)
    found[{local[i], true}] = {.local_step = local[i], .drained = found.contains({local[i], false})};
  for (size_t i = 0; i < commits.size(); ++i) {
    const std::pair key{commits[i].step, i < local.size()};
    if (superseded[i])
      found.erase(key);
    else
      found[key].unhealthy = verdicts[i];
  }
  for (auto& [key, candidate] : found | std::views::reverse) candidates.push_back(std::move(candidate));
  return OkStatus();
}

Status Resumer::AddLoad(std::vector<Candidate>& candidates) {
  const size_t before = candidates.size();
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs_.Stat(options_.load));
  if (!info.is_directory())
    return NotSupported("{} is a file; --load takes a step or run directory", options_.load);
  if (fs_.Stat(JoinPath(options_.load, kManifestName)).ok()) {
    const auto step = StepReader::Open(fs_, options_.load);
    const std::optional<Health> health = step.ok() ? HealthOf((*step)->manifest().state) : std::nullopt;
    candidates.push_back({.directory = options_.load, .unhealthy = health ? WhyUnhealthy(*health) : ""});
  } else {
    CAIRN_RETURN_IF_ERROR(AddSteps(options_.load, candidates));
  }
  if (candidates.size() == before) return NotFound("{}: no committed step here", options_.load);
  for (size_t i = before; i < candidates.size(); ++i) candidates[i].weights_only = options_.finetune;
  return OkStatus();
}

// Steps to try, best first. Those of save_dir win over --load: the same command line continues where it
// stopped. If --load is the same directory, the first start has none.
Result<std::vector<Resumer::Candidate>> Resumer::Candidates() {
  std::vector<Candidate> candidates;
  if (!options_.save_dir.empty()) CAIRN_RETURN_IF_ERROR(AddSteps(options_.save_dir, candidates));
  const bool has_steps = std::ranges::any_of(candidates, [](const Candidate& c) { return c.local_step < 0; });
  if (!has_steps) {
    if (candidates.empty()) CAIRN_RETURN_IF_ERROR(StepsAreGone());
    const bool own =
        !options_.save_dir.empty() && CanonicalPath(options_.load) == CanonicalPath(options_.save_dir);
    if (!options_.load.empty() && !own) CAIRN_RETURN_IF_ERROR(AddLoad(candidates));
  }
  CAIRN_RETURN_IF_ERROR(LeaveOutUnhealthy(candidates));
  return candidates;
}

Status Resumer::LeaveOutUnhealthy(std::vector<Candidate>& candidates) const {
  if (options_.load_unhealthy) return OkStatus();
  std::vector<Candidate> healthy;
  for (const Candidate& candidate : candidates) {
    if (candidate.unhealthy.empty()) healthy.push_back(candidate);
    if (!candidate.unhealthy.empty() && healthy.empty())
      Say(fmt::format("skipping {}: unhealthy ({})", NameOf(candidate.local_step, candidate.directory),
                      candidate.unhealthy));
  }
  if (healthy.empty() && !candidates.empty())
    return InvalidArgument(
        "{}: none of its steps is healthy; --load-unhealthy resumes from the newest anyway",
        options_.save_dir.empty() ? options_.load : options_.save_dir);
  candidates = std::move(healthy);
  return OkStatus();
}

// An error if save_dir once had steps: only the user may start again at iteration 0.
Status Resumer::StepsAreGone() const {
  const std::optional<int64_t> latest = LatestOf(fs_, options_.save_dir);
  if (!latest || options_.start_anew) return OkStatus();
  return NotFound(
      "{}: 'latest' names step {}, but no step is here any more; bring it back (cairn archive restore), or "
      "start at iteration 0 with --start-anew",
      options_.save_dir, *latest);
}

void Resumer::ReportMissingNewest(const Resumed& resumed) const {
  const std::optional<int64_t> latest = LatestOf(fs_, options_.save_dir);
  if (!latest || resumed.state.iteration >= *latest) return;
  if (fs_.Stat(JoinPath(options_.save_dir, StepDirName(*latest))).ok()) return;
  Say(fmt::format("{}: 'latest' names step {}, which is not here any more", options_.save_dir, *latest));
}

// Collective: gives rank 0's proposal to every rank: "L" and a local step ("l" if it is drained), or "D" and
// a directory ("F": for its weights), or nothing.
Result<Resumer::Candidate> Resumer::Agreed(const Result<Candidate>& proposal) {
  const auto propose = [&]() -> Result<std::string> {
    CAIRN_RETURN_IF_ERROR(proposal.status());
    if (!proposal->directory.empty()) return (proposal->weights_only ? "F" : "D") + proposal->directory;
    if (proposal->local_step < 0) return std::string();
    return fmt::format("{}{}", proposal->drained ? 'l' : 'L', proposal->local_step);
  };
  CAIRN_ASSIGN_OR_RETURN(const std::string text, FromRoot(control_, "step to resume from", propose));
  Candidate agreed;
  if (text.starts_with('D') || text.starts_with('F'))
    agreed = {.directory = text.substr(1), .weights_only = text[0] == 'F'};
  else if (!text.empty())
    agreed = {.local_step = std::atoll(text.c_str() + 1), .drained = text[0] == 'l'};
  return agreed;
}

// The directory of the candidates: save_dir or --load.
std::string Resumer::PlaceOf(const std::vector<Candidate>& candidates) const {
  const bool of_save = !options_.save_dir.empty() && std::ranges::any_of(candidates, [&](const Candidate& c) {
    return c.directory.starts_with(options_.save_dir + "/");
  });
  return of_save || options_.load.empty() ? options_.save_dir : options_.load;
}

// Rank 0 proposes one step after the other; a step counts only if every rank could load its part. If there
// are only local steps, and too much of them is lost, nothing is left to resume from.
Result<std::optional<Resumed>> Resumer::Run(StateBuffers& buffers) {
  const bool root = control_.rank() == 0;
  Result<std::vector<Candidate>> found = root ? Candidates() : std::vector<Candidate>();
  const std::vector<Candidate> candidates = found.ok() ? *found : std::vector<Candidate>();
  Status failure = found.status();
  const bool only_local =
      std::ranges::all_of(candidates, [](const Candidate& c) { return c.local_step >= 0; });
  for (size_t i = 0;; ++i) {
    if (root && failure.ok() && only_local && i == candidates.size()) failure = StepsAreGone();
    if (failure.ok() && !only_local && i == candidates.size())
      failure = Corrupt(
          "{}: none of its {} steps can be loaded; look with `cairn verify`, or move it away to start again",
          PlaceOf(candidates), candidates.size());
    CAIRN_ASSIGN_OR_RETURN(const Candidate candidate, Agreed(!failure.ok() ? Result<Candidate>(failure)
                                                             : i < candidates.size() ? candidates[i]
                                                                                     : Candidate()));
    if (candidate.local_step < 0 && candidate.directory.empty()) return std::optional<Resumed>();
    Resumed resumed;
    const Status agreed = Agree(control_, Load(candidate, buffers, resumed), "outcome of the load");
    const std::string what = NameOf(candidate.local_step, candidate.directory);
    if (agreed.ok()) {
      if (root && !resumed.weights_only) ReportMissingNewest(resumed);
      if (root)
        Say(resumed.weights_only
                ? fmt::format("starts with the weights of {}", what)
                : fmt::format("resumed from {} (iteration {})", what, resumed.state.iteration));
      if (root && !resumed.missing.empty())
        Say(fmt::format("{}: written by another program, without {}; these begin as in a new training", what,
                        fmt::join(resumed.missing, ", ")));
      return std::optional(std::move(resumed));
    }
    if (!IsDamage(agreed.kind())) return agreed;
    if (root) Say("skipping a damaged step: " + agreed.message());
  }
}

Status Resumer::Load(const Candidate& candidate, StateBuffers& buffers, Resumed& resumed) {
  resumed.weights_only = candidate.weights_only;
  if (candidate.local_step < 0) return LoadStep(fs_, candidate.directory, buffers, resumed);
  resumed.from_local = true;
  resumed.durable = candidate.drained;
  return local_->Load(candidate.local_step, [&](FileSystem& fs, const std::string& directory) {
    return LoadStep(fs, directory, buffers, resumed);
  });
}

Status Resumer::LoadStep(FileSystem& fs, const std::string& directory, StateBuffers& buffers,
                         Resumed& resumed) {
  CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(fs, directory));
  CAIRN_RETURN_IF_ERROR(CheckFunction(step->manifest().model, options_.model).WithContext(directory));
  if (resumed.weights_only) return LoadParts(*step, buffers, /*weights_alone=*/true).WithContext(directory);
  // Fields that only cairn train writes are missing in steps of other programs; that is not damage.
  const nlohmann::json& state = step->manifest().state;
  Result<TrainState> loaded =
      IsOwn(state) ? TrainState::FromJson(state) : TrainState::FromOtherProgram(state, resumed.missing);
  if (!loaded.ok()) return loaded.status().WithContext(directory);
  resumed.continues =
      resumed.from_local || (!options_.save_dir.empty() &&
                             directory == JoinPath(options_.save_dir, StepDirName(loaded->iteration)));
  const bool no_optimizer = options_.no_load_optim && !resumed.continues;
  CAIRN_RETURN_IF_ERROR(LoadParts(*step, buffers, no_optimizer).WithContext(directory));
  LoadRng(*step, buffers);
  resumed.state = no_optimizer ? WithoutOptimizer(*std::move(loaded)) : *std::move(loaded);
  resumed.step_run = step->manifest().run;
  resumed.save_interval = IntField(state, "save_interval");
  return OkStatus();
}

// Loads elements of the tensor as `dtype`, a window at a time: a rank has no memory for whole tensors of a
// large model.
Status Resumer::LoadAs(StepReader& step, uint32_t tensor, const Box& box, Dtype dtype, bool on_gpu,
                       std::byte* target) {
  const Dtype from = step.catalog().tensors[tensor].dtype;
  std::vector<std::byte> stored, cast;
  for (uint64_t begin = 0; begin < box.Volume(); begin += kWindowElements)
    for (const Segment& segment : Decompose(box, {begin, std::min(begin + kWindowElements, box.Volume())})) {
      stored.resize(segment.box.Volume() * SizeOf(from));
      cast.resize(segment.box.Volume() * SizeOf(dtype));
      CAIRN_RETURN_IF_ERROR(step.ReadBox(tensor, segment.box, stored));
      if (Cast(from, stored, dtype, cast, OnOverflow::kInfinity).overflowed > 0)
        return InvalidArgument("tensor {} has values beyond the range of {}; train in bf16 or fp32",
                               DisplayName(step.catalog().tensors[tensor]), Name(dtype));
      std::byte* const to = target + (begin + segment.begin) * SizeOf(dtype);
      on_gpu ? options_.device_copy(to, cast.data(), cast.size(), /*to_device=*/true)
             : (void)std::memcpy(to, cast.data(), cast.size());
    }
  return OkStatus();
}

// For weights alone: weights and masters both come from the masters of the step if it has them and they are
// wanted, else from its weights.
Result<uint32_t> Resumer::WeightOf(const StepReader& step, const TensorLookup& lookup,
                                   const ParameterSpec& spec, const StateBuffers::Part& part) const {
  Result<uint32_t> tensor =
      lookup.Find(spec.name, options_.weights_as_stored ? Role::kWeight : Role::kMaster);
  if (!tensor.ok()) tensor = lookup.Find(spec.name, Role::kWeight);
  if (!tensor.ok()) return InvalidArgument("{}; is it another architecture?", tensor.status().message());
  const TensorEntry& entry = step.catalog().tensors[*tensor];
  if (!(entry.spec.shape == spec.shape) || !CanCast(entry.dtype, part.dtype))
    return DoesNotFit(entry, part, spec, "");
  return tensor;
}

// The tensor that a part is read from. A step of another program may have no weights but fp32 masters
// (universal, ZeRO 3): these give the masters, and rounded the weights.
Result<uint32_t> Resumer::TensorOf(const StepReader& step, const TensorLookup& lookup,
                                   const ParameterSpec& spec, const StateBuffers::Part& part) const {
  Result<uint32_t> tensor = lookup.Find(spec.name, part.role);
  const Result<uint32_t> weight = lookup.Find(spec.name, Role::kWeight);
  const bool masters_alone = !IsOwn(step.manifest().state) && weight.ok() &&
                             step.catalog().tensors[*weight].dtype == Dtype::kF32 &&
                             !lookup.Find(spec.name, Role::kMaster).ok();
  if (masters_alone && part.role == Role::kMaster) tensor = weight;
  if (!tensor.ok())
    return InvalidArgument(
        "{}; was it trained with another precision or architecture? A step of weights alone starts a "
        "training with --finetune",
        tensor.status().message());
  const TensorEntry& entry = step.catalog().tensors[*tensor];
  const bool rounds = ((masters_alone && part.role == Role::kWeight) || IsMoment(part.role)) &&
                      CanCast(entry.dtype, part.dtype);
  const bool same_shape = entry.spec.shape == spec.shape;
  if (!same_shape || (entry.dtype != part.dtype && !rounds))
    return DoesNotFit(entry, part, spec, same_shape ? ", or take its weights alone with --finetune" : "");
  return tensor;
}

// Checks that the trainer's optimizer has every state of the step. It has one step count for all parameters.
Status Resumer::CheckStates(const StepReader& step, const StateBuffers& buffers) const {
  for (const TensorEntry& tensor : step.catalog().tensors) {
    const Role role = tensor.role;
    if (role == Role::kWeight || role == Role::kMaster || role == Role::kRng) continue;
    if (std::ranges::find(buffers.parts, role, &StateBuffers::Part::role) == buffers.parts.end())
      return InvalidArgument(
          "{}: this training's optimizer has no {}{}; choose the same --optimizer, or take the weights alone "
          "with --finetune",
          DisplayName(tensor), Name(role), role == Role::kStep ? " of each parameter" : "");
  }
  return OkStatus();
}

Status Resumer::LoadParts(StepReader& step, StateBuffers& buffers, bool weights_alone) {
  if (!weights_alone) CAIRN_RETURN_IF_ERROR(CheckStates(step, buffers));
  const TensorLookup lookup(step.catalog());
  std::vector<ReadRequest> requests, for_gpu;
  for (const StateBuffers::Part& part : buffers.parts) {
    if (weights_alone && part.role != Role::kWeight && part.role != Role::kMaster) continue;
    for (const LocalParameter& local : buffers.layout.parameters) {
      const ParameterSpec& spec = buffers.specs[local.index];
      CAIRN_ASSIGN_OR_RETURN(const uint32_t tensor, weights_alone ? WeightOf(step, lookup, spec, part)
                                                                  : TensorOf(step, lookup, spec, part));
      for (const auto& [box, target] : StretchesOf(part, local)) {
        if (step.catalog().tensors[tensor].dtype != part.dtype) {
          CAIRN_RETURN_IF_ERROR(LoadAs(step, tensor, box, part.dtype, part.on_gpu, target));
          continue;
        }
        (part.on_gpu ? for_gpu : requests)
            .push_back({tensor, box, {target, box.Volume() * SizeOf(part.dtype)}});
      }
    }
  }
  CAIRN_RETURN_IF_ERROR(LoadToGpu(step, for_gpu));
  return step.Load(requests);
}

Status Resumer::LoadToGpu(StepReader& step, std::span<const ReadRequest> requests) const {
  std::vector<std::byte> host;
  while (!requests.empty()) {
    size_t count = 0;
    uint64_t bytes = 0;
    do bytes += requests[count++].out.size();
    while (count < requests.size() && bytes + requests[count].out.size() <= kGpuBatchBytes);
    if (host.size() < bytes) host.resize(bytes);
    std::vector<ReadRequest> batch(requests.begin(), requests.begin() + count);
    bytes = 0;
    for (ReadRequest& request : batch) {
      request.out = std::span(host).subspan(bytes, request.out.size());
      bytes += request.out.size();
    }
    CAIRN_RETURN_IF_ERROR(step.Load(batch));
    for (size_t i = 0; i < count; ++i)
      options_.device_copy(requests[i].out.data(), batch[i].out.data(), batch[i].out.size(),
                           /*to_device=*/true);
    requests = requests.subspan(count);
  }
  return OkStatus();
}

void Resumer::LoadRng(StepReader& step, StateBuffers& buffers) {
  const TensorEntry wanted = RngTensor(options_.topology, control_.rank(), 0);
  const Result<uint32_t> tensor = TensorLookup(step.catalog()).Find(wanted.spec.name, Role::kRng);
  buffers.rng_state.clear();
  if (!tensor.ok()) return;
  const TensorEntry& entry = step.catalog().tensors[*tensor];
  buffers.rng_state.resize(entry.bytes());
  const auto out = std::as_writable_bytes(std::span(buffers.rng_state));
  if (!step.ReadBox(*tensor, Box::Whole(entry.spec.shape), out).ok()) buffers.rng_state.clear();
}

}  // namespace cairn
