#include "tools/source/source_flags.h"

#include <fmt/ranges.h>

#include "tools/cli/choices.h"
#include "tools/cli/output.h"

namespace cairn {
namespace {

// "native|megatron|...": the names that --from takes.
std::string FormatNames() {
  std::vector<std::string_view> names;
  for (const System& system : Systems())
    if (!system.reads.empty()) names.push_back(system.name);
  return fmt::format("{}", fmt::join(names, "|"));
}

// As --replicas takes them; the first is the default.
std::vector<std::pair<std::string, Replicas>> ReplicasByName() {
  return {{"strict", Replicas::kStrict}, {"first", Replicas::kFirst}, {"mean", Replicas::kMean}};
}

}  // namespace

void AddSourceFlags(CLI::App& verb, OpenOptions& options) {
  options.note = PrintProblem;
  verb.add_option("--from", options.format, "format of SRC, if its files do not show it")
      ->option_text(FormatNames());
  verb.add_option(
          "--config", options.config,
          "config.json of the model, or its directory, if SRC does not say which model it is: Hugging "
          "Face's names in a step of cairn.torch, DCP, DeepSpeed, or Megatron's files without args")
      ->option_text("FILE");
  verb.add_option("--allow", options.allow,
                  "leave out stored tensors that Cairn has no place for, or 'optimizer' if its state cannot "
                  "be read; 'experts': take files that lack some; 'slice': take one rank's file; "
                  "'ranks': no rank's file is missing; repeatable")
      ->allow_extra_args(false)
      ->option_text("GLOB");
  verb.add_option("--true-vocab-size", options.vocab_size,
                  "rows of a padded vocabulary that are tokens, if no file of SRC has this number")
      ->option_text("N");
  AddChoice<Replicas>(
      verb, "--replicas", options.replicas,
      "if the copies of several ranks differ: refuse them (the default), take the first rank's, or average "
      "them",
      ReplicasByName());
}

Result<OpenOptions> ParseSourceOptions(const nlohmann::json& said) {
  const auto rows = said.value("true_vocab_size", int64_t{0});
  if (rows < 0) return InvalidArgument("true_vocab_size={}: a number of rows", rows);
  OpenOptions options{.format = said.value("from", ""),
                      .allow = said.value("allow", std::vector<std::string>()),
                      .config = said.value("config", ""),
                      .vocab_size = static_cast<uint64_t>(rows),
                      .note = PrintProblem};
  const std::string asked = said.value("replicas", "strict");
  for (const auto& [word, value] : ReplicasByName())
    if (word == asked) {
      options.replicas = value;
      return options;
    }
  return InvalidArgument("replicas={}: strict, first or mean", asked);
}

}  // namespace cairn
