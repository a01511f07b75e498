#include "ckpt/model/path_check.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cairn {
namespace {

std::vector<TensorEntry> Entries(const std::vector<std::pair<std::string, Role>>& names) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, role] : names) {
    entries.push_back({.role = role});
    entries.back().spec.name = name;
  }
  return entries;
}

TEST(PathCheckTest, ConflictingNamesAreRefusedByName) {
  const std::vector<std::vector<std::string>> refused = {{"a", "a/b"},
                                                         {"a/b/c", "a"},
                                                         {"a/b/c", "a.b", "a/b"},
                                                         {"a//b", "a/b"},
                                                         {"a/./b", "a"},
                                                         {"a/b", "/a"},
                                                         {"a", "x", "a/b/c/d"},
                                                         {"."},
                                                         {"a/"},
                                                         {"a/."},
                                                         {""}};
  for (const auto& names : refused) {
    std::vector<std::pair<std::string, Role>> weights;
    for (const std::string& name : names) weights.emplace_back(name, Role::kWeight);
    const Status status = CheckPaths(Entries(weights));
    EXPECT_EQ(status.kind(), StatusKind::kInvalidArgument) << names[0];
    EXPECT_NE(status.message().find(names.back()), std::string::npos) << status.message();
  }
  EXPECT_TRUE(CheckPaths(Entries({{"a", Role::kWeight},
                                  {"a/b", Role::kMaster},
                                  {"a.b", Role::kWeight},
                                  {"b/c", Role::kWeight},
                                  {"b/d", Role::kWeight},
                                  {"b.", Role::kWeight}}))
                  .ok());
}

TEST(PathCheckTest, AMessageDoesNotRepeatALongName) {
  EXPECT_TRUE(CheckPaths(Entries({{std::string(65'535, 'a'), Role::kPickle}})).ok());
  const Status status = CheckPaths(Entries({{std::string(65'536, 'a'), Role::kPickle}}));
  EXPECT_EQ(status.kind(), StatusKind::kInvalidArgument);
  EXPECT_LT(status.message().size(), 200U);
}

}  // namespace
}  // namespace cairn
