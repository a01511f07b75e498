#include "tools/check/loss_batches.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <vector>

#include "ckpt/model/manifest.h"
#include "runtime/data/hash.h"
#include "runtime/data/indexed_dataset_builder.h"

namespace cairn {
namespace {

constexpr std::string_view kMock = "mock";

Status AddDocument(const std::vector<int32_t>& tokens, IndexedDatasetBuilder& dataset) {
  CAIRN_RETURN_IF_ERROR(dataset.Add(tokens));
  return dataset.EndDocument();
}

// Made-up tokens, the same each time: a document for each batch.
Status AddMadeUp(const LossBatches& batches, IndexedDatasetBuilder& dataset) {
  uint64_t position = 0;
  std::vector<int32_t> tokens(batches.seq_length + 1);
  for (int64_t batch = 0; batch < batches.count; ++batch) {
    for (int32_t& token : tokens)
      token =
          static_cast<int32_t>(Mix(kSplitMixStep * position++) % static_cast<uint64_t>(batches.vocabulary));
    CAIRN_RETURN_IF_ERROR(AddDocument(tokens, dataset));
  }
  return OkStatus();
}

Result<std::vector<int32_t>> TokensOfLine(const std::string& line, const std::string& place) {
  std::vector<int32_t> tokens;
  const char* at = line.data();
  const char* const end = at + line.size();
  const auto skip = [&] {
    while (at != end && (*at == ' ' || *at == ',' || *at == '\t' || *at == '\r')) ++at;
  };
  for (skip(); at != end; skip()) {
    int32_t token = 0;
    const auto [stop, error] = std::from_chars(at, end, token);
    if (error != std::errc() || token < 0)
      return InvalidArgument("{}: '{}' is not a token id; `cairn data` makes a dataset of text", place,
                             std::string(at, std::min(end, at + 20)));
    tokens.push_back(token);
    at = stop;
  }
  return tokens;
}

// A document a line.
Status AddFile(const std::string& path, IndexedDatasetBuilder& dataset) {
  std::ifstream file(path);
  if (!file) return NotFound("--loss {}: there is no such file", path);
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    CAIRN_ASSIGN_OR_RETURN(const auto tokens, TokensOfLine(line, fmt::format("{}:{}", path, number)));
    if (!tokens.empty()) CAIRN_RETURN_IF_ERROR(AddDocument(tokens, dataset));
  }
  if (dataset.document_count() == 0) return InvalidArgument("--loss {}: there are no tokens in it", path);
  return OkStatus();
}

}  // namespace

Result<LossBatches> ParseLossBatches(const std::string& text) {
  LossBatches batches{.source = text};
  const size_t colon = text.rfind(':');
  if (colon != std::string::npos) {
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, batches.count);
    if (error == std::errc() && stop == end) batches.source = text.substr(0, colon);
    if (batches.source != text && batches.count < 1)
      return InvalidArgument("--loss {}: the number of batches must be at least 1", text);
    if (batches.source == text) batches.count = kDefaultBatches;  // a colon of the name
  }
  if (batches.source.empty())
    return InvalidArgument("--loss {}: write PREFIX, FILE.txt or mock, with :N for N batches", text);
  return batches;
}

Status FitToModels(const nlohmann::json& a, const nlohmann::json& b, int64_t asked, LossBatches& batches) {
  batches.seq_length = asked > 0 ? asked : kDefaultSeqLength;
  batches.vocabulary = std::min(IntField(a, "vocab_size"), IntField(b, "vocab_size"));
  for (const nlohmann::json* model : {&a, &b}) {
    const int64_t positions = IntField(*model, "max_position_embeddings");
    if (asked > 0 && positions > 0 && asked > positions)
      return InvalidArgument("--seq-length {} is more than the {} positions of a model", asked, positions);
    if (positions > 0) batches.seq_length = std::min(batches.seq_length, positions);
  }
  return OkStatus();
}

Result<std::string> DatasetOf(const LossBatches& batches, const std::string& scratch) {
  FileSystem& fs = FileSystem::Posix();
  const bool made_up = batches.source == kMock;
  if (!made_up && fs.Stat(batches.source + ".idx").ok()) return batches.source;
  if (!made_up && !batches.source.ends_with(".txt"))
    return NotFound(
        "--loss {0}: there is no {0}.idx; give the PREFIX of an indexed dataset, a .txt file of "
        "token ids, or mock:N",
        batches.source);
  const std::string prefix = scratch + "/tokens";
  CAIRN_ASSIGN_OR_RETURN(auto dataset, IndexedDatasetBuilder::Create(fs, prefix, TokenType::kI32));
  CAIRN_RETURN_IF_ERROR(made_up ? AddMadeUp(batches, dataset) : AddFile(batches.source, dataset));
  CAIRN_RETURN_IF_ERROR(dataset.Finish());
  return prefix;
}

}  // namespace cairn
