#include "tools/process/programs.h"

#include <unistd.h>

#include <filesystem>

namespace cairn {
namespace {

std::string PathBeside(const std::string& name) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / name;
}

}  // namespace

std::string ProgramBeside(const std::string& name) {
  const std::string path = PathBeside(name);
  return ::access(path.c_str(), X_OK) == 0 ? path : "";
}

Result<std::string> FindTrainer() {
  const std::string trainer = ProgramBeside("cairn-train");
  if (!trainer.empty()) return trainer;
  return NotFound(
      "{} does not exist: this cairn was built without the trainer, which needs libtorch and MPI (as in a "
      "wheel); build Cairn from its sources (scripts/build) and use the cairn next to cairn-train",
      PathBeside("cairn-train"));
}

}  // namespace cairn
