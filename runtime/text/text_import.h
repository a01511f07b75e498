// Text to an indexed dataset: reads documents, tokenizes them, appends them to a builder.
#pragma once

#include <cstdint>
#include <functional>

#include "ckpt/base/status.h"
#include "runtime/data/indexed_dataset_builder.h"
#include "runtime/text/text_source.h"
#include "runtime/tokenizer/tokenizer.h"

namespace cairn {

struct ImportCounts {
  uint64_t documents = 0;
  uint64_t tokens = 0;      // with the ends of documents
  uint64_t bytes_read = 0;  // of the input
};

// Called after each chunk, about once per MiB of text.
using ImportProgress = std::function<void(const ImportCounts&)>;

// Appends every document of `source` to `builder`, or only counts if that is null. A document, even an empty
// one, begins and ends with what the tokenizer puts around a text, as when Megatron's preprocess_data.py
// calls a Hugging Face tokenizer; the end of a document follows. Documents without a token are left out.
// Memory: one chunk of text and its tokens. Errors: those of the parts; InvalidArgument (append_eod with a
// model that has no end of a document).
Result<ImportCounts> ImportText(TextSource& source, const Tokenizer& tokenizer, bool append_eod,
                                IndexedDatasetBuilder* builder, const ImportProgress& progress);

}  // namespace cairn
