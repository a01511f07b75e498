"""Tiny configurations of every model_type of transformers that has a causal LM, and their classes; some are refused by transformers."""

import copy

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

CLASSES = {kind: name if isinstance(name, str) else name[0] for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()}
LARGEST = 30_000_000  # elements: sizes that a type spells in its own way stay at their defaults
SIZES = {
    64: "hidden_size n_embd d_model dim max_position_embeddings n_positions n_ctx word_embed_proj_dim embedding_size",
    3: "n_layer n_layers num_layers num_hidden_layers decoder_layers",
    4: "num_attention_heads n_head n_heads num_heads num_experts num_local_experts n_routed_experts moe_num_experts decoder_attention_heads "
       "encoder_attention_heads mamba_d_conv conv_kernel time_step_rank num_mamba_heads linear_num_value_heads",
    2: "num_key_value_heads num_kv_heads multi_query_group_num num_experts_per_tok top_k moe_topk encoder_layers mamba_expand linear_num_key_heads "
       "eos_token_id",
    96: "intermediate_size ffn_dim n_inner ffn_hidden_size decoder_ffn_dim encoder_ffn_dim d_ff",
    16: "head_dim kv_lora_rank v_head_dim qk_head_dim d_kv sliding_window mamba_d_head linear_key_head_dim linear_value_head_dim "
        "hidden_size_per_layer_input",
    1: "n_shared_experts n_group topk_group first_k_dense_replace mamba_n_groups n_groups bos_token_id",
    8: "qk_rope_head_dim qk_nope_head_dim mamba_d_state mamba_n_heads state_size ssm_state_size",
    0: "pad_token_id num_nextn_predict_layers",
    160: "vocab_size vocab_size_per_layer_input",
    32: "moe_intermediate_size mamba_head_dim",
    48: "shared_expert_intermediate_size",
    24: "q_lora_rank",
}
TINY = {field: size for size, fields in SIZES.items() for field in fields.split()}
LISTS = ("layer_types", "layers_block_type", "mlp_layer_types")
OWN = {"zamba2": {"layers_block_type": ["hybrid", "mamba", "hybrid"]}}  # which share their tensors


def small_class(kind, config):
    """The class of a type's causal LM. Errors: ValueError if a model of this configuration is large; none is made."""
    cls = getattr(transformers, CLASSES[kind])
    with torch.device("meta"):
        if sum(parameter.numel() for parameter in cls(copy.deepcopy(config)).parameters()) > LARGEST:
            raise ValueError("large")
    return cls


def tiny(kind, **more):
    """Three layers, of each kind that the default has one."""
    cls = CONFIG_MAPPING[kind]
    default = cls()
    fields = default.to_dict()
    given = {field: size for field, size in TINY.items() if field in fields}
    for field in LISTS:
        if isinstance(fields.get(field), list) and fields[field]:
            kinds = list(dict.fromkeys(fields[field]))
            given[field] = [kinds[i % len(kinds)] for i in range(3)]
    text = getattr(default, "text_config", None)
    if text is not None:
        of_text = text if isinstance(text, dict) else text.to_dict()
        given["text_config"] = {field: size for field, size in TINY.items() if field in of_text}
    return cls(**given | OWN.get(kind, {}) | more)
