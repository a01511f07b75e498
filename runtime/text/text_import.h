// Text to an indexed dataset: reads documents, tokenizes them, appends them to a builder; and all of `cairn
// data`, which also loads or trains the tokenizer and puts it next to the dataset.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

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

struct DatasetRequest {
  std::vector<std::string> inputs;   // text files and JSON lines
  std::string output_prefix;         // P of P.bin, P.idx, P.tokenizer and, if it is trained here, P.model
  std::string tokenizer;             // LoadTokenizer's; empty: one of the next, or trained here
  std::string vocab_file;            // GPT-2's vocab.json
  std::string merge_file;            // and merges.txt
  bool train_sentencepiece = false;  // excludes both
  uint32_t vocab_size = 0;           // of the model that is trained
  TextSourceOptions source;
  bool append_eod = false;
  bool dry_run = false;

  std::string ModelPath() const { return output_prefix + ".model"; }
  // Where cairn train looks for it, to give each step a copy.
  std::string TokenizerDir() const { return output_prefix + ".tokenizer"; }
};

// The files that were, or would be, written.
struct ImportedDataset {
  ImportCounts counts;
  std::unique_ptr<Tokenizer> tokenizer;
  TokenType type = TokenType::kU16;
  uint64_t model_bytes = 0;                      // 0: no model was trained
  std::map<std::string, std::string> published;  // the tokenizer as transformers loads it, by file
  std::string unpublished;                       // why there is none
  double seconds = 0;

  uint64_t bin_bytes() const { return counts.tokens * SizeOf(type); }
  uint64_t idx_bytes() const;
  uint64_t tokenizer_bytes() const;
  uint64_t bytes() const { return bin_bytes() + idx_bytes() + model_bytes + tokenizer_bytes(); }
};

// Trains or loads the tokenizer, and writes the dataset; a dry run does all but the writing. `progress` gets
// the counts so far and the bytes of the inputs. Errors: InvalidArgument for requests that contradict
// themselves and for inputs without text; AlreadyExists if an output exists; those of the files. Nothing is
// left then.
Result<ImportedDataset> ImportDataset(FileSystem& fs, const DatasetRequest& request,
                                      const std::function<void(const ImportCounts&, uint64_t)>& progress);

}  // namespace cairn
