#include "convert/formats/deepspeed/slice_patterns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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
  return rule.ok() ? std::optional(rule->rule) : std::nullopt;
}

// The layout of a slice of [2, 3] of rank 1, by a map with these pieces.
Result<SliceLayout> LayoutBy(const nlohmann::json& pieces) {
  PickleEmitter emitter;
  emitter.BeginDict();
  emitter.Entry("logical_shape", nlohmann::json({2, 6}));
  emitter.Text("ranks");
  emitter.BeginDict();
  emitter.Int(1);
  emitter.Json({{"shard_shape", {2, 3}}, {"pieces", pieces}});
  emitter.EndDict();
  emitter.EndDict();
  const auto pickle = Unpickle(std::make_shared<const std::string>(emitter.Finish()));
  EXPECT_TRUE(pickle.ok()) << pickle.status().message();
  return LayoutInMap(*(*pickle)->root, 1, {2, 3});
}

nlohmann::json Piece(const nlohmann::json& shape, uint64_t source, uint64_t dest, int row = 6) {
  return {{"shape", shape}, {"source", {source, {row, 1}}}, {"dest", {dest, {3, 1}}}};
}

// AutoTP's checkpoints say where each element of a slice is in the whole; whatever is not a box of it is
// refused.
TEST(SlicePatterns, BoxesOfAnAffineMapAreReadAndOtherPiecesRefused) {
  const auto columns = LayoutBy({Piece({2, 1}, 1, 0), Piece({2, 2}, 4, 1)});
  ASSERT_TRUE(columns.ok()) << columns.status().message();
  EXPECT_EQ(columns->whole, Dims({2, 6}));
  ASSERT_EQ(columns->parts.size(), 2);
  EXPECT_EQ(columns->parts[0].box, (Box{{0, 1}, {2, 1}}));
  EXPECT_EQ(columns->parts[1].box, (Box{{0, 4}, {2, 2}}));
  EXPECT_EQ(columns->parts[1].in_array, (Box{{0, 1}, {2, 2}}));
  nlohmann::json scaled = Piece({2, 3}, 0, 0);
  scaled["scale"] = 0.5;
  for (const nlohmann::json& pieces : {nlohmann::json::array({scaled}),
                                       {Piece({2, 3}, 0, 0, 5)},
                                       {Piece({2, 3}, 4, 0)},
                                       {Piece({2, 3}, 0, 1)},
                                       {Piece({2, 3}, 12, 0)},
                                       {Piece({2, 3}, uint64_t{1} << 62, 0)},
                                       {Piece({6}, 0, 0)},
                                       {nlohmann::json()}})
    EXPECT_EQ(LayoutBy(pieces).status().kind(), StatusKind::kNotSupported) << pieces;
  for (const nlohmann::json& pieces : {nlohmann::json::array(), {Piece({2, 2}, 0, 0)}})
    EXPECT_EQ(LayoutBy(pieces).status().kind(), StatusKind::kCorrupt) << pieces;
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
