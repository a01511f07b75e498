// One pass over the lines: a row is kept as a possible heading until a rule below it confirms it; in CSV the
// first line is the heading. The heading gives each column its role. Then the cells of each row fill a
// RunConfig, a formula computes the TFLOPs from it, and the new number replaces the old digits, padded to the
// width of the cell. A line is split by offsets and joined from pieces of the input: everything else is
// unchanged, byte for byte.

#include "tools/report/rewrite_table.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tools/report/config_text.h"
#include "tools/report/numbers.h"

namespace cairn {
namespace {

enum class Role { kNone, kField, kSize, kRecompute, kSeconds, kTflops };

struct Column {
  Role role = Role::kNone;
  std::string_view field = {};  // for kField: a name of run_config.h
};

struct Heading {
  Role role;
  std::vector<std::string_view> words;  // of the heading, only letters
};
const Heading kHeadings[] = {
    {Role::kSize, {"size", "sizeb", "params"}},
    {Role::kRecompute, {"recompute"}},
    {Role::kSeconds, {"secit", "seciter", "sit", "secondsit", "secperit", "timeit", "speed"}},
    {Role::kTflops, {"tflops", "tflopsgpu", "tflop", "tflopsgpus"}},
};

struct Cell {
  size_t begin, end;  // offsets in the line, between the bars
};

// The line must begin with a bar; a backslash takes the next character as it is.
std::vector<Cell> MarkdownCells(std::string_view line) {
  std::vector<Cell> cells;
  size_t begin = std::min(line.find_first_not_of(" \t"), line.size());
  if (begin == line.size() || line[begin] != '|') return cells;
  for (size_t k = ++begin; k < line.size(); ++k) {
    if (line[k] == '\\')
      ++k;
    else if (line[k] == '|')
      cells.push_back({std::exchange(begin, k + 1), k});
  }
  return cells;
}

std::vector<Cell> CsvCells(std::string_view line) {
  std::vector<Cell> cells;
  if (Trim(line).empty()) return cells;
  bool quoted = false;
  size_t begin = 0;
  for (size_t k = 0; k < line.size(); ++k) {
    quoted ^= line[k] == '"';
    if (line[k] == ',' && !quoted) cells.push_back({std::exchange(begin, k + 1), k});
  }
  cells.push_back({begin, line.size()});
  return cells;
}

std::string_view TextOf(std::string_view line, Cell cell) {
  return Trim(line.substr(cell.begin, cell.end - cell.begin));
}

bool IsRule(std::string_view line, const std::vector<Cell>& cells) {
  if (cells.empty()) return false;
  for (const Cell cell : cells) {
    const std::string_view text = TextOf(line, cell);
    if (text.empty() || text.find_first_not_of("-: ") != text.npos || text.find('-') == text.npos)
      return false;
  }
  return true;
}

Column ColumnOf(std::string_view heading) {
  std::string word;
  for (const char c : heading.substr(0, heading.find('(')))
    if (IsLetter(c)) word += LowerCase(c);
  for (const Heading& known : kHeadings)
    if (std::ranges::find(known.words, word) != known.words.end()) return {known.role};
  if (word == "h") word = "hidden";  // in a file's name it is an H100's
  const ConfigCount* count = word.size() > 1 ? CountOfWord(word) : nullptr;
  return count ? Column{Role::kField, count->name} : Column{};
}

// The number in a cell, after emphasis and signs like "~".
struct CellNumber {
  double value;
  size_t begin, end;  // in the text
};
// "21e3.5" and "21e1e3" are not numbers: a new number would merge with the rest.
bool Continues(std::string_view rest) {
  if (rest.starts_with('.')) rest.remove_prefix(1);
  if (!rest.empty() && IsDigit(rest[0])) return true;
  if (rest.empty() || LowerCase(rest[0]) != 'e') return false;
  const size_t digit = rest.size() > 1 && (rest[1] == '-' || rest[1] == '+') ? 2 : 1;
  return rest.size() > digit && IsDigit(rest[digit]);
}

std::optional<CellNumber> NumberIn(std::string_view text) {
  const size_t begin = text.find_first_not_of("*_~`<> ");
  if (begin == text.npos || (!IsDigit(text[begin]) && text[begin] != '.')) return std::nullopt;
  const auto number = NumberAt(text.substr(begin));
  if (!number) return std::nullopt;
  const size_t end = begin + number->length;
  if (Continues(text.substr(end))) return std::nullopt;
  return CellNumber{number->value, begin, text[end - 1] == '.' ? end - 1 : end};  // "27..." is 27 and dots
}

struct Row {
  RunConfig config;
  std::optional<double> seconds;
};

// "Speed" may also be a rate: "12 it/s", "300 samples/sec".
bool IsRate(std::string_view unit) {
  while (!unit.empty() && !IsLetter(unit.back())) unit.remove_suffix(1);
  return unit.ends_with("/s") || unit.ends_with("/sec") || unit.ends_with("/second");
}

void TakeCell(const Column& column, std::string_view text, Row& row) {
  if (column.role == Role::kRecompute && !text.empty())
    row.config.recompute = text != "selective" && text != "none" && text != "no";
  const auto number = NumberIn(text);
  if (!number || !(number->value > 0)) return;
  const std::string_view unit = Trim(text.substr(number->end));
  if (column.role == Role::kSize)
    row.config.size_b = number->value * (unit.starts_with('M') ? 1e-3 : unit.starts_with('T') ? 1e3 : 1);
  else if (column.role == Role::kSeconds && !IsRate(unit))
    row.seconds = number->value * (unit.starts_with("ms") ? 1e-3 : 1);
  else if (column.role == Role::kField)
    TakeField(column.field, text.substr(number->begin, number->end - number->begin), row.config);
}

// `lacking` gets the inputs that are missing.
std::optional<double> Tflops(Row row, const RewriteOptions& options, std::vector<std::string>& lacking) {
  FillFrom(options.defaults, row.config);
  RunConfig& config = row.config;
  Derive(config);
  for (const auto& [name, is_there] :
       {std::pair{"seconds", row.seconds.has_value()}, std::pair{"gpus", config.gpus.has_value()},
        std::pair{"global_batch_size", config.gbs.has_value()},
        std::pair{"seq_length", config.seq.has_value()}})
    if (!is_there) lacking.emplace_back(name);
  if (!lacking.empty()) return std::nullopt;
  // Authors computed with the size in their table.
  const auto parameters = config.size_b ? std::optional(*config.size_b * 1e9) : Parameters(config);
  const auto tflops =
      TflopsOf(config, parameters, static_cast<double>(*config.gbs), *row.seconds).Of(options.formula);
  if (!tflops) lacking.emplace_back("size");
  return tflops;
}

int DecimalsOf(std::string_view number) {
  const size_t dot = number.find('.');
  return dot == number.npos ? 0 : static_cast<int>(std::min<size_t>(number.size() - dot - 1, 9));
}

// The cell's text with the new number, in the old width if possible; CSV has no width.
std::optional<std::string> NewCell(std::string_view raw, double tflops, TableSyntax syntax) {
  const std::string_view text = Trim(raw);
  const size_t left = text.empty() ? raw.size() / 2 : static_cast<size_t>(text.data() - raw.data());
  std::string fresh;
  if (const auto old = NumberIn(text)) {
    const int decimals = DecimalsOf(text.substr(old->begin, old->end - old->begin));
    fresh = std::string(text.substr(0, old->begin)) + fmt::format("{:.{}f}", tflops, decimals) +
            std::string(text.substr(old->end));
  } else if (text.empty() || text == "-" || text == "?") {
    fresh = fmt::format("{:.2f}", tflops);
  } else {
    return std::nullopt;
  }
  if (syntax == TableSyntax::kCsv) return fresh;
  size_t before = left, after = raw.size() - left - text.size();
  for (size_t wide = text.size(); wide < fresh.size(); ++wide) {
    if (before > 1)
      --before;
    else if (after > 1)
      --after;
  }
  if (fresh.size() < text.size()) before += text.size() - fresh.size();
  return std::string(std::max<size_t>(before, 1), ' ') + fresh + std::string(std::max<size_t>(after, 1), ' ');
}

class Rewriter {
 public:
  explicit Rewriter(const RewriteOptions& options) : options_(options) {}

  // `line` without its end.
  void Line(std::string_view line) {
    const std::vector<Cell> cells = CellsOf(line);
    const bool csv = options_.syntax == TableSyntax::kCsv;
    const bool begins = csv ? columns_.empty() : IsRule(line, cells) && !heading_.empty();
    if (!begins && !cells.empty() && !columns_.empty()) return TableRow(line, cells);
    out_.text += line;
    if (csv && begins) heading_ = line;
    if (begins) return BeginTable();
    columns_.clear();
    heading_ = cells.empty() ? "" : line;
  }

  void End(std::string_view line_end) { out_.text += line_end; }
  RewrittenText& out() { return out_; }

 private:
  std::vector<Cell> CellsOf(std::string_view line) const {
    return options_.syntax == TableSyntax::kCsv ? CsvCells(line) : MarkdownCells(line);
  }

  void BeginTable() {
    columns_.clear();
    bool tflops = false, seconds = false;
    for (const Cell cell : CellsOf(heading_)) {
      Column column = ColumnOf(TextOf(heading_, cell));
      if (column.role == Role::kTflops && std::exchange(tflops, true)) column = {};
      seconds |= column.role == Role::kSeconds;
      columns_.push_back(column);
    }
    heading_.clear();
    out_.tables += tflops;
    out_.without_seconds += tflops && !seconds;
  }

  void TableRow(std::string_view line, const std::vector<Cell>& cells) {
    Row row;
    std::optional<Cell> target;
    // A CSV row that does not fit its heading continues on the next line, or from the one before.
    const bool fits = options_.syntax == TableSyntax::kMarkdown || cells.size() == columns_.size();
    const bool blank = std::ranges::all_of(cells, [&](Cell cell) { return TextOf(line, cell).empty(); });
    for (size_t i = 0; fits && !blank && i < std::min(cells.size(), columns_.size()); ++i) {
      TakeCell(columns_[i], TextOf(line, cells[i]), row);
      if (columns_[i].role == Role::kTflops) target = cells[i];
    }
    if (!target) return void(out_.text += line);
    const std::string_view raw = line.substr(target->begin, target->end - target->begin);
    std::vector<std::string> lacking;
    const auto tflops = Tflops(row, options_, lacking);
    const auto fresh = tflops && *tflops < 1e9 ? NewCell(raw, *tflops, options_.syntax) : std::nullopt;
    out_.computed += fresh.has_value();
    out_.left += !fresh.has_value();
    if (!fresh && lacking.empty()) lacking.emplace_back("tflops");
    for (const std::string& name : lacking) ++out_.lacking[name];
    const bool same = !fresh || Trim(*fresh) == Trim(raw);
    out_.changed += !same;
    out_.text += line.substr(0, target->begin);
    out_.text += same ? raw : std::string_view(*fresh);
    out_.text += line.substr(target->end);
  }

  const RewriteOptions& options_;
  RewrittenText out_;
  std::string heading_;          // the row that may be one
  std::vector<Column> columns_;  // of the current table; empty: none
};

}  // namespace

Result<RewrittenText> RewriteTflops(std::string_view markdown, const RewriteOptions& options) {
  Rewriter rewriter(options);
  while (!markdown.empty()) {
    const size_t newline = markdown.find('\n');
    size_t end = newline == markdown.npos ? markdown.size() : newline;
    const size_t next = newline == markdown.npos ? end : newline + 1;
    if (end > 0 && markdown[end - 1] == '\r') --end;
    rewriter.Line(markdown.substr(0, end));
    rewriter.End(markdown.substr(end, next - end));
    markdown.remove_prefix(next);
  }
  if (rewriter.out().tables == 0)
    return InvalidArgument("no table has a column TFLOPs; the heading must name the columns");
  return std::move(rewriter.out());
}

}  // namespace cairn
