// The slices are joined by Megatron's modules, by patterns of names, or as they are.

#include "convert/formats/deepspeed/rank_slices.h"

#include <algorithm>
#include <functional>
#include <set>

#include "convert/formats/deepspeed/slice_patterns.h"
#include "convert/formats/megatron/megatron_sizes.h"
#include "convert/formats/megatron/megatron_state.h"

namespace cairn {
namespace {

class SliceJoiner {
 public:
  SliceJoiner(const std::string& directory, const std::vector<TorchFile>& models,
              const PipelineLayers& layers, std::vector<RankSlice> slices, ReaderOptions& options,
              StoredBuilder& builder, Manifest& manifest)
      : directory_(directory),
        models_(models),
        layers_(layers),
        slices_(std::move(slices)),
        options_(options),
        builder_(builder),
        manifest_(manifest) {}

  // A master without a weight is the weight, which the training would round from it.
  Status Join() {
    std::set<std::pair<int, std::string>> weights;
    for (const RankSlice& slice : slices_)
      if (slice.is_weight()) weights.emplace(slice.place.layer, slice.place.name);
    for (RankSlice& slice : slices_)
      if (slice.role == Role::kMaster && !weights.contains({slice.place.layer, slice.place.name}))
        slice.role = Role::kWeight;
    if (layers_.megatron) return JoinMegatron();
    return JoinByName([&](const std::string& name) { return weights.contains({kBeforeLayers, name}); });
  }

 private:
  Status Fail(const std::string& file, const Status& status) const {
    return status.WithContext(JoinPath(directory_, file));
  }
  const PyValue& root() const { return models_[0].root(); }

  Status JoinMegatron() {
    const PyValue* args = Find(root(), "args");
    if (!args)
      return Fail(models_[0].name(), NotSupported("it does not contain args, which describe the model"));
    const double version = AsNumber(Find(root(), "checkpoint_version")).value_or(3);
    const auto shown = SizesShown(*args, ShapesOfFirstRank(), layers_.tp);
    if (!shown.ok()) return Fail(models_[0].name(), shown.status());
    const bool tied = std::ranges::none_of(slices_, [](const RankSlice& slice) {
      return slice.place.name == "lm_head.weight" || slice.place.name == "output_layer.weight";
    });
    auto read = ReadMegatronArgs(*args, version, tied, options_, *shown);
    if (!read.ok()) return Fail(models_[0].name(), read.status());
    MegatronArgs model = *std::move(read);
    TrimVocabulary(model);
    manifest_.model = model.facts;
    manifest_.topology.tp = layers_.tp;
    manifest_.topology.pp = static_cast<int>(models_.size()) / layers_.tp;
    MegatronAssembler assembler(model, layers_.tp, builder_);
    for (const RankSlice& slice : slices_) {
      const Dims shape = slice.tensor.shape;
      CAIRN_RETURN_IF_ERROR(assembler
                                .Add({slice.place.name, slice.place.layer, slice.tp, slice.role, slice.tensor,
                                      shape, Box::Whole(shape)})
                                .WithContext(directory_));
    }
    return OkStatus();
  }

  MegatronShapes ShapesOfFirstRank() const {
    MegatronShapes shapes;
    for (const RankSlice& slice : slices_)
      if (slice.tp == 0 && slice.tensor.shape.rank() > 0)
        shapes.try_emplace({slice.place.layer, slice.place.name}, slice.tensor.shape);
    return shapes;
  }

  void TrimVocabulary(MegatronArgs& model) {
    uint64_t padded = 0;
    for (const RankSlice& slice : slices_)
      if (slice.place.name == "word_embeddings.weight" && slice.is_weight())
        padded = slice.tensor.shape[0] * static_cast<uint64_t>(layers_.tp);
    const uint64_t vocab = options_.vocab_size > 0 ? options_.vocab_size : OriginalVocabulary(root());
    if (vocab > 0 && vocab <= padded)
      model.vocab = vocab;
    else if (model.vocab == padded)
      manifest_.history.push_back(
          fmt::format("the vocabulary of {} rows may have padding; no file says so", padded));
    model.facts["vocab_size"] = model.vocab;
  }

  // Under their own names: of one rank as they are, else stages of a pipeline and tensor parallel slices.
  Status JoinByName(const std::function<bool(const std::string&)>& has_weight) {
    const bool alone = models_.size() == 1;
    auto patterns = SlicePatterns::Read(alone ? nullptr : Find(root(), "universal_checkpoint_info"));
    if (!patterns.ok()) return Fail(models_[0].name(), patterns.status());
    SliceAssembler assembler(*std::move(patterns), layers_.tp, builder_);
    std::set<std::string> buffers;
    for (const TorchFile& model : models_) buffers.merge(BufferNamesOf(model.root()));
    const nlohmann::json shared = MegatronState(root()).value("shared_params", nlohmann::json::object());
    std::vector<std::pair<std::string, const StoredArray*>> again;  // under a second name
    for (const RankSlice& slice : slices_) {
      const std::string& name = slice.place.name;
      if (const auto first = shared.find(name);
          alone && first != shared.end() && has_weight(first->get<std::string>())) {
        again.emplace_back(first->get<std::string>(), &slice.tensor);
        continue;
      }
      CAIRN_RETURN_IF_ERROR(assembler.Add(slice.tp, name, slice.role, buffers.contains(name), slice.tensor)
                                .WithContext(directory_));
    }
    for (const auto& [first, array] : again) CAIRN_RETURN_IF_ERROR(AddAgain(first, *array));
    return OkStatus();
  }

  // A tensor under a second name is the same stretch of the file, or must hold the same.
  Status AddAgain(const std::string& first, const StoredArray& array) {
    const auto& parts = builder_.catalog.parts;
    const auto part = std::ranges::find_if(parts, [&](const ArrayPart& p) {
      const TensorEntry& tensor = builder_.catalog.tensors[p.tensor];
      return tensor.role == Role::kWeight && tensor.spec.name == first;
    });
    if (part == parts.end())
      return Corrupt("{}: {} should share the memory of {}, which is missing", directory_, array.name, first);
    const StoredArray& same = builder_.catalog.arrays[part->array];
    if (same.dtype != array.dtype || !(same.shape == array.shape))
      return Corrupt("{}: {} should share the memory of {}, which has another shape or type", directory_,
                     array.name, first);
    const auto place = [](const StoredArray& a) {
      return std::pair(a.extents[0].file, a.extents[0].file_offset);
    };
    if (array.extents.empty() || place(array) == place(same)) return OkStatus();
    const uint32_t copy = builder_.AddArray(array);
    builder_.AddReplica(part->tensor, copy, part->array);
    return OkStatus();
  }

  const std::string& directory_;
  const std::vector<TorchFile>& models_;
  const PipelineLayers& layers_;
  std::vector<RankSlice> slices_;
  ReaderOptions& options_;
  StoredBuilder& builder_;
  Manifest& manifest_;
};

}  // namespace

Status JoinSlices(const std::string& directory, const std::vector<TorchFile>& models,
                  const PipelineLayers& layers, std::vector<RankSlice> slices, ReaderOptions& options,
                  StoredBuilder& builder, Manifest& manifest) {
  return SliceJoiner(directory, models, layers, std::move(slices), options, builder, manifest).Join();
}

}  // namespace cairn
