// Logs: anything that a job may have printed.
#include <cmath>

#include "tests/fuzz/fuzz_target.h"
#include "tests/tools/report/sample_logs.h"
#include "tools/report/plot.h"
#include "tools/report/report_text.h"

namespace cairn {

std::vector<std::string> FuzzSeeds() {
  std::string run = Dump(8, 12, 384, 2, 2048), core = Dump(4, 2, 8, 1, 1024);
  for (int i = 1; i <= 6; ++i) run += NewLine(i, 10, 2.5 + i);
  for (int i = 1; i <= 6; ++i) core += "[default7]: " + CoreLine(i, 6, 12.5);
  return {
      run + "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n" + Dump(8, 12, 384, 2, 2048) +
          NewLine(4, 10, 1) + NewLine(5, 10, 1),
      core +
          "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 1024.0 | reserved: "
          "9.0 | max reserved: 3072.0\n" +
          " successfully saved checkpoint from iteration       5 to run/a (stall 0.250 s, durable after "
          "0.020 s)\n"
          "    save-checkpoint ................................: (25976.43, 26000.00)\n",
      OldLine(100, 1000, 3) + OldLine(200, 1000, 3) +
          "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2021-10-02T14:02:37 DUE TO TIME LIMIT ***\n",
      "steps: 10 loss: 8.9013 iter time (s): 1.250 samples/sec: 25.600\n"
      "[2021-05-01 12:00:00,123] [INFO] [logging.py:68:log_dist] [Rank 0] step=10, skipped=2, lr=[1e-05], "
      "mom=[(0.9, 0.999)]\n"
      "[INFO] [timer.py:215:stop] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=220.6, "
      "CurrSamplesPerSec=200, "
      "MemAllocated=0.07GB, MaxMemAllocated=1.36GB\n[INFO] [timer.py:157:stop] 0/20, SamplesPerSec=100\n"
      "MA 0.38 GB         Max_MA 0.5 GB         CA 0.39 GB         Max_CA 4 GB \n    \"train_batch_size\": "
      "24,\n",
      " training 136192 parameters in fp32 with TP=2 PP=1 DP=1 ZeRO=0, 1 threads a rank\n"
      "+ python x.py --hidden-size 64 --num-layers=2 --seq-length 32 --vocab-size 100 --global-batch-size 4 "
      "--bf16\n" +
          NewLine(1, 3, 1, NAN) + "\x1b[32m" + NewLine(2, 3, 1) +
          " validation loss at iteration 2 | lm loss value: 2.5E+00 | \n",
  };
}

std::vector<std::string> FuzzWords() {
  return {"iteration ",
          "/",
          " | ",
          "\n",
          "\r",
          "\x1b[0m",
          "elapsed time per iteration (ms): ",
          "lm loss: ",
          "nan",
          "inf",
          "-",
          "1e308",
          "1e-320",
          "99999999999999999999",
          "global batch size: ",
          "number of skipped iterations: ",
          "hidden_size ..... ",
          "--num-layers ",
          "Error: ",
          "Killed",
          "steps: ",
          "iter time (s): ",
          ", skipped=",
          "SamplesPerSec=",
          "max reserved: ",
          "saved checkpoint at iteration ",
          "2024-13-45 99:99:99",
          "[default3]:",
          "3: ",
          "exit code ",
          "0",
          ":",
          "=",
          "|",
          "with TP="};
}

}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  // Two files, so that runs are joined across them.
  const size_t cut = text.find("\n\n");
  std::vector<TrainingLog> logs;
  for (const std::string_view part :
       {text.substr(0, cut), cut == text.npos ? std::string_view() : text.substr(cut)}) {
    TrainingLog& log = logs.emplace_back(ReadTrainingText(part, logs.empty() ? "61B-pp4.out" : "x.out"));
    FuzzCheck(!log.starts.empty());
    FuzzCheck(log.facts.bytes == part.size());
  }
  SummaryOptions options{.skip = 1, .iterations = 1000};
  std::vector<RunSummary> runs;
  for (const TrainingRun& run : JoinRuns(std::move(logs))) {
    RunSummary& summary = runs.emplace_back(Summarize(run, options));
    FuzzCheck(summary.ok() == summary.cause.empty());
    FuzzCheck(summary.iterations >= 0 && summary.redone_iterations >= 0 && summary.outliers >= 0);
    FuzzCheck(!summary.sec_per_it || *summary.sec_per_it >= 0);
  }
  if (size % 8 != 0) return 0;  // writing takes longer than reading
  SortBy(*TerminalColumns(true)[8], false, runs);
  FuzzCheck(!MarkdownTable(MarkdownColumns(true), runs).empty() &&
            !CsvText(TerminalColumns(true), runs).empty());
  FuzzCheck(ReportJson(runs).size() == runs.size());
  (void)PlotCommands(runs, {}, PlotType::kSvg).ok();
  (void)PlotCommands(runs, {.x = "pp", .y = {}}, PlotType::kPng).ok();
  return 0;
}
