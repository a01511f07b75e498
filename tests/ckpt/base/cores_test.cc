#include "ckpt/base/cores.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

TEST(CoresTest, AQuotaCountsAsWholeCores) {
  EXPECT_EQ(CoresOfQuota("200000 100000"), 2);
  EXPECT_EQ(CoresOfQuota("150000 100000"), 2);
  EXPECT_EQ(CoresOfQuota("5000 100000"), 1);
  for (const char* none : {"max 100000", "", "0 100000", "x"}) EXPECT_EQ(CoresOfQuota(none), 0) << none;
}

TEST(CoresTest, FollowTheAffinityOfTheThread) {
  std::thread([] {
    cpu_set_t allowed;
    ASSERT_EQ(::sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    int first = 0;
    while (!CPU_ISSET(first, &allowed)) ++first;
    EXPECT_LE(AllowedCores(), CPU_COUNT(&allowed));
    CPU_ZERO(&allowed);
    CPU_SET(first, &allowed);
    ASSERT_EQ(::sched_setaffinity(0, sizeof(allowed), &allowed), 0);
    EXPECT_EQ(AllowedCores(), 1);
    const OnNode bound(1, true);
    EXPECT_EQ(AllowedCores(), 1);
  }).join();
}

TEST(CoresTest, NodesHaveTheAllowedCores) {
  const TempDir dir;
  std::ofstream(dir / "online") << "0-1,4\n";
  for (const auto& [node, cores] : {std::pair("node0", "0-3,8\n"), {"node1", "4-7\n"}, {"node4", "9,10\n"}}) {
    std::filesystem::create_directory(dir / node);
    std::ofstream(dir / node + "/cpulist") << cores;
  }
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  for (const int core : {2, 3, 8, 10}) CPU_SET(core, &allowed);
  const std::vector<cpu_set_t> nodes = AllowedNodes(dir.path(), allowed);
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(CPU_COUNT(&nodes[0]), 3);
  EXPECT_TRUE(CPU_ISSET(8, &nodes[0]));
  EXPECT_EQ(CPU_COUNT(&nodes[1]), 1);
  EXPECT_TRUE(CPU_ISSET(10, &nodes[1]));
}

}  // namespace
}  // namespace cairn
