// A start ends at the beginning of the next one: at a banner (the dump of arguments, a command line, "using
// world size") after iterations, or at a decrease of the iteration number without a banner.
//
// Several ranks may print the same lines. The rank with the launcher's prefix of the first line counts; a
// repeated iteration is an echo if it has another prefix, or if it is the last one again.
#include "tools/report/log_reader.h"

#include <algorithm>
#include <cmath>

#include "tools/report/config_text.h"
#include "tools/report/iteration_line.h"
#include "tools/report/line_facts.h"
#include "tools/report/numbers.h"
#include "tools/report/trainer_log.h"

namespace cairn {
namespace {

constexpr int kLinesThatClearAFailure = 3;  // the training continued
constexpr size_t kDateLength = 19;
constexpr int kFlagsOfACommand = 3;  // fewer are a remark

std::string WhyEmpty(const RunConfig& config, const LogFacts& facts) {
  if (!config.empty()) return "no iteration";
  if (facts.bytes == 0) return "empty file";
  if (facts.compressed) return "compressed file; use zcat FILE | cairn report -";
  if (facts.utf16) return "UTF-16; use iconv -f UTF-16 -t UTF-8 FILE | cairn report -";
  if (facts.zeros > 0) return "binary data, not a log";
  if (facts.longest_line >= (1 << 20))
    return fmt::format("unknown format; it has a line of {} MB or more", facts.longest_line / 1000000);
  return "unknown format";
}

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) { Begin(); }

  void Take(const LogLine& line) {
    line_ = line.number;
    if (line.kinds & kEvaluationLine)
      Evaluation(line.text);
    else if (line.kinds & kIterationLine)
      Iterations(line.text);
    if (line.kinds & kDeepSpeedLine) DeepSpeed(line.text);
    if (line.kinds & kStepLine) Step(line.text);
    if (line.kinds & (kConfigLine | kStartLine | kCommandLine | kJsonLine)) Config(line);
    if (line.kinds & kMemoryLine) Memory(line.text);
    if (line.kinds & kCheckpointLine) Checkpoint(line.text);
    if (line.kinds & kTrainerLine) Trainer(line.text);
    if (line.kinds & kDoneLine) start().done = true;
    if (line.kinds & kTroubleLine) Trouble(line.text);
  }

  TrainingLog Finish(const LogFacts& facts) {
    End();
    for (TrainingStart& each : starts_) each.why_empty = WhyEmpty(each.config, facts);
    return {file_, facts, std::move(starts_)};
  }

 private:
  TrainingStart& start() { return starts_.back(); }

  void Begin() {
    starts_.emplace_back().file = file_;
    trainer_ = {};
    speaker_.clear();
    after_failure_ = 0;
    last_saved_ = -1;
    last_step_ = {};
  }

  void End() {
    trainer_.Finish(start());
    if (start().failure) start().failure->file = file_;
  }

  void BeginAnother() {
    End();
    Begin();
  }

  void Iterations(std::string_view text) {
    const std::string_view prefix = text.substr(0, FindWord(text, "iteration"));
    ParseIterations(text,
                    [&](const IterationLine& line) { Iteration(line, SampleSource::kIteration, prefix); });
  }

  void Evaluation(std::string_view text) {
    if (text.find(" on test set") != npos) return;
    if (const auto value = NumberAt(After(text, "loss value:"))) start().validation_loss = value->value;
  }

  void DeepSpeed(std::string_view text) {
    std::optional<IterationLine> line = ParseDeepSpeed(text);
    if (!line) return;
    if (line->skipped_so_far >= 0) {
      start().skipped_so_far = std::max(start().skipped_so_far, line->skipped_so_far);
      return;
    }
    const bool pipeline = !std::isnan(line->seconds);
    if (!pipeline) line->seconds = 1 / line->samples_per_second;
    Iteration(*line, pipeline ? SampleSource::kPipeline : SampleSource::kThroughput, text.substr(0, 48));
  }

  // torchtitan's lines have a date and no time: a step took the time since the line before.
  void Step(std::string_view text) {
    std::optional<IterationLine> line = ParseStep(text);
    if (!line) return;
    if (!std::isnan(line->validation_loss)) {
      start().validation_loss = line->validation_loss;
      return;
    }
    const std::optional<double> date = DateIn(text.substr(0, 200));
    if (std::isnan(line->seconds) && date && last_step_.date && line->iteration > last_step_.iteration)
      line->seconds =
          (*date - *last_step_.date) / static_cast<double>(line->iteration - last_step_.iteration);
    if (!(line->seconds >= 0)) line->seconds = kNoNumber;  // a clock went back
    Iteration(*line, SampleSource::kIteration, text.substr(0, 200));
    if (start().series.empty() || start().series.back().iteration != line->iteration) return;
    if (last_step_.iteration != line->iteration) last_step_ = {line->iteration, date};
  }

  void Iteration(const IterationLine& line, SampleSource source, std::string_view prefix) {
    if (line.iteration > INT32_MAX || source < start().source) return;
    if (source > start().source && !start().series.empty()) start().series.Clear();
    const std::string_view speaker = SpeakerOf(prefix);
    if (!start().series.empty() && line.iteration <= start().series.back().iteration) {
      if (IsEcho(line, speaker)) return;
      const RunConfig same = start().config;
      BeginAnother();
      start().config = same;
    }
    start().source = source;
    if (start().series.empty()) First(line, speaker);
    ClearFailure();
    Add(line);
    if (prefix.size() < kDateLength) return;
    if (const auto date = DateIn(prefix.substr(0, 200))) Date(static_cast<int64_t>(*date));
  }

  // The training continued.
  void ClearFailure() {
    if (start().failure && ++after_failure_ >= kLinesThatClearAFailure) start().failure.reset();
  }

  bool IsEcho(const IterationLine& line, std::string_view speaker) {
    if (speaker != speaker_) return true;
    return line.iteration == start().series.back().iteration &&
           (std::isnan(line.loss) || line.loss == start().last_loss) && !start().failure;
  }

  void First(const IterationLine& line, std::string_view speaker) {
    start().first_iteration = static_cast<int32_t>(line.iteration);
    start().first_consumed = line.consumed_samples;
    if (line.consumed_samples > 0 && line.consumed_tokens > 0 &&
        line.consumed_tokens % line.consumed_samples == 0 && !start().config.seq)
      start().config.seq = line.consumed_tokens / line.consumed_samples;
    speaker_ = speaker;
  }

  void Add(const IterationLine& line) {
    TrainingStart& s = start();
    Sample sample{.seconds = line.seconds,
                  .iteration = static_cast<int32_t>(line.iteration),
                  .global_batch = static_cast<int32_t>(std::clamp<int64_t>(line.global_batch, -1, INT32_MAX)),
                  .loss = static_cast<float>(line.loss),
                  .grad_norm = static_cast<float>(line.grad_norm),
                  .skipped = static_cast<uint16_t>(std::clamp<int64_t>(line.skipped, 0, 65535)),
                  .nans = static_cast<uint16_t>(std::clamp<int64_t>(line.nans, line.nan_loss, 65535))};
    if (sample.global_batch < 0) sample.global_batch = BatchOf(line);
    s.series.Add(sample);
    if (line.total > 0) s.total = line.total;
    if (!std::isnan(line.loss) || line.nan_loss) s.last_loss = line.loss;
    if (!std::isnan(line.grad_norm)) s.last_grad_norm = line.grad_norm;
    if (std::isfinite(line.tflops)) {
      s.logged_tflops_sum += line.tflops;
      ++s.logged_tflops_lines;
    }
  }

  // Samples of an iteration by its time and rate, if the line has both.
  static int32_t BatchOf(const IterationLine& line) {
    const double batch = line.seconds * line.samples_per_second;
    if (!(batch > 0.5) || batch > 1e8 || std::abs(batch - std::round(batch)) > 0.02 * batch) return -1;
    return static_cast<int32_t>(std::lround(batch));
  }

  void Date(int64_t unix_seconds) {
    if (start().began_unix < 0) start().began_unix = unix_seconds;
    start().ended_unix = unix_seconds;
  }

  void Config(const LogLine& line) {
    RunConfig told;
    const bool dumped = line.kinds & kConfigLine && TakeDumpedArgument(line.text, told);
    const int flags = line.kinds & kCommandLine ? TakeCommandLine(line.text, told) : 0;
    const bool banner = line.kinds & kStartLine && line.text.find("loaded checkpoint") == line.text.npos;
    if (line.kinds & kConfigLine) TakeSentence(line.text, told);
    if (line.kinds & kJsonLine) TakeJsonFields(line.text, told);
    const bool ran = !start().series.empty();
    if ((ran && (dumped || line.kinds & kStartLine)) ||
        ((ran || start().failure) && (banner || flags >= kFlagsOfACommand)))
      BeginAnother();
    FillFrom(told, start().config);
    if (const int64_t first = CountOf(After(line.text, "starts at step ")); first > 0)
      last_step_ = {first - 1, DateIn(line.text.substr(0, 200))};
  }

  void Trainer(std::string_view text) {
    if (trainer_.BeginsAnother(text)) BeginAnother();
    if (trainer_.Take(text)) ClearFailure();
  }

  void Memory(std::string_view text) {
    const MemoryFacts facts = MemoryIn(text);
    start().allocated_gib = std::max(start().allocated_gib, facts.allocated_gib);
    start().reserved_gib = std::max(start().reserved_gib, facts.reserved_gib);
  }

  // The success message and the timer's line are one checkpoint.
  void Checkpoint(std::string_view text) {
    CheckpointFacts facts = CheckpointIn(text);
    SaveTimes& times = !facts.local      ? start().run_saves
                       : facts.in_memory ? start().memory_saves
                                         : start().disk_saves;
    if (facts.seconds >= 0 && facts.whole_seconds >= 0) times.Add({1, facts.seconds, facts.whole_seconds});
    if (facts.of_last_step && !start().series.empty())
      facts.saved_iteration = start().series.back().iteration;
    if (facts.saved_iteration > last_saved_) {
      last_saved_ = facts.saved_iteration;
      ++start().checkpoints;
    } else if (facts.saved_iteration >= 0) {
      return;
    }
    if (facts.seconds < 0) return;
    start().checkpoint_seconds += facts.seconds;
    start().longest_checkpoint_seconds = std::max(start().longest_checkpoint_seconds, facts.seconds);
  }

  void Trouble(std::string_view text) {
    if (!start().failure) after_failure_ = 0;
    TakeFailure(text, line_, start().failure);
    if (!start().failure) return;
    if (const auto date = DateIn(text.substr(0, 200)); date && start().began_unix >= 0)
      start().ended_unix = static_cast<int64_t>(*date);
  }

  const std::string file_;
  std::vector<TrainingStart> starts_;
  TrainerLog trainer_;
  uint64_t line_ = 0;
  std::string speaker_;
  int after_failure_ = 0;  // iterations since the first sign of it
  int64_t last_saved_ = -1;
  struct {
    int64_t iteration = -1;
    std::optional<double> date;
  } last_step_;  // of lines without a time
};

}  // namespace

Result<TrainingLog> ReadTrainingLog(const std::string& path) {
  Reader reader(path);
  CAIRN_ASSIGN_OR_RETURN(const LogFacts facts,
                         ScanLog(path, [&reader](const LogLine& line) { reader.Take(line); }));
  return reader.Finish(facts);
}

TrainingLog ReadTrainingText(std::string_view text, const std::string& name) {
  Reader reader(name);
  return reader.Finish(ScanLogText(text, [&reader](const LogLine& line) { reader.Take(line); }));
}

}  // namespace cairn
