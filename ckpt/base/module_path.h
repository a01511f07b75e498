// Where a program finds the shared objects that it loads at run time.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace cairn {

/// The path of the module NAME: beside PROGRAM as in a build directory, unless it is only in ../lib/cairn, as
/// in an installation.
inline std::string ModulePath(const std::string& name, const std::filesystem::path& program) {
  const auto directory = program.parent_path();
  const auto beside = directory / name, installed = directory.parent_path() / "lib/cairn" / name;
  std::error_code error;
  return !std::filesystem::exists(beside, error) && std::filesystem::exists(installed, error) ? installed
                                                                                              : beside;
}

/// The same for the running program.
inline std::string ModulePath(const std::string& name) {
  std::error_code error;
  return ModulePath(name, std::filesystem::read_symlink("/proc/self/exe", error));
}

}  // namespace cairn
