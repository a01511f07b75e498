
#include "convert/stream/fingerprint.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/flag_values.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/commands/commands.h"
#include "tools/source/open_ckpt.h"
#include "tools/source/source_flags.h"

namespace cairn {
namespace {

struct FingerprintOptions {
  std::string checkpoint;
  OpenOptions open;
  uint64_t max_memory = kDefaultMaxMemory;
  bool tensors = false;
  bool json = false;
};

Result<int> RunFingerprint(const FingerprintOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource opened,
                         OpenAnyCkpt(FileSystem::Posix(), options.checkpoint, options.open));
  Result<Fingerprints> result = [&] {
    Progress progress("reading", opened.source().catalog().bytes(), !options.json);
    return FingerprintOf(opened.source(), options.max_memory,
                         [&, done = uint64_t{0}](uint64_t bytes) mutable { progress.Update(done += bytes); });
  }();
  if (!result.ok()) return result.status();
  if (options.json) {
    nlohmann::ordered_json tensors = nlohmann::ordered_json::object();
    for (const NamedFingerprint& tensor : result->tensors) tensors[tensor.name] = ToHex(tensor.digest);
    PrintJson({{"fingerprint", ToHex(result->overall)}, {"tensors", std::move(tensors)}});
    return kExitDone;
  }
  if (options.tensors)
    for (const NamedFingerprint& tensor : result->tensors)
      fmt::print("{}  {}\n", ToHex(tensor.digest), tensor.name);
  fmt::print("{}  {}\n", ToHex(result->overall), opened.source().name());
  return kExitDone;
}

}  // namespace

void AddFingerprintCommand(CLI::App& app, Verb& verb) {
  const auto [fingerprint, options] =
      AddVerb(app, verb, "fingerprint",
              "print one number for the values, the same for any topology and format", RunFingerprint);
  fingerprint->add_option("CKPT", options->checkpoint, "a step, RUN@STEP, a run directory, or STORE:RUN@STEP")
      ->required();
  AddSourceFlags(*fingerprint, options->open);
  fingerprint->add_flag("--tensors", options->tensors, "also print the fingerprint of each tensor");
  AddMaxMemory(*fingerprint, options->max_memory);
  fingerprint->add_flag("--json", options->json, "print the fingerprint and that of each tensor as JSON");
  fingerprint->footer(
      "Random states belong to one topology and are left out. The fingerprint distinguishes values; it is "
      "not a signature.\n\n" +
      HelpFooter("cairn fingerprint runs/gpt --json"));
}

}  // namespace cairn
