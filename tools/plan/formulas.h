// The arithmetic of GPT training that people write in tables: size, TFLOPs, days.
//
// Sizes count parameters (billions are 10⁹), times are seconds, TFLOPs are 10¹² floating point operations a
// second and GPU. The brief of Cairn's first users is the source; tests/tools/plan/formulas_test.cc holds
// their published rows.
#pragma once

namespace cairn {

// One forward is 1 pass over the matrices, one backward 2, and recomputing the activations 1 more.
inline double PassesOf(bool recompute) { return recompute ? 4.0 : 3.0; }

// Parameters of a GPT with `layers` blocks, tied embeddings and learned positions: l(12h² + 13h) + vh + sh +
// 2h.
inline double Params(double layers, double hidden, double vocab, double seq) {
  return layers * (12 * hidden * hidden + 13 * hidden) + vocab * hidden + seq * hidden + 2 * hidden;
}

// The plain formula: 2 operations a parameter, token and pass; `global_batch` counts sequences.
inline double SimpleTflops(double params, double seq, double global_batch, double sec_per_it, double gpus,
                           bool recompute = true) {
  return params * PassesOf(recompute) * 2 * seq * global_batch / (sec_per_it * gpus * 1e12);
}

// Operations of one iteration: 24·k·B·s·l·h²·(1 + s/(6h) + v/(16·l·h)), as the Megatron-LM paper (2021)
// counts them. It has k = 4 with recomputation (96 in the paper), and v as padded by the program.
inline double MegatronFlops(double layers, double hidden, double vocab, double seq, double global_batch,
                            bool recompute = true) {
  const double blocks = 24 * PassesOf(recompute) * global_batch * seq * layers * hidden * hidden;
  return blocks * (1 + seq / (6 * hidden) + vocab / (16 * layers * hidden));
}

inline double MegatronTflops(double layers, double hidden, double vocab, double seq, double global_batch,
                             double sec_per_it, double gpus, bool recompute = true) {
  return MegatronFlops(layers, hidden, vocab, seq, global_batch, recompute) / (sec_per_it * gpus * 1e12);
}

inline double DaysToTrain(double iterations, double sec_per_it) { return iterations * sec_per_it / 86400; }

// The aggregate as the 1.3 B table has it: TFLOPs of one GPU times nodes over 1024.
inline double AggregatePetaflops(double tflops, double nodes) { return tflops * nodes / 1024; }

}  // namespace cairn
