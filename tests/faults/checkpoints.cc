#include "tests/faults/checkpoints.h"

#include "ckpt/step/verify.h"

namespace cairn {

StepRecipe SmallRecipe(const Topology& topology, int64_t step, uint64_t seed) {
  StepRecipe recipe;
  recipe.specs = {
      {.name = "embedding.word.weight", .shape = {10, 8}, .cuts = {{.dim = 0, .pad = 4}}},
      {.name = "layers.0.mlp.up.weight", .shape = {8, 8}, .cuts = {{.dim = 0}}, .layer = 0},
      {.name = "layers.1.mlp.down.weight", .shape = {8, 8}, .cuts = {{.dim = 1}}, .layer = 1},
      {.name = "final_norm.weight", .shape = {8}, .layer = kAfterLayers},
  };
  recipe.topology = topology;
  recipe.model = {{"architecture", "small"}, {"num_layers", 2}};
  recipe.state = {{"iteration", step}, {"consumed_tokens", 1000 * step}};
  recipe.weights = Dtype::kF32;
  recipe.optimizer = false;
  recipe.rng_bytes = 0;
  recipe.step = step;
  recipe.seed = seed;
  return recipe;
}

Content ContentOf(const StepRecipe& recipe) {
  Hasher hasher;
  for (const TensorEntry& tensor : TensorsOf(recipe)) hasher.Update(ValuesOf(tensor, recipe.seed));
  return {recipe.step, hasher.Finish()};
}

Result<Content> ReadTensors(StepReader& step) {
  Hasher hasher;
  std::vector<std::byte> bytes;
  for (uint32_t t = 0; t < step.catalog().tensors.size(); ++t) {
    const TensorEntry& tensor = step.catalog().tensors[t];
    bytes.resize(tensor.bytes());
    CAIRN_RETURN_IF_ERROR(step.ReadBox(t, Box::Whole(tensor.spec.shape), bytes));
    hasher.Update(bytes);
  }
  return Content{step.manifest().step, hasher.Finish()};
}

Result<Content> ReadWhole(FileSystem& fs, const std::string& step_dir) {
  CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(fs, step_dir));
  const VerifyReport report = VerifyHash(fs, *step);
  if (!report.problems.empty()) return Corrupt("{}", ToString(report.problems.front()));
  return ReadTensors(*step);
}

std::optional<Content> Resume(FileSystem& fs, const std::string& run_dir, std::vector<std::string>* damaged) {
  Result<std::vector<int64_t>> steps = ListCurrentSteps(fs, run_dir);
  if (!steps.ok()) return std::nullopt;
  for (; !steps->empty(); steps->pop_back()) {
    const Result<Content> content = ReadWhole(fs, JoinPath(run_dir, StepDirName(steps->back())));
    if (content.ok()) return *content;
    if (damaged) damaged->push_back(content.status().message());
  }
  return std::nullopt;
}

}  // namespace cairn
