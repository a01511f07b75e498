#include "convert/formats/torch/torch.h"

#include <algorithm>

#include "convert/foreign/stored_builder.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

std::pair<std::string, std::string> SplitPath(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

// Paths of what torch.optim calls its state dict, which its keys tell, at the top and one level below.
void FindOptimizers(const PyValue& value, const std::string& path, int depth, nlohmann::json& found) {
  if (!value.is(PyKind::kDict)) return;
  if (FindKind(value, "state", PyKind::kDict) && FindKind(value, "param_groups", PyKind::kList))
    return found.push_back(path);
  for (size_t i = 0; depth > 0 && i + 1 < value.items.size(); i += 2)
    FindOptimizers(*value.items[i + 1], (path.empty() ? "" : path + ".") + KeyText(*value.items[i]),
                   depth - 1, found);
}

}  // namespace

bool MatchesTorch(FileSystem& fs, const std::string& path) { return TorchFile::Matches(fs, path); }

Result<std::vector<TorchTensor>> ListTorchTensors(FileSystem& fs, const std::string& path,
                                                  const std::string& name, Account& account) {
  CAIRN_ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Open(fs, path));
  account.AddFile(name, file);
  std::vector<TorchTensor> tensors;
  CAIRN_RETURN_IF_ERROR(ForEachTensor(file.root(), [&](const std::string& key, const TensorRef& tensor) {
                          auto found = ArrayOf(file, tensor, 0, key);
                          if (!found.ok()) return found.status();
                          tensors.push_back({key, std::move(found->array), found->transposed});
                          return OkStatus();
                        }).WithContext(path));
  return tensors;
}

Result<std::unique_ptr<ForeignSource>> OpenTorch(FileSystem& fs, const std::string& path,
                                                 const OpenOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Open(fs, path));
  const auto [directory, name] = SplitPath(path);
  StoredBuilder builder;
  const uint32_t index = builder.AddFile(name);
  builder.account.AddFile(name, file);
  Manifest manifest;
  const auto add = [&](const std::string& tensor_name, const TensorRef& tensor) -> Status {
    if (IsAllowed(options, tensor_name)) {
      manifest.history.push_back("left out " + tensor_name);
      builder.account.Leave(Fate::kAllowed, name, file, tensor, tensor_name);
      return OkStatus();
    }
    CAIRN_ASSIGN_OR_RETURN(const TensorArray array, ArrayOf(file, tensor, index, tensor_name));
    const size_t known = builder.catalog.tensors.size();
    CAIRN_ASSIGN_OR_RETURN(const uint32_t entry, builder.Tensor({.name = tensor_name, .shape = tensor.shape},
                                                                Role::kWeight, array.array.dtype));
    if (entry != known) return Corrupt("two tensors are called {}", tensor_name);
    builder.AddPart(entry, Box::Whole(tensor.shape), array);
    return OkStatus();
  };
  CAIRN_RETURN_IF_ERROR(ForEachTensor(file.root(), add).WithContext(path));
  if (builder.catalog.tensors.empty()) return NotFound("{}: there are no tensors in it", path);
  for (const char* key : {"iteration", "step", "global_step", "global_steps", "epoch"})
    if (const auto value = AsInt(Find(file.root(), key))) manifest.state[key] = *value;
  manifest.step = IntField(manifest.state, "iteration");
  nlohmann::json optimizers = nlohmann::json::array();
  FindOptimizers(file.root(), "", 2, optimizers);
  if (!optimizers.empty()) manifest.state["optimizers"] = std::move(optimizers);
  return builder.Open(fs, directory, std::move(manifest));
}

}  // namespace cairn
