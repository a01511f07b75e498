// Writes what transformers' own conversion generates from such a model (convert_slow_tokenizer.py). A BPE
// model has scores in place of merges: a piece is the merge of any two pieces that make it, and the best
// score is merged first. A copy of the model itself would not do: transformers 5.23 reads it as
// LlamaTokenizer, whose ids differ from SentencePiece's.
#include "runtime/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/tokenizer/byte_characters.h"
#include "runtime/tokenizer/sentencepiece_model.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

constexpr const char* kSpaceMark = "\u2581";

ordered_json AddedTokenJson(size_t id, const std::string& text, bool special) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

ordered_json TokenizerJson(ordered_json added, ordered_json normalizer, ordered_json pre,
                           ordered_json decoder, ordered_json model) {
  return {{"version", "1.0"},          {"truncation", nullptr},    {"padding", nullptr},
          {"added_tokens", added},     {"normalizer", normalizer}, {"pre_tokenizer", pre},
          {"post_processor", nullptr}, {"decoder", decoder},       {"model", model}};
}

ordered_json BpeModelJson(ordered_json unknown, bool fuse_unknown, bool byte_fallback,
                          ordered_json vocabulary, ordered_json merges) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", unknown},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", fuse_unknown},
          {"byte_fallback", byte_fallback},
          {"ignore_merges", false},
          {"vocab", vocabulary},
          {"merges", merges}};
}

std::map<std::string, std::string> Files(const ordered_json& tokenizer, ordered_json config) {
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  config["clean_up_tokenization_spaces"] = false;
  const auto text = [](const ordered_json& json) {
    return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  };
  return {{"tokenizer.json", text(tokenizer)}, {"tokenizer_config.json", text(config)}};
}

ordered_json UnigramOf(const SentencePieceModel& model, size_t unknown, bool bytes) {
  float least = 0;
  for (const SentencePiece& piece : model.pieces)
    if (piece.type == SentencePiece::kNormal) least = std::min(least, piece.score);
  // Control and unused pieces get a score so low that no text is cut into them.
  ordered_json vocabulary = ordered_json::array();
  for (const SentencePiece& piece : model.pieces)
    vocabulary.push_back(
        {piece.text, piece.type == SentencePiece::kNormal || piece.type == SentencePiece::kUserDefined
                         ? static_cast<double>(piece.score)
                         : 100.0 * (static_cast<double>(least) - 1)});
  return {{"type", "Unigram"}, {"unk_id", unknown}, {"vocab", vocabulary}, {"byte_fallback", bytes}};
}

ordered_json BpeOf(const SentencePieceModel& model, size_t unknown, bool bytes) {
  std::unordered_map<std::string_view, size_t> ids;
  ordered_json vocabulary = ordered_json::object();
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    vocabulary[model.pieces[i].text] = i;
    if (model.pieces[i].type == SentencePiece::kNormal) ids.emplace(model.pieces[i].text, i);
  }
  std::vector<size_t> merged;
  for (const auto& [text, id] : ids) merged.push_back(id);
  std::ranges::sort(merged, [&](size_t a, size_t b) {
    return std::pair(-model.pieces[a].score, a) < std::pair(-model.pieces[b].score, b);
  });
  ordered_json merges = ordered_json::array();
  for (const size_t id : merged) {
    const std::string_view text = model.pieces[id].text;
    std::vector<std::pair<size_t, size_t>> pairs;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = ids.find(text.substr(0, cut)), right = ids.find(text.substr(cut));
      if (left != ids.end() && right != ids.end()) pairs.emplace_back(left->second, right->second);
    }
    std::ranges::sort(pairs);
    for (const auto& [left, right] : pairs)
      merges.push_back({model.pieces[left].text, model.pieces[right].text});
  }
  return BpeModelJson(model.pieces[unknown].text, true, bytes, vocabulary, merges);
}

}  // namespace

Result<std::map<std::string, std::string>> PublishedSentencePiece(const std::string& bytes) {
  CAIRN_ASSIGN_OR_RETURN(const SentencePieceModel model, ReadSentencePieceModel(bytes));
  if (model.type != SentencePieceModel::kUnigram && model.type != SentencePieceModel::kBpe)
    return NotSupported("a SentencePiece model of whole words or single characters");
  if (model.normalizes || model.remove_extra_whitespaces || !model.escape_whitespaces ||
      model.treat_whitespace_as_suffix)
    return NotSupported("a SentencePiece model that normalizes its text");
  const auto unknown =
      std::ranges::find(model.pieces, uint64_t{SentencePiece::kUnknown}, &SentencePiece::type);
  if (unknown == model.pieces.end()) return Corrupt("this SentencePiece model has no unknown piece");
  const auto unknown_id = static_cast<size_t>(unknown - model.pieces.begin());
  const bool byte_fallback =
      std::ranges::count(model.pieces, uint64_t{SentencePiece::kByte}, &SentencePiece::type) > 0;
  ordered_json added = ordered_json::array(), config = ordered_json::object();
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const SentencePiece& piece = model.pieces[i];
    if (piece.type == SentencePiece::kUnknown || piece.type == SentencePiece::kControl ||
        piece.type == SentencePiece::kUserDefined)
      added.push_back(AddedTokenJson(i, std::string(piece.text), piece.type != SentencePiece::kUserDefined));
    if (piece.type == SentencePiece::kControl && piece.text == "<s>") config["bos_token"] = "<s>";
    if (piece.type == SentencePiece::kControl && piece.text == "</s>") config["eos_token"] = "</s>";
  }
  config["unk_token"] = unknown->text;
  ordered_json normalizers = ordered_json::array(), decoders = ordered_json::array();
  if (model.add_dummy_prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
  normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}});
  decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}});
  if (byte_fallback) decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (model.add_dummy_prefix)
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return Files(
      TokenizerJson(added, {{"type", "Sequence"}, {"normalizers", normalizers}}, nullptr,
                    {{"type", "Sequence"}, {"decoders", decoders}},
                    model.type == SentencePieceModel::kUnigram ? UnigramOf(model, unknown_id, byte_fallback)
                                                               : BpeOf(model, unknown_id, byte_fallback)),
      std::move(config));
}

std::map<std::string, std::string> PublishedBytes() {
  constexpr const char* kEnd = "<|endoftext|>";
  ordered_json vocabulary = ordered_json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[ByteCharacter(byte)] = byte;
  vocabulary[kEnd] = 256;
  const ordered_json level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const ordered_json model = BpeModelJson(nullptr, false, false, vocabulary, ordered_json::array());
  return Files(
      TokenizerJson(ordered_json::array({AddedTokenJson(256, kEnd, true)}), nullptr, level, level, model),
      {{"eos_token", kEnd}, {"bos_token", kEnd}});
}

}  // namespace cairn
