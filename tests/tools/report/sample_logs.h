// Pieces of logs as the programs write them, for the tests of report.
#pragma once

#include <fmt/format.h>

#include <string>

namespace cairn {

// Megatron-DeepSpeed and ours: "(s)", tokens, TFLOPs.
inline std::string NewLine(int iteration, int total, double seconds, double loss = 3.5, int batch = 512) {
  return fmt::format(
      " iteration {:8d}/{:8d} | consumed samples: {:12d} | consumed tokens: {:12d} | elapsed time per "
      "iteration (s): {:.2f} | "
      "learning rate: {:.3E} | global batch size: {:5d} | lm loss: {:.6E} | loss scale: 4096.0 | grad norm: "
      "{:.3f} | num zeros: "
      "0.0 | number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: {:.3f} "
      "| TFLOPs: 100.25 |\n",
      iteration, total, int64_t{iteration} * batch, int64_t{iteration} * batch * 2048, seconds, 6e-5, batch,
      loss, 0.25, batch / seconds);
}

// The first version of Megatron-LM: "(ms)" and few fields.
inline std::string OldLine(int iteration, int total, double seconds) {
  return fmt::format(
      " iteration {:8d}/{:8d} | elapsed time per iteration (ms): {:.1f} | learning rate: 1.500E-04 | lm "
      "loss: 7.1E+00 | loss "
      "scale: 65536.0 |\n",
      iteration, total, seconds * 1000);
}

// Megatron-Core's: a date before, throughput among the fields.
inline std::string CoreLine(int iteration, int total, double seconds,
                            const std::string& date = "2024-09-03 15:54:54") {
  return fmt::format(
      " [{}] iteration {:8d}/{:8d} | consumed samples: {:12d} | elapsed time per iteration (ms): {:.1f} | "
      "throughput per GPU "
      "(TFLOP/s/GPU): 812.5 | learning rate: 6.976744E-07 | global batch size:  1024 | lm loss: 1.064275E+01 "
      "| loss scale: 1.0 "
      "| grad norm: 47.021 | number of skipped iterations:   1 | number of nan iterations:   0 |\n",
      date, iteration, total, int64_t{iteration} * 1024, seconds * 1000);
}

// Megatron's dump of its arguments.
inline std::string Dump(int tp, int pp, int world, int micro_batch, int global_batch) {
  return fmt::format(
      "using world size: {}, data-parallel-size: {}, tensor-model-parallel size: {}, pipeline-model-parallel "
      "size: {} \n"
      "------------------------ arguments ------------------------\n"
      "  checkpoint_activations .......................... True\n"
      "  bf16 ............................................ True\n"
      "  global_batch_size ............................... {}\n"
      "  hidden_size ..................................... 14336\n"
      "  micro_batch_size ................................ {}\n"
      "  num_attention_heads ............................. 112\n"
      "  num_layers ...................................... 72\n"
      "  seq_length ...................................... 2048\n"
      "  zero_stage ...................................... 1\n"
      "-------------------- end of arguments ---------------------\n"
      " > padded vocab (size: 250680) with 200 dummy tokens (new size: 250880)\n",
      world, world / tp / pp, tp, pp, global_batch, micro_batch);
}

}  // namespace cairn
