// ImportDataset() (text_import.h) does the work; here its result is printed.

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "ckpt/base/dtype.h"
#include "ckpt/base/proc_memory.h"
#include "runtime/text/text_import.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/commands/commands.h"

namespace cairn {
namespace {

struct DataOptions {
  DatasetRequest request;
  bool json = false;
};

nlohmann::ordered_json ToJson(const DataOptions& options, const ImportedDataset& facts) {
  const std::optional<int32_t> eod = facts.tokenizer->eod();
  return {
      {"output_prefix", options.request.output_prefix},
      {"documents", facts.counts.documents},
      {"tokens", facts.counts.tokens},
      {"vocab_size", facts.tokenizer->vocab_size()},
      {"eod", eod ? nlohmann::ordered_json(*eod) : nlohmann::ordered_json(nullptr)},
      {"dtype", Name(facts.type)},
      {"bytes", facts.bytes()},
      {"bin_bytes", facts.bin_bytes()},
      {"idx_bytes", facts.idx_bytes()},
      {"model_bytes", facts.model_bytes},
      {"tokenizer_bytes", facts.tokenizer_bytes()},
      {"input_bytes", facts.counts.bytes_read},
      {"seconds", facts.seconds},
      {"peak_memory_bytes", PeakMemoryBytes()},
      {"dry_run", options.request.dry_run},
      {"bytes_without_token", facts.tokenizer->lost_bytes()},
      {"before_each_document", facts.tokenizer->before()},
      {"behind_each_document", facts.tokenizer->behind()},
  };
}

void PrintDataText(const DataOptions& options, const ImportedDataset& facts) {
  const std::string& prefix = options.request.output_prefix;
  fmt::print("documents {}, tokens {} ({}), vocabulary {}\n", facts.counts.documents, facts.counts.tokens,
             Name(facts.type), facts.tokenizer->vocab_size());
  const char* verb = options.request.dry_run ? "would write" : "wrote";
  const auto human = [](uint64_t bytes) { return HumanBytes(bytes); };
  fmt::print("{} {}.bin ({}), {}.idx ({})", verb, prefix, human(facts.bin_bytes()), prefix,
             human(facts.idx_bytes()));
  if (facts.model_bytes > 0) fmt::print(", {} ({})", options.request.ModelPath(), human(facts.model_bytes));
  if (!facts.published.empty())
    fmt::print(", {} for transformers ({})", options.request.TokenizerDir(), human(facts.tokenizer_bytes()));
  if (!facts.unpublished.empty())
    fmt::print("\nno tokenizer for transformers: its tokenizer.json has no place for {}", facts.unpublished);
  fmt::print("\n{}, {:.1f} MB/s, peak memory {}\n", HumanSeconds(facts.seconds),
             static_cast<double>(facts.counts.bytes_read) / 1e6 / facts.seconds, human(PeakMemoryBytes()));
  const std::vector<int32_t> before = facts.tokenizer->before(), behind = facts.tokenizer->behind();
  if (!before.empty() || !behind.empty())
    fmt::print("each document has the tokens [{}] before it and [{}] behind it, as the post_processor says\n",
               fmt::join(before, ", "), fmt::join(behind, ", "));
  if (const int lost = facts.tokenizer->lost_bytes(); lost > 0)
    fmt::print(
        "this tokenizer has no token for {} of the 256 bytes: text with them loses them, as in tokenizers\n",
        lost);
}

Result<int> RunData(const DataOptions& options) {
  std::optional<Progress> bar;
  const auto progress = [&](const ImportCounts& counts, uint64_t bytes) {
    if (!bar) bar.emplace("tokenizing", bytes, !options.json);
    bar->Update(counts.bytes_read);
  };
  CAIRN_ASSIGN_OR_RETURN(const ImportedDataset made,
                         ImportDataset(FileSystem::Posix(), options.request, progress));
  bar.reset();
  options.json ? PrintJson(ToJson(options, made)) : PrintDataText(options, made);
  return kExitDone;
}

constexpr const char* kDetails =
    R"(A text file is one document, or one for each paragraph; so is a line of JSON lines.
Train on the result with cairn train --data-path P --vocab-size N, N being the vocabulary that was printed.
P.tokenizer has the tokenizer as transformers' AutoTokenizer loads it; each step of that training, and what is
released of it, has a copy.

)";
constexpr const char* kExample =
    "cairn data shakespeare.txt --output-prefix shakespeare --train-sentencepiece --vocab-size 4000 "
    "--append-eod\n"
    "  cairn data pile.jsonl --output-prefix pile --tokenizer sentencepiece:shakespeare.model --append-eod";

}  // namespace

void AddDataCommand(CLI::App& app, Verb& verb) {
  const auto [data, options] = AddVerb(
      app, verb, "data", "turn text or JSON lines into P.bin and P.idx, Megatron's indexed format", RunData);
  data->add_option("INPUT", options->request.inputs, "text files, or JSON lines (.jsonl, .ndjson, .json)")
      ->required();
  data->add_option("--output-prefix", options->request.output_prefix,
                   "prefix P of the files to write, P.bin and P.idx")
      ->required()
      ->type_name("PREFIX");
  data->add_option(
          "--tokenizer", options->request.tokenizer,
          "bytes (257 tokens), sentencepiece:FILE, or Hugging Face's: a directory or tokenizer.json of "
          "byte-level BPE, as GPT-2, BLOOM, LLaMA-3 and Qwen have")
      ->type_name("TOKENIZER");
  data->add_option("--vocab-file", options->request.vocab_file,
                   "GPT-2's vocab.json, instead; with --merge-file")
      ->type_name("FILE");
  data->add_option("--merge-file", options->request.merge_file, "GPT-2's merges.txt")->type_name("FILE");
  data->add_flag("--train-sentencepiece", options->request.train_sentencepiece,
                 "first train a SentencePiece model on the inputs, as P.model");
  data->add_option("--vocab-size", options->request.vocab_size, "tokens of the model to train");
  const std::map<std::string, TextFormat> formats = {
      {"auto", TextFormat::kAuto}, {"text", TextFormat::kText}, {"jsonl", TextFormat::kJsonLines}};
  data->add_option("--format", options->request.source.format,
                   "format of the inputs: auto (by name), text, jsonl")
      ->transform(CLI::CheckedTransformer(formats).description(""))
      ->type_name("auto|text|jsonl");
  data->add_option("--json-key", options->request.source.json_key, "key of a JSON line's text")
      ->type_name("KEY")
      ->capture_default_str();
  data->add_flag("--append-eod", options->request.append_eod,
                 "end each document with the end-of-document token");
  data->add_flag("--split-documents-on-blank-lines", options->request.source.split_on_blank_lines,
                 "make each paragraph of a text file a document, instead of the file");
  data->add_flag("--dry-run", options->request.dry_run, "count documents, tokens and bytes; write nothing");
  data->add_flag("--json", options->json, "print the facts as JSON");
  data->footer(kDetails + HelpFooter(kExample));
}

}  // namespace cairn
