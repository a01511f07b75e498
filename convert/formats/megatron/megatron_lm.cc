// The first rank's args give TP and PP, so that directories left over from a larger world are known. Each
// rank's file is read for its chunks of the model and for its optimizer, whose tensors are matched with the
// rank's own weights by value. Assemble() sorts the chunks in the order in which the model passes through
// them, and counts layers as it goes; a total other than the args' is an error. If one rank's optimizer
// cannot be read and that is allowed, the optimizer of all ranks is left out.

#include "convert/formats/megatron/megatron_lm.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "ckpt/base/parse_number.h"
#include "ckpt/model/layout.h"
#include "convert/formats/megatron/megatron_dist.h"
#include "convert/formats/megatron_model/megatron_model.h"
#include "convert/formats/megatron_model/megatron_names.h"
#include "convert/formats/megatron_model/megatron_optimizer.h"
#include "convert/formats/megatron_model/megatron_state.h"
#include "convert/formats/training/group_members.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

constexpr const char* kFile = "model_optim_rng.pt";

struct Rank {
  int tp = 0;
  int pp = 0;
  std::string file;  // relative to the iteration's directory
};

// "mp_rank_01_003"; nothing for other names.
std::optional<Rank> ParseRank(const std::string& name) {
  constexpr std::string_view kPrefix = "mp_rank_";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  Rank rank;
  const char* last = name.data() + name.size();
  auto [end, error] = std::from_chars(name.data() + kPrefix.size(), last, rank.tp);
  if (error == std::errc() && end != last && *end == '_') {
    const auto stage = std::from_chars(end + 1, last, rank.pp);
    end = stage.ptr;
    error = stage.ec;
  }
  if (error != std::errc() || end != last || rank.tp < 0 || rank.pp < 0) return std::nullopt;
  rank.file = name + "/" + kFile;
  return rank;
}

bool HoldsRanks(FileSystem& fs, const std::string& directory) {
  const auto names = fs.List(directory);
  return names.ok() && std::ranges::any_of(*names, [](const auto& n) { return ParseRank(n).has_value(); });
}

// A stage's chunk of the model, under its local layer numbers.
struct ModelChunk {
  Rank rank;
  int number = 0;  // of a virtual pipeline
  std::vector<std::pair<MegatronName, MegatronWeight>> tensors;
  int layers = 0;
};

class MegatronOpener {
 public:
  MegatronOpener(FileSystem& fs, std::string directory, ReaderOptions& options)
      : fs_(fs), directory_(std::move(directory)), options_(options) {}

  Result<std::unique_ptr<ForeignSource>> Open() {
    CAIRN_RETURN_IF_ERROR(FindRanks());
    for (const Rank& rank : ranks_) CAIRN_RETURN_IF_ERROR(ReadRank(rank));
    for (const Rank& rank : ranks_)
      if (left_out_) CAIRN_RETURN_IF_ERROR(LeaveOptimizer(rank));
    CAIRN_RETURN_IF_ERROR(Assemble());
    return builder_.Open(fs_, directory_, std::move(manifest_), options_.replicas);
  }

 private:
  // The sizes are those in the first rank's args; directories beyond them are left over from a larger world.
  Status FindRanks() {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_.List(directory_));
    std::vector<Rank> found;
    for (const std::string& name : names)
      if (auto rank = ParseRank(name)) found.push_back(*std::move(rank));
    const auto first = std::ranges::find_if(found, [](const Rank& r) { return r.tp == 0 && r.pp == 0; });
    if (first == found.end()) return NotFound("{}: the directory of rank 0 is missing", directory_);
    CAIRN_ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Open(fs_, directory_, first->file));
    const double version = AsNumber(Find(file.root(), "checkpoint_version")).value_or(0);
    auto args = ReadMegatronTraining(file.root(), version, options_, manifest_);
    if (!args.ok()) return args.status().WithContext(file.path());
    shape_ = *std::move(args);
    if (shape_.experts > 0)
      return NotSupported(
          "{}: it is a mixture of experts, which is read in the format torch_dist only; load it with "
          "Megatron-LM and save it with --ckpt-format torch_dist",
          directory_);
    tp_ = manifest_.topology.tp;
    pp_ = manifest_.topology.pp;
    for (int pp = 0; pp < pp_; ++pp)
      for (int tp = 0; tp < tp_; ++tp) {
        const auto rank =
            std::ranges::find_if(found, [&](const Rank& r) { return r.tp == tp && r.pp == pp; });
        if (rank == found.end())
          return NotFound(
              "{}: the directory of TP rank {} of pipeline stage {} is missing; its args say TP={} PP={}",
              directory_, tp, pp, tp_, pp_);
        ranks_.push_back(*rank);
      }
    for (const Rank& rank : found)
      if (rank.tp >= tp_ || rank.pp >= pp_)
        manifest_.history.push_back("left over from a larger world, not read: " + rank.file);
    return OkStatus();
  }

  Status ReadRank(const Rank& rank) {
    CAIRN_ASSIGN_OR_RETURN(const TorchFile file, builder_.OpenFile(fs_, directory_, rank.file));
    const size_t first = chunks_.size();
    std::set<std::string> taken = {"model", "optimizer"};
    if (const PyValue* model = Find(file.root(), "model"))
      CAIRN_RETURN_IF_ERROR(ReadChunk(rank, 0, file, *model).WithContext(file.path()));
    for (int number = 0; const PyValue* model = Find(file.root(), fmt::format("model{}", number)); ++number) {
      CAIRN_RETURN_IF_ERROR(ReadChunk(rank, number, file, *model).WithContext(file.path()));
      taken.insert(fmt::format("model{}", number));
    }
    CAIRN_RETURN_IF_ERROR(builder_.account.LeaveRest(file, taken, options_).WithContext(directory_));
    LeaveWhatIsNotRead(file.root(), taken, "", builder_.account);
    if (chunks_.size() == first) return NotFound("{}: it has no model", file.path());
    return ReadOptimizer(rank, file, first);
  }

  Status ReadOptimizer(const Rank& rank, const TorchFile& file, size_t first) {
    const PyValue* optimizer = FindKind(file.root(), "optimizer", PyKind::kDict);
    if (!optimizer || left_out_) return OkStatus();
    if (const PyValue* scaler = Find(*optimizer, "grad_scaler"))
      builder_.account.LeaveBelow(Fate::kTrainingState, file, *scaler, "grad_scaler");
    std::vector<MegatronChunkWeights> chunks;
    for (size_t c = first; c < chunks_.size(); ++c) {
      MegatronChunkWeights& chunk = chunks.emplace_back();
      for (auto& [name, weight] : chunks_[c].tensors) chunk.push_back(&weight);
    }
    MegatronOptimizer reader(fs_, directory_, builder_);
    const std::string distributed = DistributedOf(rank);
    Status status;
    if (fs_.Stat(JoinPath(directory_, distributed)).ok()) {
      CAIRN_ASSIGN_OR_RETURN(const TorchFile shard, builder_.OpenFile(fs_, directory_, distributed));
      status = reader.ReadDistributed(shard, chunks).WithContext(distributed);
      manifest_.topology.zero = 1;
    } else {
      status = reader.ReadPlain(file, *optimizer, chunks).WithContext(rank.file);
    }
    if (status.ok() && reader.step()) status = TakeStep(*reader.step()).WithContext(rank.file);
    if (status.ok()) return AddNumbersInTensors(fs_, file, file.root(), manifest_.state);
    left_out_ = true;
    return LeaveOutOptimizer(options_, manifest_, status.WithContext(directory_));
  }

  // The number of updates must be the same on all ranks.
  Status TakeStep(double step) {
    if (step_ && *step_ != step)
      return NotSupported("its parameters have had {} updates, but those of another rank {}", step, *step_);
    step_ = step;
    manifest_.state["optimizer_step"] = static_cast<int64_t>(step);
    return OkStatus();
  }

  static std::string DistributedOf(const Rank& rank) {
    return JoinPath(ParentOf(rank.file), "distrib_optim.pt");
  }
  // The files of ranks before the one that failed are listed already.
  Status LeaveOptimizer(const Rank& rank) {
    CAIRN_ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Open(fs_, directory_, rank.file));
    if (const PyValue* optimizer = Find(file.root(), "optimizer"))
      builder_.account.LeaveBelow(Fate::kAllowed, file, *optimizer, "optimizer");
    const std::string distributed = DistributedOf(rank);
    if (!fs_.Stat(JoinPath(directory_, distributed)).ok()) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const TorchFile shard, builder_.OpenFile(fs_, directory_, distributed));
    builder_.account.LeaveBelow(Fate::kAllowed, shard, shard.root(), distributed);
    return OkStatus();
  }

  static std::string ParentOf(const std::string& file) { return file.substr(0, file.find('/')); }

  Status ReadChunk(const Rank& rank, int number, const TorchFile& file, const PyValue& model) {
    ModelChunk chunk{rank, number, {}, 0};
    CAIRN_RETURN_IF_ERROR(
        ForEachTensor(model, [&](const std::string& key, const TensorRef& tensor) -> Status {
          if (IsMegatronBuffer(key)) {
            const bool state = key.ends_with(kExtraState) && tensor.shape.Volume() > 0;
            builder_.account.Leave(state ? Fate::kTrainingState : Fate::kBuffer, file, tensor, key);
            return OkStatus();
          }
          auto name = ParseMegatronName(key);
          if (!name) return NotSupported("{} has no place in Megatron's GPT", key);
          if (shape_.tied && name->name == "output_layer.weight")
            name = MegatronName{kBeforeLayers, "word_embeddings.weight"};
          if (IsInLayers(name->layer)) chunk.layers = std::max(chunk.layers, name->layer + 1);
          CAIRN_ASSIGN_OR_RETURN(StoredArray array, builder_.ArrayIn(file, tensor, key));
          chunk.tensors.emplace_back(*std::move(name), MegatronWeight{std::move(array), {}});
          return OkStatus();
        }));
    for (size_t i = 0; model.is(PyKind::kDict) && i + 1 < model.items.size(); i += 2)
      if (const std::string key = KeyText(*model.items[i]);
          key.ends_with(kExtraState) && !IsEmptyState(*model.items[i + 1]))
        builder_.account.LeaveBehind(key);
    chunks_.push_back(std::move(chunk));
    return OkStatus();
  }

  // The model goes through the first chunk of all stages, then through the second, and so on; the content of
  // a chunk shows how many layers it has, so uneven stages need no rule.
  Status Assemble() {
    std::ranges::stable_sort(chunks_, {},
                             [](const ModelChunk& c) { return std::tuple(c.number, c.rank.pp, c.rank.tp); });
    MegatronAssembler assembler(shape_, tp_, builder_);
    int first_layer = 0;
    for (const ModelChunk& chunk : chunks_) {
      for (const auto& [name, stored] : chunk.tensors) {
        MegatronSlice slice{name.name,
                            shape_.LayerOf(IsInLayers(name.layer) ? name.layer + first_layer : name.layer),
                            chunk.rank.tp,
                            Role::kWeight,
                            stored.weight,
                            stored.weight.shape,
                            Box::Whole(stored.weight.shape)};
        CAIRN_RETURN_IF_ERROR(assembler.Add(slice).WithContext(JoinPath(directory_, chunk.rank.file)));
        for (size_t i = 0; !left_out_ && i < stored.states.size(); ++i) {
          slice.role = stored.states[i].first;
          slice.tensor = stored.states[i].second;
          const size_t before = builder_.catalog.parts.size();
          CAIRN_RETURN_IF_ERROR(assembler.Add(slice).WithContext(JoinPath(directory_, chunk.rank.file)));
          for (size_t part = before; stored.group && part < builder_.catalog.parts.size(); ++part)
            members_.Add(*stored.group,
                         builder_.catalog.tensors[builder_.catalog.parts[part].tensor].spec.name);
        }
      }
      if (chunk.rank.tp == tp_ - 1) first_layer += chunk.layers;
    }
    if (const int layers = shape_.LayerOf(first_layer); layers != shape_.layers)
      return Corrupt("{}: it has {} layers, but its args say {}", directory_, layers, shape_.layers);
    PutMembers();
    return OkStatus();
  }

  void PutMembers() {
    const auto groups = manifest_.state.find("param_groups");
    if (groups == manifest_.state.end()) return;
    if (members_.empty()) return PutMembersByMegatronsRule(builder_.catalog, *groups);
    members_.Grow(groups->size());
    members_.PutInto(*groups);
  }

  FileSystem& fs_;
  const std::string directory_;
  ReaderOptions& options_;
  int tp_ = 1;
  int pp_ = 1;
  bool left_out_ = false;       // the optimizer's state
  std::optional<double> step_;  // updates of each parameter
  GroupMembers members_;
  MegatronShape shape_;
  std::vector<Rank> ranks_;
  std::vector<ModelChunk> chunks_;
  StoredBuilder builder_;
  Manifest manifest_;
};

// The directory of the iteration that the tracker names; `path` itself if the tracker is missing or empty.
Result<std::string> IterationOf(FileSystem& fs, const std::string& path) {
  const std::string tracker = JoinPath(path, kMegatronTracker);
  if (!fs.Stat(tracker).ok()) return path;
  CAIRN_ASSIGN_OR_RETURN(std::string text, ReadSmallFile(fs, tracker, 4096));
  text.erase(std::ranges::find_if(text, [](char c) { return c == '\n' || c == '\r' || c == ' '; }),
             text.end());
  if (text.empty()) return path;
  const auto iteration = ParseNumber<int64_t>(text, 0);
  if (text != kMegatronRelease && !iteration)
    return Corrupt("{}: {:.100} is not an iteration", tracker, text);
  const std::string directory = JoinPath(path, iteration ? IterationName(*iteration) : text);
  if (!fs.Stat(directory).ok())
    return NotFound("{} names iteration {}, which does not exist; name another iter_* directory", tracker,
                    text);
  return directory;
}

bool IsIteration(FileSystem& fs, const std::string& path) {
  return HoldsRanks(fs, path) || IsMegatronDist(fs, path) || IsSavedByCairnMegatron(fs, path);
}

// Other programs write a tracker of the same name: Megatron-DeepSpeed and verl, next to their own
// directories. `any`: with any content.
bool HoldsIterations(FileSystem& fs, const std::string& path, bool any) {
  const auto names = fs.List(path);
  return names.ok() && std::ranges::any_of(*names, [&](const std::string& name) {
           return (name.starts_with(kMegatronStep) || name == kMegatronRelease) &&
                  (any || IsIteration(fs, JoinPath(path, name)));
         });
}

}  // namespace

std::string IterationName(int64_t iteration) { return fmt::format("{}{:07}", kMegatronStep, iteration); }

bool MatchesMegatronLm(FileSystem& fs, const std::string& path) {
  const auto info = fs.Stat(path);
  if (!info.ok() || !info->is_directory()) return false;
  if (HoldsRanks(fs, path) || IsMegatronDist(fs, path)) return true;
  const auto tracked = IterationOf(fs, path);
  // If a tracker names an iteration that does not exist, the reader reports the error.
  return (!tracked.ok() || *tracked != path) && HoldsIterations(fs, path, /*any=*/!tracked.ok());
}

std::string IterationSavedByCairn(FileSystem& fs, const std::string& path) {
  const Result<std::string> iteration = IterationOf(fs, path);
  return iteration.ok() && IsSavedByCairnMegatron(fs, *iteration) ? *iteration : path;
}

Result<std::unique_ptr<ForeignSource>> OpenMegatronLm(FileSystem& fs, const std::string& path,
                                                      ReaderOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::string directory, IterationOf(fs, path));
  if (IsMegatronDist(fs, directory)) return OpenMegatronDist(fs, directory, options);
  if (IsSavedByCairnMegatron(fs, directory))
    return NotSupported("{}: cairn.megatron saved its newest iteration as a step of Cairn; leave --from out",
                        path);
  if (!HoldsRanks(fs, directory))
    return NotFound("{}: it has neither mp_rank_* directories nor Megatron's metadata.json", directory);
  // Files of DeepSpeed's in an iteration's directory were recognised by their names before.
  return MegatronOpener(fs, directory, options).Open();
}

}  // namespace cairn
