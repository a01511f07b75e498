// Refuse what is there already, train or load the tokenizer, stream the text through it into the dataset, and
// publish all at the end: the model, the tokenizer, and last the dataset, which they belong to. What fails
// before that leaves nothing that a second try would meet. Text is read twice if a model is trained: it must
// be there before the first token is. A dry run does all of that but the writing, since only the tokens say
// how many there are.

#include <fmt/ranges.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/base/dtype.h"
#include "ckpt/base/proc_memory.h"
#include "ckpt/base/stopwatch.h"
#include "ckpt/io/file_system.h"
#include "ckpt/step/partial_dir.h"
#include "runtime/data/indexed_dataset_builder.h"
#include "runtime/text/load_tokenizer.h"
#include "runtime/text/sentencepiece_trainer.h"
#include "runtime/text/text_import.h"
#include "runtime/text/text_source.h"
#include "runtime/tokenizer/tokenizer_json.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/commands/commands.h"

namespace cairn {
namespace {

struct DataOptions {
  std::vector<std::string> inputs;   // text files and JSON lines
  std::string output_prefix;         // P of P.bin, P.idx and, when trained here, P.model
  std::string tokenizer;             // LoadTokenizer's; empty: one of the next, or trained here
  std::string vocab_file;            // GPT-2's vocab.json
  std::string merge_file;            // and merges.txt
  bool train_sentencepiece = false;  // excludes both
  uint32_t vocab_size = 0;           // of the model that is trained
  TextSourceOptions source;
  bool append_eod = false;
  bool dry_run = false;
  bool json = false;
};

// The files that were, or would be, written.
struct DataFacts {
  ImportCounts counts;
  std::unique_ptr<Tokenizer> tokenizer;
  TokenType type = TokenType::kU16;
  uint64_t model_bytes = 0;                      // 0: no model was trained
  std::map<std::string, std::string> published;  // the tokenizer as transformers loads it, by file
  std::string unpublished;                       // why there is none
  double seconds = 0;

  uint64_t bin_bytes() const { return counts.tokens * SizeOf(type); }
  uint64_t idx_bytes() const {
    return kIndexHeaderBytes + 12 * counts.documents + 8 * (counts.documents + 1);
  }
  uint64_t tokenizer_bytes() const {
    uint64_t sum = 0;
    for (const auto& [name, text] : published) sum += text.size();
    return sum;
  }
  uint64_t bytes() const { return bin_bytes() + idx_bytes() + model_bytes + tokenizer_bytes(); }
};

Status CheckDataOptions(const DataOptions& options) {
  if (options.vocab_file.empty() != options.merge_file.empty())
    return InvalidArgument("--vocab-file and --merge-file belong together");
  if (options.train_sentencepiece + !options.tokenizer.empty() + !options.vocab_file.empty() != 1)
    return InvalidArgument(
        "give one of --tokenizer TOKENIZER, --vocab-file with --merge-file, and --train-sentencepiece with "
        "--vocab-size N");
  if (options.train_sentencepiece && options.vocab_size == 0)
    return InvalidArgument("--train-sentencepiece needs --vocab-size N, for example 8000");
  if (!options.train_sentencepiece && options.vocab_size != 0)
    return InvalidArgument(
        "--vocab-size belongs to --train-sentencepiece; a tokenizer that exists brings its own");
  return OkStatus();
}

std::string ModelPath(const DataOptions& options) { return options.output_prefix + ".model"; }
// Where cairn train looks for it, to give each step a copy.
std::string TokenizerDir(const DataOptions& options) { return options.output_prefix + ".tokenizer"; }

// Before any work is done for nothing.
Status CheckOutputs(FileSystem& fs, const DataOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckOutsideSteps(fs, options.output_prefix));
  std::vector<std::string> paths = {TokensPath(options.output_prefix), IndexPath(options.output_prefix)};
  paths.push_back(TokenizerDir(options));
  RemoveLeftovers(fs, TokenizerDir(options));
  if (options.train_sentencepiece) paths.push_back(ModelPath(options));
  for (const std::string& path : paths) {
    if (fs.Stat(path).ok())
      return AlreadyExists("{} exists and is never overwritten; choose another --output-prefix or remove it",
                           path);
  }
  return OkStatus();
}

// Trains the model, which `trained` gets, or loads the one that was named.
Result<std::unique_ptr<Tokenizer>> PrepareTokenizer(FileSystem& fs, const DataOptions& options,
                                                    std::string& trained, DataFacts& facts) {
  const auto publish = [&](const std::string& model) {
    auto published = PublishedSentencePiece(model);
    if (published.ok()) facts.published = *std::move(published);
    if (!published.ok()) facts.unpublished = published.status().message();
  };
  if (!options.train_sentencepiece) {
    CAIRN_ASSIGN_OR_RETURN(LoadedTokenizer loaded,
                           options.vocab_file.empty()
                               ? LoadTokenizer(fs, options.tokenizer)
                               : LoadGpt2Tokenizer(fs, options.vocab_file, options.merge_file));
    if (!loaded.sentencepiece.empty())
      publish(loaded.sentencepiece);
    else
      facts.published = loaded.files.empty() ? PublishedBytes() : std::move(loaded.files);
    return std::move(loaded.tokenizer);
  }
  CAIRN_ASSIGN_OR_RETURN(TextSource source, TextSource::Open(fs, options.inputs, options.source));
  CAIRN_ASSIGN_OR_RETURN(trained, TrainSentencePiece(source, options.vocab_size));
  facts.model_bytes = trained.size();
  publish(trained);
  return MakeSentencePieceTokenizer(trained);
}

// The files beside the dataset, and then the dataset. A failure takes them away again.
Status Publish(FileSystem& fs, const DataOptions& options, const std::string& model,
               const std::map<std::string, std::string>& tokenizer, IndexedDatasetBuilder& builder) {
  std::optional<PartialDir> directory;
  if (!tokenizer.empty()) {
    MarkedContents files;
    for (const auto& [name, text] : tokenizer) files.files.push_back(name);
    CAIRN_ASSIGN_OR_RETURN(directory, PartialDir::Make(fs, TokenizerDir(options), files));
    for (const auto& [name, text] : tokenizer)
      CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, JoinPath(directory->path(), name), text));
    CAIRN_RETURN_IF_ERROR(fs.SyncDir(directory->path()));
  }
  if (!model.empty()) CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, ModelPath(options), model));
  const Status finished = builder.Finish();
  if (finished.ok() && directory) directory->Keep();
  if (!finished.ok() && !model.empty()) (void)fs.RemoveFile(ModelPath(options));
  return finished;
}

Result<DataFacts> Import(FileSystem& fs, const DataOptions& options) {
  const Stopwatch watch;
  CAIRN_ASSIGN_OR_RETURN(TextSource source, TextSource::Open(fs, options.inputs, options.source));
  DataFacts facts;
  std::string model;
  CAIRN_ASSIGN_OR_RETURN(facts.tokenizer, PrepareTokenizer(fs, options, model, facts));
  facts.type = TokenTypeFor(facts.tokenizer->vocab_size());
  std::optional<IndexedDatasetBuilder> builder;
  if (!options.dry_run) {
    CAIRN_ASSIGN_OR_RETURN(auto created,
                           IndexedDatasetBuilder::Create(fs, options.output_prefix, facts.type));
    builder.emplace(std::move(created));
  }
  Progress progress("tokenizing", source.total_bytes(), !options.json);
  CAIRN_ASSIGN_OR_RETURN(
      facts.counts, ImportText(source, *facts.tokenizer, options.append_eod, builder ? &*builder : nullptr,
                               [&](const ImportCounts& counts) { progress.Update(counts.bytes_read); }));
  if (facts.counts.documents == 0)
    return InvalidArgument("{}{}: no text in it, so there is no dataset to write", options.inputs.front(),
                           options.inputs.size() > 1 ? " and the other inputs" : "");
  if (builder) CAIRN_RETURN_IF_ERROR(Publish(fs, options, model, facts.published, *builder));
  facts.seconds = watch.Seconds();
  return facts;
}

nlohmann::ordered_json ToJson(const DataOptions& options, const DataFacts& facts) {
  const std::optional<int32_t> eod = facts.tokenizer->eod();
  return {
      {"output_prefix", options.output_prefix},
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
      {"dry_run", options.dry_run},
      {"bytes_without_token", facts.tokenizer->lost_bytes()},
      {"before_each_document", facts.tokenizer->before()},
      {"behind_each_document", facts.tokenizer->behind()},
  };
}

void PrintDataText(const DataOptions& options, const DataFacts& facts) {
  const std::string& prefix = options.output_prefix;
  fmt::print("documents {}, tokens {} ({}), vocabulary {}\n", facts.counts.documents, facts.counts.tokens,
             Name(facts.type), facts.tokenizer->vocab_size());
  const char* verb = options.dry_run ? "would write" : "wrote";
  const auto human = [](uint64_t bytes) { return HumanBytes(bytes); };
  fmt::print("{} {}.bin ({}), {}.idx ({})", verb, prefix, human(facts.bin_bytes()), prefix,
             human(facts.idx_bytes()));
  if (facts.model_bytes > 0) fmt::print(", {} ({})", ModelPath(options), human(facts.model_bytes));
  if (!facts.published.empty())
    fmt::print(", {} for transformers ({})", TokenizerDir(options), human(facts.tokenizer_bytes()));
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
  FileSystem& fs = FileSystem::Posix();
  CAIRN_RETURN_IF_ERROR(CheckDataOptions(options));
  CAIRN_RETURN_IF_ERROR(CheckOutputs(fs, options));
  CAIRN_ASSIGN_OR_RETURN(const DataFacts facts, Import(fs, options));
  options.json ? PrintJson(ToJson(options, facts)) : PrintDataText(options, facts);
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
  auto options = std::make_shared<DataOptions>();
  CLI::App* data =
      app.add_subcommand("data", "turn text or JSON lines into P.bin and P.idx, Megatron's indexed format");
  data->add_option("INPUT", options->inputs, "text files, or JSON lines (.jsonl, .ndjson, .json)")
      ->required();
  data->add_option("--output-prefix", options->output_prefix,
                   "prefix P of the files to write, P.bin and P.idx")
      ->required()
      ->type_name("PREFIX");
  data->add_option(
          "--tokenizer", options->tokenizer,
          "bytes (257 tokens), sentencepiece:FILE, or Hugging Face's: a directory or tokenizer.json of "
          "byte-level BPE, as GPT-2, BLOOM, LLaMA-3 and Qwen have")
      ->type_name("TOKENIZER");
  data->add_option("--vocab-file", options->vocab_file, "GPT-2's vocab.json, instead; with --merge-file")
      ->type_name("FILE");
  data->add_option("--merge-file", options->merge_file, "GPT-2's merges.txt")->type_name("FILE");
  data->add_flag("--train-sentencepiece", options->train_sentencepiece,
                 "first train a SentencePiece model on the inputs, as P.model");
  data->add_option("--vocab-size", options->vocab_size, "tokens of the model to train");
  const std::map<std::string, TextFormat> formats = {
      {"auto", TextFormat::kAuto}, {"text", TextFormat::kText}, {"jsonl", TextFormat::kJsonLines}};
  data->add_option("--format", options->source.format, "format of the inputs: auto (by name), text, jsonl")
      ->transform(CLI::CheckedTransformer(formats).description(""))
      ->type_name("auto|text|jsonl");
  data->add_option("--json-key", options->source.json_key, "key of a JSON line's text")
      ->type_name("KEY")
      ->capture_default_str();
  data->add_flag("--append-eod", options->append_eod, "end each document with the end-of-document token");
  data->add_flag("--split-documents-on-blank-lines", options->source.split_on_blank_lines,
                 "make each paragraph of a text file a document, instead of the file");
  data->add_flag("--dry-run", options->dry_run, "count documents, tokens and bytes; write nothing");
  data->add_flag("--json", options->json, "print the facts as JSON");
  data->footer(kDetails + HelpFooter(kExample));
  data->callback([options, &verb] { verb = [options] { return RunData(*options); }; });
}

}  // namespace cairn
