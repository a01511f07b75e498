// The tokenizer that a training's flags name, and what of it the flags leave open.
#pragma once

#include "runtime/config/train_config.h"
#include "runtime/tokenizer/training_tokenizer.h"

namespace cairn {

// Opens it, and fills in --vocab-size where it is not given; with --eod-mask-loss also the token that ends a
// document, of the tokenizer beside the data where no flag names one. Errors: those of OpenTrainingTokenizer;
// InvalidArgument (a vocabulary that is too small; no token that ends a document).
Result<TrainingTokenizer> TakeTokenizer(TrainConfig& config);

// Errors: InvalidArgument (no size of the vocabulary is known; it has that of the tokenizer beside the data).
Status CheckVocabulary(const TrainConfig& config);

}  // namespace cairn
