// A line is cut into fields "name: value" between bars. Current names are found whole in kFieldNames, which
// covers most lines; any other name goes to TakeOddField, which looks for words in it. A field with a long
// value may contain another line, because a line end was lost; reading then resumes at the next "iteration
// N". DeepSpeed's lines are parsed at the end of this file, by fixed words.

#include "tools/report/iteration_line.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

namespace cairn {
namespace {

struct Unit {
  std::string_view name;
  double seconds;
};
constexpr Unit kUnits[] = {{"ms", 1e-3},   {"msec", 1e-3}, {"milliseconds", 1e-3},
                           {"us", 1e-6},   {"usec", 1e-6}, {"microseconds", 1e-6},
                           {"s", 1},       {"sec", 1},     {"secs", 1},
                           {"seconds", 1}, {"min", 60},    {"minutes", 60}};

// The unit that `text` begins with; null if it begins with another word.
const Unit* UnitAt(std::string_view text) {
  size_t letters = 0;
  while (letters < text.size() && IsLetter(text[letters])) ++letters;
  const auto found = std::ranges::find_if(
      kUnits, [&](const Unit& unit) { return SameWord(unit.name, text.substr(0, letters)); });
  return found == std::end(kUnits) ? nullptr : found;
}

// nanotron writes 4130 as "4.13K". 1 for other numbers.
double ShortenedBy(std::string_view value) {
  constexpr std::pair<char, double> kLetters[] = {{'K', 1e3}, {'M', 1e6}, {'B', 1e9}, {'T', 1e12}};
  for (const auto& [letter, factor] : kLetters)
    if (value.size() > 1 && value.back() == letter && IsDigit(value[value.size() - 2])) return factor;
  return 1;
}

// A time in seconds. Its unit is in the name, "(ms)", " ms", "_ms", or after the number, "1234.5 ms".
double SecondsIn(std::string_view name, std::string_view value) {
  const auto number = NumberAt(value);
  if (!number || !(number->value >= 0)) return kNoNumber;
  const size_t bracket = name.find_last_of("(["), last = bracket == npos ? name.find_last_of(" _") : bracket;
  const Unit* unit = last == npos ? nullptr : UnitAt(name.substr(last + 1));
  if (unit == nullptr) unit = UnitAt(Trim(value.substr(number->length)));
  return number->value * ShortenedBy(value) * (unit == nullptr ? 1 : unit->seconds);
}

constexpr int kLanguageModelLoss = 3;

void SetLoss(std::string_view value, IterationLine& line) {
  line.loss = NumberOf(value);
  line.nan_loss = NumberAt(value).has_value() && !std::isfinite(line.loss);
}

void TakeLoss(std::string_view name, std::string_view value, IterationLine& line, int& rank) {
  // The language model's own loss is preferred to other sums of it, these to losses of auxiliary terms.
  const bool of_training = FindWord(name, "loss") == 0 || FindWord(name, "train") != npos;
  const int this_rank = SameWord(name, "lm loss") ? kLanguageModelLoss : of_training ? 2 : 1;
  if (this_rank <= rank) return;
  rank = this_rank;
  SetLoss(value, line);
}

bool IsStepTime(std::string_view name) {
  const auto has = [name](std::string_view word) { return FindWord(name, word) != npos; };
  return (has("time") && has("iter")) || has("step timing") || has("step time");
}

// Other names, by the words in them, which blanks separate.
void TakeOddField(std::string_view name, std::string_view value, IterationLine& line, int& loss_rank) {
  const auto has = [name](std::string_view word) { return FindWord(name, word) != npos; };
  if (has("tflop") && !has("hardware")) {
    line.tflops = NumberOf(value);
  } else if (has("loss") && !has("scale")) {
    TakeLoss(name, value, line, loss_rank);
  } else if (IsStepTime(name)) {
    const double seconds = SecondsIn(name, value);
    if (std::isnan(line.seconds) || has("elapsed")) line.seconds = seconds;
  } else if (has("consumed") && has("samples")) {
    line.consumed_samples = CountOf(value);
  } else if (has("batch") && has("size") && (has("global") || has("gloabl"))) {
    line.global_batch = CountOf(value);
  } else if (has("grad") && has("norm")) {
    line.grad_norm = NumberOf(value);
  } else if (has("skipped") && has("iter")) {
    line.skipped = CountOf(value);
  } else if (has("nan") && has("iter")) {
    line.nans = CountOf(value);
  } else if (has("samples") && has("sec")) {
    line.samples_per_second = NumberOf(value);
  }
}

// Current names, compared whole: most lines have no others. One of the fields; neither: it is ignored.
struct FieldName {
  std::string_view name;
  double IterationLine::*number = nullptr;
  int64_t IterationLine::*count = nullptr;
  double of_one = 1;  // how many of the written units are one
};
using Line = IterationLine;
constexpr FieldName kFieldNames[] = {
    {"lm loss", &Line::loss},
    {"grad norm", &Line::grad_norm},
    {"num zeros"},
    {"loss scale"},
    {"params norm"},
    {"learning rate"},
    {"actual seqlen"},
    {"consumed tokens", nullptr, &Line::consumed_tokens},
    {"consumed samples", nullptr, &Line::consumed_samples},
    {"global batch size", nullptr, &Line::global_batch},
    {"samples per second", &Line::samples_per_second},
    {"number of nan iterations", nullptr, &Line::nans},
    {"number of skipped iterations", nullptr, &Line::skipped},
    {"elapsed time per iteration (s)", &Line::seconds},
    {"elapsed time per iteration (ms)", &Line::seconds, nullptr, 1e3},
    {"TFLOPs", &Line::tflops},
    {"throughput per GPU (TFLOP/s/GPU)", &Line::tflops},
    {"model TFLOPs", &Line::tflops},
    {"hardware TFLOPs"},
    {"MFU (%)"},
};

const FieldName* FindField(std::string_view name) {
  for (const FieldName& known : kFieldNames)
    if (known.name.size() == name.size() && known.name == name) return &known;
  return nullptr;
}

// `name` and `value` are trimmed. A name may have "_" for blanks.
void TakeField(std::string_view name, std::string_view value, IterationLine& line, int& loss_rank) {
  const FieldName* field = FindField(name);
  if (field == nullptr) {
    std::string words(name);
    std::ranges::replace(words, '_', ' ');
    if (ShortenedBy(value) != 1 && !IsStepTime(words)) return;  // a count of three digits is not exact
    field = FindField(words);
    if (field == nullptr) return TakeOddField(words, value, line, loss_rank);
  }
  const auto number = NumberAt(value);
  if (!number) return;
  const bool is_whole = number->value >= 0 && number->value < 9e15;
  if (field->count != nullptr) line.*field->count = is_whole ? static_cast<int64_t>(number->value) : -1;
  if (field->number == nullptr) return;
  line.*field->number = number->value / field->of_one;
  if (field->number == &Line::seconds && !(line.seconds >= 0)) line.seconds = kNoNumber;
  if (field->number != &Line::loss) return;
  line.nan_loss = !std::isfinite(line.loss);
  loss_rank = kLanguageModelLoss;
}

// The place of the 5 in "iteration 5/ 100" at or after `at`; npos if there is no such number.
size_t IterationNumber(std::string_view text, size_t at) {
  constexpr std::string_view kWord = "iteration";
  for (;;) {
    at = FindWord(text, kWord, at);
    if (at == npos) return npos;
    at += kWord.size();
    const size_t digit = text.find_first_not_of(" :=\t", at);
    if (digit != npos && IsDigit(text[digit])) return digit;
  }
}

struct Counter {
  int64_t iteration = -1, total = -1;
  size_t end = 0;
};

// "5/ 100" at `at`.
Counter ReadCounter(std::string_view text, size_t at) {
  Counter counter;
  const auto first = NumberAt(text.substr(at));
  counter.iteration = CountOf(text.substr(at));
  counter.end = at + (first ? first->length : 1);
  const size_t slash = text.find_first_not_of(' ', counter.end);
  if (slash == npos || text[slash] != '/') return counter;
  const std::string_view rest = text.substr(std::min(text.find_first_not_of(' ', slash + 1), text.size()));
  const auto total = NumberAt(rest);
  if (!total) return counter;
  counter.total = CountOf(rest);
  counter.end = text.size() - rest.size() + total->length;
  return counter;
}

// "9,000.5" without its commas if they separate thousands; else empty.
std::string WithoutThousands(std::string_view value) {
  std::string plain;
  size_t comma = value.find(',');
  if (comma == npos || comma == 0 || comma > 3) return plain;
  for (size_t i = 0; i < value.size(); ++i) {
    if (value[i] != ',' || i != comma) {
      plain += value[i];
      continue;
    }
    const std::string_view group = value.substr(i + 1, 3);
    if (group.size() < 3 || !IsDigit(value[i - 1]) || !IsDigit(group[0]) || !IsDigit(group[1]) ||
        !IsDigit(group[2]))
      return "";
    comma = i + 4;
  }
  return plain;
}

// "lm loss 9.5E+00", as Megatron-LM wrote in 2019.
void TakeWithoutColon(std::string_view field, IterationLine& line, int& loss_rank) {
  const size_t space = field.rfind(' ');
  if (space == npos) return;
  const std::string_view name = Trim(field.substr(0, space));
  if (FindField(name) != nullptr) TakeField(name, field.substr(space + 1), line, loss_rank);
}

// The longest number and unit; a longer value may contain the next line, if a \n was lost.
constexpr size_t kLongValue = 24;

// Reads the fields of `text` from `at` on, "name: value" or "name=value" between bars. Returns the place of
// the number of another iteration, or npos.
size_t TakeFields(std::string_view text, size_t at, IterationLine& line) {
  int loss_rank = 0;
  const char separator = text.find('|', at) == npos ? ',' : '|';
  while (at < text.size()) {
    const size_t bar = std::min(text.find(separator, at), text.size());
    const std::string_view field = text.substr(at, bar - at);
    size_t colon = field.find(':');
    if (colon == npos) colon = field.find('=');
    const std::string_view value = colon == npos ? field : Trim(field.substr(colon + 1));
    if (colon == npos || value.size() > kLongValue) {
      if (const size_t next = IterationNumber(field, 0); next != npos) return at + next;
    }
    const std::string plain = separator == '|' && colon != npos ? WithoutThousands(value) : "";
    if (colon != npos)
      TakeField(Trim(field.substr(0, colon)), plain.empty() ? value : plain, line, loss_rank);
    else if (separator == '|')
      TakeWithoutColon(Trim(field), line, loss_rank);
    at = bar + 1;
  }
  return npos;
}

// "0/10, " before SamplesPerSec: the 10.
int64_t OldTimerStep(std::string_view text) {
  const size_t comma = text.rfind(',', text.find("SamplesPerSec="));
  if (comma == npos) return -1;
  const size_t slash = text.rfind('/', comma);
  return slash == npos ? -1 : CountOf(text.substr(slash + 1, comma - slash - 1));
}

}  // namespace

void ParseIterations(std::string_view text, const std::function<void(const IterationLine&)>& take) {
  size_t at = IterationNumber(text, 0);
  while (at != npos) {
    const Counter counter = ReadCounter(text, at);
    IterationLine line;
    line.iteration = counter.iteration;
    line.total = counter.total;
    const size_t next = TakeFields(text, counter.end, line);
    const bool tells =
        !std::isnan(line.seconds) ||
        (line.total >= 0 && (!std::isnan(line.loss) || line.nan_loss || line.consumed_samples >= 0));
    if (line.iteration >= 0 && tells) take(line);
    at = next;
  }
}

std::optional<IterationLine> ParseDeepSpeed(std::string_view text) {
  const auto number = [text](std::string_view name) { return NumberOf(After(text, name)); };
  const auto count = [text](std::string_view name) { return CountOf(After(text, name)); };
  IterationLine line;
  bool tells = true;
  if (text.find("iter time (s):") != npos) {
    line.iteration = std::max(count("steps:"), count("step:"));
    line.seconds = number("iter time (s):");
    line.samples_per_second = number("samples/sec:");
    line.loss = number(" loss:");
    line.nan_loss = text.find(" loss:") != npos && !std::isfinite(line.loss);
  } else if (text.find("SamplesPerSec=") != npos) {
    line.iteration = count("global_step=");
    if (line.iteration < 0) line.iteration = OldTimerStep(text);
    line.samples_per_second = number("CurrSamplesPerSec=");
    if (std::isnan(line.samples_per_second)) line.samples_per_second = number("SamplesPerSec=");
    tells = line.samples_per_second > 0;
  } else {
    line.iteration = count("step=");
    line.skipped_so_far = count("skipped=");
    tells = line.skipped_so_far >= 0;
  }
  return tells && line.iteration >= 0 ? std::optional(line) : std::nullopt;
}

namespace {

// "step: 14  loss: ..." at the place of its number; "640/644" is a form of it.
std::optional<IterationLine> TitanLine(std::string_view text, size_t number) {
  const Counter counter = ReadCounter(text, number);
  const std::string_view fields = text.substr(counter.end);
  IterationLine line{.iteration = counter.iteration, .total = counter.total};
  SetLoss(After(fields, "loss:"), line);
  line.grad_norm = NumberOf(After(fields, "grad_norm:"));
  const std::string_view tflops = After(fields, "tflops:");
  const std::string plain = WithoutThousands(tflops.substr(0, tflops.find(' ')));
  line.tflops = NumberOf(plain.empty() ? tflops : plain);
  const bool tells = line.iteration >= 0 && fields.find("tps:") != npos;
  return tells ? std::optional(line) : std::nullopt;
}

// The number after the whole word `word`; npos if there is none.
size_t NumberBehind(std::string_view text, std::string_view word) {
  const size_t at = text.find(word);
  if (at == npos || (at > 0 && IsWordCharacter(text[at - 1]))) return npos;
  const size_t digit = text.find_first_not_of(' ', at + word.size());
  return digit != npos && IsDigit(text[digit]) ? digit : npos;
}

}  // namespace

std::optional<IterationLine> ParseStep(std::string_view text) {
  if (const size_t number = NumberBehind(text, "step:"); number != npos) {
    std::optional<IterationLine> line = TitanLine(text, number);
    if (!line || text.find("validate step:") == npos) return line;
    line->validation_loss = line->loss;
    return std::isnan(line->loss) ? std::nullopt : line;
  }
  IterationLine line;
  if (const size_t number = NumberBehind(text, "iter "); number != npos) {
    line.iteration = CountOf(text.substr(number, text.find(':', number) - number));
    SetLoss(After(text.substr(number), ": loss "), line);
    const std::string_view time = After(text.substr(number), ", time ");
    line.seconds = SecondsIn("", time.substr(0, time.find(',')));
    if (line.iteration >= 0 && !std::isnan(line.seconds)) return line;
  }
  line.validation_loss = NumberOf(After(text, ", val loss "));
  return std::isnan(line.validation_loss) ? std::nullopt : std::optional(line);
}

}  // namespace cairn
