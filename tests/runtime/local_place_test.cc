#include "runtime/local_place.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace cairn {
namespace {

using Groups = std::vector<std::vector<int>>;

std::vector<std::string> Hosts(int count, int ranks_each) {
  std::vector<std::string> hosts;
  for (int host = 0; host < count; ++host)
    for (int i = 0; i < ranks_each; ++i) hosts.push_back("n" + std::to_string(host));
  return hosts;
}

TEST(LocalPlace, GroupsTakeOneRankOfEachHost) {
  EXPECT_EQ(CutIntoGroups(Hosts(4, 2), {4, 1}).value(), (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(CutIntoGroups(Hosts(1, 4), {2, 1}).value(), (Groups{{0, 1}, {2, 3}}));
}

TEST(LocalPlace, EveryRankIsInOneGroupLargerThanItsParity) {
  for (int hosts = 1; hosts <= 9; ++hosts)
    for (int each = 1; each <= 5; ++each)
      for (int group = 2; group <= 8; ++group)
        for (int parity = 1; parity < group; ++parity) {
          SCOPED_TRACE(testing::Message() << hosts << " x " << each << ", " << group << "," << parity);
          const auto groups = CutIntoGroups(Hosts(hosts, each), {group, parity});
          ASSERT_EQ(groups.ok(), hosts * each > parity);
          std::set<int> seen;
          for (const std::vector<int>& ranks : groups.ok() ? *groups : Groups()) {
            EXPECT_GT(static_cast<int>(ranks.size()), parity);
            EXPECT_LE(static_cast<int>(ranks.size()), std::max(group, 2 * parity + 1));
            EXPECT_TRUE(std::ranges::is_sorted(ranks));
            seen.insert(ranks.begin(), ranks.end());
          }
          if (groups.ok()) {
            EXPECT_EQ(static_cast<int>(seen.size()), hosts * each);
          }
        }
}

TEST(LocalPlace, ALostHostCostsNoGroupMoreThanOneMemberWhereHostsAreEnough) {
  const std::vector<std::string> hosts = Hosts(8, 4);
  const Groups groups = CutIntoGroups(hosts, {8, 1}).value();
  for (const std::vector<int>& group : groups) {
    std::set<std::string> of_group;
    for (int rank : group) EXPECT_TRUE(of_group.insert(hosts[rank]).second);
  }
}

}  // namespace
}  // namespace cairn
