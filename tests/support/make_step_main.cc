// make_step RUN [flags]: writes RUN/step-N of a tiny GPT, or of the model in a config.json, with random
// values, so that the command can be tested without a training. 16-bit weights are their masters rounded, as
// a trainer leaves them.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <utility>

#include "ckpt/codec/cast.h"
#include "ckpt/families/expand.h"
#include "ckpt/families/families.h"
#include "ckpt/families/hugging_face_config.h"
#include "ckpt/io/strict_json.h"
#include "tests/support/made_source.h"
#include "tests/support/make_step.h"
#include "tests/support/sparse_step.h"

namespace cairn {
namespace {

struct Flags {
  std::string run_dir;
  TinyGpt model;
  std::string config;  // of any family; empty: `model`
  Topology topology;
  std::string dtype = "bf16";
  uint64_t seed = 1;
  int64_t step = 100;
  std::string run = "0123456789abcdef0123456789abcdef";
  std::string nan;  // display name of a tensor whose last element becomes NaN
  bool packed = false;
  bool sparse = false;
  bool split_master = false;
  std::string unrounded;  // display name of a 16-bit weight whose last element is not its master's
};

std::vector<std::byte> ValuesFor(const TensorEntry& tensor, const Flags& flags) {
  const bool rounded = tensor.role == Role::kWeight && tensor.dtype != Dtype::kF32;
  std::vector<std::byte> bytes =
      ValuesOf(rounded ? TensorEntry{tensor.spec, Role::kMaster, Dtype::kF32} : tensor, flags.seed);
  if (rounded) {
    const auto master = std::exchange(bytes, std::vector<std::byte>(tensor.bytes()));
    Cast(Dtype::kF32, master, tensor.dtype, bytes, OnOverflow::kInfinity);
  }
  std::byte& low = bytes[bytes.size() - SizeOf(tensor.dtype)];
  if (DisplayName(tensor) == flags.unrounded) low ^= std::byte{1};
  if (DisplayName(tensor) == flags.nan) std::memset(&low, 0xff, SizeOf(tensor.dtype));
  return bytes;
}

Result<StepRecipe> RecipeFor(const Flags& flags) {
  if (flags.config.empty()) return RecipeOf(flags.model, flags.topology);
  CAIRN_ASSIGN_OR_RETURN(const nlohmann::json config,
                         ReadJsonObject(FileSystem::Posix(), flags.config, 1 << 20));
  const std::string family = config.value("model_type", "");
  const Family* architecture = FindFamily(family);
  if (architecture == nullptr) return InvalidArgument("{}: no table for {}", flags.config, family);
  StepRecipe recipe{.topology = flags.topology};
  CAIRN_ASSIGN_OR_RETURN(recipe.model, ModelOfConfig(*architecture, config));
  recipe.model["hugging_face"] = {{"config", config}};
  CAIRN_ASSIGN_OR_RETURN(ExpandedModel expanded, Expand(*architecture, recipe.model));
  recipe.specs = std::move(expanded.parameters);
  return recipe;
}

Status Write(const Flags& flags) {
  CAIRN_ASSIGN_OR_RETURN(StepRecipe recipe, RecipeFor(flags));
  recipe.weights = ParseDtype(flags.dtype).value();
  recipe.seed = flags.seed, recipe.step = flags.step, recipe.run = flags.run;
  if (flags.sparse) return WriteSparseStep(FileSystem::Posix(), flags.run_dir, recipe).status();
  if (flags.packed) {
    recipe.state["iteration"] = flags.step;
    recipe.packed = true;
    recipe.split_master = flags.split_master, recipe.unrounded = flags.unrounded;
    return MakeStep(FileSystem::Posix(), flags.run_dir, recipe);
  }
  CAIRN_ASSIGN_OR_RETURN(const RunSteps there, ReadRunSteps(FileSystem::Posix(), flags.run_dir));
  const StepInfo info{.identity = {flags.run, flags.step},
                      .topology = flags.topology,
                      .model = recipe.model,
                      .state = {{"iteration", flags.step},
                                {"consumed_samples", 8 * flags.step},
                                {"consumed_tokens", 1024 * flags.step}},
                      .descent = NextDescent(flags.step, flags.run, there.newest, {})};
  std::string made;  // the tensor that has `values`
  std::vector<std::byte> values;
  return WriteMadeStep(flags.run_dir, info, TensorsOf(recipe),
                       [&](const TensorEntry& tensor, uint64_t begin, std::span<std::byte> out) {
                         if (made != DisplayName(tensor)) values = ValuesFor(tensor, flags);
                         made = DisplayName(tensor);
                         std::memcpy(out.data(), values.data() + begin * SizeOf(tensor.dtype), out.size());
                       });
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  cairn::Flags flags;
  CLI::App app("writes a random step of a tiny GPT");
  app.add_option("RUN", flags.run_dir)->required();
  app.add_option("--tp", flags.topology.tp);
  app.add_option("--pp", flags.topology.pp);
  app.add_option("--dp", flags.topology.dp);
  app.add_option("--zero", flags.topology.zero);
  app.add_option("--ep", flags.topology.ep);
  app.add_option("--etp", flags.topology.etp);
  app.add_option("--config", flags.config, "config.json of a model; --layers and so on are then not used");
  app.add_option("--layers", flags.model.layers);
  app.add_option("--hidden", flags.model.hidden);
  app.add_option("--heads", flags.model.heads);
  app.add_option("--ffn", flags.model.ffn);
  app.add_option("--vocab", flags.model.vocab);
  app.add_option("--experts", flags.model.experts, "of each layer; 0: not a mixture");
  app.add_option("--expert-ffn", flags.model.expert_ffn);
  app.add_option("--dtype", flags.dtype)->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_option("--seed", flags.seed);
  app.add_option("--step", flags.step);
  app.add_option("--run", flags.run);
  app.add_option("--nan", flags.nan);
  app.add_flag("--packed", flags.packed, "compressed, of random values only");
  app.add_flag("--sparse", flags.sparse, "of any size: files without a block, and without digests");
  app.add_flag("--split-master", flags.split_master, "with --packed: weights are then their masters rounded");
  app.add_option("--unrounded", flags.unrounded);
  CLI11_PARSE(app, argc, argv);
  const cairn::Status status = cairn::Write(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "make_step: %s\n", status.message().c_str());
  return 2;
}
