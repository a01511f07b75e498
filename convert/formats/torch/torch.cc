#include "convert/formats/torch/torch.h"

#include <algorithm>
#include <set>

#include "convert/foreign/stored_builder.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

std::pair<std::string, std::string> SplitPath(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

// Paths of torch.optim's state dicts, which their keys tell, down to two levels below the top: "optimizer",
// or "optimizer_states.0" of Lightning.
void FindOptimizers(const PyValue& value, const std::string& path, int depth, std::set<std::string>& found) {
  const bool dict = value.is(PyKind::kDict);
  if (dict && FindKind(value, "state", PyKind::kDict) && FindKind(value, "param_groups", PyKind::kList)) {
    found.insert(path);
    return;
  }
  if (depth == 0 || !(dict || value.is(PyKind::kList))) return;
  const std::string below = path.empty() ? "" : path + ".";
  for (size_t i = dict ? 1 : 0; i < value.items.size(); i += dict ? 2 : 1)
    FindOptimizers(*value.items[i], below + (dict ? KeyText(*value.items[i - 1]) : std::to_string(i)),
                   depth - 1, found);
}

bool IsBelow(const std::string& name, const std::set<std::string>& paths) {
  return std::ranges::any_of(
      paths, [&](const std::string& path) { return path.empty() || name.starts_with(path + "."); });
}

}  // namespace

bool MatchesTorch(FileSystem& fs, const std::string& path) { return TorchFile::Matches(fs, path); }

Result<std::unique_ptr<ForeignSource>> OpenTorch(FileSystem& fs, const std::string& path,
                                                 ReaderOptions& options) {
  const auto [directory, name] = SplitPath(path);
  StoredBuilder builder;
  CAIRN_ASSIGN_OR_RETURN(const TorchFile file, builder.OpenFile(fs, directory, name));
  builder.AddFile(name);
  Manifest manifest;
  std::set<std::string> optimizers;
  FindOptimizers(file.root(), "", 2, optimizers);
  const bool without = !optimizers.empty() && IsAllowed(options, "optimizer");
  if (without) manifest.history.push_back("the optimizer's state was left out (--allow optimizer)");
  const auto add = [&](const std::string& tensor_name, const TensorRef& tensor) -> Status {
    const bool optimizer = IsBelow(tensor_name, optimizers);
    if ((optimizer && without) || IsAllowed(options, tensor_name)) {
      if (!optimizer || !without) manifest.history.push_back("left out " + tensor_name);
      builder.account.Leave(Fate::kAllowed, file, tensor, tensor_name);
      return OkStatus();
    }
    if (options.skip_types && !tensor.type->dtype) {
      manifest.state[kTypesNotHeld][tensor_name] = tensor.type->name;
      builder.account.Leave(Fate::kAllowed, file, tensor, tensor_name);
      return OkStatus();
    }
    CAIRN_ASSIGN_OR_RETURN(const StoredArray array, builder.ArrayIn(file, tensor, tensor_name));
    const size_t known = builder.catalog.tensors.size();
    CAIRN_ASSIGN_OR_RETURN(const uint32_t entry, builder.Tensor({.name = tensor_name, .shape = tensor.shape},
                                                                Role::kWeight, array.dtype));
    if (entry != known) return Corrupt("two tensors are called {}", tensor_name);
    builder.AddPart(entry, Box::Whole(tensor.shape), array);
    if (optimizer) builder.account.CountAsOptimizer(tensor_name);
    return OkStatus();
  };
  CAIRN_RETURN_IF_ERROR(ForEachTensor(file.root(), add).WithContext(path));
  if (builder.catalog.tensors.empty()) return NotFound("{}: it does not contain tensors", path);
  for (const char* key : {"iteration", "step", "global_step", "global_steps", "epoch"})
    if (const auto value = AsInt(Find(file.root(), key))) manifest.state[key] = *value;
  manifest.step = IntField(manifest.state, "iteration");
  if (!optimizers.empty() && !without) manifest.state["optimizers"] = optimizers;
  return builder.Open(fs, directory, std::move(manifest));
}

}  // namespace cairn
