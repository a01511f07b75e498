#include "tools/source/source_flags.h"

#include "tools/cli/choices.h"

namespace cairn {
namespace {

// "native|megatron|...": the names that --from takes.
std::string FormatNames() {
  std::string names = "native";
  for (const Format& format : Formats()) names += fmt::format("|{}", format.name);
  return names;
}

}  // namespace

void AddSourceFlags(CLI::App& verb, OpenOptions& options) {
  verb.add_option("--from", options.format, "format of SRC, if its files do not say it")
      ->option_text(FormatNames());
  verb.add_option("--allow", options.allow,
                  "leave out stored tensors that have no place here, or 'optimizer' if its state cannot be "
                  "read; repeatable")
      ->allow_extra_args(false)
      ->option_text("GLOB");
  verb.add_option("--true-vocab-size", options.vocab_size,
                  "rows of a padded vocabulary that are tokens, if no file of SRC says it")
      ->option_text("N");
  AddChoice<Replicas>(
      verb, "--replicas", options.replicas,
      "if the copies of several ranks differ: refuse them (the default), take the first rank's, or average "
      "them",
      {{"strict", Replicas::kStrict}, {"first", Replicas::kFirst}, {"mean", Replicas::kMean}});
}

}  // namespace cairn
