#include "runtime/config/tokenizer_facts.h"

#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <unordered_map>

namespace cairn {
namespace {

using nlohmann::json;

constexpr int64_t kMaxId = (int64_t{1} << 31) - 2;
// If no file names the token that ends a document: GPT-2 and Qwen, BLOOM, LLaMA-3.
constexpr std::array kKnownEods = {"<|endoftext|>", "</s>", "<|end_of_text|>"};

class Vocabulary {
 public:
  Status Add(const std::string& word, const json& id) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > kMaxId)
      return Corrupt("the id of \"{}\" is {}", word, id.dump());
    size_ = std::max(size_, id.get<uint64_t>() + 1);
    ids_.emplace(word, id.get<int32_t>());
    return OkStatus();
  }
  uint64_t size() const { return size_; }
  std::optional<int32_t> IdOf(const std::string& word) const {
    const auto found = ids_.find(word);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  uint64_t size_ = 0;
  std::unordered_map<std::string, int32_t> ids_;
};

// {word: id}, or the [word, score] of a unigram model in the order of the ids.
Status TakeVocabulary(const json& from, Vocabulary& words) {
  if (!from.is_object() && !from.is_array()) return Corrupt("its vocabulary is not a list of words");
  size_t next = 0;
  for (const auto& [word, id] : from.items()) {
    CAIRN_RETURN_IF_ERROR(from.is_object() ? words.Add(word, id)
                                           : words.Add(id.at(0).get<std::string>(), next));
    ++next;
  }
  return OkStatus();
}

Status TakeTokenizerJson(const std::string& text, Vocabulary& words) {
  const json tokenizer = json::parse(text);
  for (const json& token : tokenizer.value("added_tokens", json::array()))
    CAIRN_RETURN_IF_ERROR(words.Add(token.at("content").get<std::string>(), token.at("id")));
  return TakeVocabulary(tokenizer.at("model").at("vocab"), words);
}

Result<std::optional<int32_t>> FindEod(const std::map<std::string, std::string>& files,
                                       const Vocabulary& words) {
  if (const auto file = files.find("tokenizer_config.json"); file != files.end()) {
    const json config = json::parse(file->second);
    const json eos = config.is_object() ? config.value("eos_token", json()) : json();
    const json content = eos.is_object() ? eos.value("content", json()) : eos;
    if (content.is_string()) {
      const auto eod = words.IdOf(content.get<std::string>());
      if (!eod) return Corrupt("its eos_token {} is not in the vocabulary", content.dump());
      return eod;
    }
  }
  for (const char* content : kKnownEods)
    if (const auto eod = words.IdOf(content)) return eod;
  return std::optional<int32_t>();
}

Result<TokenizerFacts> Parse(const std::map<std::string, std::string>& files) {
  Vocabulary words;
  if (const auto whole = files.find("tokenizer.json"); whole != files.end())
    CAIRN_RETURN_IF_ERROR(TakeTokenizerJson(whole->second, words).WithContext("tokenizer.json"));
  else if (files.contains("vocab.json") && files.contains("merges.txt"))
    CAIRN_RETURN_IF_ERROR(
        TakeVocabulary(json::parse(files.at("vocab.json")), words).WithContext("vocab.json"));
  else
    return NotFound("it has no tokenizer.json, and no vocab.json with merges.txt");
  CAIRN_ASSIGN_OR_RETURN(const std::optional<int32_t> eod, FindEod(files, words));
  return TokenizerFacts{words.size(), eod};
}

// Takes a varint off `bytes` (protobuf.dev/programming-guides/encoding). Returns false if it does not end.
bool TakeVarint(std::string_view& bytes, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

// Calls `field` with the number of each field of a protobuf message, and with its value (of a varint) or its
// bytes (of anything else). False: the message is damaged.
using Field = std::function<void(uint64_t number, uint64_t value, std::string_view bytes)>;
bool ReadFields(std::string_view message, const Field& field) {
  while (!message.empty()) {
    uint64_t key, value = 0, size = 0;
    if (!TakeVarint(message, key)) return false;
    const uint64_t type = key & 7;
    if (type == 0 && !TakeVarint(message, value)) return false;
    if (type == 2 && !TakeVarint(message, size)) return false;
    if (type == 1 || type == 5) size = type == 1 ? 8 : 4;
    if ((type > 2 && type != 5) || size > message.size()) return false;
    field(key >> 3, value, message.substr(0, size));
    message.remove_prefix(size);
  }
  return true;
}

}  // namespace

Result<TokenizerFacts> FactsOfHfTokenizer(const std::map<std::string, std::string>& files) {
  try {
    return Parse(files);
  } catch (const json::exception& error) {
    return Corrupt("this is not a tokenizer: {}", error.what());
  }
}

// A ModelProto has the pieces as field 1, one message each, and the trainer_spec, with eos_id, as field 2.
Result<TokenizerFacts> FactsOfSentencePiece(std::string_view model) {
  TokenizerFacts facts;
  int32_t eos = 2;
  bool whole = true;
  const bool read = ReadFields(model, [&](uint64_t number, uint64_t, std::string_view bytes) {
    if (number != 1 && number != 2) return;
    if (number == 1) ++facts.vocab_size;
    whole = ReadFields(bytes,
                       [&](uint64_t part, uint64_t value, std::string_view) {
                         if (number == 2 && part == 42) eos = static_cast<int32_t>(value);
                       }) &&
            whole;
  });
  if (!read || !whole) return Corrupt("this is not a SentencePiece model");
  if (facts.vocab_size == 0) return Corrupt("this is not a SentencePiece model: it has no pieces");
  if (eos >= 0 && static_cast<uint64_t>(eos) < facts.vocab_size) facts.eod = eos;
  return facts;
}

}  // namespace cairn
