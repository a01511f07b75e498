#include "ckpt/base/toml_fields.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(TomlFieldsTest, TablesMayGroupKeysOrBeValues) {
  const std::string text = "a_b = 1\n[group]\nc = 2\n[group.deeper]\nd = 3\n";
  std::vector<std::string> seen;
  const auto see = [&](const TomlField& field) {
    seen.push_back(field.where + " " + field.key + " " + field.name);
    return OkStatus();
  };
  ASSERT_TRUE(TakeGroupedToml(text, "f.toml", see).ok());
  EXPECT_EQ(seen, (std::vector<std::string>{"f.toml:1 a_b a-b", "f.toml:3 c c", "f.toml:5 d d"}));
  seen.clear();
  const auto table = ParseToml(text, "f.toml");
  ASSERT_TRUE(table.ok());
  ASSERT_TRUE(TakeTomlTable(*table, "f.toml", see).ok());
  EXPECT_EQ(seen, (std::vector<std::string>{"f.toml:1 a_b a-b", "f.toml:2 group group"}));
}

TEST(TomlFieldsTest, ErrorsNameFileAndLine) {
  const auto refuse = [](const TomlField& field) { return UnknownTomlKey(field, {"every"}, "see --help"); };
  EXPECT_EQ(TakeGroupedToml("\nevry = 1\n", "f.toml", refuse).message(),
            "f.toml:2: unknown key 'evry'; did you mean 'every'?");
  EXPECT_EQ(TakeGroupedToml("monthly = 1\nx = 2\n", "f.toml", refuse).message(),
            "f.toml:1: unknown key 'monthly'; see --help");
  EXPECT_EQ(TakeGroupedToml("a = 1\na = \n", "f.toml", refuse).message().substr(0, 9), "f.toml:2:");
}

}  // namespace
}  // namespace cairn
