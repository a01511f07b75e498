// Text to ids: invalid UTF-8 is replaced, added tokens are taken out, the rest is normalized and cut into
// words, and each word is merged. Words repeat, so their tokens are kept.

#include "runtime/tokenizer/hf_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "runtime/tokenizer/mapped_text.h"
#include "runtime/tokenizer/tokenizer_spec.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxFileBytes = 256 << 20;  // the largest tokenizer.json are some 40 MB
constexpr size_t kMaxCachedWordBytes = 64;
constexpr size_t kMaxCachedWords = 1 << 20;

// Finds added tokens: the leftmost, and of those that start there the longest.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    std::ranges::stable_sort(tokens_, [](const AddedToken& a, const AddedToken& b) {
      return a.content.size() > b.content.size();
    });
    for (size_t i = 0; i < tokens_.size(); ++i)
      by_first_[static_cast<uint8_t>(tokens_[i].content[0])].push_back(i);
  }

  // Calls `gap` and `token` for all of `text` in order, with their places in it.
  template <typename Gap, typename Found>
  Status ForEach(std::string_view text, Gap&& gap, Found&& found) const {
    size_t done = 0;
    for (size_t i = 0; i < text.size() && !tokens_.empty();) {
      const AddedToken* token = At(text.substr(i));
      if (!token) {
        ++i;
        continue;
      }
      size_t begin = i, end = i + token->content.size();
      i = end;
      if (token->takes_space_before) begin = std::max(done, begin - SpaceAtEnd(text.substr(0, begin)));
      if (token->takes_space_behind) end += SpaceAtStart(text.substr(end));
      if (begin > done) CAIRN_RETURN_IF_ERROR(gap(done, begin));
      found(*token, begin, end);
      done = end;
    }
    return done < text.size() ? gap(done, text.size()) : OkStatus();
  }

 private:
  const AddedToken* At(std::string_view text) const {
    for (const size_t i : by_first_[static_cast<uint8_t>(text[0])])
      if (text.starts_with(tokens_[i].content)) return &tokens_[i];
    return nullptr;
  }

  std::vector<AddedToken> tokens_;
  std::array<std::vector<size_t>, 256> by_first_;
};

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(TokenizerSpec spec, ByteBpe bpe)
      : vocab_size_(spec.vocab_size),
        eod_(spec.eod),
        before_(spec.before),
        behind_(spec.behind),
        nfc_(spec.nfc),
        raw_(AddedOf(spec, false)),
        normalized_(AddedOf(spec, true)),
        splitter_(std::move(spec.splitter)),
        bpe_(std::move(bpe)) {}

  uint32_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> eod() const override { return eod_; }
  std::vector<int32_t> before() const override { return before_; }
  std::vector<int32_t> behind() const override { return behind_; }
  int lost_bytes() const override { return bpe_.lost_bytes(); }

  Status Encode(std::string_view text, std::vector<Token>* tokens) const override {
    tokens->clear();
    const MappedText valid = MappedText::ValidUtf8(text);
    return raw_.ForEach(
        valid.text(),
        [&](size_t begin, size_t end) {
          return EncodeGap(
              valid.text().substr(begin, end - begin), [&](uint64_t at) { return valid.Origin(begin + at); },
              tokens);
        },
        [&](const AddedToken& token, size_t begin, size_t end) {
          tokens->push_back({token.id, valid.Origin(begin), valid.Origin(end)});
        });
  }

 private:
  static std::vector<AddedToken> AddedOf(const TokenizerSpec& spec, bool normalized) {
    std::vector<AddedToken> tokens;
    for (const AddedToken& token : spec.added) {
      if (token.normalized != normalized) continue;
      tokens.push_back(token);
      if (normalized && spec.nfc) tokens.back().content = MappedText::Composed(token.content).text();
    }
    return tokens;
  }

  // `origin`: where a byte of `text` comes from.
  template <typename Origin>
  Status EncodeGap(std::string_view text, Origin&& origin, std::vector<Token>* tokens) const {
    if (!nfc_) return EncodeNormalized(text, origin, tokens);
    const MappedText composed = MappedText::Composed(text);
    return EncodeNormalized(
        composed.text(), [&](uint64_t at) { return origin(composed.Origin(at)); }, tokens);
  }

  template <typename Origin>
  Status EncodeNormalized(std::string_view text, Origin&& origin, std::vector<Token>* tokens) const {
    return normalized_.ForEach(
        text,
        [&](size_t begin, size_t end) {
          const std::string_view gap = text.substr(begin, end - begin);
          return splitter_.Split(gap, [&](std::string_view word, uint64_t at, bool added) {
            AppendWord(word, text, begin + at, added, origin, tokens);
          });
        },
        [&](const AddedToken& token, size_t begin, size_t end) {
          tokens->push_back({token.id, origin(begin), origin(end)});
        });
  }

  // A token that ends inside of a character counts as empty, and the one that has its last byte as all of it.
  template <typename Origin>
  void AppendWord(std::string_view word, std::string_view text, uint64_t at, bool added, Origin&& origin,
                  std::vector<Token>* tokens) const {
    uint64_t begin = origin(at);
    for (const WordToken& token : TokensOf(word)) {
      uint64_t end_in_text = at + token.end - (added ? 1 : 0);
      while (end_in_text < text.size() && end_in_text > at &&
             (static_cast<uint8_t>(text[end_in_text]) & 0xC0) == 0x80)
        --end_in_text;
      const uint64_t end = origin(end_in_text);
      tokens->push_back({token.id, begin, end});
      begin = end;
    }
  }

  std::span<const WordToken> TokensOf(std::string_view word) const {
    if (word.size() > kMaxCachedWordBytes) {
      long_word_.clear();
      bpe_.Encode(word, &long_word_);
      return long_word_;
    }
    if (const auto known = words_.find(word); known != words_.end())
      return std::span(kept_).subspan(known->second.first, known->second.second);
    if (words_.size() >= kMaxCachedWords) {
      words_.clear();
      kept_.clear();
    }
    const size_t begin = kept_.size();
    bpe_.Encode(word, &kept_);
    words_.emplace(word, std::pair(begin, kept_.size() - begin));
    return std::span(kept_).subspan(begin);
  }

  uint32_t vocab_size_;
  std::optional<int32_t> eod_;
  std::vector<int32_t> before_, behind_;
  bool nfc_;
  AddedTokenFinder raw_, normalized_;
  WordSplitter splitter_;
  ByteBpe bpe_;
  mutable std::unordered_map<std::string, std::pair<size_t, size_t>, TextHash, std::equal_to<>> words_;
  mutable std::vector<WordToken> kept_, long_word_;
};

Result<std::map<std::string, std::string>> ReadFiles(FileSystem& fs, const HfTokenizerPlace& place) {
  std::map<std::string, std::string> files;
  const auto read = [&](const char* name, const std::string& path) -> Status {
    CAIRN_ASSIGN_OR_RETURN(files[name], ReadSmallFile(fs, path, kMaxFileBytes));
    return OkStatus();
  };
  if (place.path.empty()) {
    CAIRN_RETURN_IF_ERROR(read("vocab.json", place.vocab_file));
    CAIRN_RETURN_IF_ERROR(read("merges.txt", place.merge_file));
    files["tokenizer_config.json"] = nlohmann::ordered_json{{"tokenizer_class", "GPT2Tokenizer"},
                                                            {"eos_token", "<|endoftext|>"},
                                                            {"bos_token", "<|endoftext|>"},
                                                            {"unk_token", "<|endoftext|>"}}
                                         .dump(1) +
                                     "\n";
    return files;
  }
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(place.path));
  if (!info.is_directory()) {
    CAIRN_RETURN_IF_ERROR(read("tokenizer.json", place.path));
    files["tokenizer_config.json"] = "{\n \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n";
    return files;
  }
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
                           "merges.txt", "added_tokens.json"})
    if (const std::string path = JoinPath(place.path, name); fs.Stat(path).ok())
      CAIRN_RETURN_IF_ERROR(read(name, path));
  if (!files.contains("tokenizer.json") && !(files.contains("vocab.json") && files.contains("merges.txt")))
    return NotSupported("{}: it has no tokenizer.json, and no vocab.json with merges.txt", place.path);
  return files;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> MakeHfTokenizer(const std::map<std::string, std::string>& files) {
  CAIRN_ASSIGN_OR_RETURN(TokenizerSpec spec, ParseTokenizerFiles(files));
  CAIRN_ASSIGN_OR_RETURN(ByteBpe bpe, ByteBpe::Create(spec.model));
  spec.model = {};
  return std::unique_ptr<Tokenizer>(std::make_unique<BpeTokenizer>(std::move(spec), std::move(bpe)));
}

Result<OpenedHfTokenizer> OpenHfTokenizer(FileSystem& fs, const HfTokenizerPlace& place) {
  OpenedHfTokenizer opened;
  CAIRN_ASSIGN_OR_RETURN(opened.files, ReadFiles(fs, place));
  auto tokenizer = MakeHfTokenizer(opened.files);
  if (!tokenizer.ok())
    return tokenizer.status().WithContext(place.path.empty() ? place.vocab_file : place.path);
  opened.tokenizer = std::move(tokenizer).value();
  return opened;
}

}  // namespace cairn
