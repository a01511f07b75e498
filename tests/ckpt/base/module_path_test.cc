#include "ckpt/base/module_path.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

TEST(ModulePathTest, LooksInTheProgramsDirectoryThenInTheInstallation) {
  const TempDir dir;
  const std::string program = dir / "bin/program";
  EXPECT_EQ(ModulePath("m.so", program), dir / "bin/m.so");
  std::filesystem::create_directories(dir / "lib/cairn");
  std::ofstream(dir / "lib/cairn/m.so") << "installed";
  EXPECT_EQ(ModulePath("m.so", program), dir / "lib/cairn/m.so");
  std::filesystem::create_directories(dir / "bin");
  std::ofstream(dir / "bin/m.so") << "built";
  EXPECT_EQ(ModulePath("m.so", program), dir / "bin/m.so");
}

}  // namespace
}  // namespace cairn
