#include "convert/formats/deepspeed/slice_patterns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/torch/pickle_emitter.h"
#include "convert/torch/pickle_machine.h"

namespace cairn {
namespace {

// The name that matches a pattern of uncut parameters; nullopt if the pattern is not understood.
std::optional<SliceRule> RuleBy(const std::string& pattern, const std::string& name) {
  PickleEmitter emitter;
  emitter.BeginDict();
  emitter.Entry("tp_replicated_parameter_patterns", nlohmann::json::array({pattern}));
  emitter.EndDict();
  const auto pickle = Unpickle(std::make_shared<const std::string>(emitter.Finish()));
  EXPECT_TRUE(pickle.ok()) << pickle.status().message();
  const auto patterns = SlicePatterns::Read((*pickle)->root);
  if (!patterns.ok()) return std::nullopt;
  const auto rule = patterns->RuleOf(name, false);
  return rule.ok() ? std::optional(*rule) : std::nullopt;
}

TEST(SlicePatterns, MatchesNamesLikePython) {
  for (const auto& [pattern, name] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"(layers\.\d+\.norm)", "layers.12.norm.weight"},
           {R"(layers\.[\d]+\.norm)", "layers.12.norm"},
           {R"([\w.]+norm)", "layers.12.norm"},
           {R"([^\d]+norm)", "layers.norm"},
           {R"([]a]norm)", "]norm"},
           {R"([a\\]norm)", "\\norm"},
           {R"((?:a|b)+?\.norm)", "ab.norm"},
           {R"(.*?norm)", "layers.norm"},
           {R"(a??b)", "b"},
           {R"(a\*?b)", "ab"},
           {R"(a\*?b)", "a*b"},
           {R"(a\*b)", "a*b"}})
    EXPECT_EQ(RuleBy(pattern, name), SliceRule::kReplicated) << pattern << " " << name;
  for (const auto& [pattern, name] :
       std::initializer_list<std::pair<const char*, const char*>>{{R"(layers\.[\d]+\.norm)", "layers.x.norm"},
                                                                  {R"([^\d]+norm)", "layers.1.norm"},
                                                                  {R"([\w]+\.norm)", "a.b.norm"},
                                                                  {R"(norm)", "layers.norm"},
                                                                  {R"(a\*b)", "ab"}})
    EXPECT_EQ(RuleBy(pattern, name), SliceRule::kRows) << pattern << " " << name;
}

TEST(SlicePatterns, RefusesPatternsThatPythonReadsDifferently) {
  for (const char* pattern : {R"(a{2})", R"(a(?=b))", R"(\bnorm)", R"(norm\)", R"([a\-z])", R"([a\]z])",
                              R"([[:alpha:]])", R"([a)", R"([\s])", R"(a*+)", R"((?P<x>a))", R"(a(b)\1)"})
    EXPECT_EQ(RuleBy(pattern, "a"), std::nullopt) << pattern;
}

}  // namespace
}  // namespace cairn
