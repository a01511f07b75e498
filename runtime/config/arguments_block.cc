#include "runtime/config/arguments_block.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "runtime/config/model_spec.h"

namespace cairn {
namespace {

constexpr size_t kNameWidth = 48;  // of a name and its dots

std::string Text(bool value) { return value ? "True" : "False"; }
std::string Text(const std::string& value) { return value.empty() ? "None" : value; }
template <typename T>
std::string Text(const std::vector<T>& value) {
  return value.empty() ? "None" : fmt::format("{}", value);
}
template <typename T>
std::string Text(T value) {
  return fmt::format("{}", value);
}

}  // namespace

std::string ArgumentsBlock(const TrainConfig& config, const Topology& topology) {
  std::map<std::string, std::string> arguments;
  for (const Flag& flag : TrainFlags()) {
    std::string name(flag.name);
    std::ranges::replace(name, '-', '_');
    arguments[name] = std::visit([&](auto field) { return Text(config.*field); }, flag.field);
  }
  arguments["ffn_hidden_size"] = Text(config.ffn());
  arguments["max_position_embeddings"] = Text(config.positions());
  arguments["world_size"] = Text(topology.world());
  arguments["data_parallel_size"] = Text(topology.dp);
  arguments["padded_vocab_size"] = Text(ShapeOf(config).PaddedVocab(topology.tp));
  arguments["params_dtype"] = fmt::format("torch.{}", TorchName(config.dtype()));
  std::string block = "------------------------ arguments ------------------------\n";
  for (const auto& [name, value] : arguments)
    block += fmt::format("  {} {} {}\n", name,
                         std::string(kNameWidth - std::min(name.size(), kNameWidth - 1), '.'), value);
  return block + "-------------------- end of arguments ---------------------";
}

}  // namespace cairn
