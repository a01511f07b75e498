// One way to run a training: how many GPUs, cut how, with which batch.
#pragma once

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstdint>
#include <utility>

#include "ckpt/model/training_flops.h"

namespace cairn {

enum class Precision { kFp32, kFp16, kBf16, kFp8 };  // kFp8: the products of layers; all else as bf16
enum class Program { kMegatronDeepSpeed, kMegatronLm, kCairn };  // that trains: its memory and flags

inline constexpr std::pair<const char*, Recomputation> kRecomputations[] = {
    {"full", Recomputation::kFull}, {"selective", Recomputation::kSelective}, {"none", Recomputation::kNone}};

struct RunSetup {
  int64_t gpus = 1;  // tp * pp * dp
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t dp = 1;
  int64_t virtual_stages = 1;  // chunks of layers that each stage holds
  int64_t micro_batch = 1;     // samples
  int64_t global_batch = 1;    // samples
  int64_t zero = 0;            // 0 to 3
  Recomputation recompute = Recomputation::kFull;
  Precision precision = Precision::kBf16;
  bool offload_optimizer = false;  // states and step on the CPU
  Program program = Program::kMegatronDeepSpeed;
  bool on_cpu = false;             // ranks are processes on CPUs
  bool sequence_parallel = false;  // norms, residuals and dropout are cut by TP along the sequence
  bool flash_attention = false;    // scores are never stored
  int64_t first_layers = 0;        // of the first stage; 0: as many as the others (stage_layers.h)
  int64_t last_layers = 0;         // of the last stage; 0: likewise
  int64_t ep = 1;                  // ranks among which the experts of a layer are divided
  int64_t etp = 1;                 // ranks among which each expert is cut

  // Micro-batches of one pipeline in one iteration (GAS). A published batch need not divide: 2043 over DP=9
  // did not.
  int64_t MicroBatches() const {
    return std::max<int64_t>(1, std::llround(static_cast<double>(global_batch) / (micro_batch * dp)));
  }
  // The ranks of a stage are TP·DP, and for experts EP·ETP times this.
  int64_t ExpertReplicas() const { return std::max<int64_t>(1, tp * dp / (ep * etp)); }
  bool mixed() const { return precision != Precision::kFp32; }
  auto operator<=>(const RunSetup&) const = default;
};

}  // namespace cairn
