// Bytes are their own tokens. SentencePiece gets a text line by line if a trial at the start shows that lines
// do not depend on each other; offsets are those of the whole text, so callers do not see the cuts.

#include "runtime/text/load_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>

#include "runtime/tokenizer/hf_tokenizer.h"

namespace cairn {
namespace {

constexpr std::string_view kSentencePiecePrefix = "sentencepiece:";
constexpr uint64_t kMaxModelBytes = 256 << 20;  // the largest public models have about 5 MB
constexpr int32_t kByteEod = 256;

class ByteTokenizer final : public Tokenizer {
 public:
  uint32_t vocab_size() const override { return kByteEod + 1; }
  std::optional<int32_t> eod() const override { return kByteEod; }

  bool cuts_anywhere() const override { return true; }

  Status Encode(std::string_view text, std::vector<Token>* tokens) const override {
    tokens->resize(text.size());
    for (size_t i = 0; i < text.size(); ++i) (*tokens)[i] = {static_cast<uint8_t>(text[i]), i, i + 1};
    return OkStatus();
  }
};

// Encodes line by line if the model allows it. A unigram model adds up log-probabilities in a float along the
// whole text, so after some hundred kilobytes rounding chooses the pieces, not the model.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  Status Load(const std::string& model) {
    const auto status = processor_.LoadFromSerializedProto(model);
    if (!status.ok()) return Corrupt("this is not a SentencePiece model: {}", status.ToString());
    CAIRN_ASSIGN_OR_RETURN(line_by_line_, NewlinesSeparate());
    return OkStatus();
  }

  uint32_t vocab_size() const override { return static_cast<uint32_t>(processor_.GetPieceSize()); }

  std::optional<int32_t> eod() const override {
    const int id = processor_.eos_id();
    return id >= 0 ? std::optional<int32_t>(id) : std::nullopt;
  }

  Status Encode(std::string_view text, std::vector<Token>* tokens) const override {
    tokens->clear();
    for (size_t at = 0; at < text.size();) {
      const std::string_view rest = text.substr(at);
      const size_t size = line_by_line_ ? LineEnd(rest) : rest.size();
      CAIRN_RETURN_IF_ERROR(Append(rest.substr(0, size), at, tokens));
      at += size;
    }
    return OkStatus();
  }

 private:
  // Past the newlines that end the first line.
  static size_t LineEnd(std::string_view text) {
    const size_t newline = text.find('\n');
    return newline == std::string_view::npos ? text.size()
                                             : std::min(text.find_first_not_of('\n', newline), text.size());
  }

  // `offset`: of this part in the text.
  Status Append(std::string_view text, uint64_t offset, std::vector<Token>* tokens) const {
    sentencepiece::ImmutableSentencePieceText encoded;
    const auto status = processor_.Encode(text, encoded.mutable_proto());
    if (!status.ok()) return Corrupt("SentencePiece: {}", status.ToString());
    for (const auto& piece : encoded.pieces())
      tokens->push_back({static_cast<int32_t>(piece.id()), offset + piece.begin(), offset + piece.end()});
    return OkStatus();
  }

  // True if two lines together have the tokens of each alone. They do not, for example, if the model puts a
  // space before a text but not before a line.
  Result<bool> NewlinesSeparate() const {
    std::vector<Token> together, apart;
    CAIRN_RETURN_IF_ERROR(Append("the first\nand second", 0, &together));
    CAIRN_RETURN_IF_ERROR(Append("the first\n", 0, &apart));
    CAIRN_RETURN_IF_ERROR(Append("and second", 0, &apart));
    return std::ranges::equal(together, apart, {}, &Token::id, &Token::id);
  }

  sentencepiece::SentencePieceProcessor processor_;
  bool line_by_line_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> MakeByteTokenizer() { return std::make_unique<ByteTokenizer>(); }

Result<std::unique_ptr<Tokenizer>> MakeSentencePieceTokenizer(const std::string& model) {
  auto tokenizer = std::make_unique<SentencePieceTokenizer>();
  CAIRN_RETURN_IF_ERROR(tokenizer->Load(model));
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

namespace {

Result<LoadedTokenizer> LoadSentencePiece(FileSystem& fs, const std::string& path) {
  LoadedTokenizer loaded;
  CAIRN_ASSIGN_OR_RETURN(loaded.sentencepiece, ReadSmallFile(fs, path, kMaxModelBytes));
  auto tokenizer = MakeSentencePieceTokenizer(loaded.sentencepiece);
  if (!tokenizer.ok()) return tokenizer.status().WithContext(path);
  loaded.tokenizer = std::move(tokenizer).value();
  return loaded;
}

Result<LoadedTokenizer> LoadBpe(FileSystem& fs, const HfTokenizerPlace& place) {
  CAIRN_ASSIGN_OR_RETURN(OpenedHfTokenizer opened, OpenHfTokenizer(fs, place));
  return LoadedTokenizer{
      .tokenizer = std::move(opened.tokenizer), .sentencepiece = {}, .files = std::move(opened.files)};
}

}  // namespace

Result<LoadedTokenizer> LoadTokenizer(FileSystem& fs, const std::string& spec) {
  if (spec == "bytes") {
    LoadedTokenizer loaded;
    loaded.tokenizer = MakeByteTokenizer();
    return loaded;
  }
  if (spec.starts_with(kSentencePiecePrefix))
    return LoadSentencePiece(fs, spec.substr(kSentencePiecePrefix.size()));
  if (spec.ends_with(".model")) return LoadSentencePiece(fs, spec);
  const auto info = fs.Stat(spec);
  if (!info.ok())
    return InvalidArgument(
        "--tokenizer {}: expected bytes, sentencepiece:FILE, a tokenizer.json or the directory of one ({})",
        spec, info.status().message());
  const std::string model = JoinPath(spec, "tokenizer.model");
  if (info->is_directory() && !fs.Stat(JoinPath(spec, "tokenizer.json")).ok() && fs.Stat(model).ok())
    return LoadSentencePiece(fs, model);
  return LoadBpe(fs, {spec, "", ""});
}

Result<LoadedTokenizer> LoadGpt2Tokenizer(FileSystem& fs, const std::string& vocab_file,
                                          const std::string& merge_file) {
  return LoadBpe(fs, {"", vocab_file, merge_file});
}

}  // namespace cairn
