// The commit that a saving training came from. The training does not state it: it is the last step with the
// same tensors that it read or saved.
//
// A step of which only some of these tensors were read does not count if there is another one, and one with
// a higher number than the save never does: a training also reads steps to evaluate them, or to take a
// teacher's weights.
#pragma once

#include <cstdint>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/run/branch.h"

namespace cairn {

// Safe from several threads.
class Origins {
 public:
  // A step that the training has read from, or has saved.
  struct Known {
    BranchedStep commit;
    std::vector<std::string> names;  // of its tensors, in a state dict
    std::vector<bool> has;           // which of them the training has
    bool saved = false;
    uint64_t when = 0;  // the last of them
  };

  // A moment after all earlier reports.
  uint64_t Now();
  // Tensors of a step were read: those that it `has`. A step that was reported before, and whose tensors were
  // read again, has those of both reports.
  void Read(Known step);
  // `when`: the training handed its tensors over.
  void Saved(BranchedStep commit, std::vector<std::string> names, uint64_t when);

  // The origin of a save of `names` as `step` of `run`, handed over at `when`. `newest`: of its directory. A
  // step of the same line comes before one of another run, which counts only before the first save in that
  // directory. nullopt: not known.
  std::optional<BranchedStep> Of(const std::string& run, int64_t step, const std::vector<std::string>& names,
                                 uint64_t when, const std::optional<BranchedStep>& newest) const;

 private:
  mutable std::mutex mutex_;  // of both
  std::vector<Known> known_;
  uint64_t now_ = 0;
};

// A step as the process that reads it tells the one that saves: {"step", "run", "descent", "names", "read":
// the numbers of the names that it has}.
nlohmann::json OriginJson(const Origins::Known& step);
// Errors: Corrupt. Throws json::exception.
Result<Origins::Known> ParseOrigin(const nlohmann::json& said);

}  // namespace cairn
