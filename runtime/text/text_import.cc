#include "runtime/text/text_import.h"

#include "runtime/text/document_encoder.h"

namespace cairn {

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

}  // namespace cairn
