// A row of a table of runs: the configuration of a run, and its measurements.
//
// Real tables have blanks and contradictions. Missing values are derived. A contradiction is resolved by
// ruling out the impossible (speeds above the GPU's peak) or by the other columns. Each such reading leaves a
// note.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/model/shape.h"
#include "tools/plan/cluster.h"
#include "tools/plan/csv_table.h"
#include "tools/plan/run_setup.h"

namespace cairn {

struct RunRow {
  int line = 0;
  ModelShape shape;
  RunSetup setup;
  // For a blank micro-batch: those of 1, 2, 4, 8 and 16 that divide the batch and fit by the priors of
  // memory; the run is assumed to have used the fastest. Empty: setup.micro_batch.
  std::vector<int64_t> micro_batches;
  double size_b = 0;                // as in the row; 0 if blank
  std::optional<double> memory_gb;  // of the GPU that needs most
  std::optional<double> seconds;    // of one iteration
  std::optional<double> tflops;
  bool out_of_memory = false;  // a measured column, or the note, says OOM
  std::string group;           // the column `table`
};

struct RunRows {
  std::vector<RunRow> rows;
  std::vector<std::string> notes;  // "FILE:LINE: a blank or a contradiction, and how it was read"
};

// Columns (any order): hidden, tp, pp, mbs, gbs, and gpus or dp, and layers or size_b are needed; a cell of
// mbs may be blank. gpu, heads, seq (2048), vocab (250000), zero (1), precision (bf16), recompute (full),
// virtual_stages (1), sequence_parallel (0), flash_attention (0, or 1 if the note says "flash attention"),
// mem_gb, sec_per_it, tflops, note, table may be missing or blank. Missing heads are those of rows of
// the same width, in this table or `like`. `measured` false: the measured columns are ignored, even for
// contradictions. Errors: InvalidArgument naming file, line and column.
Result<RunRows> ParseRunRows(const CsvTable& table, bool measured, const Cluster& cluster,
                             const std::vector<RunRow>& like = {},
                             Program program = Program::kMegatronDeepSpeed);

}  // namespace cairn
