// CheckCheckpoints() (checkpoint_check.h) and CompareLosses() (loss_check.h) do the work; here their results
// are printed. A problem sets the exit status; it does not end the verb.

#include <cmath>
#include <utility>

#include "tools/check/checkpoint_check.h"
#include "tools/check/loss_check.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/flag_values.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/printable.h"
#include "tools/cli/text_table.h"
#include "tools/commands/commands.h"
#include "tools/source/source_flags.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

struct VerifyOptions {
  std::string checkpoint;
  CheckpointChecks checks;
  std::string sample;
  LossOptions loss;  // of --loss, which is a check of its own
  bool json = false;
};

ordered_json ToJson(const CheckpointReport& report) {
  ordered_json mixtures = ordered_json::array();
  for (const Mixture& mixture : report.mixtures)
    mixtures.push_back({{"name", mixture.name}, {"experts", mixture.experts}});
  return {{"checkpoint", report.checkpoint},     {"ok", report.passed()},
          {"unhealthy", report.unhealthy},       {"bytes_checked", report.bytes_checked},
          {"unlisted", report.unlisted},         {"trouble", report.trouble.message()},
          {"problems", ToJson(report.problems)}, {"unchecked", report.unchecked},
          {"mixtures", std::move(mixtures)},     {"notes", report.notes}};
}

void PrintText(const CheckpointReport& report) {
  const std::string& name = report.checkpoint;
  for (const Problem& problem : report.problems) PrintLineIn(Tone::kBad, "{}", ToString(problem));
  if (!report.unhealthy.empty()) PrintLineIn(Tone::kBad, "{}: unhealthy: {}", name, report.unhealthy);
  if (report.passed())
    PrintLineIn(Tone::kGood, "{}: good, {} checked ({}{}{})", name, HumanBytes(report.bytes_checked),
                report.what, report.mixtures.empty() ? "" : "; ", ToString(report.mixtures));
  else if (!report.problems.empty())
    PrintLine("{}: {}", name, Counted(report.problems.size(), "problem"));
}

Result<int> RunChecks(const VerifyOptions& options) {
  CheckpointChecks checks = options.checks;
  checks.show_progress = !options.json;
  if (!options.sample.empty()) {
    CAIRN_ASSIGN_OR_RETURN(checks.sample, ParseSampleSize(options.sample));
  }
  int code = kExitDone;
  ordered_json list = ordered_json::array();
  const auto print = [&](const CheckpointReport& report) {
    if (!report.problems.empty() || !report.unhealthy.empty())
      code = kExitCheckFailed;  // whatever else could not be checked
    else if (!report.passed() && code == kExitDone)
      code = kExitTrouble;
    for (const std::string& note : report.notes) PrintProblem("note: " + note);
    options.json ? list.push_back(ToJson(report)) : PrintText(report);
    if (!report.trouble.ok())
      PrintProblem(fmt::format("{}: could not be checked to the end: {}", report.checkpoint,
                               report.trouble.message()));
    if (!report.unchecked.empty())
      PrintProblem(
          fmt::format("{}: its bytes are those that were sealed, but they could not be checked then: {}; "
                      "--allow unchecked accepts that, cairn seal --again --allow unchecked {} for good",
                      report.checkpoint, fmt::join(report.unchecked, "; "), report.checkpoint));
  };
  CAIRN_RETURN_IF_ERROR(CheckCheckpoints(FileSystem::Posix(), options.checkpoint, checks, print));
  if (options.json) PrintJson(list);
  return code;
}

// JSON has no number for a loss that is not finite.
ordered_json Finite(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(); }

ordered_json ToJson(const Losses& losses) {
  ordered_json batches = ordered_json::array();
  for (const double loss : losses.batches) batches.push_back(Finite(loss));
  return {{"checkpoint", losses.name}, {"loss", Finite(losses.mean())}, {"batches", std::move(batches)}};
}

void PrintText(const LossComparison& found, double tolerance) {
  const auto& [a, b, seq_length, largest, worst, equal] = found;
  PrintLine("A: {}: loss {:.9g}", a.name, a.mean());
  PrintLine("B: {}: loss {:.9g}", b.name, b.mean());
  TextTable table({"batch", "A", "B", "|A-B|/|A|"});
  for (size_t i = 0; !equal && i < a.batches.size(); ++i)
    table.Add({std::to_string(i + 1), fmt::format("{:.9g}", a.batches[i]),
               fmt::format("{:.9g}", b.batches[i]),
               fmt::format("{:.3g}", std::abs(a.batches[i] - b.batches[i]) / std::abs(a.batches[i]))});
  if (!equal) table.Print();
  const std::string what =
      fmt::format("{} batch{} of {} tokens", a.batches.size(), a.batches.size() == 1 ? "" : "es", seq_length);
  if (equal && largest == 0)
    PrintLine("{}: the losses are equal bit for bit", what);
  else
    PrintLine("{}: the losses {}, by up to {:.3g} of the loss (tolerance {:g})", what,
              equal ? "are equal" : "differ", largest, tolerance);
}

Result<int> RunLoss(const VerifyOptions& options) {
  const CheckpointChecks& checks = options.checks;
  if (checks.structure || checks.hash || checks.values || checks.all || !options.sample.empty())
    return InvalidArgument(
        "--loss compares two checkpoints; --structure, --hash, --values, --sample and --all check one");
  if (options.loss.b.empty()) return InvalidArgument("--loss compares two checkpoints: give A and B");
  LossOptions loss = options.loss;
  loss.a = options.checkpoint;
  loss.open = checks.open;
  loss.show_progress = !options.json;
  CAIRN_ASSIGN_OR_RETURN(const LossComparison found, CompareLosses(FileSystem::Posix(), loss));
  if (options.json)
    PrintJson({{"a", ToJson(found.a)},
               {"b", ToJson(found.b)},
               {"seq_length", found.seq_length},
               {"tolerance", loss.tolerance},
               {"equal", found.equal},
               {"largest_difference", Finite(found.largest)},
               {"worst_batch", found.worst + 1}});
  else
    PrintText(found, loss.tolerance);
  return found.equal ? kExitDone : kExitCheckFailed;
}

Result<int> RunVerify(const VerifyOptions& options) {
  if (!options.loss.batches.empty()) return RunLoss(options);
  if (options.loss.b.empty()) return RunChecks(options);
  return InvalidArgument("{}: verify checks one checkpoint; --loss BATCHES compares two, and so does diff",
                         options.loss.b);
}

}  // namespace

void AddVerifyCommand(CLI::App& app, Verb& verb) {
  const auto [verify, options] =
      AddVerb(app, verb, "verify", "check a checkpoint: structure, every byte, values", RunVerify);
  verify
      ->add_option(
          "CKPT", options->checkpoint,
          "a step, RUN@STEP, a run directory (its newest step), STORE:RUN@STEP, or a foreign checkpoint")
      ->required();
  verify->add_option("B", options->loss.b, "with --loss: the checkpoint that CKPT is compared with");
  verify
      ->add_option(
          "--loss", options->loss.batches,
          "compare the losses of CKPT and B on the same batches of one sample, in fp32: PREFIX of an "
          "indexed dataset, a .txt file of token ids (a document a line), or mock (random tokens); :N "
          "for N batches, otherwise 8. Needs the model in memory, and room in TMPDIR for the weights "
          "of a checkpoint that is not a step of Cairn")
      ->option_text("BATCHES");
  AddTolerance(*verify, "--loss-tolerance", options->loss.tolerance,
               "largest difference of a batch's losses, as a share of the loss (default 1e-6: equal weights "
               "give equal losses, and sums in another order differ by 1e-7)",
               "REL");
  verify
      ->add_option("--seq-length", options->loss.seq_length,
                   "tokens of a sample of --loss; default: the positions of the models, at most 1024")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->option_text("N");
  AddSourceFlags(*verify, options->checks.open);
  verify->add_flag("--structure", options->checks.structure,
                   "every element is covered once; sizes and shapes agree");
  verify->add_flag("--hash", options->checks.hash, "every byte is the one that was saved");
  verify->add_flag(
      "--values", options->checks.values,
      "no NaN or infinity; each 16-bit weight is its fp32 master, rounded to nearest even; the "
      "experts of no rank are copies of another's, or as they were initialized, after a training");
  verify
      ->add_option("--sample", options->sample,
                   "check only this share or size of the tensors' bytes, chosen at random: 5%, 200GB")
      ->type_name("PERCENT|SIZE");
  verify->add_flag("--all", options->checks.all, "check every step of a run directory");
  verify->add_option("--jobs", options->checks.jobs, "files to read at the same time")
      ->check(CLI::Range(1, 256))
      ->capture_default_str()
      ->option_text("N");
  verify->add_flag("--record,!--no-record", options->checks.record,
                   "keep the result in RUN/verified, for ls and archive (the default)");
  verify->add_flag("--json", options->json, "print the list of problems as JSON");
  verify->footer(
      "Default: --structure --hash; for a foreign checkpoint all three, as far as its files have checksums\n"
      "(SHA256SUMS of a release, the CRC-32 of torch.save's records). Of a sealed directory (cairn seal) "
      "every\n"
      "byte against the seal. Each problem names its file, byte offset and tensor. A file in a step that "
      "its\n"
      "manifest does not list is a note. --allow experts makes notes of lost experts, --allow unchecked of "
      "what\n"
      "a seal says could not be checked.\n\n" +
      HelpFooter("cairn verify runs/gpt --values", "something is wrong with the checkpoint"));
}

}  // namespace cairn
