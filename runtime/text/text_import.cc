// Refuse existing files, train or load the tokenizer, stream the text through it into the dataset, and
// publish all at the end: the model, the tokenizer, and last the dataset, which they belong to. What fails
// before that leaves nothing that a second try would meet. Text is read twice if a model is trained: it must
// be there before the first token is. A dry run does all of that but the writing, since only the tokens say
// how many there are.

#include "runtime/text/text_import.h"

#include <optional>

#include "ckpt/base/stopwatch.h"
#include "ckpt/step/partial_dir.h"
#include "runtime/text/document_encoder.h"
#include "runtime/text/load_tokenizer.h"
#include "runtime/text/sentencepiece_trainer.h"
#include "runtime/tokenizer/tokenizer_json.h"

namespace cairn {
namespace {

Status CheckRequest(const DatasetRequest& request) {
  if (request.vocab_file.empty() != request.merge_file.empty())
    return InvalidArgument("--vocab-file and --merge-file must be given together");
  if (request.train_sentencepiece + !request.tokenizer.empty() + !request.vocab_file.empty() != 1)
    return InvalidArgument(
        "give one of --tokenizer TOKENIZER, --vocab-file with --merge-file, and --train-sentencepiece with "
        "--vocab-size N");
  if (request.train_sentencepiece && request.vocab_size == 0)
    return InvalidArgument("--train-sentencepiece needs --vocab-size N, for example 8000");
  if (!request.train_sentencepiece && request.vocab_size != 0)
    return InvalidArgument(
        "--vocab-size belongs to --train-sentencepiece; a tokenizer that exists brings its own");
  return OkStatus();
}

// Before any work is done for nothing.
Status CheckOutputs(FileSystem& fs, const DatasetRequest& request) {
  CAIRN_RETURN_IF_ERROR(CheckOutsideSteps(fs, request.output_prefix));
  std::vector<std::string> paths = {TokensPath(request.output_prefix), IndexPath(request.output_prefix),
                                    request.TokenizerDir()};
  RemoveLeftovers(fs, request.TokenizerDir());
  if (request.train_sentencepiece) paths.push_back(request.ModelPath());
  for (const std::string& path : paths) {
    if (fs.Stat(path).ok())
      return AlreadyExists("{} exists and is never overwritten; choose another --output-prefix or remove it",
                           path);
  }
  return OkStatus();
}

// Trains the model, which `trained` gets, or loads the one that was named.
Result<std::unique_ptr<Tokenizer>> PrepareTokenizer(FileSystem& fs, const DatasetRequest& request,
                                                    std::string& trained, ImportedDataset& made) {
  const auto publish = [&](const std::string& model) {
    auto published = PublishedSentencePiece(model);
    if (published.ok()) made.published = *std::move(published);
    if (!published.ok()) made.unpublished = published.status().message();
  };
  if (!request.train_sentencepiece) {
    CAIRN_ASSIGN_OR_RETURN(LoadedTokenizer loaded,
                           request.vocab_file.empty()
                               ? LoadTokenizer(fs, request.tokenizer)
                               : LoadGpt2Tokenizer(fs, request.vocab_file, request.merge_file));
    if (!loaded.sentencepiece.empty())
      publish(loaded.sentencepiece);
    else
      made.published = loaded.files.empty() ? PublishedBytes() : std::move(loaded.files);
    return std::move(loaded.tokenizer);
  }
  CAIRN_ASSIGN_OR_RETURN(TextSource source, TextSource::Open(fs, request.inputs, request.source));
  CAIRN_ASSIGN_OR_RETURN(trained, TrainSentencePiece(source, request.vocab_size));
  made.model_bytes = trained.size();
  publish(trained);
  return MakeSentencePieceTokenizer(trained);
}

// The files beside the dataset, and then the dataset. A failure takes them away again.
Status Publish(FileSystem& fs, const DatasetRequest& request, const std::string& model,
               const std::map<std::string, std::string>& tokenizer, IndexedDatasetBuilder& builder) {
  MarkedContents files;
  if (!tokenizer.empty()) {
    for (const auto& [name, text] : tokenizer) files.files.push_back(name);
    CAIRN_ASSIGN_OR_RETURN(PartialDir directory, PartialDir::MakeFor(fs, request.TokenizerDir(), files));
    for (const auto& [name, text] : tokenizer)
      CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, JoinPath(directory.path(), name), text));
    CAIRN_RETURN_IF_ERROR(fs.SyncDir(directory.path()));
    CAIRN_RETURN_IF_ERROR(directory.Publish());
  }
  if (!model.empty()) CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, request.ModelPath(), model));
  const Status finished = builder.Finish();
  if (!finished.ok() && !model.empty()) (void)fs.RemoveFile(request.ModelPath());
  if (!finished.ok() && !tokenizer.empty()) (void)RemoveMarked(fs, request.TokenizerDir(), files);
  return finished;
}

}  // namespace

Result<ImportCounts> ImportText(TextSource& source, const Tokenizer& tokenizer, bool append_eod,
                                IndexedDatasetBuilder* builder, const ImportProgress& progress) {
  if (append_eod && !tokenizer.eod())
    return InvalidArgument("--append-eod: this tokenizer has no token that ends a document");
  ImportCounts counts;
  DocumentEncoder encoder(tokenizer);
  TextChunk chunk;
  std::vector<int32_t> tokens;
  uint64_t document_tokens = 0;
  bool begun = false;  // the document has its `before`
  const std::vector<int32_t> before = tokenizer.before(), behind = tokenizer.behind();
  for (;;) {
    CAIRN_ASSIGN_OR_RETURN(const bool more, source.Next(&chunk));
    if (!more) return counts;
    CAIRN_RETURN_IF_ERROR(encoder.Add(chunk.text, chunk.ends_document, &tokens));
    // An empty text has the tokens around a text, too.
    const bool first = !begun && (!tokens.empty() || chunk.ends_document);
    if (first) tokens.insert(tokens.begin(), before.begin(), before.end());
    begun = begun || first;
    document_tokens += tokens.size();
    const bool ends_document = chunk.ends_document && document_tokens + behind.size() > 0;
    if (ends_document) tokens.insert(tokens.end(), behind.begin(), behind.end());
    if (ends_document && append_eod) tokens.push_back(*tokenizer.eod());
    if (builder != nullptr) CAIRN_RETURN_IF_ERROR(builder->Add(tokens));
    counts.tokens += tokens.size();
    counts.bytes_read = source.bytes_read();
    if (ends_document) {
      if (builder != nullptr) CAIRN_RETURN_IF_ERROR(builder->EndDocument());
      ++counts.documents;
    }
    if (chunk.ends_document) {
      begun = false;
      document_tokens = 0;
    }
    progress(counts);
  }
}

uint64_t ImportedDataset::idx_bytes() const {
  return kIndexHeaderBytes + 12 * counts.documents + 8 * (counts.documents + 1);
}

uint64_t ImportedDataset::tokenizer_bytes() const {
  uint64_t sum = 0;
  for (const auto& [name, text] : published) sum += text.size();
  return sum;
}

Result<ImportedDataset> ImportDataset(FileSystem& fs, const DatasetRequest& request,
                                      const std::function<void(const ImportCounts&, uint64_t)>& progress) {
  CAIRN_RETURN_IF_ERROR(CheckRequest(request));
  CAIRN_RETURN_IF_ERROR(CheckOutputs(fs, request));
  const Stopwatch watch;
  CAIRN_ASSIGN_OR_RETURN(TextSource source, TextSource::Open(fs, request.inputs, request.source));
  ImportedDataset made;
  std::string model;
  CAIRN_ASSIGN_OR_RETURN(made.tokenizer, PrepareTokenizer(fs, request, model, made));
  made.type = TokenTypeFor(made.tokenizer->vocab_size());
  std::optional<IndexedDatasetBuilder> builder;
  if (!request.dry_run) {
    CAIRN_ASSIGN_OR_RETURN(auto created, IndexedDatasetBuilder::Create(fs, request.output_prefix, made.type));
    builder.emplace(std::move(created));
  }
  CAIRN_ASSIGN_OR_RETURN(
      made.counts, ImportText(source, *made.tokenizer, request.append_eod, builder ? &*builder : nullptr,
                              [&](const ImportCounts& counts) { progress(counts, source.total_bytes()); }));
  if (made.counts.documents == 0)
    return InvalidArgument("{}{}: no text in it, so there is no dataset to write", request.inputs.front(),
                           request.inputs.size() > 1 ? " and the other inputs" : "");
  if (builder) CAIRN_RETURN_IF_ERROR(Publish(fs, request, model, made.published, *builder));
  made.seconds = watch.Seconds();
  return made;
}

}  // namespace cairn
