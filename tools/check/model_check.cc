// Five checks: the step's number in directory, manifest and state; the number of layers in model, tensors
// and stages; the number of experts in model and tensors; if the architecture is known, each tensor against
// the parameter that the model must have; and what is missing. The last two run only if the others found
// nothing, and stop at the first problem: one wrong number in the model contradicts many tensors at once.

#include "tools/check/model_check.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "ckpt/base/short_list.h"
#include "ckpt/families/expand.h"
#include "ckpt/families/families.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/model.h"
#include "ckpt/model/placement.h"
#include "convert/foreign/expert_census.h"
#include "convert/formats/training/part_of_state.h"
#include "convert/formats/whole_check.h"

namespace cairn {
namespace {

class ModelChecker {
 public:
  ModelChecker(const std::string& directory, const Manifest& manifest,
               const std::vector<TensorEntry>& tensors)
      : directory_(directory), manifest_(manifest), model_(manifest.model), tensors_(tensors) {}

  std::vector<Problem> Check() {
    CheckStepNumber();
    CheckLayers();
    CheckNoExpertIsLost();
    CheckSizes();
    CheckWhole();
    return std::move(problems_);
  }

 private:
  void Add(std::string what) {
    problems_.push_back({JoinPath(directory_, kManifestName), 0, "", std::move(what)});
  }

  void CheckStepNumber() {
    const std::string name = (std::filesystem::path(directory_) / "").parent_path().filename().string();
    const auto named = ParseStepDirName(name.substr(0, name.find('.')));
    if (named && *named != manifest_.step)
      Add(fmt::format("it is the manifest of step {}, but its directory is named {}", manifest_.step, name));
    const auto iteration = manifest_.state.find("iteration");
    if (iteration != manifest_.state.end() && *iteration != manifest_.step)
      Add(fmt::format("its state is of iteration {}, but it is of step {}", iteration->dump(),
                      manifest_.step));
  }

  // Layers that have tensors, in full or in part; 0 if there are none.
  int CountedLayers() const {
    int layers = 0;
    for (const TensorEntry& tensor : tensors_)
      if (tensor.spec.layer != kAfterLayers && tensor.role != Role::kRng)
        layers = std::max(layers, tensor.spec.layer + 1);
    return layers;
  }

  void CheckLayers() {
    const int counted = CountedLayers();
    if (const auto& stated = model_.num_layers; counted > 0 && !stated.is_null() && stated != counted)
      return Add(
          fmt::format("its model has {} layers, but its tensors belong to {}", stated.dump(), counted));
    const std::vector<int>& stages = manifest_.topology.layers_per_stage;
    if (counted == 0 || stages.empty()) return;
    if (const auto chunks = LayersPerChunk(counted, manifest_.topology); !chunks.ok())
      Add(fmt::format("its stages do not fit its {} layers: {}", counted, chunks.status().message()));
  }

  void CheckNoExpertIsLost() {
    for (std::string& lost : TakeCensus(tensors_, model_).lost) Add(std::move(lost));
  }

  // The parameters that the model must have, compared with the existing ones.
  void CheckSizes() {
    const Family* family = FindFamily(model_.architecture.value_or(""));
    if (family == nullptr || !problems_.empty()) return;
    Model model = model_;
    const bool positions = IntOf(model.max_position_embeddings) > 0;
    if (!positions) model.max_position_embeddings = nullptr;  // Megatron's rotary models have 0
    const Result<ExpandedModel> expanded = Expand(*family, model);
    if (!expanded.ok()) return Add(std::string(expanded.status().message()));
    std::unordered_map<std::string, const ParameterSpec*> wanted;
    for (const ParameterSpec& spec : expanded->parameters)
      if (positions || !spec.name.starts_with("embedding.position")) wanted.emplace(spec.name, &spec);
    for (const TensorEntry& tensor : tensors_) {
      const auto found = wanted.find(tensor.spec.name);
      if (!HasItsShape(tensor.role) || found == wanted.end()) continue;
      if (const std::string what = Contradiction(tensor.spec, *found->second); !what.empty()) {
        problems_.push_back({JoinPath(directory_, kManifestName), 0, DisplayName(tensor), what});
        return;  // the rest usually follows from it
      }
    }
  }

  void CheckWhole() {
    if (!problems_.empty()) return;
    TensorTable table;
    table.tensors = tensors_;
    if (const auto missing = MissingParameters(table, manifest_); !missing.empty())
      Add(fmt::format("its model has parameters that are missing: {}", ShortList(missing)));
    if (std::string part = FirstPartOfState(table); !part.empty()) Add(std::move(part));
  }

  // Other optimizers' states have a number, a row or a column of a parameter.
  static bool HasItsShape(Role role) {
    return role == Role::kWeight || role == Role::kMaster || role == Role::kExpAvg || role == Role::kExpAvgSq;
  }

  // Query, key and value are cut between heads, so their unit is the size of a head.
  static std::string Contradiction(const ParameterSpec& stored, const ParameterSpec& model) {
    if (!(stored.shape == model.shape))
      return fmt::format("it is stored as {}, but the manifest's model says {}", ToString(stored.shape),
                         ToString(model.shape));
    const auto rows = [](const ParameterSpec& spec) {
      return spec.cuts.empty() || spec.cuts[0].dim != 0 ? 1 : spec.cuts[0].unit;
    };
    if (rows(model) > 1 && rows(stored) > 1 && rows(model) != rows(stored))
      return fmt::format("it is stored with heads of {} rows, but the manifest's model says {}", rows(stored),
                         rows(model));
    return "";
  }

  const std::string& directory_;
  const Manifest& manifest_;
  const Model& model_;
  const std::vector<TensorEntry>& tensors_;
  std::vector<Problem> problems_;
};

}  // namespace

std::vector<Problem> CheckModel(const std::string& step_directory, const Manifest& manifest,
                                const std::vector<TensorEntry>& tensors) {
  return ModelChecker(step_directory, manifest, tensors).Check();
}

}  // namespace cairn
