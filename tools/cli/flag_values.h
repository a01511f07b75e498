// Checks of the values of flags: a bad one is refused before any work.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <string>

#include "ckpt/base/parse_number.h"

namespace cairn {

// The least window of memory that the readers and writers keep to.
inline constexpr uint64_t kLeastMaxMemory = 64 << 20;

// A size like "256MiB", "1GB" or a number of bytes, of at least `least` bytes.
inline CLI::Option* AddSize(CLI::App& verb, const std::string& name, uint64_t& target,
                            const std::string& description, uint64_t least = 1) {
  // After the transformation the text is a number of bytes.
  const auto is_enough = [least](const std::string& bytes) {
    if (ParseNumber<uint64_t>(bytes, least)) return std::string();
    return least >= (1 << 20)
               ? fmt::format("{} bytes are too few; at least {}MiB are needed", bytes, least >> 20)
               : fmt::format("{} bytes are too few", bytes);
  };
  return verb.add_option(name, target, description)
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(CLI::Validator(is_enough, ""))
      ->option_text("SIZE");
}

// --max-memory of the verbs that stream tensors.
inline CLI::Option* AddMaxMemory(CLI::App& verb, uint64_t& target) {
  return AddSize(verb, "--max-memory", target,
                 "window of memory, like 256MiB (the default) or 1GB; at least 64MiB", kLeastMaxMemory);
}

// A finite number that is not negative: "nan" compares with nothing.
inline CLI::Option* AddTolerance(CLI::App& verb, const std::string& name, double& target,
                                 const std::string& description, const std::string& text) {
  return verb.add_option(name, target, description)
      ->check(CLI::Validator(
          [](std::string& input) {
            const auto value = ParseNumber<double>(input, 0);
            return value && std::isfinite(*value)
                       ? std::string()
                       : fmt::format("{} is not a finite number of at least 0", input);
          },
          ""))
      ->option_text(text);
}

}  // namespace cairn
