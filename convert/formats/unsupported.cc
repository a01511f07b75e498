#include "convert/formats/unsupported.h"

#include <algorithm>

#include "ckpt/base/glob.h"

namespace cairn {
namespace {

struct Unsupported {
  const char* file;  // glob of a name that only this format has
  const char* what;
  const char* advice;
};

constexpr Unsupported kUnsupported[] = {
    {"shard-*-model-*.safetensors", "torch.distributed.checkpoint in safetensors form",
     "load it with transformers' from_pretrained and save_pretrained it without distributed_checkpoint=True"},
    {"*.gguf", "GGUF, llama.cpp's quantized form", "convert the Hugging Face model that it was made from"},
    {"model_world_size_*_rank_*.pt", "verl's, one file of DTensors per rank",
     "python -m verl.model_merger merge makes a Hugging Face model of it"},
    {"_CHECKPOINT_METADATA", "Orbax, of JAX", "export it to safetensors with the program that wrote it"},
    {"manifest.ocdbt", "Orbax, of JAX", "export it to safetensors with the program that wrote it"},
    {"flax_model.msgpack", "Flax weights",
     "load them with transformers' from_pretrained(from_flax=True) and save_pretrained"},
    {"tf_model.h5", "TensorFlow weights",
     "load them with transformers' from_pretrained(from_tf=True) and save_pretrained"},
};

}  // namespace

Status CheckUnsupported(FileSystem& fs, const std::string& path) {
  const auto info = fs.Stat(path);
  if (!info.ok()) return OkStatus();
  std::vector<std::string> names = {path.substr(path.find_last_of('/') + 1)};
  if (info->is_directory()) {
    const auto listed = fs.List(path);
    if (!listed.ok()) return OkStatus();
    names = *listed;
  }
  for (const auto& [file, what, advice] : kUnsupported) {
    const auto found = std::ranges::find_if(names, [&](const auto& name) { return FitsGlob(name, file); });
    if (found != names.end())
      return NotSupported("{}: {} is of a format that is not read: {}; {}", path, *found, what, advice);
  }
  return OkStatus();
}

}  // namespace cairn
