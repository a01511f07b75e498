#include "tools/archive/policy/policy.h"

#include <gtest/gtest.h>

#include "tools/archive/policy/policy_report.h"

namespace cairn {
namespace {

constexpr const char* kGood = R"(
store = "/tape/store"
runs = ["/scratch/*"]
purge_days = 21
margin_days = 2.5
bandwidth = "400MB/s"
pack = true
parity = "3%"
[[class]]
keep = "full"
every = 5000
[[class]]
keep = "weights-fp16"
steps = [1, 2]
[quota]
bytes = "2TB"
inodes = 1000
[delete]
source = true
)";

TEST(PolicyTest, ReadsEveryKey) {
  const auto policy = ParsePolicy(kGood, "p.toml");
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  EXPECT_EQ(policy->purge_days, 21);
  EXPECT_EQ(policy->margin_days, 2.5);
  EXPECT_EQ(policy->bandwidth, 4e8);
  EXPECT_EQ(policy->parity, 0.03);
  EXPECT_EQ(policy->quota_bytes, 2'000'000'000'000u);
  ASSERT_EQ(policy->classes.size(), 2u);
  EXPECT_EQ(policy->classes[1].keep, Form::kWeights);
  EXPECT_TRUE(policy->delete_source && !policy->delete_stored);
  EXPECT_EQ(policy->status, "/tape/store/status.json");
}

TEST(PolicyTest, NamesMistakesWithTheirLine) {
  const auto message = [](const std::string& text) { return ParsePolicy(text, "p.toml").status().message(); };
  const std::string head = "store = \"s\"\nruns = [\"r\"]\n";
  EXPECT_EQ(message(head + "purge_dayz = 3\n"),
            "p.toml:3: unknown key 'purge_dayz'; did you mean 'purge_days'?");
  EXPECT_EQ(message(head + "purge_days = \"x\"\n"),
            "p.toml:3: the value of 'purge_days' has the wrong type or range; write purge_days = 30");
  EXPECT_NE(message(head + "[[class]]\nkeep = \"half\"\n").find("p.toml:4: the value of 'keep'"),
            std::string::npos);
  EXPECT_NE(message(head + "[[class]]\nkeep = \"full\"\n").find("p.toml:3: this class keeps nothing"),
            std::string::npos);
  for (const std::string size : {"1e30", "\"1e300TB\"", "inf", "nan", "-1"})
    EXPECT_EQ(message(head + "[quota]\nbytes = " + size + "\n"),
              "p.toml:4: the value of 'bytes' has the wrong type or range; write bytes = \"200TB\"");
  EXPECT_NE(message(head).find("no [[class]]"), std::string::npos);
  EXPECT_NE(message("runs = [\"r\"]\n").find("store = \"DIR\" is missing"), std::string::npos);
  EXPECT_NE(message(head + "x = [\n").find("p.toml:"), std::string::npos);
  EXPECT_NE(message(head + "[delete]\nall = true\n").find("p.toml:4: unknown key 'all'"), std::string::npos);
}

TEST(PolicyTest, RefusesTooMuchParity) {
  const auto policy = [](std::string_view share) {
    return ParsePolicy(fmt::format("store = \"s\"\ntrees = [\"t\"]\nparity = \"{}\"\n", share), "p.toml");
  };
  EXPECT_EQ(policy("50%")->parity, 0.5);
  EXPECT_EQ(policy("50.5%").status().message(), "p.toml: parity of 50.5 % is more than the maximum of 50 %");
}

TEST(PolicyTest, DerivesBundleSizesFromTheGivenOne) {
  const std::string head = "store = \"s\"\nruns = [\"r\"]\n", tail = "[[class]]\nkeep = \"full\"\nlast = 1\n";
  const auto policy = [&](const std::string& keys) { return ParsePolicy(head + keys + tail, "p.toml"); };
  EXPECT_EQ(policy("")->bundle.target, 0u);
  EXPECT_EQ(policy("bundle = \"100GB\"\n")->bundle.least, 512'000'000u);
  EXPECT_EQ(policy("bundle = \"100GB\"\n")->bundle.most, 500'000'000'000u);
  EXPECT_EQ(policy("bundle = \"1MB\"\n")->bundle.least, 1'000'000u);
  EXPECT_EQ(policy("bundle = \"1TB\"\n")->bundle.most, 1'000'000'000'000u);
  EXPECT_NE(policy("bundle_min = \"1MB\"\n").status().message().find("without bundle"), std::string::npos);
  EXPECT_NE(policy("bundle = \"1GB\"\nbundle_max = \"1MB\"\n").status().message().find("between"),
            std::string::npos);
}

// Every listed key is accepted with its listed value, and no other key.
TEST(PolicyTest, AcceptsExactlyTheListedKeys) {
  ASSERT_GT(PolicyKeys().size(), 30u);
  const std::string text = PolicyKeysText();
  for (const PolicyKey& key : PolicyKeys()) {
    EXPECT_NE(text.find(fmt::format("  {} ", key.name)), std::string::npos) << key.name;
    std::string value(key.value);
    if (const size_t either = value.find(" or "); either != value.npos) value.resize(either);
    std::string file = key.name == "store" ? "" : "store = \"s\"\n";
    if (key.name == "bundle_min" || key.name == "bundle_max") file += "bundle = \"100GB\"\n";
    if (key.name != "runs") file += "runs = [\"r\"]\n";
    const std::string line = fmt::format("{} = {}\n", key.name, value);
    if (key.table.empty()) file += line;
    file += "[[class]]\nlast = 1\n";
    if (key.table == "class")
      file += fmt::format("[[class]]\n{}{}", line, key.name == "keep" ? "every = 5\n" : "");
    else if (!key.table.empty())
      file += fmt::format("[{}]\n{}", key.table, line);
    const auto policy = ParsePolicy(file, "p.toml");
    EXPECT_TRUE(policy.ok()) << policy.status().message() << "\n" << file;
  }
}

TEST(PolicyTest, PathsAreRelativeToThePolicyOrHome) {
  ::setenv("HOME", "/home/m[e]", 1);
  const std::string tail = "[[class]]\nlast = 1\n";
  const auto policy = ParsePolicy(
      "store = \"s\"\nruns = [\"r*\", \"/a/*\", \"~/b*\"]\ntrees = [\"t\"]\nmetrics = \"~/m\"\n" + tail,
      "p.toml", "/etc/{x}");
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  EXPECT_EQ(policy->store, "/etc/{x}/s");
  EXPECT_EQ(policy->status, "/etc/{x}/s/status.json");
  EXPECT_EQ(policy->runs, (std::vector<std::string>{"/etc/\\{x\\}/r*", "/a/*", "/home/m\\[e\\]/b*"}));
  EXPECT_EQ(policy->trees, (std::vector<std::string>{"/etc/\\{x\\}/t"}));
  EXPECT_EQ(policy->metrics, "/home/m[e]/m");
  EXPECT_NE(
      ParsePolicy("store = \"~x/s\"\nruns = [\"r\"]\n" + tail, "p").status().message().find("another user"),
      std::string::npos);
}

TEST(PolicyTest, LabelsAreTagAndPath) {
  Policy policy;
  policy.path = "/p.toml";
  EXPECT_EQ(policy.labels(), (std::vector<std::string>{"policy:/p.toml"}));
  policy.tag = "weekly";
  EXPECT_EQ(policy.labels(), (std::vector<std::string>{"weekly", "policy:/p.toml"}));
  EXPECT_TRUE(policy.Claims("weekly") && policy.Claims("policy:/p.toml") && !policy.Claims("by hand"));
}

TEST(PolicyTest, ParsesSizesAndPercents) {
  EXPECT_EQ(ParseSize("1.5 GiB"), 1.5 * 1073741824);
  EXPECT_EQ(ParseSize("12"), 12);
  EXPECT_EQ(ParseSize("12 parsecs"), std::nullopt);
  EXPECT_EQ(ParsePercent("3%"), 0.03);
  for (const char* bad : {"3", "0%", "101%", "x%", "-1%"}) EXPECT_EQ(ParsePercent(bad), std::nullopt) << bad;
}

TEST(ReportTest, EachMeasureIsOneGauge) {
  RunReport report;
  report.stored_bytes = 5;
  report.nearest_purge_days = std::numeric_limits<double>::infinity();
  const std::string text = MetricsText(report, "/a\"b");
  EXPECT_NE(text.find("cairn_archive_stored_bytes{store=\"/a\\\"b\"} 5\n"), std::string::npos) << text;
  EXPECT_NE(text.find("cairn_archive_nearest_purge_days{store=\"/a\\\"b\"} +Inf\n"), std::string::npos);
}

}  // namespace
}  // namespace cairn
