// The tokens become an indexed dataset unless they are one already. cairn-train, which takes the model from
// the step, evaluates each checkpoint on it and writes each batch's loss to a file. A checkpoint that
// cairn-train cannot open (another system's files, a member of an archive) first becomes a temporary step of
// only weights; only one such step exists at a time.

#include "tools/check/loss_check.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>

#include "ckpt/base/child.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/io/write_ring.h"
#include "ckpt/step/partial_dir.h"
#include "convert/verbs/strip.h"
#include "runtime/data/encode_index.h"
#include "runtime/data/hash.h"
#include "tools/cli/progress.h"
#include "tools/process/programs.h"
#include "tools/process/scratch_dir.h"
#include "tools/source/open_ckpt.h"

namespace cairn {
namespace {

constexpr std::string_view kMock = "mock";

using TakeDocument = std::function<void(std::span<const int32_t>)>;

// Made-up tokens, the same each time: a document for each batch.
Status MakeUp(const LossBatches& batches, const TakeDocument& take) {
  uint64_t position = 0;
  std::vector<int32_t> document(batches.seq_length + 1);
  for (int64_t batch = 0; batch < batches.count; ++batch) {
    for (int32_t& token : document)
      token =
          static_cast<int32_t>(Mix(kSplitMixStep * position++) % static_cast<uint64_t>(batches.vocabulary));
    take(document);
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
Status ReadTokens(const std::string& path, const TakeDocument& take) {
  std::ifstream file(path);
  if (!file) return NotFound("--loss {}: there is no such file", path);
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    CAIRN_ASSIGN_OR_RETURN(const auto tokens, TokensOfLine(line, fmt::format("{}:{}", path, number)));
    if (!tokens.empty()) take(tokens);
  }
  return OkStatus();
}

Result<std::vector<double>> ReadLosses(const std::string& path) {
  std::vector<double> losses;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object() || !row.contains("loss")) return Corrupt("cairn-train wrote '{}' to {}", line, path);
    losses.push_back(row["loss"].is_number() ? row["loss"].get<double>() : std::nan(""));
  }
  return losses;
}

// How many batches are done: cairn-train writes a line for each.
uint64_t LinesOf(const std::string& path) {
  std::ifstream file(path);
  return static_cast<uint64_t>(
      std::count(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>(), '\n'));
}

// Its last line, without the program's name.
std::string ReasonOf(std::string said) {
  while (!said.empty() && said.back() == '\n') said.pop_back();
  said.erase(0, said.rfind('\n') + 1);
  const size_t colon = said.find(": ");
  return said.starts_with("cairn") && colon != std::string::npos ? said.substr(colon + 2) : said;
}

class LossRun {
 public:
  LossRun(FileSystem& fs, const LossOptions& options, LossBatches batches, std::string trainer,
          const ScratchDir& scratch)
      : fs_(fs),
        options_(options),
        batches_(std::move(batches)),
        trainer_(std::move(trainer)),
        scratch_(scratch.path()) {}

  Result<Losses> Evaluate(const OpenedSource& opened, const std::string& prefix) {
    const CheckpointSource& source = opened.source();
    std::optional<ScratchDir> made;
    std::string step = source.directory();
    if (opened.foreign || opened.step.view) {
      CAIRN_ASSIGN_OR_RETURN(ScratchDir directory, ScratchDir::Make());
      CAIRN_ASSIGN_OR_RETURN(step, MakeStep(opened, directory.path()));
      made.emplace(std::move(directory));
    }
    Result<std::vector<double>> losses = Run(step, prefix);
    if (!losses.ok()) return losses.status().WithContext(source.name());
    return Losses{source.name(), *std::move(losses)};
  }

 private:
  // Only weights, each as it is stored.
  Result<std::string> MakeStep(const OpenedSource& opened, const std::string& run_dir) const {
    const StripOptions strip{.dtype = std::nullopt,
                             .format = FindSystem("native"),
                             .topology = Topology{.tp = 1, .pp = 1, .dp = 1},
                             .command = "cairn verify --loss"};
    CAIRN_ASSIGN_OR_RETURN(Transfer transfer, PlanStrip(opened.source(), strip));
    CAIRN_ASSIGN_OR_RETURN(const TransferCost cost, transfer.Cost());
    CAIRN_RETURN_IF_ERROR(
        CheckFreeSpace(fs_, run_dir, cost.file_bytes).WithContext("the temporary copy (TMPDIR says where)"));
    Progress progress("reading weights", cost.moved_bytes, options_.show_progress);
    transfer.progress = [&](uint64_t done) { progress.Update(done); };
    CAIRN_ASSIGN_OR_RETURN(const TransferResult result, transfer.Run(fs_, run_dir));
    return result.path;
  }

  Result<std::vector<double>> Run(const std::string& step, const std::string& prefix) {
    const std::string log = fmt::format("{}/losses-{}", scratch_, runs_++);
    std::vector<std::string> command = {trainer_, "--skip-train", "--load", step, "--load-unhealthy"};
    for (const std::string& word :
         {std::string("--seq-length"), std::to_string(batches_.seq_length), std::string("--data-path"),
          prefix, std::string("--split"), std::string("0,1,0"), std::string("--eval-iters"),
          std::to_string(batches_.count), std::string("--log-json"), log})
      command.push_back(word);
    Progress progress("evaluating", static_cast<uint64_t>(batches_.count), options_.show_progress, "batches");
    CAIRN_ASSIGN_OR_RETURN(const ChildOutcome child,
                           RunChild(command, "", [&] { progress.Update(LinesOf(log)); }));
    if (child.exit != 0)
      return InvalidArgument("cairn-train (status {}): {}", child.exit, ReasonOf(child.err));
    CAIRN_ASSIGN_OR_RETURN(std::vector<double> losses, ReadLosses(log));
    if (losses.size() != static_cast<size_t>(batches_.count))
      return Corrupt("cairn-train evaluated {} of {} batches", losses.size(), batches_.count);
    return losses;
  }

  FileSystem& fs_;
  const LossOptions& options_;
  const LossBatches batches_;
  const std::string trainer_;
  const std::string scratch_;
  int runs_ = 0;
};

}  // namespace

Result<LossBatches> ParseLossBatches(const std::string& text) {
  LossBatches batches{.source = text};
  const size_t colon = text.rfind(':');
  const std::string_view end = colon == text.npos ? "" : std::string_view(text).substr(colon + 1);
  if (const auto count = ParseNumber<int64_t>(end)) {  // otherwise it is a colon of the name
    if (*count < 1) return InvalidArgument("--loss {}: the number of batches must be at least 1", text);
    batches = {.source = text.substr(0, colon), .count = *count};
  }
  if (batches.source.empty())
    return InvalidArgument("--loss {}: write PREFIX, FILE.txt or mock, with :N for N batches", text);
  return batches;
}

Status FitToModels(const Model& a, const Model& b, int64_t asked, LossBatches& batches) {
  batches.seq_length = asked > 0 ? asked : kDefaultSeqLength;
  batches.vocabulary = std::min(IntOf(a.vocab_size), IntOf(b.vocab_size));
  for (const Model* model : {&a, &b}) {
    const int64_t positions = IntOf(model->max_position_embeddings);
    if (asked > 0 && positions > 0 && asked > positions)
      return InvalidArgument("--seq-length {} is more than the {} positions of a model", asked, positions);
    if (positions > 0) batches.seq_length = std::min(batches.seq_length, positions);
  }
  return OkStatus();
}

Result<std::string> DatasetOf(FileSystem& fs, const LossBatches& batches, const std::string& scratch) {
  const bool made_up = batches.source == kMock;
  if (!made_up && fs.Stat(batches.source + ".idx").ok()) return batches.source;
  if (!made_up && !batches.source.ends_with(".txt"))
    return NotFound(
        "--loss {0}: there is no {0}.idx; give the PREFIX of an indexed dataset, a .txt file of "
        "token ids, or mock:N",
        batches.source);
  const std::string prefix = scratch + "/tokens";
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.Create(TokensPath(prefix)));
  WriteRing ring(fs);
  SequentialWriter tokens(ring, file.get(), 0);
  std::vector<int32_t> lengths;
  const auto take = [&](std::span<const int32_t> document) {
    tokens.Append(std::as_bytes(document));
    lengths.push_back(static_cast<int32_t>(document.size()));
  };
  CAIRN_RETURN_IF_ERROR(made_up ? MakeUp(batches, take) : ReadTokens(batches.source, take));
  if (lengths.empty()) return InvalidArgument("--loss {}: it has no tokens", batches.source);
  tokens.Flush();
  CAIRN_RETURN_IF_ERROR(ring.Drain().WithContext("the temporary copy (TMPDIR says where)"));
  CAIRN_RETURN_IF_ERROR(file->Close());
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, IndexPath(prefix), EncodeIndex(TokenType::kI32, lengths)));
  return prefix;
}

double Losses::mean() const {
  return std::accumulate(batches.begin(), batches.end(), 0.0) / static_cast<double>(batches.size());
}

LossComparison Compare(Losses a, Losses b, int64_t seq_length, double tolerance) {
  LossComparison comparison{std::move(a), std::move(b), seq_length};
  for (size_t i = 0; i < comparison.a.batches.size(); ++i) {
    const double x = comparison.a.batches[i], y = comparison.b.batches[i];
    const double difference = x == y ? 0 : std::abs(x - y) / std::max(std::abs(x), std::abs(y));
    const bool within = std::isfinite(x) && std::isfinite(y) && difference <= tolerance;
    comparison.equal &= within;
    if (std::isfinite(comparison.largest) && !(difference <= comparison.largest))
      comparison.largest = difference, comparison.worst = i;
  }
  return comparison;
}

Result<LossComparison> CompareLosses(FileSystem& fs, const LossOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(LossBatches batches, ParseLossBatches(options.batches));
  CAIRN_ASSIGN_OR_RETURN(const std::string trainer, FindTrainer());
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource a, OpenWeights(fs, options.a, options.open));
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource b, OpenWeights(fs, options.b, options.open));
  for (const OpenedSource* opened : {&a, &b})
    if (IntOf(opened->source().manifest().model.vocab_size) < 1)
      return NotSupported("{}: it does not say of which model its weights are", opened->source().name());
  CAIRN_RETURN_IF_ERROR(
      FitToModels(a.source().manifest().model, b.source().manifest().model, options.seq_length, batches));
  CAIRN_ASSIGN_OR_RETURN(const ScratchDir scratch, ScratchDir::Make());
  CAIRN_ASSIGN_OR_RETURN(const std::string prefix, DatasetOf(fs, batches, scratch.path()));
  LossRun run(fs, options, batches, trainer, scratch);
  CAIRN_ASSIGN_OR_RETURN(Losses of_a, run.Evaluate(a, prefix));
  CAIRN_ASSIGN_OR_RETURN(Losses of_b, run.Evaluate(b, prefix));
  return Compare(std::move(of_a), std::move(of_b), batches.seq_length, options.tolerance);
}

}  // namespace cairn
