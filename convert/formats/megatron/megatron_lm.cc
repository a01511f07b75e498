// The first rank's args give TP and PP, so that directories left over from a larger world are known. Each
// rank's file is read for its chunks of the model and for its optimizers, whose tensors are matched with the
// rank's own weights by value. If experts are spread over ranks, they have an optimizer of their own: each
// file has its state, but only that of the first data parallel rank has the state of the other weights.
// Assemble() sorts the chunks in the order in which the model passes through them, and counts layers as it
// goes; a total other than the args' is an error. If one rank's optimizer cannot be read and that is allowed,
// the optimizer of all ranks is left out.

#include "convert/formats/megatron/megatron_lm.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "ckpt/base/parse_number.h"
#include "ckpt/model/layout.h"
#include "convert/formats/megatron/megatron_dist.h"
#include "convert/formats/megatron/megatron_ranks.h"
#include "convert/formats/megatron_model/megatron_model.h"
#include "convert/formats/megatron_model/megatron_names.h"
#include "convert/formats/megatron_model/megatron_optimizer.h"
#include "convert/formats/megatron_model/megatron_state.h"
#include "convert/formats/training/group_members.h"
#include "convert/formats/training/param_groups.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

struct ModelTensor {
  MegatronName name;
  MegatronWeight weight;
  std::optional<MegatronExpert> expert = {};
};

// A stage's chunk of the model, under its local layer numbers.
struct ModelChunk {
  MegatronRank rank;
  int number = 0;  // of a virtual pipeline
  std::vector<ModelTensor> tensors;
  int layers = 0;
};

class MegatronOpener {
 public:
  MegatronOpener(FileSystem& fs, std::string directory, ReaderOptions& options)
      : fs_(fs), directory_(std::move(directory)), options_(options) {}

  Result<std::unique_ptr<ForeignSource>> Open() {
    CAIRN_RETURN_IF_ERROR(FindRanks());
    for (const MegatronRank& rank : ranks_) CAIRN_RETURN_IF_ERROR(ReadRank(rank));
    for (const MegatronRank& rank : ranks_) CAIRN_RETURN_IF_ERROR(CheckStates(rank));
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
    if (!Find(file.root(), "args")) CAIRN_RETURN_IF_ERROR(TakeTopologyOf(found).WithContext(directory_));
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

  // Without args the directories are all that says how many ranks there are.
  Status TakeTopologyOf(const std::vector<MegatronRank>& ranks) {
    Topology& topology = manifest_.topology;
    for (const MegatronRank& rank : ranks) {
      topology.tp = std::max(topology.tp, std::min(rank.tp, kMaxWorld) + 1);
      topology.pp = std::max(topology.pp, std::min(rank.pp, kMaxWorld) + 1);
      topology.ep = std::max(topology.ep, std::min(rank.ep, kMaxWorld) + 1);
    }
    return Validate(topology);
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
    CAIRN_RETURN_IF_ERROR(builder_.account.OmitRest(file, taken, options_).WithContext(directory_));
    LeaveWhatIsNotRead(file.root(), taken, "", builder_.account);
    if (chunks_.size() == first) return NotFound("{}: it has no model", file.path());
    return ReadOptimizer(rank, file, first);
  }

  Status ReadOptimizer(const MegatronRank& rank, const TorchFile& file, size_t first) {
    const PyValue* optimizer = Find(file.root(), "optimizer");
    if (!optimizer || optimizer->is(PyKind::kNone) || left_out_) return OkStatus();
    const Status status = ReadOptimizers(rank, file, ChainedOf(*optimizer), first);
    if (status.ok()) return AddNumbersInTensors(fs_, file, file.root(), manifest_.state);
    return LeaveOut(status);
  }

  Status LeaveOut(const Status& why) {
    left_out_ = true;
    return LeaveOutOptimizer(options_, manifest_, why.WithContext(directory_));
  }

  Status ReadOptimizers(const MegatronRank& rank, const TorchFile& file,
                        const std::vector<const PyValue*>& optimizers, size_t first) {
    if (shape_.experts > 0 && ep_ == 1 && etp_ != tp_)
      return NotSupported("its experts are cut in ETP={} and TP={} without EP", etp_, tp_);
    const std::string distributed = DistributedOf(rank);
    std::optional<TorchFile> shard;
    const bool flat = fs_.Stat(JoinPath(directory_, distributed)).ok();
    if (optimizers.size() != (ep_ > 1 ? 2u : 1u) &&
        (ep_ > 1 || flat))  // else Muon's parameters have their own
      return NotSupported("it has {} optimizers", optimizers.size());
    if (flat) {
      CAIRN_ASSIGN_OR_RETURN(shard, builder_.OpenFile(fs_, directory_, distributed));
      manifest_.topology.zero = 1;
    }
    MegatronOptimizer reader(fs_, directory_, builder_);
    size_t groups = 0;
    for (size_t o = 0; o < optimizers.size(); ++o) {
      if (const PyValue* scaler = Find(*optimizers[o], "grad_scaler"))
        builder_.account.OmitBelow(Fate::kTrainingState, file, *scaler, "grad_scaler");
      const std::vector<MegatronChunkWeights> chunks = WeightsOf(first, o);
      const PyValue* buffers = !shard ? nullptr : ep_ > 1 ? ItemOf(&shard->root(), o) : &shard->root();
      if (buffers && buffers->is(PyKind::kNone)) continue;
      if (shard && !buffers) return NotSupported("{} has no list of two optimizers", distributed);
      if (buffers)
        CAIRN_RETURN_IF_ERROR(reader.ReadDistributed(*shard, *buffers, chunks).WithContext(distributed));
      else
        CAIRN_RETURN_IF_ERROR(reader.ReadPlain(file, *optimizers[o], chunks).WithContext(rank.file));
      for (const MegatronChunkWeights& chunk : chunks)
        for (MegatronWeight* weight : chunk)
          if (weight->group) *weight->group += groups;
      if (const PyValue* inner = Find(*optimizers[o], "optimizer"))
        groups += ParamGroupsOf(Find(*inner, "param_groups")).size();
      with_states_.insert(OwnerOf(rank, ep_ > 1 && o > 0));
    }
    return reader.step() ? TakeStep(*reader.step()).WithContext(rank.file) : OkStatus();
  }

  // The weights that the optimizer of this number may have, by chunks of a file. A chunk without any has no
  // buffer.
  std::vector<MegatronChunkWeights> WeightsOf(size_t first, size_t optimizer) {
    std::vector<MegatronChunkWeights> chunks;
    for (size_t c = first; c < chunks_.size(); ++c) {
      MegatronChunkWeights chunk;
      for (ModelTensor& tensor : chunks_[c].tensors) {
        const bool buffer =
            FindMegatronParameter(tensor.name.name, shape_.key_value_rank > 0).module->cut_as().keeps_type;
        if (!buffer && tensor.weight.states.empty() &&
            (ep_ == 1 || tensor.expert.has_value() == (optimizer > 0)))
          chunk.push_back(&tensor.weight);
      }
      if (!chunk.empty()) chunks.push_back(std::move(chunk));
    }
    return chunks;
  }

  // The ranks whose files have the same state of one of the optimizers: whether it is that of experts, and
  // PP, TP and EP as far as they cut it.
  using Owner = std::tuple<bool, int, int, int>;
  Owner OwnerOf(const MegatronRank& rank, bool experts) const {
    return {experts, rank.pp, experts && etp_ == 1 ? 0 : rank.tp, experts ? rank.ep : 0};
  }

  Status CheckStates(const MegatronRank& rank) {
    for (const bool experts : {false, true})
      if (!left_out_ && !with_states_.empty() && (ep_ > 1 || !experts) &&
          !with_states_.contains(OwnerOf(rank, experts)))
        return LeaveOut(Corrupt("no file has the optimizer's state of the {} in {}",
                                experts ? "experts" : "other weights", rank.file));
    return OkStatus();
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
      builder_.account.OmitBelow(Fate::kAllowed, file, *optimizer, "optimizer");
    const std::string distributed = DistributedOf(rank);
    if (!fs_.Stat(JoinPath(directory_, distributed)).ok()) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const TorchFile shard, builder_.OpenFile(fs_, directory_, distributed));
    builder_.account.OmitBelow(Fate::kAllowed, shard, shard.root(), distributed);
    return OkStatus();
  }

  static std::string ParentOf(const std::string& file) { return file.substr(0, file.find('/')); }

  Status ReadChunk(const MegatronRank& rank, int number, const TorchFile& file, const PyValue& model) {
    ModelChunk chunk{rank, number, {}, 0};
    CAIRN_RETURN_IF_ERROR(
        ForEachTensor(model, [&](const std::string& key, const TensorRef& tensor) -> Status {
          if (IsMegatronBuffer(key)) {
            const bool state = key.ends_with(kExtraState) && tensor.shape.Volume() > 0;
            builder_.account.Omit(state ? Fate::kTrainingState : Fate::kBuffer, file, tensor, key);
            return OkStatus();
          }
          if (IsAllowed(options_, key)) {
            builder_.account.Omit(Fate::kAllowed, file, tensor, key);
            return OkStatus();
          }
          const auto expert = ParseExpertName(key);
          auto name = expert ? expert->name : ParseMegatronName(key, /*mtp=*/true);
          if (!name) return HasNoPlace(key);
          if (shape_.tied && name->name == "output_layer.weight")
            name = MegatronName{kBeforeLayers, "word_embeddings.weight"};
          if (IsInLayers(name->layer) && !name->mtp) chunk.layers = std::max(chunk.layers, name->layer + 1);
          CAIRN_ASSIGN_OR_RETURN(StoredArray array, builder_.ArrayIn(file, tensor, key));
          chunk.tensors.push_back({*std::move(name), {std::move(array)}, expert});
          return OkStatus();
        }));
    for (size_t i = 0; model.is(PyKind::kDict) && i + 1 < model.items.size(); i += 2)
      if (const std::string key = KeyText(*model.items[i]);
          key.ends_with(kExtraState) && !IsEmptyState(*model.items[i + 1]))
        builder_.account.OmitValue(key);
    chunks_.push_back(std::move(chunk));
    return OkStatus();
  }

  // Adds a tensor and its states.
  Status AssembleTensor(const ModelChunk& chunk, const ModelTensor& tensor, int first_layer,
                        MegatronAssembler& assembler) {
    const MegatronWeight& stored = tensor.weight;
    CAIRN_ASSIGN_OR_RETURN(const int layer, shape_.LayerOf(tensor.name, first_layer));
    const auto add = [&](Role role, const StoredArray& array) -> Status {
      MegatronSlice slice{tensor.name.name,       layer, chunk.rank.tp, role, array, array.shape,
                          Box::Whole(array.shape)};
      if (!tensor.expert) return assembler.Add(slice);
      if (etp_ == 1) slice.tp = 0;
      CAIRN_ASSIGN_OR_RETURN(const auto slices,
                             SlicesOfExperts(slice, *tensor.expert, shape_, chunk.rank.ep, ep_));
      for (const MegatronSlice& one : slices) CAIRN_RETURN_IF_ERROR(assembler.Add(one));
      return OkStatus();
    };
    CAIRN_RETURN_IF_ERROR(add(Role::kWeight, stored.weight));
    const size_t before = builder_.catalog.parts.size();
    for (size_t i = 0; !left_out_ && i < stored.states.size(); ++i)
      CAIRN_RETURN_IF_ERROR(add(stored.states[i].first, stored.states[i].second));
    for (size_t part = before; stored.group && part < builder_.catalog.parts.size(); ++part)
      members_.Add(*stored.group, builder_.catalog.tensors[builder_.catalog.parts[part].tensor].spec.name);
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
      for (const ModelTensor& tensor : chunk.tensors)
        CAIRN_RETURN_IF_ERROR(
            AssembleTensor(chunk, tensor, first_layer, tensor.expert ? of_experts : assembler)
                .WithContext(JoinPath(directory_, chunk.rank.file)));
      const ModelChunk* next = &chunk == &chunks_.back() ? nullptr : &chunk + 1;
      if (!next || next->number != chunk.number || next->rank.pp != chunk.rank.pp)
        first_layer += chunk.layers;
    }
    if (const int64_t layers = first_layer / (shape_.dialect.half_layers ? 2 : 1); layers != shape_.layers)
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
  std::set<Owner> with_states_;
  StoredBuilder builder_;
  Manifest manifest_;
};

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

bool MatchesMegatronLm(FileSystem& fs, const std::string& path) {
  const auto info = fs.Stat(path);
  if (!info.ok() || !info->is_directory()) return false;
  if (HoldsMegatronRanks(fs, path) || IsMegatronDist(fs, path)) return true;
  const auto tracked = IterationOf(fs, path);
  // If a tracker names an iteration that does not exist, the reader reports the error.
  return (!tracked.ok() || *tracked != path) && HoldsIterations(fs, path, /*any=*/!tracked.ok());
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
