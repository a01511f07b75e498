#include "runtime/config/named_tokenizer.h"

namespace cairn {
namespace {

// The tokenizer that `cairn data` leaves next to the data. Empty if the data has none.
std::string PlaceBesideData(const TrainConfig& config) {
  const std::string place = config.data_path.empty() ? "" : config.data_path.back() + ".tokenizer";
  return place.empty() || !FileSystem::Posix().Stat(place).ok() ? "" : place;
}

Result<std::optional<int32_t>> EodOfData(const TrainConfig& config) {
  const std::string place = PlaceBesideData(config);
  if (place.empty()) return std::optional<int32_t>();
  CAIRN_ASSIGN_OR_RETURN(const TrainingTokenizer tokenizer,
                         OpenTrainingTokenizer(FileSystem::Posix(), {.name_or_path = place}));
  return tokenizer.eod;
}

std::string_view FlagThatNeedsEod(const TrainConfig& config) {
  if (config.eod_mask_loss) return "--eod-mask-loss";
  if (config.reset_position_ids) return "--reset-position-ids";
  return config.reset_attention_mask ? "--reset-attention-mask" : "";
}

}  // namespace

Result<TrainingTokenizer> TakeTokenizer(TrainConfig& config) {
  CAIRN_ASSIGN_OR_RETURN(
      TrainingTokenizer tokenizer,
      OpenTrainingTokenizer(FileSystem::Posix(), {.type = config.tokenizer_type,
                                                  .vocab_file = config.vocab_file,
                                                  .merge_file = config.merge_file,
                                                  .model = config.tokenizer_model,
                                                  .name_or_path = config.tokenizer_name_or_path}));
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
        "{} needs the token that ends a document, and {}; name the tokenizer by --tokenizer-type and its "
        "files",
        flag, tokenizer.files.empty() ? "no tokenizer is named" : "this tokenizer has none");
  config.eod = *eod;
  return tokenizer;
}

Status CheckVocabulary(const TrainConfig& config) {
  if (config.vocab_size > 0) return OkStatus();
  std::string hint = "it must be at least 1";
  if (const std::string place = PlaceBesideData(config); !place.empty()) {
    const auto tokenizer = OpenTrainingTokenizer(FileSystem::Posix(), {.name_or_path = place});
    if (tokenizer.ok())
      hint = fmt::format("{} beside the data has {} tokens: give --vocab-size {}", place,
                         tokenizer->vocab_size, tokenizer->vocab_size);
  }
  return InvalidArgument("--vocab-size is {}; {}", config.vocab_size, hint);
}

}  // namespace cairn
