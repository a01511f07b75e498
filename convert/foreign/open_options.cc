#include "convert/foreign/open_options.h"

#include <algorithm>

#include "ckpt/base/glob.h"

namespace cairn {

std::string AllowedLine(const std::string& name) {
  return fmt::format("import: {} was left out (--allow)", name);
}

Status LeaveOutOptimizer(ReaderOptions& options, Manifest& manifest, const Status& why) {
  if (!IsAllowed(options, "optimizer"))
    return {why.kind(),
            why.message() + "; --allow optimizer takes the weights without the optimizer's state"};
  manifest.history.push_back(fmt::format("{}: {}", kOptimizerLeftOut, why.message()));
  return OkStatus();
}

bool IsAllowed(ReaderOptions& options, const std::string& name) {
  const bool allowed = FitsAnyGlob(name, options.allow);
  if (allowed) options.allowed_names.insert(name);
  return allowed;
}

}  // namespace cairn
