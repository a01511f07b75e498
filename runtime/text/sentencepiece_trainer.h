// Trains a SentencePiece model on the text that is to be tokenized.
#pragma once

#include <cstdint>
#include <string>

#include "ckpt/base/status.h"
#include "runtime/text/text_source.h"

namespace cairn {

// Reads `source` to its end and returns the content of a .model file with `vocab_size` pieces: unigram, ids 0
// unknown, 1 <s>, 2 </s>, 3 to 258 the bytes. The model is lossless: nothing is normalised, no space is
// added, and characters without a piece fall back to bytes; so tokens also decode to exactly the same text,
// newlines included, and a text may be cut at a line end before it is encoded. Texts beyond kMaxTrainingLines
// lines are sampled. Errors: those of the source; InvalidArgument (a vocabulary too small or too large for
// this text, with SentencePiece's message).
Result<std::string> TrainSentencePiece(TextSource& source, uint32_t vocab_size);

inline constexpr uint64_t kMaxTrainingLines =
    1'000'000;  // about 0.2 GB of text, held in memory by the trainer

}  // namespace cairn
