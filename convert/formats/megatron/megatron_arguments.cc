// Arguments of Megatron's programs. Mapped ones are read in megatron_function.cc, or are sizes, or tensors
// show them. Harmless ones do not change a model's function: how it is trained, cut, stored, logged and
// served, its precision, and arguments that act together with an unsupported one alone.
//
// Every argument, dataclass field and attribute of args in Megatron-LM v2.5, v2.6, core 0.8, 0.12, 0.15.3 and
// of August 2026, and in Megatron-DeepSpeed of July 2025 is mapped, harmless or unsupported;
// BigScience's fork by its arguments' names.
#include <algorithm>
#include <set>

#include "convert/formats/megatron/megatron_function.h"

namespace cairn {
namespace {

// Neither: activation_func, activation_func_clamp_value, attention_output_gate, compression_training,
// enable_gpt_oss, enable_mhc_connections, experimental_attention_variant, export_num_eagle_layers,
// export_num_medusa_heads, flextron, glu_linear_offset, heterogeneous_block_specs,
// heterogeneous_layers_config_encoded_json, heterogeneous_layers_config_path, hybrid_attention_ratio,
// hybrid_layer_pattern, hybrid_mlp_ratio, hybrid_override_pattern, is_hybrid_model, linear_attention_freq,
// mrope_section, mtp_num_layers, multi_latent_attention, qk_l2_norm, quick_geglu, retro_add_retriever, spec,
// use_mup. They change the function, and only None, False, 0 or empty is supported.
// clang-format off
constexpr std::string_view kMapped =
    "add_bias_linear add_position_embedding add_qkv_bias alibi apply_layernorm_1p "
    "apply_residual_connection_post_layernorm bias_activation_fusion bias_gelu_fusion cairn_architecture "
    "ffn_hidden_size gated_linear_unit glu_activation group_query_attention hidden_size kv_channels "
    "layernorm_epsilon layernorm_zero_centered_gamma make_vocab_size_divisible_by max_position_embeddings "
    "no_rope_freq norm_epsilon normalization num_attention_heads num_key_value_heads num_layers "
    "num_query_groups onnx_safe openai_gelu padded_vocab_size position_embedding_type qk_layernorm "
    "rope_scaling_factor rope_theta rotary_base rotary_interleaved rotary_percent "
    "rotary_seq_len_interpolation_factor seq_length softmax_scale softmax_type squared_relu swiglu "
    "untie_embeddings_and_output_weights use_mcore_models use_rope_scaling use_rotary_position_embeddings "
    "use_te_activation_func vocab_size window_attn_skip_freq window_size ";

// What the arguments of a group begin with, if none of the group can change the function: those of the
// optimizer, of files, logs, data, precision and memory; and those of a module whose switch is not supported.
constexpr std::string_view kHarmlessPrefixes =
    "adam_ adaptive_muon_ async_ bpe_ check_for_ ckpt_ consumed_ cpu_offloading_ cuda_graph_ data_ ddp_ "
    "deepspeed_ dino_ dist_ckpt_ ds_sequence_parallel_ dsa_ eval_ exit_ export_kd_ fault_injector_ fim_ "
    "finetune_ flight_recorder_ fp4_ fp8_ freeze_ fsdp_ grad_ grpo_ gtp_ inference_ inprocess_ kd_ langrl_ "
    "load_ log_ logits_ lr_ mamba_ mhc_ moe_ muon_ mup_ nccl_ no_load_ non_persistent_ one_logger_ "
    "optimizer_ otel_ overlap_ override_ pipeline_model_parallel_ profile_ recompute_ rl_ router_ save_ "
    "tensorboard_ tokenizer_ tp_comm_ train_ use_flash_attn_ wandb_ yarn_ zero_ curriculum_ dataloader_ "
    "expert_ delay_ flex_ ";

constexpr std::string_view kHarmless =
    "DDP_impl _cpu_offloading_context _is_global_batch_size_explicitly_specified "
    "abort_on_unmet_fused_kernel_constraints account_for_embedding_in_pipeline_split "
    "account_for_loss_in_pipeline_split accumulate_allreduce_grads_in_fp32 activation_func_fp8_input_store "
    "activation_offload_fraction activations_checkpoint_method activations_checkpoint_num_layers "
    "actual_seq_length add_skipping adlr_autoresume adlr_autoresume_interval align_grad_reduce "
    "align_param_gather allow_ambiguous_pad_tokens allow_transformer_engine aml_data_download_path "
    "app_tag_run_name app_tag_run_version apply_query_key_layer_scaling apply_rope_fusion "
    "apply_wd_to_qk_layernorm attention_backend attention_dropout attention_softmax_in_fp32 attn_mask "
    "auto_detect_ckpt_format autocast_dtype average_in_collective barrier_with_L1_time basemodel_type "
    "batch_invariant_backend batch_invariant_mode batch_p2p_comm batch_p2p_sync batch_size bert_binary_head "
    "bert_embedder_type bert_load beta_fast beta_slow bf16 bias_dropout_fusion bias_swiglu_fusion "
    "biencoder_projection_dim biencoder_shared_query_context_model binary_mask block_data_path bucket_size "
    "budget_list budget_probs budget_type cache_mla_latents calc_ft_timeouts calculate_per_token_loss "
    "chat_template check_weight_hash_across_dp_replicas_interval checkpoint checkpoint_activations "
    "checkpoint_in_cpu checkpoint_num_layers checkpoint_version classes_fraction clip_grad "
    "clone_scatter_output_in_embedding codecarbon_dir config_logger_dir context_parallel_size "
    "contigious_checkpointing cp_comm_type cpu_offloading cpu_optimizer cpu_torch_adam "
    "create_all_gather_group create_attention_mask_in_dataloader create_moe_param_group "
    "cross_entropy_fusion_impl cross_entropy_loss_fusion curr_iteration ddp deallocate_pipeline_outputs "
    "decode_only_cuda_graphs decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers "
    "decoder_num_layers decoder_seq_length decoupled_lr decoupled_min_lr decoupled_weight_decay "
    "decrease_batch_size_if_needed deepscale deepscale_config deepspeed defer_embedding_wgrad_compute "
    "delta_offload_bytes_across_pp_ranks deprecated_use_mcore_models deterministic_mode "
    "disable_bf16_reduced_precision_matmul disable_budget disable_chunked_prefill disable_jit_fuser "
    "disable_mamba_mem_eff_path disable_msc_deprecated disable_parameter_transpose_cache "
    "disable_straggler_on_startup disable_symmetric_registration dist distill_coeff distill_only "
    "distillation distrib_optim_fully_reshardable_mem_efficient distribute_checkpointed_activations "
    "distribute_saved_activations distributed_backend distributed_timeout_minutes "
    "distributed_timeout_seconds_after_init do_test do_train do_valid ds_fused_adam ds_inference "
    "ds_pipeline_enabled dump_param_to_param_group_map emb_int_list emb_per_list embed_layernorm "
    "embedding_init_method embedding_init_method_std embedding_path embedding_weights_in_fp32 "
    "empty_unused_memory_level enable_autocast enable_chunked_prefill enable_cuda_graph enable_experimental "
    "enable_expert_tensor_parallelism enable_ft_package enable_full_sharding_in_hsdp "
    "enable_gloo_process_groups enable_hf_accelerate enable_msc enable_one_logger enable_router "
    "enable_zbh1_exact_semantics enable_zbh1_pipeline encoder_num_layers "
    "encoder_pipeline_model_parallel_size encoder_seq_length encoder_tensor_model_parallel_size "
    "end_weight_decay eod_mask_loss ep_overlap_early_attn_memory_release ep_size error_injection_rate "
    "error_injection_type evidence_data_path exp_avg_dtype exp_avg_sq_dtype "
    "experimental_attention_variant_loss_scale_func export_default_te_spec export_force_local_attention "
    "export_kv_cache_quant export_legacy_megatron export_model_type export_moe_apply_probs_on_input "
    "export_offline_model export_qk_l2_norm export_quant_cfg export_real_quant_cfg export_te_mcore_model "
    "external_cuda_graph extra_valid_data_path fake_process_group filter_warnings finalize_model_grads_func "
    "fine_grained_activation_offloading fine_grained_offloading_max_inflight_offloads finetune "
    "first_last_layers_bf16 flash_attention_version flash_decode flextron_config_file "
    "force_ds_sequence_parallel force_emb force_mamba force_mlp force_router_skip fp16 "
    "fp16_lm_cross_entropy fp32_residual_connection fp4 fp8 ft_num_warmup_iters full_validation "
    "fully_parallel_load fully_parallel_save fused_residual_rmsnorm fused_single_qkv_rope "
    "gdp_cutedsl_kernel gdp_num_chunk_states_to_recompute gdp_num_householder gigaflos_no_embeds "
    "global_batch_size gpu_sniff_test_interval gradient_accumulation_fusion gradient_reduce_div_fusion "
    "hard_sample_th head_lr_mult hetereogenous_dist_checkpoint hidden_dropout hidden_size_teacher "
    "hierarchical_context_parallel_sizes high_priority_a2a_comm_stream high_priority_stream_groups "
    "hybrid_context_parallel hysteresis ict_head_size ict_load img_dim img_h img_w indexer_batch_size "
    "indexer_log_interval inference init_method init_method_std init_method_xavier_uniform "
    "init_model_with_meta_device initial_loss_scale is_flex_eval iter_per_epoch iteration "
    "iterations_to_skip kd keep_fp8_transpose_cache keep_fp8_transpose_cache_when_using_custom_fsdp "
    "kill_switch_file kill_switch_path kitchen_attention_backend kitchen_config_file kv_lora_rank "
    "layer_ranking_list lazy_mpu_init legacy_tokenizer linear_conv_kernel_dim linear_key_head_dim "
    "linear_num_key_heads linear_num_value_heads linear_scaler_end linear_scaler_start "
    "linear_value_head_dim lion_beta1 lion_beta2 load local_rank logger logger_iteration logging_level "
    "logit_dtype loss_alpha loss_on_targets_only loss_scale loss_scale_window lr main_grads_dtype "
    "main_params_dtype manual_gc manual_gc_eval manual_gc_interval mask_factor mask_prob mask_type "
    "masked_softmax_fusion max_seqlen_per_dp_cp_rank max_tokens_to_oom mean_noise_span_length "
    "megatron_fsdp_cuda_graph_mode megatron_fsdp_enable_fine_grained_param_gather "
    "megatron_fsdp_grad_comm_dtype megatron_fsdp_main_grads_dtype megatron_fsdp_main_params_dtype "
    "megatron_fsdp_max_pool_double_buffer megatron_fsdp_use_decoupled_grad megatron_fsdp_version "
    "mem_batch_size mem_efficient_ln mem_infer_seq_len memory_centric_tiled_linear "
    "memory_efficient_layer_norm memory_keys memory_profile memory_profile_path memory_snapshot_path "
    "merge_file metadata_path micro_batch_size microbatch_group_size_per_vp_stage mid_level_dataset_surplus "
    "min_loss_scale min_lr min_offloaded_tensor_size mla_down_proj_fusion mlp_chunks_for_prefill "
    "mlp_chunks_for_training mlp_int_list mlp_per_list mmap_bin_files mmap_warmup mock_data model "
    "model_name_or_path model_parallel_size model_type modelopt_enabled modules_to_filter mos most_recent_k "
    "mscale mscale_all_dim mtp_detach_heads mtp_grad_scale_func mtp_hsm mtp_hybrid_override_pattern "
    "mtp_loss_scaling_factor mtp_standalone mtp_use_repeated_layer multiple_validation_sets no_attn_skip "
    "no_persist_layer_norm no_pipeline_parallel no_save_optim no_save_rng no_sync_func "
    "no_weight_decay_cond_type noise_density normalize_router_logits null_tokenizer_eod_id "
    "null_tokenizer_pad_id num_attention_heads_teacher num_buckets num_channels num_classes "
    "num_dataset_builder_threads num_distributed_optimizer_instances num_experts_switch num_experts_teacher "
    "num_floating_point_operations_so_far num_layers_at_end_in_bf16 num_layers_at_start_in_bf16 "
    "num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage "
    "num_layers_per_virtual_pipeline_stage num_layers_teacher "
    "num_microbatches_with_partial_activation_checkpoints num_speculative_tokens "
    "num_virtual_stages_per_pipeline_rank num_workers nvtx_ranges object_storage_cache_path offload_modules "
    "offset_sampling_seed_by_dp_rank optimizer original_max_position_embeddings original_model_sample_prob "
    "original_vocab_size outer_dp_sharding_strategy output_bert_embeddings output_layer_init_method "
    "pad_buckets_for_high_nccl_busbw pad_vocab_size pad_vocab_size_to param_budget_target "
    "param_name_patterns_for_fp32_local_accumulation param_sync_func params_dtype partition_activations "
    "patch_dim per_dataset_sequences_path per_split_data_args_path perform_initialization perform_rl_step "
    "persist_layer_norm phase_transition_iterations pin_cpu_grads pin_cpu_params pipeline_dtype "
    "prefill_chunk_size preserve_fp32_weights pretrained_checkpoint profile profiling "
    "pytorch_profiler_collect_callstack pytorch_profiler_collect_chakra pytorch_profiler_collect_shapes "
    "q_lora_rank qad_train_target qk_clip qk_clip_alpha qk_clip_threshold qk_head_dim qk_pos_emb_head_dim "
    "quant_recipe query_in_block_prob rampup_batch_size random_ltd random_ltd_layer_num "
    "random_ltd_reserved_length rank record_memory_history record_shapes "
    "reduce_scatter_with_fp32_accumulation refit_method relative_attention_max_distance "
    "relative_attention_num_buckets remote_device repeated_dataloader replication replication_factor "
    "replication_jump rerun_mode rerun_state_machine reset_attention_mask reset_iteration "
    "reset_position_ids result_rejected_tracker_filename retriever_report_topk_accuracies "
    "retriever_score_scaling retriever_seq_length retro_attention_gate retro_bert_tokenizer_type "
    "retro_bert_vocab_file retro_block_size retro_chunk_length retro_cyclic_train_iters "
    "retro_encoder_attention_dropout retro_encoder_hidden_dropout retro_encoder_layers retro_neighbor_dirs "
    "retro_num_neighbors retro_num_retrieved_chunks retro_project_dir retro_return_doc_ids "
    "retro_split_preprocessing retro_verify_neighbor_count retro_workdir return_data_index return_log_probs "
    "reuse_grad_buf_for_mxfp8_param_ag reweight_loss_based_on_position_frequency rng rotary_scaling_factor "
    "run_workload_inspector_server runtime_time_unit s3_cache_path sample_rate save "
    "scatter_gather_tensors_in_pipeline scattered_embeddings scheduler seed sequence_parallel "
    "set_level_for_all_loggers sft sft_tokenizer_prompt_format sgd_momentum sharp_enabled_group "
    "short_seq_prob skip_num_attn_layer_constraint skip_prompt_log_probs skip_total_layer_constraint "
    "skip_train skip_train_iteration_range skipped_train_samples slice soap_shampoo_beta "
    "soap_use_kl_shampoo soft_mask special_tokens split split_transformers standalone_embedding_stage "
    "start_eval_at_iter start_time_of_script start_weight_decay step_batch_size_schedule "
    "store_param_remainders straggler straggler_ctrlr_port straggler_minmax_count strict_fsdp_dtensor_load "
    "suggested_communication_unit_size swin_backbone_type symmetric_ar_type sync_tp_duplicated_parameters "
    "synchronize_each_layer tau_decay tau_init te_precision_config_file te_rng_tracker teacher_forward "
    "teacher_model teacher_model_config tensor_model_parallel_rank tensor_model_parallel_size "
    "tensor_parallel_num_weight_shards test_data_path test_mode throughput_window_size "
    "tiktoken_num_special_tokens tiktoken_pattern tiktoken_special_tokens tile_factor timers "
    "timing_log_level timing_log_option titles_data_path to_test tokenizer topk "
    "torch_fsdp2_reshard_after_forward tp_only_amax_red train transformer_impl "
    "transformer_pipeline_model_parallel_size trust_remote_code universal_checkpoint use_checkpoint_args "
    "use_checkpoint_lr_scheduler use_checkpoint_opt_param_scheduler use_contiguous_buffers_in_ddp "
    "use_contiguous_buffers_in_local_ddp use_cpu_initialization use_custom_fsdp use_dataset_only "
    "use_dist_ckpt use_dist_ckpt_deprecated use_distributed_optimizer use_flash_attn "
    "use_flashinfer_fused_rope use_fused_weighted_squared_relu use_gigatoken use_gloo_process_groups "
    "use_grouped_gemm_for_dense_mlp use_grouped_gemm_for_shared_expert use_inference_optimized_layers "
    "use_kitchen use_kitchen_attention use_layer_wise_distributed_optimizer use_layer_wise_param_layout "
    "use_legacy_models use_legacy_static_engine use_mamba_mem_eff_path use_megatron_fsdp "
    "use_mp_args_from_checkpoint_args use_nsys_profiler use_one_sent_docs use_persistent_ckpt_worker "
    "use_pin_memory use_precision_aware_optimizer use_pytorch_profiler use_ring_exchange_p2p use_sharp "
    "use_te_rng_tracker use_tokenizer_model_from_checkpoint_args use_torch_fsdp2 "
    "use_torch_optimizer_for_cpu_offload use_tp_pp_dp_mapping use_transformer_engine_op_fuser use_tutel "
    "v_head_dim valid_data_path validation validation_set_names variable_seq_lengths verify_integrity "
    "virtual_pipeline_model_parallel_size vision_backbone_type vision_pretraining vision_pretraining_type "
    "vocab_extra_ids vocab_file warmup wd_incr_steps weight_decay weight_decay_incr_style "
    "wgrad_deferral_limit world_size wsd_decay_steps yaml_cfg ";
// clang-format on

std::set<std::string_view> Words(std::string_view text) {
  std::set<std::string_view> words;
  for (size_t at; (at = text.find(' ')) != text.npos; text.remove_prefix(at + 1))
    words.insert(text.substr(0, at));
  return words;
}

}  // namespace

bool IsKnownMegatronArgument(std::string_view name) {
  static const std::set<std::string_view> kMappedNames = Words(kMapped), kHarmlessNames = Words(kHarmless),
                                          kPrefixes = Words(kHarmlessPrefixes);
  return kMappedNames.contains(name) || kHarmlessNames.contains(name) ||
         std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

}  // namespace cairn
