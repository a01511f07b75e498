// The model file is a protobuf message, read here field by field (sentencepiece_model.proto): with
// libprotobuf itself the one in libtorch would be met. What is written is what transformers' own conversion
// makes of such a model (convert_slow_tokenizer.py); a BPE model has scores in place of merges: a piece is
// the merge of any two pieces that make it, and the best score is merged first.
#include "runtime/text/tokenizer_json.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/bpe/byte_characters.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

constexpr const char* kSpaceMark = "\u2581";
enum PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct SpmPiece {
  std::string text;
  float score = 0;
  uint64_t type = kNormal;
};

struct SpmModel {
  std::vector<SpmPiece> pieces;
  uint64_t type = 1;  // 1: unigram, 2: BPE, 3: words, 4: characters
  bool dummy_prefix = true, drops_spaces = true, marks_spaces = true, space_behind = false;
  bool has_tables = false;  // of normalization
};

// One field after the other of a protobuf message.
class ProtoFields {
 public:
  explicit ProtoFields(std::string_view bytes) : left_(bytes) {}

  bool Next() {
    if (left_.empty()) return false;
    const uint64_t key = Varint();
    number = key >> 3;
    switch (key & 7) {
      case 0:
        value = Varint();
        return ok;
      case 1:
        bytes = Take(8);
        return ok;
      case 2:
        bytes = Take(Varint());
        return ok;
      case 5:
        bytes = Take(4);
        return ok;
      default:
        return ok = false;
    }
  }

  bool ok = true;
  uint64_t number = 0, value = 0;
  std::string_view bytes;

 private:
  uint64_t Varint() {
    uint64_t result = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (left_.empty()) break;
      const auto byte = static_cast<uint8_t>(left_.front());
      left_.remove_prefix(1);
      result |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return result;
    }
    ok = false;
    return 0;
  }
  std::string_view Take(uint64_t size) {
    if (size > left_.size()) ok = false;
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view left_;
};

bool ReadPiece(std::string_view bytes, SpmPiece& piece) {
  ProtoFields field(bytes);
  while (field.Next()) {
    if (field.number == 1) piece.text = field.bytes;
    if (field.number == 2 && field.bytes.size() == 4) {
      uint32_t bits = 0;
      for (int i = 3; i >= 0; --i)
        bits = bits << 8 | static_cast<uint8_t>(field.bytes[static_cast<size_t>(i)]);
      piece.score = std::bit_cast<float>(bits);
    }
    if (field.number == 3) piece.type = field.value;
  }
  return field.ok;
}

bool ReadTrainer(std::string_view bytes, SpmModel& model) {
  ProtoFields field(bytes);
  while (field.Next()) {
    if (field.number == 3) model.type = field.value;
    if (field.number == 24) model.space_behind = field.value != 0;
  }
  return field.ok;
}

bool ReadNormalizer(std::string_view bytes, SpmModel& model) {
  ProtoFields field(bytes);
  while (field.Next()) {
    if (field.number == 2) model.has_tables = !field.bytes.empty();
    if (field.number == 3) model.dummy_prefix = field.value != 0;
    if (field.number == 4) model.drops_spaces = field.value != 0;
    if (field.number == 5) model.marks_spaces = field.value != 0;
  }
  return field.ok;
}

Result<SpmModel> ReadSpm(std::string_view bytes) {
  SpmModel model;
  ProtoFields field(bytes);
  bool ok = true;
  while (ok && field.Next()) {
    if (field.number == 1) ok = ReadPiece(field.bytes, model.pieces.emplace_back());
    if (field.number == 2) ok = ReadTrainer(field.bytes, model);
    if (field.number == 3) ok = ReadNormalizer(field.bytes, model);
  }
  if (!ok || !field.ok || model.pieces.empty()) return Corrupt("this is not a SentencePiece model");
  return model;
}

ordered_json AddedToken(size_t id, const std::string& text, bool special) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

ordered_json TokenizerJson(ordered_json added, ordered_json normalizer, ordered_json pre,
                           ordered_json decoder, ordered_json model) {
  return {{"version", "1.0"},          {"truncation", nullptr},    {"padding", nullptr},
          {"added_tokens", added},     {"normalizer", normalizer}, {"pre_tokenizer", pre},
          {"post_processor", nullptr}, {"decoder", decoder},       {"model", model}};
}

std::map<std::string, std::string> Files(const ordered_json& tokenizer, ordered_json config) {
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  config["clean_up_tokenization_spaces"] = false;
  const auto text = [](const ordered_json& json) {
    return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  };
  return {{"tokenizer.json", text(tokenizer)}, {"tokenizer_config.json", text(config)}};
}

ordered_json UnigramOf(const SpmModel& model, size_t unknown, bool bytes) {
  float least = 0;
  for (const SpmPiece& piece : model.pieces)
    if (piece.type == kNormal) least = std::min(least, piece.score);
  // What no text is cut into stays out of reach of its characters.
  ordered_json vocabulary = ordered_json::array();
  for (const SpmPiece& piece : model.pieces)
    vocabulary.push_back({piece.text, piece.type == kNormal || piece.type == kUserDefined
                                          ? static_cast<double>(piece.score)
                                          : 100.0 * (static_cast<double>(least) - 1)});
  return {{"type", "Unigram"}, {"unk_id", unknown}, {"vocab", vocabulary}, {"byte_fallback", bytes}};
}

ordered_json BpeOf(const SpmModel& model, size_t unknown, bool bytes) {
  std::unordered_map<std::string_view, size_t> ids;
  ordered_json vocabulary = ordered_json::object();
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    vocabulary[model.pieces[i].text] = i;
    if (model.pieces[i].type == kNormal) ids.emplace(model.pieces[i].text, i);
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
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", model.pieces[unknown].text},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", true},
          {"byte_fallback", bytes},
          {"ignore_merges", false},
          {"vocab", vocabulary},
          {"merges", merges}};
}

}  // namespace

Result<std::map<std::string, std::string>> PublishedSentencePiece(const std::string& bytes) {
  CAIRN_ASSIGN_OR_RETURN(const SpmModel model, ReadSpm(bytes));
  if (model.type != 1 && model.type != 2)
    return NotSupported("a SentencePiece model of whole words or single characters");
  if (model.has_tables || model.drops_spaces || !model.marks_spaces || model.space_behind)
    return NotSupported("a SentencePiece model that normalizes its text");
  const auto unknown = std::ranges::find(model.pieces, uint64_t{kUnknown}, &SpmPiece::type);
  if (unknown == model.pieces.end()) return Corrupt("this SentencePiece model has no unknown piece");
  const auto unknown_id = static_cast<size_t>(unknown - model.pieces.begin());
  const bool byte_fallback = std::ranges::count(model.pieces, uint64_t{kByte}, &SpmPiece::type) > 0;
  ordered_json added = ordered_json::array(), config = ordered_json::object();
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const SpmPiece& piece = model.pieces[i];
    if (piece.type == kUnknown || piece.type == kControl || piece.type == kUserDefined)
      added.push_back(AddedToken(i, piece.text, piece.type != kUserDefined));
    if (piece.type == kControl && piece.text == "<s>") config["bos_token"] = piece.text;
    if (piece.type == kControl && piece.text == "</s>") config["eos_token"] = piece.text;
  }
  config["unk_token"] = unknown->text;
  ordered_json normalizers = ordered_json::array(), decoders = ordered_json::array();
  if (model.dummy_prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
  normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}});
  decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}});
  if (byte_fallback) decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (model.dummy_prefix)
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return Files(TokenizerJson(added, {{"type", "Sequence"}, {"normalizers", normalizers}}, nullptr,
                             {{"type", "Sequence"}, {"decoders", decoders}},
                             model.type == 1 ? UnigramOf(model, unknown_id, byte_fallback)
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
  const ordered_json model = {{"type", "BPE"},
                              {"dropout", nullptr},
                              {"unk_token", nullptr},
                              {"continuing_subword_prefix", nullptr},
                              {"end_of_word_suffix", nullptr},
                              {"fuse_unk", false},
                              {"byte_fallback", false},
                              {"ignore_merges", false},
                              {"vocab", vocabulary},
                              {"merges", ordered_json::array()}};
  return Files(
      TokenizerJson(ordered_json::array({AddedToken(256, kEnd, true)}), nullptr, level, level, model),
      {{"eos_token", kEnd}, {"bos_token", kEnd}});
}

}  // namespace cairn
