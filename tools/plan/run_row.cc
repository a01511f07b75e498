// Each row is first parsed by itself: its shape, then the measurements, then its setup, because the measured
// columns may resolve a contradiction in the setup. Blank heads are those of other rows of the same width,
// and are filled in once all rows are known. Then a blank micro-batch is left open among those that fit by
// the priors of memory, and seconds that are blank, or would mean more than the GPU's peak, are computed from
// TFLOPs.

#include "tools/plan/run_row.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "ckpt/base/parse_number.h"
#include "tools/plan/formulas.h"
#include "tools/plan/memory_model.h"
#include "tools/plan/stage_layers.h"

namespace cairn {
namespace {

constexpr double kLargestNumber = 1e9;  // of any number in a row
constexpr double kLargestCount = 1e6;   // a product of three fits int64_t
constexpr int64_t kMostLayers = 100'000;
constexpr int64_t kMicroBatches[] = {1, 2, 4, 8, 16};
constexpr double kContradiction = 1.15;  // GPUs from TFLOPs and seconds must agree this well to resolve a row

// True if a cell says that the run went out of memory.
bool SaysOom(std::string_view cell) {
  std::string upper(cell);
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  return upper == "OOM" || upper == "FAIL" || upper.starts_with("OUT OF MEMORY");
}

constexpr std::pair<const char*, Precision> kPrecisions[] = {{"bf16", Precision::kBf16},
                                                             {"fp16", Precision::kFp16},
                                                             {"fp32", Precision::kFp32},
                                                             {"fp8", Precision::kFp8}};

class RowReader {
 public:
  RowReader(const CsvTable& table, const CsvTable::Row& row) : table_(table), row_(row) {}

  // nullopt if the cell is blank.
  Result<std::optional<double>> Number(std::string_view column) const {
    std::string_view cell = table_.Cell(row_, column);
    while (cell.starts_with(' ')) cell.remove_prefix(1);
    while (cell.ends_with(' ')) cell.remove_suffix(1);
    if (cell.empty() || SaysOom(cell)) return std::optional<double>();
    const auto value = ParseNumber<double>(cell);
    if (!value || !(*value >= 0) || *value > kLargestNumber)
      return InvalidArgument("{}: '{}' is not a number from 0 to 1e9", Where(column), Shown(cell));
    return value;
  }

  Result<int64_t> Count(std::string_view column, std::optional<int64_t> otherwise, int64_t least = 1) const {
    CAIRN_ASSIGN_OR_RETURN(const std::optional<double> value, Number(column));
    if (!value && otherwise) return *otherwise;
    if (!value) return InvalidArgument("{}: a number is needed", Where(column));
    if (*value < least || *value > kLargestCount || *value != std::floor(*value))
      return InvalidArgument("{}: {} is not a whole number from {} to 1e6", Where(column), *value, least);
    return static_cast<int64_t>(*value);
  }

  // 0 or 1.
  Result<bool> Flag(std::string_view column, bool otherwise) const {
    CAIRN_ASSIGN_OR_RETURN(const int64_t value, Count(column, otherwise ? 1 : 0, 0));
    if (value > 1) return InvalidArgument("{}: {} is neither 0 nor 1", Where(column), value);
    return value == 1;
  }

  // A blank cell leaves `choice` as it is. Errors: InvalidArgument naming the words.
  template <typename Choice>
  Status Word(std::string_view column, std::span<const std::pair<const char*, Choice>> words,
              Choice& choice) const {
    const std::string& cell = Cell(column);
    if (cell.empty()) return OkStatus();
    for (const auto& [word, value] : words)
      if (cell == word) return choice = value, OkStatus();
    std::vector<std::string_view> known;
    for (const auto& [word, _] : words) known.push_back(word);
    return InvalidArgument("{}: '{}' is not one of {}", Where(column), Shown(cell), fmt::join(known, ", "));
  }

  std::string Where(std::string_view column) const {
    return fmt::format("{}:{}: {}", table_.name, row_.line, column);
  }
  const std::string& Cell(std::string_view column) const { return table_.Cell(row_, column); }
  int line() const { return row_.line; }

 private:
  const CsvTable& table_;
  const CsvTable::Row& row_;
};

// Layers from a size in billions: of the numbers that the stages divide, the one with the nearest size, with
// or without the embedding, because tables have both.
int64_t LayersFromSize(double size_b, int64_t hidden, double embedding, int64_t pp) {
  const double width = static_cast<double>(hidden);
  const double layer = 12 * width * width + 13 * width;
  int64_t best = 0;
  double distance = INFINITY;
  const int64_t most = std::min<int64_t>(kMostLayers, static_cast<int64_t>(size_b * 1e9 / layer) + 2 * pp);
  for (int64_t layers = pp; layers <= most; layers += pp) {
    for (const double beside : {0.0, embedding}) {
      const double d = std::abs(layers * layer + beside - size_b * 1e9);
      if (d < distance) distance = d, best = layers;
    }
  }
  return best;
}

// Used before heads are known; all together are as wide as the model.
double TflopsOf(const RunRow& row, double seconds, int64_t gpus) {
  ModelShape shape = row.shape;
  shape.heads = 1;
  return MegatronTflops(shape, row.setup.tp, row.setup.global_batch, seconds, gpus, row.setup.recompute);
}

class RowParser {
 public:
  RowParser(const CsvTable& table, bool measured, const Cluster& cluster, Program program)
      : table_(table), measured_(measured), cluster_(cluster), program_(program) {}

  Result<RunRows> Parse(const std::vector<RunRow>& like) {
    for (const char* column : {"hidden", "tp", "pp", "mbs", "gbs"})
      if (table_.Column(column) < 0) return InvalidArgument("{}: no column '{}'", table_.name, column);
    for (const CsvTable::Row& row : table_.rows) {
      CAIRN_ASSIGN_OR_RETURN(RunRow run, ParseRow(RowReader(table_, row)));
      result_.rows.push_back(std::move(run));
    }
    FillHeads(like);
    for (RunRow& row : result_.rows) {
      CAIRN_RETURN_IF_ERROR(CheckHeads(row));
      SettleMicroBatch(row);
      SettleSpeed(row);
    }
    if (blank_micro_batches_ > 0)
      result_.notes.push_back(fmt::format("{}: {} rows have no micro-batch; read as the fastest that fits",
                                          table_.name, blank_micro_batches_));
    return std::move(result_);
  }

 private:
  Result<RunRow> ParseRow(const RowReader& reader) {
    RunRow row;
    CAIRN_RETURN_IF_ERROR(ParseShape(reader, row));
    if (measured_) CAIRN_RETURN_IF_ERROR(ParseMeasured(reader, row));
    CAIRN_RETURN_IF_ERROR(ParseSetup(reader, row));
    row.group = reader.Cell("table");
    return row;
  }

  Status ParseShape(const RowReader& reader, RunRow& row) {
    row.line = reader.line();
    ModelShape& shape = row.shape;
    CAIRN_ASSIGN_OR_RETURN(shape.hidden, reader.Count("hidden", {}));
    CAIRN_ASSIGN_OR_RETURN(shape.heads, reader.Count("heads", 0, 0));
    CAIRN_ASSIGN_OR_RETURN(shape.seq, reader.Count("seq", 2048));
    CAIRN_ASSIGN_OR_RETURN(shape.vocab, reader.Count("vocab", 250000));
    CAIRN_ASSIGN_OR_RETURN(const auto size_b, reader.Number("size_b"));
    row.size_b = size_b.value_or(0);
    CAIRN_ASSIGN_OR_RETURN(const int64_t pp, reader.Count("pp", {}));
    CAIRN_ASSIGN_OR_RETURN(shape.layers, reader.Count("layers", 0, 0));
    if (shape.layers > 0) return OkStatus();
    if (row.size_b <= 0)
      return InvalidArgument("{} and size_b are both blank; one is needed", reader.Where("layers"));
    shape.layers =
        LayersFromSize(row.size_b, shape.hidden, shape.EmbeddingParams() + shape.PositionParams(), pp);
    if (shape.layers == 0)
      return InvalidArgument("{}: no number of layers of this width gives {} B", reader.Where("size_b"),
                             row.size_b);
    return OkStatus();
  }

  Status ParseMeasured(const RowReader& reader, RunRow& row) {
    CAIRN_ASSIGN_OR_RETURN(row.memory_gb, reader.Number("mem_gb"));
    CAIRN_ASSIGN_OR_RETURN(row.seconds, reader.Number("sec_per_it"));
    CAIRN_ASSIGN_OR_RETURN(row.tflops, reader.Number("tflops"));
    for (const char* column : {"mem_gb", "sec_per_it", "tflops"})
      row.out_of_memory |= SaysOom(reader.Cell(column));
    row.out_of_memory |= !row.seconds && !row.tflops && reader.Cell("note").find("OOM") != std::string::npos;
    for (auto* value : {&row.memory_gb, &row.seconds, &row.tflops})
      if (*value == 0.0) value->reset();
    return OkStatus();
  }

  Status ParseSetup(const RowReader& reader, RunRow& row) {
    RunSetup& setup = row.setup;
    CAIRN_ASSIGN_OR_RETURN(setup.tp, reader.Count("tp", {}));
    CAIRN_ASSIGN_OR_RETURN(setup.pp, reader.Count("pp", {}));
    CAIRN_ASSIGN_OR_RETURN(setup.micro_batch, reader.Count("mbs", 0));
    CAIRN_ASSIGN_OR_RETURN(setup.global_batch, reader.Count("gbs", {}));
    CAIRN_ASSIGN_OR_RETURN(setup.zero, reader.Count("zero", 1, 0));
    CAIRN_ASSIGN_OR_RETURN(setup.gpus, reader.Count("gpus", 0, 0));
    CAIRN_ASSIGN_OR_RETURN(setup.dp, reader.Count("dp", 0, 0));
    CAIRN_RETURN_IF_ERROR(reader.Word<Precision>("precision", kPrecisions, setup.precision));
    CAIRN_RETURN_IF_ERROR(reader.Word<Recomputation>("recompute", kRecomputations, setup.recompute));
    setup.program = program_;
    CAIRN_ASSIGN_OR_RETURN(setup.virtual_stages, reader.Count("virtual_stages", 1));
    CAIRN_ASSIGN_OR_RETURN(setup.first_layers, reader.Count("first_layers", 0, 0));
    CAIRN_ASSIGN_OR_RETURN(setup.last_layers, reader.Count("last_layers", 0, 0));
    if ((setup.first_layers > 0 || setup.last_layers > 0) && !StagesAreWhole(row.shape, setup))
      return InvalidArgument(
          "{}: with {} and {} in the first and last of {} stages the rest of {} layers cannot be divided "
          "evenly among the others",
          reader.Where("first_layers"), setup.first_layers, setup.last_layers, setup.pp, row.shape.layers);
    CAIRN_ASSIGN_OR_RETURN(setup.sequence_parallel, reader.Flag("sequence_parallel", false));
    const bool noted = reader.Cell("note").find("flash attention") != std::string::npos;
    CAIRN_ASSIGN_OR_RETURN(setup.flash_attention, reader.Flag("flash_attention", noted));
    if (setup.virtual_stages > 1 && setup.pp == 1)
      return InvalidArgument("{}: {} need a pipeline of more than one stage", reader.Where("virtual_stages"),
                             setup.virtual_stages);
    if (setup.zero > 3)
      return InvalidArgument("{}: {} is not a ZeRO stage", reader.Where("zero"), setup.zero);
    const int64_t copy = setup.tp * setup.pp;
    if (setup.gpus == 0 && setup.dp == 0)
      return InvalidArgument("{} and dp are both blank; one is needed", reader.Where("gpus"));
    if (setup.dp == 0) setup.dp = setup.gpus / copy;
    if (setup.gpus == 0) setup.gpus = setup.dp * copy;
    if (setup.dp * copy != setup.gpus) CAIRN_RETURN_IF_ERROR(SettleGpus(reader, row));
    return OkStatus();
  }

  // GPUs is not TP * PP * DP. The column of GPUs is the scheduler's number, and counts if TP * PP divides it.
  Status SettleGpus(const RowReader& reader, RunRow& row) {
    RunSetup& setup = row.setup;
    const int64_t copy = setup.tp * setup.pp;
    const bool divides = setup.gpus % copy == 0 && setup.gpus > 0;
    const std::string said = fmt::format("{}*{}*{} is not {} GPUs", setup.dp, setup.tp, setup.pp, setup.gpus);
    if (!divides && setup.dp == 0) return InvalidArgument("{}: {}", reader.Where("gpus"), said);
    const bool by_product =
        !divides || (row.seconds && row.tflops && Agrees(row, setup.dp * copy) && !Agrees(row, setup.gpus));
    if (by_product)
      setup.gpus = setup.dp * copy;
    else
      setup.dp = setup.gpus / copy;
    Note(reader.Where("gpus"), "{}; read as {} GPUs with DP={}", said, setup.gpus, setup.dp);
    return OkStatus();
  }

  static bool Agrees(const RunRow& row, int64_t gpus) {
    const double ratio = TflopsOf(row, *row.seconds, gpus) / *row.tflops;
    return ratio < kContradiction && ratio > 1 / kContradiction;
  }

  using Votes = std::map<int64_t, int>;  // rows by their number of heads

  // Blank heads: those that most rows of this width have.
  void FillHeads(const std::vector<RunRow>& like) {
    std::map<int64_t, Votes> by_width;
    for (const auto* rows : {&like, &std::as_const(result_.rows)})
      for (const RunRow& row : *rows)
        if (row.shape.heads > 0) ++by_width[row.shape.hidden][row.shape.heads];
    int filled = 0;
    for (RunRow& row : result_.rows) {
      if (row.shape.heads > 0) continue;
      row.shape.heads = LikelyHeads(by_width[row.shape.hidden], row.shape);
      ++filled;
    }
    if (filled > 0)
      result_.notes.push_back(fmt::format(
          "{}: {} rows have no heads; read as those of rows of the same width, else as heads of about 128",
          table_.name, filled));
  }

  // The most frequent; the smallest of equals.
  static int64_t LikelyHeads(const Votes& votes, const ModelShape& shape) {
    if (!votes.empty()) return std::ranges::max_element(votes, {}, &Votes::value_type::second)->first;
    // None seen: the divisor of the width that brings the head dimension nearest to 128.
    int64_t heads = 1;
    for (int64_t h = 1; h <= std::min<int64_t>(shape.hidden, 4096); ++h)
      if (shape.hidden % h == 0 && std::abs(shape.hidden / h - 128) < std::abs(shape.hidden / heads - 128))
        heads = h;
    return heads;
  }

  Status CheckHeads(const RunRow& row) const {
    if (row.shape.heads <= row.shape.hidden) return OkStatus();
    return InvalidArgument("{}:{}: more heads ({}) than hidden ({})", table_.name, row.line, row.shape.heads,
                           row.shape.hidden);
  }

  // Sets the micro-batches that a row may have had.
  void SettleMicroBatch(RunRow& row) {
    RunSetup& setup = row.setup;
    if (setup.micro_batch > 0) return;
    MemoryConstants believed;
    for (const auto& info : MemoryConstantInfos()) believed.*info.field = info.mean;
    for (const int64_t size : kMicroBatches) {
      setup.micro_batch = size;
      const bool fits = MemoryOf(row.shape, setup, believed).Peak() <= cluster_.memory_gb;
      if (size == 1 || (fits && setup.global_batch % (size * setup.dp) == 0))
        row.micro_batches.push_back(size);
    }
    setup.micro_batch = 1;
    ++blank_micro_batches_;
  }

  void SettleSpeed(RunRow& row) {
    const std::string where = fmt::format("{}:{}", table_.name, row.line);
    if (row.seconds && row.tflops) {
      const double implied = TflopsOf(row, *row.seconds, row.setup.gpus);
      if (implied <= cluster_.PeakFlops(row.setup.precision) / 1e12) return;
      const double seconds = *row.seconds * implied / *row.tflops;
      Note(where, "{} s would be {:.0f} TFLOPs, above the GPU's peak; read as {:.1f} s, by its {} TFLOPs",
           *row.seconds, implied, seconds, *row.tflops);
      row.seconds = seconds;
    } else if (!row.seconds && row.tflops) {
      // Rows with only TFLOPs computed them by the plain formula from the size in the table.
      const double params = row.size_b > 0 ? row.size_b * 1e9 : row.shape.TotalParams();
      row.seconds = SimpleTflops(params, row.shape.seq, row.setup.global_batch, 1, row.setup.gpus,
                                 row.setup.recompute == Recomputation::kFull) /
                    *row.tflops;
      Note(where, "seconds are blank; {} TFLOPs by the plain formula give {:.1f} s", *row.tflops,
           *row.seconds);
    }
  }

  template <typename... Args>
  void Note(const std::string& where, fmt::format_string<Args...> format, Args&&... args) {
    result_.notes.push_back(where + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  const CsvTable& table_;
  bool measured_;
  const Cluster& cluster_;
  Program program_;
  int blank_micro_batches_ = 0;
  RunRows result_;
};

}  // namespace

Result<RunRows> ParseRunRows(const CsvTable& table, bool measured, const Cluster& cluster,
                             const std::vector<RunRow>& like, Program program) {
  return RowParser(table, measured, cluster, program).Parse(like);
}

}  // namespace cairn
