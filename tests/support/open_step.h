// Steps of tests, opened by the path that a user would give.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "ckpt/run/run_dir.h"
#include "ckpt/step/step_reader.h"
#include "tests/support/unsynced_file_system.h"

namespace cairn {

inline FileSystem& Fs() {
  static UnsyncedFileSystem file_system;
  return file_system;
}

// Opens a step, or a run directory's newest one; null if it does not open, which fails the test.
inline std::unique_ptr<StepReader> Open(const std::string& path) {
  auto reader = OpenCheckpoint(Fs(), path, [](const Status&) {});
  EXPECT_TRUE(reader.ok()) << reader.status().message();
  return reader.ok() ? std::move(reader).value() : nullptr;
}

}  // namespace cairn
