#include "tools/commands/report_flags.h"

#include <algorithm>

#include "tools/cli/choices.h"

namespace cairn {
namespace {

std::string FlagNames(const ConfigCount& count) {
  const auto flag = [](std::string_view name) {
    std::string text = "--" + std::string(name);
    std::ranges::replace(text, '_', '-');
    return text;
  };
  const std::string shorter = flag(count.name), longer = flag(count.long_name);
  return shorter == longer ? shorter : shorter + "," + longer;
}

}  // namespace

void AddConfigFlags(CLI::App& command, RunConfig& config) {
  const std::string usual = command.option_defaults()->get_group();
  command.option_defaults()->group("Facts that are neither in the log nor in the file's name");
  for (const ConfigCount& count : ConfigCounts()) {
    auto& field = config.*count.field;
    command
        .add_option_function<int64_t>(
            FlagNames(count), [&field](const int64_t& value) { field = value; }, std::string(count.what))
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
        ->option_text("N");
  }
  command
      .add_option_function<double>(
          "--size", [&config](const double& value) { config.size_b = value; },
          "parameters in billions (10^9)")
      ->check(CLI::PositiveNumber)
      ->option_text("B");
  command.add_flag_function(
      "--swiglu", [&config](int64_t) { config.gated = true; }, "the MLP is gated, as in LLaMA");
  command.add_flag_function(
      "--recompute,!--no-recompute", [&config](int64_t count) { config.recompute = count > 0; },
      "activations are recomputed, which counts as work of the hardware (the default, unless the log "
      "says otherwise)");
  command.option_defaults()->group(usual);
}

void AddFormula(CLI::App& command, TflopsFormula& formula, const std::string& description) {
  AddChoice<TflopsFormula>(command, "--formula", formula, description,
                           {{"auto", TflopsFormula::kAuto},
                            {"simple", TflopsFormula::kSimple},
                            {"megatron", TflopsFormula::kMegatron},
                            {"model", TflopsFormula::kModel}});
}

}  // namespace cairn
