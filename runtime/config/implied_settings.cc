#include "runtime/config/implied_settings.h"

#include <algorithm>

namespace cairn {
namespace {

// Samples that hold at least this many tokens.
int64_t SamplesOf(int64_t tokens, const TrainConfig& c) {
  return c.seq_length > 0 ? (tokens - 1) / c.seq_length + 1 : tokens;
}

// Megatron-DeepSpeed ends at whichever comes first, and its decay in tokens goes before one in samples.
void TokensToSamples(TrainConfig& c) {
  if (c.train_tokens > 0) {
    const int64_t samples = SamplesOf(c.train_tokens, c);
    c.train_samples = c.train_samples > 0 ? std::min(c.train_samples, samples) : samples;
  }
  if (c.lr_decay_tokens > 0) c.lr_decay_samples = SamplesOf(c.lr_decay_tokens, c);
  if (c.lr_warmup_tokens > 0) c.lr_warmup_samples = SamplesOf(c.lr_warmup_tokens, c);
}

}  // namespace

void ApplyImpliedSettings(TrainConfig& c) {
  TokensToSamples(c);
  // Megatron-LM 2.5's --activations-checkpoint-method recomputed by itself.
  if (!c.recompute_method.empty() && c.recompute_granularity.empty()) c.recompute_granularity = "full";
  if (c.no_load_optim && c.reset_progress) {  // only the weights are left to load
    c.finetune = true;
    c.reset_progress = false;
  }
  if (c.finetune) c.no_load_optim = c.no_load_rng = false;
  const bool deepspeed = c.deepspeed || !c.deepspeed_config.empty();
  if (deepspeed && c.bf16 && c.zero_stage == 0) {
    c.zero_stage = 1;
    c.notes.push_back(
        "--zero-stage 0 is 1 here: under --bf16 DeepSpeed's optimizer cuts its states across data parallel "
        "ranks");
  }
  if (c.memory_centric_tiled_linear && c.tile_factor == 1)
    c.notes.push_back("--memory-centric-tiled-linear has no effect here: --tile-factor 1 is one tile");
  else if (c.memory_centric_tiled_linear && c.zero_stage < 2)
    c.notes.push_back(
        "--memory-centric-tiled-linear has no effect here: a rank has all weights and gradients below "
        "--zero-stage 2");
  if (c.norm_target_loss)
    c.notes.push_back(
        "--norm-target-loss has no effect here: each token of a sample is a target, and the loss is their "
        "mean");
  if (c.loss_scale > 0 && !c.fp16)
    c.notes.push_back("--loss-scale has no effect here: the loss is scaled only under --fp16");
}

}  // namespace cairn
