// The clean-up of a verb that is ended by a signal.
#pragma once

namespace cairn {

// Makes SIGTERM, SIGINT, SIGHUP and SIGPIPE remove the outputs that are being written (partial_dir.h) before
// they end the process as usual. A second signal ends it at once. One that is ignored (nohup) stays so.
void RemoveOutputsAtSignals();

}  // namespace cairn
