#include "tools/process/trainer.h"

#include <unistd.h>

#include <filesystem>

namespace cairn {

Result<std::string> FindTrainer() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string trainer = (self.parent_path() / "cairn-train").string();
  if (::access(trainer.c_str(), X_OK) == 0) return trainer;
  return NotFound(
      "{} does not exist: this cairn was built without the trainer, which needs libtorch and MPI (as in a "
      "wheel); build Cairn from its sources (scripts/build) and use the cairn next to cairn-train",
      trainer);
}

}  // namespace cairn
