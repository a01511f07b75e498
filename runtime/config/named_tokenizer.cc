#include "runtime/config/named_tokenizer.h"

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

// The tokenizer that `cairn data` leaves next to the data. Empty if the data has none.
std::string PlaceBesideData(const TrainConfig& config) {
  const std::string place = config.data_path.empty() ? "" : config.data_path.back() + ".tokenizer";
  return place.empty() || !FileSystem::Posix().Stat(place).ok() ? "" : place;
}

Result<std::optional<int32_t>> EodOfData(const TrainConfig& config) {
  const std::string place = PlaceBesideData(config);
  if (place.empty()) return std::optional<int32_t>();
  CAIRN_ASSIGN_OR_RETURN(const TrainingTokenizer tokenizer, OpenBpe(FileSystem::Posix(), {place, "", ""}));
  return tokenizer.eod;
}

std::string_view FlagThatNeedsEod(const TrainConfig& config) {
  if (config.eod_mask_loss) return "--eod-mask-loss";
  if (config.reset_position_ids) return "--reset-position-ids";
  return config.reset_attention_mask ? "--reset-attention-mask" : "";
}

}  // namespace

Result<TrainingTokenizer> OpenTrainingTokenizer(FileSystem& fs, const TrainConfig& config) {
  const auto is_one_of = [&](const auto& types) {
    return std::ranges::find(types, config.tokenizer_type) != types.end();
  };
  const bool gpt2 = config.tokenizer_type == "GPT2BPETokenizer", hf = is_one_of(kHfTypes);
  const bool sentencepiece = is_one_of(kSentencePieceTypes);
  if (!config.tokenizer_type.empty() && !gpt2 && !hf && !sentencepiece &&
      config.tokenizer_type != "NullTokenizer")
    return NotSupported(
        "--tokenizer-type {}: it must be one of GPT2BPETokenizer, PretrainedFromHF, HuggingFaceTokenizer, "
        "SentencePieceTokenizer, GPTSentencePieceTokenizer, Llama2Tokenizer and NullTokenizer",
        config.tokenizer_type);
  if (config.vocab_file.empty() != config.merge_file.empty())
    return InvalidArgument("--vocab-file and --merge-file must be given together");
  if (gpt2 && config.vocab_file.empty())
    return InvalidArgument("--tokenizer-type GPT2BPETokenizer needs --vocab-file and --merge-file");
  const std::string path =
      config.tokenizer_name_or_path.empty() ? config.tokenizer_model : config.tokenizer_name_or_path;
  if ((hf || sentencepiece) && path.empty())
    return InvalidArgument("--tokenizer-type {} needs {}", config.tokenizer_type,
                           sentencepiece ? "--tokenizer-model" : "--tokenizer-name-or-path");
  if (!path.empty() && !gpt2 && (sentencepiece || (!hf && path.ends_with(".model"))))
    return OpenSentencePiece(fs, path);
  if (!path.empty() && !gpt2) return OpenBpe(fs, {path, "", ""});
  if (!config.vocab_file.empty() && !hf) return OpenBpe(fs, {"", config.vocab_file, config.merge_file});
  return TrainingTokenizer{};
}

Result<TrainingTokenizer> TakeTokenizer(TrainConfig& config) {
  CAIRN_ASSIGN_OR_RETURN(TrainingTokenizer tokenizer, OpenTrainingTokenizer(FileSystem::Posix(), config));
  const auto size = static_cast<int64_t>(tokenizer.vocab_size);
  if (config.vocab_size == 0) config.vocab_size = size;
  if (config.vocab_size < size)
    return InvalidArgument("--vocab-size {} is less than the {} tokens of the tokenizer", config.vocab_size,
                           size);
  const std::string_view flag = FlagThatNeedsEod(config);
  if (flag.empty()) return tokenizer;
  std::optional<int32_t> eod = tokenizer.eod;
  if (!eod && tokenizer.files.empty()) {
    CAIRN_ASSIGN_OR_RETURN(eod, EodOfData(config));
  }
  if (!eod)
    return InvalidArgument(
        "{} needs the token that ends a document, but {}; name the tokenizer by --tokenizer-type and its "
        "files",
        flag, tokenizer.files.empty() ? "no tokenizer is named" : "this tokenizer has none");
  config.eod = *eod;
  return tokenizer;
}

Status CheckVocabulary(const TrainConfig& config) {
  if (config.vocab_size > 0) return OkStatus();
  std::string hint = "it must be at least 1";
  if (const std::string place = PlaceBesideData(config); !place.empty()) {
    const auto tokenizer = OpenBpe(FileSystem::Posix(), {place, "", ""});
    if (tokenizer.ok())
      hint = fmt::format("{}, next to the data, has {} tokens: give --vocab-size {}", place,
                         tokenizer->vocab_size, tokenizer->vocab_size);
  }
  return InvalidArgument("--vocab-size is {}; {}", config.vocab_size, hint);
}

}  // namespace cairn
