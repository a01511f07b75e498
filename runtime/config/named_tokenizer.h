// The tokenizer that a training's flags name, and the flags that follow from it.
#pragma once

#include "runtime/config/train_config.h"
#include "runtime/tokenizer/training_tokenizer.h"

namespace cairn {

// Opens it, and fills in --vocab-size if it is not given; with --eod-mask-loss also the token that ends a
// document, from the tokenizer beside the data if no flag names one. Errors: those of OpenTrainingTokenizer;
// InvalidArgument (a vocabulary that is too small; no token that ends a document).
Result<TrainingTokenizer> TakeTokenizer(TrainConfig& config);

// Errors: InvalidArgument (--vocab-size is missing; the message has the size of the tokenizer beside the
// data).
Status CheckVocabulary(const TrainConfig& config);

}  // namespace cairn
