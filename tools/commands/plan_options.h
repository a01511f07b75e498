// The options of `cairn plan`: model, cluster, batch, search space, output.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "ckpt/model/save_interval.h"
#include "tools/commands/plan_checkpoints.h"
#include "tools/plan/search.h"

namespace cairn {

struct PlanFlags {
  std::string config;  // TOML with the same names as the flags; flags win
  std::string model;   // config.json of Hugging Face, or its directory
  std::string cluster = "a100-80";
  std::string calibrate;
  ModelShape shape{.seq = 0};  // sizes of 0 were not given
  bool swiglu = false;
  bool untied = false;
  bool bf16 = false, fp16 = false, fp32 = false, fp8 = false;
  int64_t train_samples = 0, train_tokens = 0, train_iters = 0;
  PlanRequest request;
  bool for_cairn = false;  // plans for `cairn train`
  double node_gbps = 1.9;  // what a node of the first users' cluster wrote
  double mtbf_hours = kNodeMtbfHours;
  int64_t top = 10;
  int64_t hidden_near = 0;
  int64_t keep_last = 0;     // steps that retention keeps; 0: all
  uint64_t quota_bytes = 0;  // on scratch; 0: none was given
  std::string sbatch;        // directory; empty: no scripts
  std::string sbatch_args;
  int array = 0;  // JobOptions
  std::string time_limit = "20:00:00";
  bool dry_run = false;
  CheckpointFlags checkpoints;
  bool json = false;
};

void DeclarePlanOptions(CLI::App& plan, PlanFlags& options);

// --framework: the program whose memory is counted, and whose flags describe the cut.
CLI::Option* AddFramework(CLI::App& app, Program& program);
std::string_view ShortNameOf(Program program);
std::string NameOf(Program program);  // with the bytes of a parameter

// Adds the values of the files and everything derived. Errors: InvalidArgument naming file, line and key.
Status CompletePlanOptions(CLI::App& plan, PlanFlags& options);

// Samples to train; 0 if no length was given.
double SamplesOf(const PlanFlags& options);

}  // namespace cairn
