// What `cairn strip` and `cairn convert` share: flags for released weights, the run and its report.
#pragma once

#include <CLI/CLI.hpp>

#include "convert/formats/systems.h"
#include "convert/verbs/strip.h"
#include "tools/cli/choices.h"
#include "tools/commands/transfer_run.h"

namespace cairn {

inline const std::vector<std::pair<std::string, Dtype>> kReleaseTypes = {
    {"fp16", Dtype::kF16}, {"bf16", Dtype::kBF16}, {"fp32", Dtype::kF32}};

struct StripFlags {
  TransferFlags transfer;
  StripOptions options;           // its writer is that of `transfer`
  std::string tokenizer;          // directory whose tokenizer is copied; empty: the source's, if any
  std::vector<std::string> with;  // files that are copied, too
  bool saturate = false;
};

// The type that some weights are cast to; nothing: none is.
inline std::optional<Dtype> CastOf(const StripOptions& options) {
  return options.dtype && !options.keep_fp32.empty() ? Dtype::kF32 : options.dtype;
}

// The formats with this property, by name, for --to and --format.
inline std::vector<std::pair<std::string, const System*>> FormatsWith(
    bool (*property)(const System& format)) {
  std::vector<std::pair<std::string, const System*>> formats;
  for (const System& format : Systems())
    if (property(format)) formats.emplace_back(format.name, &format);
  return formats;
}

// Adds --max-shard-size, --keep-fp32, --saturate and --tokenizer.
void AddStripFlags(CLI::App& verb, StripFlags& flags);

// "cairn strip --dtype fp16": the given options that determine the result, without paths.
// `defaults`: values that are added if the option was not given, so that equal requests give equal bytes.
std::string CommandOf(const CLI::App& verb, const std::map<std::string, std::string>& defaults = {});

// The tokenizer that the flags name, or that of the source, and the files of --with; licence and code are the
// source's. Errors: those of TokenizerFiles(); InvalidArgument for --with and a step.
Result<FileCopies> ChooseFilesBeside(const OpenedSource& opened, const StripFlags& flags);

// Strips and reports. `flags.options` has its format and dtype.
Result<int> RunStrip(const OpenedSource& opened, const StripFlags& flags);

}  // namespace cairn
