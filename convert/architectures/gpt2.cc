#include "convert/architectures/gpt2.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxLayers = 1 << 16;  // a manifest that claims more is not believed

struct Sizes {
  uint64_t layers, hidden, heads, ffn, vocab, positions;
  bool tied;
};

ForeignTensor Same(std::string name, std::string parameter, Dims shape) {
  return {std::move(name), shape, {{std::move(parameter), Box::Whole(shape), false}}};
}

ForeignTensor Conv1D(std::string name, std::string parameter, uint64_t in, uint64_t out) {
  return {std::move(name), {in, out}, {{std::move(parameter), Box::Whole({in, out}), true}}};
}

void AddNorm(std::vector<ForeignTensor>& tensors, const std::string& name, const std::string& parameter,
             uint64_t h) {
  for (const char* part : {".weight", ".bias"}) tensors.push_back(Same(name + part, parameter + part, {h}));
}

void AddLayer(std::vector<ForeignTensor>& tensors, uint64_t layer, const Sizes& s) {
  const std::string to = fmt::format("transformer.h.{}.", layer), from = fmt::format("layers.{}.", layer);
  const uint64_t h = s.hidden;
  AddNorm(tensors, to + "ln_1", from + "input_norm", h);
  ForeignTensor weight{to + "attn.c_attn.weight", {h, 3 * h}, {}};
  ForeignTensor bias{to + "attn.c_attn.bias", {3 * h}, {}};
  uint64_t column = 0;
  for (const char* part : {"query", "key", "value"}) {
    const std::string parameter = fmt::format("{}attention.{}.", from, part);
    weight.parts.push_back({parameter + "weight", {{0, column}, {h, h}}, true});
    bias.parts.push_back({parameter + "bias", {{column}, {h}}, false});
    column += h;
  }
  tensors.push_back(std::move(weight));
  tensors.push_back(std::move(bias));
  tensors.push_back(Conv1D(to + "attn.c_proj.weight", from + "attention.output.weight", h, h));
  tensors.push_back(Same(to + "attn.c_proj.bias", from + "attention.output.bias", {h}));
  AddNorm(tensors, to + "ln_2", from + "post_attention_norm", h);
  tensors.push_back(Conv1D(to + "mlp.c_fc.weight", from + "mlp.up.weight", h, s.ffn));
  tensors.push_back(Same(to + "mlp.c_fc.bias", from + "mlp.up.bias", {s.ffn}));
  tensors.push_back(Conv1D(to + "mlp.c_proj.weight", from + "mlp.down.weight", s.ffn, h));
  tensors.push_back(Same(to + "mlp.c_proj.bias", from + "mlp.down.bias", {h}));
}

std::string Dump(const json& value) { return value.dump(2) + "\n"; }

}  // namespace

Result<ForeignModel> Gpt2HuggingFace(const json& model, Dtype dtype) {
  ModelFields fields(model);
  const Sizes s{fields.Positive("num_layers"),          fields.Positive("hidden_size"),
                fields.Positive("num_attention_heads"), fields.Positive("ffn_hidden_size"),
                fields.Positive("vocab_size"),          fields.Positive("max_position_embeddings"),
                fields.Flag("tied_embeddings")};
  const double epsilon = fields.Number("layernorm_epsilon");
  CAIRN_RETURN_IF_ERROR(fields.status());
  if (s.layers > kMaxLayers)
    return InvalidArgument("the manifest's model has {} layers; is it damaged?", s.layers);

  ForeignModel result;
  std::vector<ForeignTensor>& tensors = result.tensors;
  tensors.push_back(Same("transformer.wte.weight", "embedding.word.weight", {s.vocab, s.hidden}));
  tensors.push_back(Same("transformer.wpe.weight", "embedding.position.weight", {s.positions, s.hidden}));
  for (uint64_t layer = 0; layer < s.layers; ++layer) AddLayer(tensors, layer, s);
  AddNorm(tensors, "transformer.ln_f", "final_norm", s.hidden);
  if (!s.tied) tensors.push_back(Same("lm_head.weight", "output.weight", {s.vocab, s.hidden}));

  const std::string torch_dtype = dtype == Dtype::kF32   ? "float32"
                                  : dtype == Dtype::kF16 ? "float16"
                                                         : "bfloat16";
  const json begin = fields.Optional("bos_token_id"), end = fields.Optional("eos_token_id");
  result.files["config.json"] = Dump({{"activation_function", "gelu_new"},
                                      {"architectures", {"GPT2LMHeadModel"}},
                                      {"bos_token_id", begin},
                                      {"dtype", torch_dtype},
                                      {"eos_token_id", end},
                                      {"layer_norm_epsilon", epsilon},
                                      {"model_type", "gpt2"},
                                      {"n_embd", s.hidden},
                                      {"n_head", s.heads},
                                      {"n_inner", s.ffn},
                                      {"n_layer", s.layers},
                                      {"n_positions", s.positions},
                                      {"reorder_and_upcast_attn", false},
                                      {"scale_attn_by_inverse_layer_idx", false},
                                      {"scale_attn_weights", true},
                                      {"tie_word_embeddings", s.tied},
                                      {"torch_dtype", torch_dtype},  // transformers before 5
                                      {"use_cache", true},
                                      {"vocab_size", s.vocab}});
  json generation = {{"_from_model_config", true}};
  if (!begin.is_null()) generation["bos_token_id"] = begin;
  if (!end.is_null()) generation["eos_token_id"] = end;
  result.files["generation_config.json"] = Dump(generation);
  return result;
}

}  // namespace cairn
