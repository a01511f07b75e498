// Our manifest, as given and with the digest that its bytes should have: an attacker who can write the file
// can write that too.
#include "ckpt/model/manifest.h"

#include "tests/fuzz/bytes.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/signed_json.h"

namespace cairn {
namespace {

void Check(std::string_view text) {
  const auto manifest = DecodeManifest(text);
  FuzzCheck(manifest.ok() ? EncodeManifest(*manifest) == text : !manifest.status().message().empty());
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  Manifest manifest;
  manifest.run = "0123456789abcdef0123456789abcdef";
  manifest.step = 100;
  manifest.topology = {2, 2, 2, 1, 1, {3, 1}};
  manifest.model = nlohmann::json{{"architecture", "gpt"}, {"layers", 4}, {"hidden", 64}};
  manifest.state = {{"iteration", 100}, {"loss_scale", 65536.0}, {"param_groups", {{{"lr", 1e-4}}}}};
  manifest.history = {"left out x"};
  manifest.files = {{"shard-00000.h5", 4096, {}}, {"index.h5", 8192, {}}};
  manifest.catalog_offset = 4096;
  manifest.catalog_bytes = 200;
  Manifest over = manifest;
  over.shards = "../step-00000100";
  Manifest mixture = manifest;
  mixture.topology.ep = 4;
  mixture.topology.etp = 1;
  mixture.model.num_experts = 8;
  mixture.model.moe_ffn_hidden_size = 24;
  return {EncodeManifest(manifest), EncodeManifest(over), EncodeManifest(mixture)};
}

std::vector<std::string> FuzzWords() {
  return JsonWords({"\"files\":", "\"step\":", "\"version\": 2", "\"shards\": \"../step-1\"",
                    "\"virtual_stages\": 2", "\"layers_per_stage\": [1]", "\"tp\":", "\"ep\": 2147483647",
                    "\"etp\": -1", "9223372036854775808", "\"../x\""});
}

}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  Check(TextOf(data, size));
  if (const auto text = SignedJson(TextOf(data, size))) Check(*text);
  return 0;
}
