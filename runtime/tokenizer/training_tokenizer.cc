#include "runtime/tokenizer/training_tokenizer.h"

#include <algorithm>
#include <array>

#include "runtime/tokenizer/hf_tokenizer.h"
#include "runtime/tokenizer/sentencepiece_model.h"

namespace cairn {
namespace {

constexpr std::array kHfTypes = {"PretrainedFromHF", "HuggingFaceTokenizer", "HFTokenizer"};
constexpr std::array kSentencePieceTypes = {"SentencePieceTokenizer", "GPTSentencePieceTokenizer",
                                            "Llama2Tokenizer"};
constexpr uint64_t kMaxModelBytes = 256 << 20;

Result<TrainingTokenizer> OpenBpe(FileSystem& fs, const HfTokenizerPlace& place) {
  CAIRN_ASSIGN_OR_RETURN(OpenedHfTokenizer opened, OpenHfTokenizer(fs, place));
  return TrainingTokenizer{opened.tokenizer->vocab_size(), opened.tokenizer->eod(), std::move(opened.files)};
}

Result<TrainingTokenizer> OpenSentencePiece(FileSystem& fs, const std::string& path) {
  TrainingTokenizer result;
  std::string& model = result.files["tokenizer.model"];
  CAIRN_ASSIGN_OR_RETURN(model, ReadSmallFile(fs, path, kMaxModelBytes));
  const Result<SentencePieceModel> read = ReadSentencePieceModel(model);
  if (!read.ok()) return read.status().WithContext(path);
  result.vocab_size = read->pieces.size();
  result.eod = read->eod();
  return result;
}

}  // namespace

Result<TrainingTokenizer> OpenTrainingTokenizer(FileSystem& fs, const TokenizerFlags& flags) {
  const auto is_one_of = [&](const auto& types) {
    return std::ranges::find(types, flags.type) != types.end();
  };
  const bool gpt2 = flags.type == "GPT2BPETokenizer", hf = is_one_of(kHfTypes);
  const bool sentencepiece = is_one_of(kSentencePieceTypes);
  if (!flags.type.empty() && !gpt2 && !hf && !sentencepiece && flags.type != "NullTokenizer")
    return NotSupported(
        "--tokenizer-type {}: known are GPT2BPETokenizer, PretrainedFromHF, HuggingFaceTokenizer, "
        "SentencePieceTokenizer, GPTSentencePieceTokenizer, Llama2Tokenizer and NullTokenizer",
        flags.type);
  if (flags.vocab_file.empty() != flags.merge_file.empty())
    return InvalidArgument("--vocab-file and --merge-file belong together");
  if (gpt2 && flags.vocab_file.empty())
    return InvalidArgument("--tokenizer-type GPT2BPETokenizer needs --vocab-file and --merge-file");
  const std::string path = flags.name_or_path.empty() ? flags.model : flags.name_or_path;
  if ((hf || sentencepiece) && path.empty())
    return InvalidArgument("--tokenizer-type {} needs {}", flags.type,
                           sentencepiece ? "--tokenizer-model" : "--tokenizer-name-or-path");
  if (!path.empty() && !gpt2 && (sentencepiece || (!hf && path.ends_with(".model"))))
    return OpenSentencePiece(fs, path);
  if (!path.empty() && !gpt2) return OpenBpe(fs, {path, "", ""});
  if (!flags.vocab_file.empty() && !hf) return OpenBpe(fs, {"", flags.vocab_file, flags.merge_file});
  return TrainingTokenizer{};
}

}  // namespace cairn
