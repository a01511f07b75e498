// Whether a verb has printed its facts as JSON (output.h), for main.cc alone.
#pragma once

namespace cairn {

// True once PrintJson was called: a failure after that adds nothing to what a program may be reading.
bool JsonWasPrinted();

}  // namespace cairn
