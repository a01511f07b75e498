#include "tools/plan/hf_config.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>

namespace cairn {
namespace {

using nlohmann::json;
constexpr int64_t kLargestSize = 100'000'000;

class Config {
 public:
  Config(const json& config, const std::string& origin) : config_(config), origin_(origin) {}

  // The first of the keys that is there and not null; `otherwise` where none is.
  Result<int64_t> Size(std::initializer_list<const char*> keys, std::optional<int64_t> otherwise = {}) const {
    for (const char* key : keys) {
      const auto found = config_.find(key);
      if (found == config_.end() || found->is_null()) continue;
      if (!found->is_number_integer() || *found < 1 || *found > kLargestSize)
        return InvalidArgument("{}: {} is {}; it must be a whole number from 1 to {}", origin_, key,
                               found->dump(), kLargestSize);
      return found->get<int64_t>();
    }
    if (otherwise) return *otherwise;
    return InvalidArgument("{}: no {}", origin_, *keys.begin());
  }

  bool Flag(const char* key, bool otherwise) const {
    const auto found = config_.find(key);
    return found != config_.end() && found->is_boolean() ? found->get<bool>() : otherwise;
  }

  std::string Type() const {
    const auto found = config_.find("model_type");
    return found != config_.end() && found->is_string() ? found->get<std::string>() : "";
  }

 private:
  const json& config_;
  const std::string& origin_;
};

bool OneOf(const std::string& type, std::initializer_list<std::string_view> types) {
  return std::find(types.begin(), types.end(), type) != types.end();
}

}  // namespace

Result<ModelShape> ShapeOfConfig(const json& json_config, const std::string& origin) {
  const Config config(json_config, origin);
  const std::string type = config.Type();
  // Families whose MLP is not gated; all later ones are.
  const bool plain = OneOf(type, {"gpt2", "gpt_neox", "gpt_neo", "gptj", "bloom", "opt", "falcon",
                                  "gpt_bigcode", "codegen", "phi", "mpt"});
  ModelShape shape;
  CAIRN_ASSIGN_OR_RETURN(shape.layers,
                         config.Size({"num_hidden_layers", "n_layer", "num_layers", "n_layers"}));
  CAIRN_ASSIGN_OR_RETURN(shape.hidden, config.Size({"hidden_size", "n_embd", "n_embed", "d_model"}));
  CAIRN_ASSIGN_OR_RETURN(shape.heads, config.Size({"num_attention_heads", "n_head", "n_heads"}));
  CAIRN_ASSIGN_OR_RETURN(shape.vocab, config.Size({"vocab_size"}));
  CAIRN_ASSIGN_OR_RETURN(shape.kv_heads, config.Size({"num_key_value_heads", "num_kv_heads"}, shape.heads));
  CAIRN_ASSIGN_OR_RETURN(shape.head_dim,
                         config.Size({"head_dim"}, std::max<int64_t>(1, shape.hidden / shape.heads)));
  CAIRN_ASSIGN_OR_RETURN(
      shape.ffn,
      config.Size({"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"}, 4 * shape.hidden));
  CAIRN_ASSIGN_OR_RETURN(
      shape.seq,
      config.Size({"max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len"}, 2048));
  shape.has.gate = !plain;
  shape.tied = config.Flag("tie_word_embeddings",
                           OneOf(type, {"gpt2", "bloom", "opt", "gemma", "gemma2", "gpt_bigcode", "mpt"}));
  shape.has.positions = OneOf(type, {"gpt2", "opt", "gpt_neo", "gpt_bigcode"});
  return shape;
}

}  // namespace cairn
