#include "runtime/tokenizer/tokenizer_spec.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

namespace cairn {
namespace {

using nlohmann::json;

constexpr int64_t kMaxId = (int64_t{1} << 31) - 2;
// ByteLevel's own: GPT-2's, with the letters and numbers of all scripts.
constexpr const char* kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// If no file names the token that ends a document: GPT-2 and Qwen, BLOOM, LLaMA-3.
constexpr std::array kKnownEods = {"<|endoftext|>", "</s>", "<|end_of_text|>"};

std::string TypeOf(const json& object) {
  return object.is_object() && object.contains("type") && object["type"].is_string()
             ? object["type"].get<std::string>()
             : "(none)";
}

bool Flag(const json& object, const char* key, bool otherwise) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? otherwise : found->get<bool>();
}

Status OnlyKeys(const json& object, std::string_view what, std::initializer_list<std::string_view> known) {
  if (!object.is_object()) return Corrupt("its {} is not an object", what);
  for (const auto& [key, value] : object.items())
    if (std::ranges::find(known, key) == known.end())
      return NotSupported("its {} has \"{}\", which is not supported", what, key);
  return OkStatus();
}

Status NoneOf(const json& object, const char* key) {
  const auto found = object.find(key);
  const bool none = found == object.end() || found->is_null() || *found == 0 ||
                    (found->is_string() && found->get<std::string>().empty());
  return none ? OkStatus()
              : NotSupported("its model has {} {}, which no byte-level BPE has", key, found->dump());
}

Status TakeVocabulary(const json& from, BpeModel& model) {
  if (!from.is_object()) return Corrupt("its vocabulary is not an object of words and ids");
  model.vocabulary.reserve(from.size());
  for (const auto& [word, id] : from.items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > kMaxId)
      return Corrupt("the id of \"{}\" is {}", word, id.dump());
    model.vocabulary.emplace(word, id.get<int32_t>());
  }
  return OkStatus();
}

// "LEFT RIGHT".
Status TakeMerge(std::string_view line, BpeModel& model) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
    return Corrupt("merge {} is \"{}\"; it must be two words", model.merges.size(), line);
  model.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  return OkStatus();
}

Status TakeModel(const json& from, BpeModel& model) {
  if (const std::string type = TypeOf(from); type != "BPE" && !(type == "(none)" && from.contains("merges")))
    return NotSupported(
        "its model is {}: only byte-level BPE is read from a tokenizer.json; give a SentencePiece model as "
        "sentencepiece:FILE",
        type);
  CAIRN_RETURN_IF_ERROR(
      OnlyKeys(from, "model",
               {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                "byte_fallback", "ignore_merges", "vocab", "merges"}));
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    CAIRN_RETURN_IF_ERROR(NoneOf(from, key));
  if (from.contains("unk_token") && !from["unk_token"].is_null())
    model.unknown = from["unk_token"].get<std::string>();
  model.fuse_unknown = Flag(from, "fuse_unk", false);
  model.byte_fallback = Flag(from, "byte_fallback", false);
  model.ignore_merges = Flag(from, "ignore_merges", false);
  CAIRN_RETURN_IF_ERROR(TakeVocabulary(from.at("vocab"), model));
  for (const json& merge : from.at("merges")) {
    if (merge.is_string())
      CAIRN_RETURN_IF_ERROR(TakeMerge(merge.get_ref<const std::string&>(), model));
    else
      model.merges.emplace_back(merge.at(0).get<std::string>(), merge.at(1).get<std::string>());
  }
  return OkStatus();
}

Result<bool> HasNfc(const json& normalizer) {
  if (normalizer.is_null()) return false;
  const std::string type = TypeOf(normalizer);
  if (type == "NFC") return true;
  if (type != "Sequence")
    return NotSupported("its normalizer is {}: only NFC and none are supported, as in byte-level BPE", type);
  bool nfc = false;
  for (const json& part : normalizer.at("normalizers")) {
    CAIRN_ASSIGN_OR_RETURN(const bool also, HasNfc(part));
    nfc = nfc || also;
  }
  return nfc;
}

Result<SplitStep> MakeSplit(const json& from) {
  const json& pattern = from.at("pattern");
  auto compiled = pattern.contains("Regex") ? WordPattern::Compile(pattern["Regex"].get<std::string>())
                                            : WordPattern::Literal(pattern.at("String").get<std::string>());
  if (!compiled.ok()) return compiled.status();
  const bool invert = Flag(from, "invert", false);
  const auto behavior = from.at("behavior").get<std::string>();
  if (behavior == "Isolated") return SplitStep{std::move(compiled).value(), SplitStep::Keep::kBoth};
  if (behavior == "Removed")
    return SplitStep{std::move(compiled).value(),
                     invert ? SplitStep::Keep::kMatches : SplitStep::Keep::kGaps};
  return NotSupported("its Split has the behavior {}; only Isolated and Removed are supported", behavior);
}

// The steps of a pre_tokenizer, in order; `bytes` once it has come to ByteLevel, which must be the last.
Status TakeSplits(const json& from, WordSplitter& splitter, bool& bytes) {
  if (bytes) return NotSupported("its pre_tokenizer has {} after ByteLevel", TypeOf(from));
  const std::string type = TypeOf(from);
  if (type == "Sequence") {
    for (const json& part : from.at("pretokenizers"))
      CAIRN_RETURN_IF_ERROR(TakeSplits(part, splitter, bytes));
    return OkStatus();
  }
  if (type == "Split") {
    CAIRN_ASSIGN_OR_RETURN(SplitStep step, MakeSplit(from));
    splitter.Add(std::move(step));
    return OkStatus();
  }
  if (type == "Digits") {
    const bool each = Flag(from, "individual_digits", false);
    CAIRN_ASSIGN_OR_RETURN(WordPattern pattern, WordPattern::Compile(each ? R"(\p{N})" : R"(\p{N}+)"));
    splitter.Add({std::move(pattern)});
    return OkStatus();
  }
  if (type != "ByteLevel")
    return NotSupported(
        "its pre_tokenizer has {}; only ByteLevel is supported, and Split and Digits before it", type);
  bytes = true;
  if (Flag(from, "add_prefix_space", true)) splitter.AddSpacePrefix();
  if (!Flag(from, "use_regex", true)) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(WordPattern pattern, WordPattern::Compile(kGpt2Words));
  splitter.Add({std::move(pattern)});
  return OkStatus();
}

// The library gives an added token that the model does not have the next free id, whatever the file says.
Status TakeAdded(const json& from, TokenizerSpec& spec) {
  int64_t next = static_cast<int64_t>(spec.model.vocabulary.size());
  std::set<std::string> seen;
  for (const json& token : from) {
    AddedToken added{.content = token.at("content").get<std::string>(),
                     .id = token.at("id").get<int32_t>(),
                     .takes_space_before = Flag(token, "lstrip", false),
                     .takes_space_behind = Flag(token, "rstrip", false),
                     .normalized = Flag(token, "normalized", false)};
    if (added.content.empty() || !seen.insert(added.content).second) continue;
    if (Flag(token, "single_word", false))
      return NotSupported("its added token \"{}\" has single_word", added.content);
    const auto own = spec.model.vocabulary.find(added.content);
    const int64_t id = own != spec.model.vocabulary.end() ? own->second : next;
    if (own == spec.model.vocabulary.end()) ++next;
    if (id != added.id)
      return Corrupt("its added token \"{}\" says id {}, but the tokenizers library gives it {}",
                     added.content, added.id, id);
    spec.added.push_back(std::move(added));
  }
  return OkStatus();
}

std::optional<int32_t> IdOf(const TokenizerSpec& spec, const std::string& content) {
  const auto added = std::ranges::find(spec.added, content, &AddedToken::content);
  if (added != spec.added.end()) return added->id;
  const auto own = spec.model.vocabulary.find(content);
  return own != spec.model.vocabulary.end() ? std::optional(own->second) : std::nullopt;
}

// {"SpecialToken": {"id": NAME}} or {"Sequence": {"id": "A"}}, in order; NAME's ids stand beside them.
Status TakeTemplate(const json& from, TokenizerSpec& spec) {
  bool text = false;
  for (const json& part : from.at("single")) {
    if (part.contains("Sequence")) {
      if (text) return NotSupported("its post_processor has the text twice");
      text = true;
      continue;
    }
    const auto name = part.at("SpecialToken").at("id").get<std::string>();
    for (const json& id : from.at("special_tokens").at(name).at("ids"))
      (text ? spec.behind : spec.before).push_back(id.get<int32_t>());
  }
  return text ? OkStatus() : NotSupported("its post_processor has no place for the text");
}

// ByteLevel's changes only offsets.
Status TakePostProcessor(const json& from, TokenizerSpec& spec) {
  if (from.is_null()) return OkStatus();
  const std::string type = TypeOf(from);
  if (type == "ByteLevel") return OkStatus();
  if (type == "TemplateProcessing") {
    if (!spec.before.empty() || !spec.behind.empty())
      return NotSupported("its post_processor has two TemplateProcessing");
    return TakeTemplate(from, spec);
  }
  if (type == "RobertaProcessing" || type == "BertProcessing") {  // ["</s>", 2], and the same for the start
    spec.before.push_back(from.at("cls").at(1).get<int32_t>());
    spec.behind.push_back(from.at("sep").at(1).get<int32_t>());
    return OkStatus();
  }
  if (type != "Sequence")
    return NotSupported(
        "its post_processor has {}; supported are ByteLevel, TemplateProcessing, RobertaProcessing and "
        "BertProcessing",
        type);
  for (const json& part : from.at("processors")) CAIRN_RETURN_IF_ERROR(TakePostProcessor(part, spec));
  return OkStatus();
}

Status FindEod(const std::map<std::string, std::string>& files, TokenizerSpec& spec) {
  if (const auto file = files.find("tokenizer_config.json"); file != files.end()) {
    const json config = json::parse(file->second);
    const json eos = config.is_object() ? config.value("eos_token", json()) : json();
    const json content = eos.is_object() ? eos.value("content", json()) : eos;
    if (content.is_string()) {
      spec.eod = IdOf(spec, content.get<std::string>());
      if (!spec.eod) return Corrupt("its eos_token {} is not in the vocabulary", content.dump());
      return OkStatus();
    }
  }
  for (const char* content : kKnownEods)
    if (!spec.eod) spec.eod = IdOf(spec, content);
  return OkStatus();
}

Status TakeTokenizerJson(const std::string& text, TokenizerSpec& spec) {
  const json tokenizer = json::parse(text);
  CAIRN_RETURN_IF_ERROR(OnlyKeys(tokenizer, "object",
                                 {"version", "truncation", "padding", "added_tokens", "normalizer",
                                  "pre_tokenizer", "post_processor", "decoder", "model"}));
  CAIRN_RETURN_IF_ERROR(TakeModel(tokenizer.at("model"), spec.model));
  CAIRN_ASSIGN_OR_RETURN(spec.nfc, HasNfc(tokenizer.value("normalizer", json())));
  bool bytes = false;
  CAIRN_RETURN_IF_ERROR(TakeSplits(tokenizer.value("pre_tokenizer", json()), spec.splitter, bytes));
  if (!bytes) return NotSupported("its pre_tokenizer has no ByteLevel: it is not a byte-level BPE");
  CAIRN_RETURN_IF_ERROR(TakePostProcessor(tokenizer.value("post_processor", json()), spec));
  return TakeAdded(tokenizer.value("added_tokens", json::array()), spec);
}

// One merge per line, after "#version: 0.2". Source: GPT-2's own files.
Status TakeGpt2(const std::string& vocabulary, std::string_view merges, TokenizerSpec& spec) {
  CAIRN_RETURN_IF_ERROR(TakeVocabulary(json::parse(vocabulary), spec.model));
  for (size_t line_number = 0; !merges.empty(); ++line_number) {
    const size_t end = std::min(merges.find('\n'), merges.size());
    std::string_view line = merges.substr(0, end);
    merges.remove_prefix(std::min(end + 1, merges.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool version = line_number == 0 && line.starts_with("#version");
    if (!line.empty() && !version) CAIRN_RETURN_IF_ERROR(TakeMerge(line, spec.model));
  }
  CAIRN_ASSIGN_OR_RETURN(WordPattern pattern, WordPattern::Compile(kGpt2Words));
  spec.splitter.Add({std::move(pattern)});
  return OkStatus();
}

Result<TokenizerSpec> Parse(const std::map<std::string, std::string>& files) {
  TokenizerSpec spec;
  const auto whole = files.find("tokenizer.json");
  const auto vocabulary = files.find("vocab.json"), merges = files.find("merges.txt");
  if (whole != files.end()) {
    CAIRN_RETURN_IF_ERROR(TakeTokenizerJson(whole->second, spec).WithContext("tokenizer.json"));
  } else if (vocabulary != files.end() && merges != files.end()) {
    CAIRN_RETURN_IF_ERROR(
        TakeGpt2(vocabulary->second, merges->second, spec).WithContext("vocab.json and merges.txt"));
  } else {
    return NotFound("it has no tokenizer.json, and no vocab.json with merges.txt");
  }
  int64_t size = 0;
  for (const auto& [word, id] : spec.model.vocabulary) size = std::max(size, int64_t{id} + 1);
  for (const AddedToken& added : spec.added) size = std::max(size, int64_t{added.id} + 1);
  spec.vocab_size = static_cast<uint32_t>(size);
  for (const auto* around : {&spec.before, &spec.behind})
    for (const int32_t id : *around)
      if (id < 0 || id >= size) return Corrupt("its post_processor has the token {}, of {}", id, size);
  CAIRN_RETURN_IF_ERROR(FindEod(files, spec));
  return spec;
}

}  // namespace

Result<TokenizerSpec> ParseTokenizerFiles(const std::map<std::string, std::string>& files) {
  try {
    return Parse(files);
  } catch (const json::exception& error) {
    return Corrupt("this is not a tokenizer: {}", error.what());
  }
}

}  // namespace cairn
