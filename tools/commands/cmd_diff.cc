// Flags become DiffOptions, both sides are opened as sources whatever their format, and
// convert/verbs/diff.h compares them. The rest prints. Differences of structure and of values are two
// tables, because they share only the column of names; JSON lists both, with infinities as text.

#include <algorithm>
#include <charconv>
#include <cmath>

#include "convert/verbs/diff.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/flag_values.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/printable.h"
#include "tools/cli/progress.h"
#include "tools/cli/text_table.h"
#include "tools/commands/commands.h"
#include "tools/serve/state_names.h"
#include "tools/source/open_ckpt.h"
#include "tools/source/source_flags.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

struct DiffArguments {
  std::string a, b;
  OpenOptions open;
  std::vector<std::string> ignore;
  std::vector<std::string> tolerances;
  double atol = 0, rtol = 0;
  uint64_t max_memory = kDefaultMaxMemory;
  size_t top = 20;
  bool json = false;
};

// "GLOB=ABSOLUTE[,RELATIVE]"
Result<Tolerance> ParseTolerance(const std::string& text) {
  Tolerance tolerance;
  const size_t equals = text.rfind('=');
  tolerance.glob = text.substr(0, equals);
  const char* at = text.data() + std::min(text.size(), equals + 1);
  const char* const end = text.data() + text.size();
  auto parsed = std::from_chars(at, end, tolerance.absolute);
  if (parsed.ec == std::errc() && parsed.ptr < end && *parsed.ptr == ',')
    parsed = std::from_chars(parsed.ptr + 1, end, tolerance.relative);
  if (equals == std::string::npos || parsed.ec != std::errc() || parsed.ptr != end ||
      !std::isfinite(tolerance.absolute) || !std::isfinite(tolerance.relative) || tolerance.absolute < 0 ||
      tolerance.relative < 0)
    return InvalidArgument("--tolerance {}: write GLOB=ABSOLUTE or GLOB=ABSOLUTE,RELATIVE", text);
  return tolerance;
}

Result<DiffOptions> OptionsOf(const DiffArguments& arguments) {
  DiffOptions options;
  options.max_memory = arguments.max_memory;
  for (const std::string& what : arguments.ignore) {
    if (what == "optimizer")
      options.ignore_optimizer = true;
    else if (what == "dtype")
      options.ignore_dtype = true;
    else
      options.ignore.push_back(what);
  }
  if (arguments.atol > 0 || arguments.rtol > 0)
    options.tolerances.push_back({"*", arguments.atol, arguments.rtol});
  for (const std::string& text : arguments.tolerances) {
    CAIRN_ASSIGN_OR_RETURN(Tolerance tolerance, ParseTolerance(text));
    options.tolerances.push_back(std::move(tolerance));
  }
  return options;
}

ordered_json ToJson(const TensorDiff& diff) {
  ordered_json json = {{"tensor", diff.name}, {"difference", Name(diff.kind)}};
  if (diff.kind != Difference::kValues) {
    json["a"] = diff.a.empty() ? ordered_json() : ordered_json(diff.a);
    json["b"] = diff.b.empty() ? ordered_json() : ordered_json(diff.b);
    return json;
  }
  const auto number = [](double value) {  // JSON has no infinity
    return std::isfinite(value) ? ordered_json(value) : ordered_json("inf");
  };
  json["elements"] = diff.elements;
  json["differing"] = diff.differing;
  json["beyond_tolerance"] = diff.beyond;
  json["nan_payloads"] = diff.nan_payloads;
  json["first_element"] = diff.first;
  json["max_abs"] = number(diff.max_absolute);
  json["max_rel"] = number(diff.max_relative);
  json["max_ulp"] = diff.max_ulp;
  json["relative_norm"] = number(diff.relative_norm);
  json["cosine"] = number(diff.cosine);
  return json;
}

void PrintAsJson(const OpenedSource& a, const OpenedSource& b, const DiffResult& result) {
  ordered_json list = ordered_json::array();
  for (const TensorDiff& diff : result.tensors) list.push_back(ToJson(diff));
  PrintJson({{"a", a.source().name()},
             {"b", b.source().name()},
             {"equal", result.tensors.empty()},
             {"within_tolerance", result.within_tolerance},
             {"tensors_compared", result.compared},
             {"tensors_equal", result.equal},
             {"differences", std::move(list)}});
}

// ", 3 only in A"; empty if nothing is.
std::string Only(std::string_view letter, Difference kind, const DiffResult& result) {
  const auto count = std::ranges::count(result.tensors, kind, &TensorDiff::kind);
  return count == 0 ? "" : fmt::format(", {} only in {}", count, letter);
}

void PrintAsText(const DiffArguments& arguments, const OpenedSource& a, const OpenedSource& b,
                 const DiffResult& result) {
  for (const auto& [letter, opened] : {std::pair('A', &a), std::pair('B', &b)}) {
    const CheckpointSource& source = opened->source();
    fmt::print("{}: {} (step {}, {})\n", letter, source.name(), source.manifest().step,
               ToString(source.manifest().topology));
  }
  const size_t shown =
      arguments.top == 0 ? result.tensors.size() : std::min(arguments.top, result.tensors.size());
  TextTable structure({"tensor", "differs in", "A", "B"});
  // Tensors beyond the tolerance come first.
  TextTable values(
      {"tensor", "differing", "beyond", "max abs", "max rel", "max ULP", "|A-B|/|A|", "cosine", "first"});
  bool any_structure = false, any_values = false;
  for (const TensorDiff& diff : std::span(result.tensors).first(shown)) {
    const bool of_values = diff.kind == Difference::kValues;
    (of_values ? any_values : any_structure) = true;
    if (!of_values)
      structure.Add({diff.name, std::string(Name(diff.kind)), diff.a, diff.b});
    else
      values.Add({diff.name, fmt::format("{}/{}", diff.differing, diff.elements),
                  diff.beyond > 0 ? std::to_string(diff.beyond) : "-",
                  fmt::format("{:.3g}", diff.max_absolute), fmt::format("{:.3g}", diff.max_relative),
                  std::to_string(diff.max_ulp), fmt::format("{:.3g}", diff.relative_norm),
                  fmt::format("{:.6g}", diff.cosine), std::to_string(diff.first)});
  }
  if (any_structure) structure.Print();
  if (any_values) values.Print();
  for (const TensorDiff& diff : std::span(result.tensors).first(shown))
    if (diff.nan_payloads > 0)
      PrintLine("{}: {} pairs of NaN differ only in their bits", diff.name, diff.nan_payloads);
  if (shown < result.tensors.size())
    fmt::print("... and {} more; --top 0 shows all\n", result.tensors.size() - shown);
  fmt::print("{} compared, {} of them equal bit for bit{}{}; {}\n", Counted(result.compared, "tensor"),
             result.equal, Only("A", Difference::kOnlyInA, result), Only("B", Difference::kOnlyInB, result),
             result.tensors.empty()    ? "no difference"
             : result.within_tolerance ? "differences are within the tolerance"
                                       : "they differ");
}

// The values of a state dict that are not tensors, as JSON by name.
std::map<std::string, std::string> ValuesOf(const StateNames& names) {
  std::map<std::string, std::string> values;
  for (const auto& [fqn, said] : names.state_dict().values.items()) values[fqn] = said.value("json", "");
  return values;
}

Result<int> RunDiff(const DiffArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(DiffOptions options, OptionsOf(arguments));
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource a, OpenAnyCkpt(FileSystem::Posix(), arguments.a, arguments.open));
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource b, OpenAnyCkpt(FileSystem::Posix(), arguments.b, arguments.open));
  CAIRN_ASSIGN_OR_RETURN(const StateNames names_a, StateNames::Of(a.source()));
  CAIRN_ASSIGN_OR_RETURN(const StateNames names_b, StateNames::Of(b.source()));
  options.name_a = [&](const TensorEntry& tensor) { return names_a.Of(tensor); };
  options.name_b = [&](const TensorEntry& tensor) { return names_b.Of(tensor); };
  const std::map<std::string, std::string> values_a = ValuesOf(names_a), values_b = ValuesOf(names_b);
  if (names_a.has_state_dict() && names_b.has_state_dict())
    options.others_a = &values_a, options.others_b = &values_b;
  Result<DiffResult> result = [&] {
    Progress progress("comparing", a.source().catalog().bytes(), !arguments.json);
    options.progress = [&](uint64_t done) { progress.Update(done); };
    return Diff(a.source(), b.source(), options);
  }();
  if (!result.ok()) return result.status();
  if (arguments.json)
    PrintAsJson(a, b, *result);
  else
    PrintAsText(arguments, a, b, *result);
  return result->within_tolerance ? kExitDone : kExitCheckFailed;
}

}  // namespace

void AddDiffCommand(CLI::App& app, Verb& verb) {
  const auto [diff, arguments] =
      AddVerb(app, verb, "diff", "compare two checkpoints, of any topology and format", RunDiff);
  diff->add_option("A", arguments->a,
                   "a step, RUN@STEP, a run directory, STORE:RUN@STEP, or a foreign checkpoint")
      ->required();
  diff->add_option("B", arguments->b, "the same")->required();
  diff->add_option("--ignore", arguments->ignore,
                   "leave out 'optimizer' (masters and moments), 'dtype', or a glob of tensors; repeatable")
      ->option_text("WHAT")
      ->allow_extra_args(false);
  diff->add_option("--tolerance", arguments->tolerances,
                   "allowed difference of the values of some tensors: |a-b| <= ABS + REL*|b|; repeatable, "
                   "the last match counts")
      ->option_text("GLOB=ABS[,REL]")
      ->allow_extra_args(false);
  AddTolerance(*diff, "--atol", arguments->atol, "default ABS of all tensors", "ABS");
  AddTolerance(*diff, "--rtol", arguments->rtol, "default REL of all tensors", "REL");
  AddSourceFlags(*diff, arguments->open);
  diff->add_option("--top", arguments->top, "tensors to show, worst first; 0: all")->option_text("N");
  AddMaxMemory(*diff, arguments->max_memory);
  diff->add_flag("--json", arguments->json, "print all differences as JSON");
  diff->footer(
      "Compares structure first: tensors that one side lacks, shapes, types. Leaves out random states of "
      "cairn train; --ignore 'rng*' leaves out those that a state dict has under such a name.\n\n" +
      HelpFooter("cairn diff runs/gpt/step-00000100 runs/gpt-tp4 --ignore optimizer --rtol 1e-6",
                 "the checkpoints differ by more than the tolerance"));
}

}  // namespace cairn
