// The first rank's args give TP and PP, so that directories left over from a larger world are known. Each
// rank's file is read for its chunks of the model and for its optimizer, whose tensors are matched with the
// rank's own weights by value. Assemble() sorts the chunks in the order in which the model passes through
// them, and counts layers as it goes; a total other than the args' is an error. If one rank's optimizer
// cannot be read and that is allowed, the optimizer of all ranks is left out.

#include "convert/formats/megatron/megatron_lm.h"

#include <algorithm>
#include <set>

#include "ckpt/base/first_axis.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/model/layout.h"
#include "convert/formats/megatron/megatron_dist.h"
#include "convert/formats/megatron/megatron_ranks.h"
#include "convert/formats/megatron_model/megatron_model.h"
#include "convert/formats/megatron_model/megatron_names.h"
#include "convert/formats/megatron_model/megatron_optimizer.h"
#include "convert/formats/megatron_model/megatron_state.h"
#include "convert/formats/training/group_members.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

// A tensor of one expert, as the tensor of all of them.
struct ExpertTensor {
  MegatronName name;
  uint64_t expert = 0;
  StoredArray array;
};

// A stage's chunk of the model, under its local layer numbers.
struct ModelChunk {
  MegatronRank rank;
  int number = 0;  // of a virtual pipeline
  std::vector<std::pair<MegatronName, MegatronWeight>> tensors;
  int layers = 0;
  std::vector<ExpertTensor> experts;
};

class MegatronOpener {
 public:
  MegatronOpener(FileSystem& fs, std::string directory, ReaderOptions& options)
      : fs_(fs), directory_(std::move(directory)), options_(options) {}

  Result<std::unique_ptr<ForeignSource>> Open() {
    CAIRN_RETURN_IF_ERROR(FindRanks());
    for (const MegatronRank& rank : ranks_) CAIRN_RETURN_IF_ERROR(ReadRank(rank));
    for (const MegatronRank& rank : ranks_)
      if (left_out_) CAIRN_RETURN_IF_ERROR(LeaveOptimizer(rank));
    CAIRN_RETURN_IF_ERROR(Assemble());
    return builder_.Open(fs_, directory_, std::move(manifest_), options_.replicas);
  }

 private:
  // The sizes are those in the first rank's args; directories beyond them are left over from a larger world.
  Status FindRanks() {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_.List(directory_));
    std::vector<MegatronRank> found;
    for (const std::string& name : names)
      if (auto rank = ParseMegatronRank(name)) found.push_back(*std::move(rank));
    const auto first =
        std::ranges::find_if(found, [](const MegatronRank& r) { return r.tp == 0 && r.pp == 0; });
    if (first == found.end()) return NotFound("{}: the directory of rank 0 is missing", directory_);
    CAIRN_ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Open(fs_, directory_, first->file));
    const double version = AsNumber(Find(file.root(), "checkpoint_version")).value_or(0);
    auto args = ReadMegatronTraining(file.root(), version, options_, manifest_);
    if (!args.ok()) return args.status().WithContext(file.path());
    shape_ = *std::move(args);
    tp_ = manifest_.topology.tp;
    pp_ = manifest_.topology.pp;
    ep_ = manifest_.topology.ep;
    etp_ = manifest_.topology.size(Axis::kEtp);
    if (etp_ != tp_ && etp_ != 1)
      return NotSupported(
          "{}: experts are cut in ETP={}, and TP={}; such mp_rank_* directories lack parts, so save it with "
          "--ckpt-format torch_dist",
          directory_, etp_, tp_);
    for (MegatronRank& rank : found) {
      if (pp_ == 1 && ep_ > 1 && rank.ep == 0) std::swap(rank.pp, rank.ep);
      if (rank.tp < tp_ && rank.pp < pp_ && rank.ep < ep_)
        ranks_.push_back(rank);
      else
        manifest_.history.push_back("left over from a larger world, not read: " + rank.file);
    }
    std::ranges::sort(ranks_, {}, [](const MegatronRank& r) { return std::tuple(r.pp, r.tp, r.ep); });
    return CheckComplete(ranks_, manifest_.topology).WithContext(directory_);
  }

  Status ReadRank(const MegatronRank& rank) {
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

  Status ReadOptimizer(const MegatronRank& rank, const TorchFile& file, size_t first) {
    // Two optimizers are a list of both.
    const auto any = [&] {
      return Find(file.root(), "optimizer") || fs_.Stat(JoinPath(directory_, DistributedOf(rank))).ok();
    };
    if (shape_.experts > 0 && !left_out_ && any()) {
      left_out_ = true;
      return LeaveOutOptimizer(
          options_, manifest_,
          NotSupported("{}: the optimizer of a mixture of experts is read in the format torch_dist only",
                       directory_));
    }
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

  static std::string DistributedOf(const MegatronRank& rank) {
    return JoinPath(ParentOf(rank.file), "distrib_optim.pt");
  }
  // The files of ranks before the one that failed are listed already.
  Status LeaveOptimizer(const MegatronRank& rank) {
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

  Status ReadChunk(const MegatronRank& rank, int number, const TorchFile& file, const PyValue& model) {
    ModelChunk chunk{rank, number, {}, 0};
    CAIRN_RETURN_IF_ERROR(
        ForEachTensor(model, [&](const std::string& key, const TensorRef& tensor) -> Status {
          if (IsMegatronBuffer(key)) {
            const bool state = key.ends_with(kExtraState) && tensor.shape.Volume() > 0;
            builder_.account.Leave(state ? Fate::kTrainingState : Fate::kBuffer, file, tensor, key);
            return OkStatus();
          }
          if (const auto place = ParseExpertName(key)) return AddExperts(*place, file, tensor, key, chunk);
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

  // One expert, or in Megatron's older form all of the rank, each input-major.
  Status AddExperts(const MegatronExpert& place, const TorchFile& file, const TensorRef& tensor,
                    const std::string& key, ModelChunk& chunk) {
    CAIRN_ASSIGN_OR_RETURN(StoredArray array, builder_.ArrayIn(file, tensor, key));
    chunk.layers = std::max(chunk.layers, place.name.layer + 1);
    const auto local = static_cast<uint64_t>(shape_.experts / ep_);
    const uint64_t first = static_cast<uint64_t>(chunk.rank.ep) * local;
    if (place.expert) {
      if (*place.expert >= local || array.transposed || array.shape.rank() == 0)
        return Corrupt("{} does not fit {} experts of {} ranks", key, shape_.experts, ep_);
      array.shape = WithFirst(1, array.shape);
      chunk.experts.push_back({place.name, first + *place.expert, std::move(array)});
      return OkStatus();
    }
    const auto hidden = static_cast<uint64_t>(shape_.hidden);
    const uint64_t of_one = array.shape.Volume() / local;
    if (array.transposed || array.shape.Volume() % local != 0 || of_one == 0 || of_one % hidden != 0)
      return Corrupt("{} of shape {} does not hold {} experts", key, ToString(array.shape), local);
    const Dims one = place.is_down ? Dims{1, of_one / hidden, hidden} : Dims{1, hidden, of_one / hidden};
    for (uint64_t i = 0; i < local; ++i) {
      StoredArray expert = SliceOf(array, i * of_one, one);
      expert.transposed = true;
      chunk.experts.push_back({place.name, first + i, std::move(expert)});
    }
    return OkStatus();
  }

  Status AssembleExperts(const ModelChunk& chunk, int first_layer, MegatronAssembler& assembler) {
    for (const ExpertTensor& expert : chunk.experts) {
      Dims shape = expert.array.tensor_shape();
      Box box = Box::Whole(shape);
      box.offset[0] = expert.expert;
      shape[0] = static_cast<uint64_t>(shape_.experts);
      const MegatronSlice slice{expert.name.name,
                                shape_.LayerOf(expert.name.layer + first_layer),
                                etp_ == 1 ? 0 : chunk.rank.tp,
                                Role::kWeight,
                                expert.array,
                                shape,
                                box};
      CAIRN_RETURN_IF_ERROR(assembler.Add(slice).WithContext(JoinPath(directory_, chunk.rank.file)));
    }
    return OkStatus();
  }

  // The model goes through the first chunk of all stages, then through the second, and so on; the content of
  // a chunk shows how many layers it has, so uneven stages need no rule.
  Status Assemble() {
    std::ranges::stable_sort(chunks_, {}, [](const ModelChunk& c) {
      return std::tuple(c.number, c.rank.pp, c.rank.tp, c.rank.ep);
    });
    MegatronAssembler assembler(shape_, tp_, builder_), of_experts(shape_, etp_, builder_);
    int first_layer = 0;
    for (const ModelChunk& chunk : chunks_) {
      CAIRN_RETURN_IF_ERROR(AssembleExperts(chunk, first_layer, of_experts));
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
      const ModelChunk* next = &chunk == &chunks_.back() ? nullptr : &chunk + 1;
      if (!next || next->number != chunk.number || next->rank.pp != chunk.rank.pp)
        first_layer += chunk.layers;
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
  int ep_ = 1;
  int etp_ = 1;                 // TP, or 1
  bool left_out_ = false;       // the optimizer's state
  std::optional<double> step_;  // updates of each parameter
  GroupMembers members_;
  MegatronShape shape_;
  std::vector<MegatronRank> ranks_;
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
  return HoldsMegatronRanks(fs, path) || IsMegatronDist(fs, path) || IsSavedByCairnMegatron(fs, path);
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
  if (HoldsMegatronRanks(fs, path) || IsMegatronDist(fs, path)) return true;
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
  if (!HoldsMegatronRanks(fs, directory))
    return NotFound("{}: it has neither mp_rank_* directories nor Megatron's metadata.json", directory);
  // Files of DeepSpeed's in an iteration's directory were recognised by their names before.
  return MegatronOpener(fs, directory, options).Open();
}

}  // namespace cairn
