#include "runtime/config/named_tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "runtime/config/tokenizer_facts.h"

namespace cairn {
namespace {

constexpr std::array kHfTypes = {"PretrainedFromHF", "HuggingFaceTokenizer", "HFTokenizer"};
constexpr std::array kSentencePieceTypes = {"SentencePieceTokenizer", "GPTSentencePieceTokenizer",
                                            "Llama2Tokenizer"};
constexpr uint64_t kMaxFileBytes = 256 << 20;  // the largest tokenizer.json are some 40 MB

using Files = std::map<std::string, std::string>;

Result<TrainingTokenizer> MakeHf(Files files, const std::string& path) {
  const Result<TokenizerFacts> facts = FactsOfHfTokenizer(files);
  if (!facts.ok()) return facts.status().WithContext(path);
  return TrainingTokenizer{facts->vocab_size, facts->eod, std::move(files)};
}

// `path`: a directory, or a tokenizer.json. transformers' AutoTokenizer loads the files.
Result<TrainingTokenizer> OpenHf(FileSystem& fs, const std::string& path) {
  Files files;
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  if (!info.is_directory()) {
    CAIRN_ASSIGN_OR_RETURN(files["tokenizer.json"], ReadSmallFile(fs, path, kMaxFileBytes));
    files["tokenizer_config.json"] = "{\n \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n";
    return MakeHf(std::move(files), path);
  }
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
                           "merges.txt", "added_tokens.json"})
    if (const std::string file = JoinPath(path, name); fs.Stat(file).ok()) {
      CAIRN_ASSIGN_OR_RETURN(files[name], ReadSmallFile(fs, file, kMaxFileBytes));
    }
  return MakeHf(std::move(files), path);
}

Result<TrainingTokenizer> OpenGpt2(FileSystem& fs, const TrainConfig& config) {
  Files files;
  CAIRN_ASSIGN_OR_RETURN(files["vocab.json"], ReadSmallFile(fs, config.vocab_file, kMaxFileBytes));
  CAIRN_ASSIGN_OR_RETURN(files["merges.txt"], ReadSmallFile(fs, config.merge_file, kMaxFileBytes));
  files["tokenizer_config.json"] = nlohmann::ordered_json{{"tokenizer_class", "GPT2Tokenizer"},
                                                          {"eos_token", "<|endoftext|>"},
                                                          {"bos_token", "<|endoftext|>"},
                                                          {"unk_token", "<|endoftext|>"}}
                                       .dump(1) +
                                   "\n";
  return MakeHf(std::move(files), config.vocab_file);
}

Result<TrainingTokenizer> OpenSentencePiece(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(std::string model, ReadSmallFile(fs, path, kMaxFileBytes));
  const Result<TokenizerFacts> facts = FactsOfSentencePiece(model);
  if (!facts.ok()) return facts.status().WithContext(path);
  return TrainingTokenizer{facts->vocab_size, facts->eod, {{"tokenizer.model", std::move(model)}}};
}

// The tokenizer that `cairn data` leaves next to the data. Empty if the data has none.
std::string PlaceBesideData(const TrainConfig& config) {
  const std::string place = config.data_path.empty() ? "" : config.data_path.back() + ".tokenizer";
  return place.empty() || !FileSystem::Posix().Stat(place).ok() ? "" : place;
}

Result<std::optional<int32_t>> EodOfData(const TrainConfig& config) {
  const std::string place = PlaceBesideData(config);
  if (place.empty()) return std::optional<int32_t>();
  CAIRN_ASSIGN_OR_RETURN(const TrainingTokenizer tokenizer, OpenHf(FileSystem::Posix(), place));
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
  if (!path.empty() && !gpt2) return OpenHf(fs, path);
  if (!config.vocab_file.empty() && !hf) return OpenGpt2(fs, config);
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
    const auto tokenizer = OpenHf(FileSystem::Posix(), place);
    if (tokenizer.ok())
      hint = fmt::format("{}, next to the data, has {} tokens: give --vocab-size {}", place,
                         tokenizer->vocab_size, tokenizer->vocab_size);
  }
  return InvalidArgument("--vocab-size is {}; {}", config.vocab_size, hint);
}

}  // namespace cairn
