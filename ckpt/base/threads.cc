#include "ckpt/base/threads.h"

#include <new>
#include <system_error>

namespace cairn {

Status StatusOf(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return NoSpace("out of memory; raise the memory limit (ulimit -v, or the job's), or use less at once");
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system == nullptr) return InvalidArgument("{}", error.what());
  if (system->code() == std::errc::resource_unavailable_try_again)
    return NoSpace("cannot start a thread: {}; raise the limit on processes (ulimit -u) or memory",
                   system->code().message());
  return IoError("{}", error.what());
}

}  // namespace cairn
