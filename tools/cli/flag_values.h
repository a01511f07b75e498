// Checks of the values of flags: a bad one is refused before any work.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>

namespace cairn {

// The least window of memory that the readers and writers keep to.
inline constexpr uint64_t kLeastMaxMemory = 64 << 20;

// A size like "256MiB", "1GB" or a number of bytes, of at least `least` bytes.
inline CLI::Option* AddSize(CLI::App& verb, const std::string& name, uint64_t& target,
                            const std::string& description, uint64_t least = 1) {
  // After the transformation the text is a number of bytes.
  const auto is_enough = [least](const std::string& bytes) {
    uint64_t value = 0;
    std::from_chars(bytes.data(), bytes.data() + bytes.size(), value);
    if (value >= least) return std::string();
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
            double value = 0;
            const auto read = std::from_chars(input.data(), input.data() + input.size(), value);
            const bool good = read.ec == std::errc() && read.ptr == input.data() + input.size() &&
                              std::isfinite(value) && value >= 0;
            return good ? std::string() : fmt::format("{} is not a finite number of at least 0", input);
          },
          ""))
      ->option_text(text);
}

}  // namespace cairn
