// The keys of DeepSpeed's JSON that are known, by their paths, and what each does to a training's flags. Only
// for deepspeed_config.cc. Keys and defaults: DeepSpeed's runtime/config.py, runtime/constants.py,
// runtime/zero/config.py, runtime/precision_config.py and runtime/lr_schedules.py, versions 0.3 to 0.19.
#pragma once

#include <string_view>

namespace cairn::deepspeed {

enum class IfBoth { kMustAgree, kFileCounts };

struct JsonSetting {
  std::string_view path;
  std::string_view flag;
  IfBoth if_both = IfBoth::kMustAgree;
};

inline constexpr JsonSetting kSettings[] = {
    {"train_batch_size", "global-batch-size"},
    {"train_micro_batch_size_per_gpu", "micro-batch-size"},
    {"gradient_accumulation_steps", "gradient-accumulation-steps"},
    {"gradient_clipping", "clip-grad"},
    {"fp16.enabled", "fp16"},
    {"bf16.enabled", "bf16"},
    {"bfloat16.enabled", "bf16"},
    {"zero_optimization.stage", "zero-stage"},
    {"zero_optimization.reduce_bucket_size", "reduce-bucket-size", IfBoth::kFileCounts},
    {"zero_optimization.stage3_prefetch_bucket_size", "stage3-prefetch-bucket-size"},
    {"zero_optimization.stage3_param_persistence_threshold", "stage3-param-persistence-threshold"},
    {"zero_optimization.stage3_param_persitence_threshold", "stage3-param-persistence-threshold"},
    {"zero_optimization.stage3_max_live_parameters", "stage3-max-live-parameters"},
    {"zero_optimization.stage3_max_reuse_distance", "stage3-max-reuse-distance"},
    {"zero_optimization.cpu_offload", "offload-optimizer"},
    {"zero_optimization.cpu_offload_param", "offload-param"},
    {"zero_optimization.cpu_offload_params", "offload-param"},
    {"activation_checkpointing.partition_activations", "partition-activations", IfBoth::kFileCounts},
    {"activation_checkpointing.cpu_checkpointing", "checkpoint-in-cpu", IfBoth::kFileCounts},
};

// Only under fp16.
inline constexpr JsonSetting kLossScale[] = {
    {"fp16.loss_scale", "loss-scale", IfBoth::kFileCounts},
    {"fp16.initial_scale_power", "initial-loss-scale", IfBoth::kFileCounts},
    {"fp16.loss_scale_window", "loss-scale-window", IfBoth::kFileCounts},
    {"fp16.hysteresis", "hysteresis", IfBoth::kFileCounts},
    {"fp16.min_loss_scale", "min-loss-scale", IfBoth::kFileCounts},
};

// Paths that have functions of their own below.
inline constexpr std::string_view kOwn[] = {
    "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_param.device",
    "optimizer.type",
    "optimizer.params.lr",
    "optimizer.params.betas",
    "optimizer.params.eps",
    "optimizer.params.weight_decay",
    "optimizer.params.momentum",
    "scheduler.type",
    "scheduler.params.warmup_min_lr",
    "scheduler.params.warmup_max_lr",
    "scheduler.params.warmup_num_steps",
    "scheduler.params.warmup_type",
    "scheduler.params.total_num_steps",
};

// Settings that only tune DeepSpeed's implementation or its log. A section stands for all keys below it.
inline constexpr std::string_view kHarmless[] = {
    "steps_per_print",
    "wall_clock_breakdown",
    "dump_state",
    "prescale_gradients",
    "gradient_predivide_factor",
    "fp32_allreduce",
    "disable_allgather",
    "dataloader_drop_last",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "elastic_checkpoint",
    "memory_breakdown",
    "log_level",
    "vocabulary_size",
    "communication_data_type",
    "data_types.grad_accum_dtype",
    "fp16.auto_cast",
    "fp16.consecutive_hysteresis",
    "bf16.immediate_grad_update",
    "bf16.check_grad_overflow",
    "zero_optimization.contiguous_gradients",
    "zero_optimization.allgather_bucket_size",
    "zero_optimization.cpu_offload_use_pin_memory",
    "zero_optimization.offload_optimizer.pin_memory",
    "zero_optimization.offload_param.pin_memory",
    "zero_optimization.overlap_comm",
    "zero_optimization.reduce_scatter",
    "zero_optimization.allgather_partitions",
    "zero_optimization.sub_group_size",
    "zero_optimization.round_robin_gradients",
    "zero_optimization.load_from_fp32_weights",
    "zero_optimization.elastic_checkpoint",
    "zero_optimization.ignore_unused_parameters",
    "zero_optimization.legacy_stage1",
    "zero_optimization.memory_efficient_linear",
    "zero_optimization.gather_16bit_weights_on_model_save",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save",
    "zero_optimization.stage3_model_persistence_threshold",
    "zero_optimization.stage3_module_granularity_threshold",
    "zero_optimization.offload_optimizer.buffer_count",
    "zero_optimization.offload_optimizer.buffer_size",
    "zero_optimization.offload_optimizer.fast_init",
    "zero_optimization.offload_optimizer.nvme_path",
    "zero_optimization.offload_optimizer.pipeline_read",
    "zero_optimization.offload_optimizer.pipeline_write",
    "zero_optimization.offload_optimizer.ratio",  // all of it is offloaded
    "zero_optimization.offload_param.buffer_count",
    "zero_optimization.offload_param.buffer_size",
    "zero_optimization.offload_param.max_in_cpu",
    "zero_optimization.offload_param.nvme_path",
    "optimizer.params.torch_adam",
    "optimizer.legacy_fusion",
    "activation_checkpointing.number_checkpoints",
    "activation_checkpointing.contiguous_memory_optimization",
    "activation_checkpointing.synchronize_checkpoint_boundary",
    "activation_checkpointing.profile",
    "aio",
    "tensorboard",
    "wandb",
    "csv_monitor",
    "comms_logger",
    "flops_profiler",
    "checkpoint",
    "cuda_visible_devices",
};

// Settings that change a training and are not supported: only the value that switches them off is accepted.
struct OnlyValue {
  std::string_view path;
  std::string_view value;  // as JSON
};
inline constexpr OnlyValue kOnly[] = {
    {"optimizer.params.adam_w_mode", "true"},
    {"optimizer.params.bias_correction", "true"},
    {"optimizer.params.amsgrad", "false"},
    {"optimizer.params.nesterov", "false"},
    {"optimizer.params.dampening", "0"},
    {"sparse_gradients", "false"},
    {"fp16.fp16_master_weights_and_grads", "false"},
    {"bf16.bf16_master_weights_and_grads", "false"},
    {"bf16.bf16_optimizer_states", "false"},
    {"zero_optimization.zero_hpz_partition_size", "1"},
    {"zero_optimization.zero_quantized_weights", "false"},
    {"zero_optimization.zero_quantized_gradients", "false"},
    {"zero_optimization.zero_quantized_nontrainable_weights", "false"},
};

// Sections that change a training; accepted only if they are switched off, with any content.
inline constexpr std::string_view kSwitchedOff[] = {
    "amp",
    "autotuning",
    "curriculum_learning",
    "data_efficiency",
    "elasticity",
    "eigenvalue",
    "progressive_layer_drop",
    "compression_training",
    "quantize_training",
    "sparse_attention",
    "torch_autocast",
    "compile",
};

}  // namespace cairn::deepspeed
