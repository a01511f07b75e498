// GPT-2: its Hugging Face form, as GPT2LMHeadModel loads it.
//
// Linear layers are Conv1D there, whose weight is [in, out]: transposed. Query, key and value are one matrix
// c_attn with the columns [Q | K | V]. Tied embeddings are stored once, without lm_head.
#pragma once

#include "convert/architecture.h"

namespace cairn {

Result<ForeignModel> Gpt2HuggingFace(const nlohmann::json& model, Dtype dtype);

}  // namespace cairn
