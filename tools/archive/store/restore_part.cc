#include "tools/archive/store/restore_part.h"

#include <algorithm>
#include <set>

#include "ckpt/model/layout.h"
#include "ckpt/model/tensor.h"
#include "ckpt/run/committer.h"
#include "ckpt/run/tokenizer_files.h"
#include "convert/formats/hugging_face/safetensors_layout.h"
#include "convert/verbs/strip.h"

namespace cairn {
namespace {

constexpr std::string_view kTensorsDir = "weights", kTensorsFile = "model.safetensors";

}  // namespace

Status RestoreWeights(FileSystem& fs, FileSystem& from, CheckpointSource& step,
                      const std::string& destination) {
  const std::string target = DestinationPath(destination);
  CAIRN_RETURN_IF_ERROR(CheckDestination(fs, target, step.manifest().step));
  StripOptions options{.dtype = std::nullopt, .format = FindSystem("native")};
  options.command = "cairn archive restore --weights-only";
  CAIRN_ASSIGN_OR_RETURN(options.writer.beside, TokenizerOf(from, step.directory()));
  CAIRN_ASSIGN_OR_RETURN(const Transfer transfer, PlanStrip(step, options));
  if (IsInRun(target)) return AskForAnotherPlace(transfer.Run(fs, ParentDir(target)).status(), target);
  const MarkedContents contents = RunOfOneStep(step.manifest().step, NamesInStep(options.writer.beside));
  CAIRN_ASSIGN_OR_RETURN(PartialDir run, PartialDir::MakeFor(fs, target, contents));
  CAIRN_RETURN_IF_ERROR(transfer.Run(fs, run.path()).status());
  return run.Publish(StepDirName(step.manifest().step));
}

std::vector<std::string> FilesOfTensors(const StepCatalog& catalog, const std::vector<std::string>& globs) {
  std::set<std::string> files;
  const auto add = [&](uint32_t tensor) {
    const auto [begin, end] = catalog.PiecesOfTensor(tensor);
    for (size_t i = begin; i < end; ++i) files.insert(catalog.files[catalog.pieces[i].file]);
  };
  for (uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    if (std::ranges::none_of(globs, [&](const auto& glob) { return FitsGlob(catalog.tensors[i], glob); }))
      continue;
    add(i);
    if (const auto weight = catalog.Find(catalog.tensors[i].spec.name, Role::kWeight); weight.ok())
      add(*weight);
  }
  return {files.begin(), files.end()};
}

Result<size_t> RestoreTensors(FileSystem& fs, CheckpointSource& step, const std::vector<std::string>& globs,
                              const std::string& destination, const ByteProgress& progress) {
  const TensorTable& catalog = step.catalog();
  StoredTarget target;
  std::vector<StoredArray> entries;
  std::vector<bool> used(globs.size());
  for (uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    bool fits = false;
    for (size_t g = 0; g < globs.size(); ++g)
      if (FitsGlob(catalog.tensors[i], globs[g])) fits = used[g] = true;
    if (!fits) continue;
    const auto& [spec, role, dtype] = catalog.tensors[i];
    const std::string name = DisplayName(catalog.tensors[i]);
    const auto number = static_cast<uint32_t>(entries.size());
    const Box whole = Box::Whole(spec.shape);
    entries.push_back({name, dtype, spec.shape});
    target.tensors.push_back({i, {{.name = name, .shape = spec.shape}, Role::kWeight, dtype}});
    target.arrays.push_back({name, dtype, spec.shape, {{{0, spec.shape.Volume()}, number, 0}}});
    target.storages.push_back({0, number});
    target.parts.push_back({{whole, whole}, number, number});
  }
  for (size_t g = 0; g < globs.size(); ++g)
    if (!used[g])
      return InvalidArgument("{}: '{}' matches no tensor; cairn inspect lists them", step.directory(),
                             globs[g]);
  CAIRN_RETURN_IF_ERROR(ClearPlace(fs, destination));
  target.files.push_back({.name = std::string(kTensorsFile)});
  CAIRN_ASSIGN_OR_RETURN(auto layout, MakeSafetensorsStorages(std::move(entries), {}));
  target.containers.push_back({.layout = std::move(layout)});
  PlaceContainers(target);
  const size_t tensors = target.tensors.size();
  // A directory with one file, which is moved out of it.
  const std::string file = JoinPath(kTensorsDir, kTensorsFile);
  CAIRN_ASSIGN_OR_RETURN(PartialDir partial, PartialDir::MakeFor(fs, destination, {.files = {file}}));
  Transfer transfer(step, FilesTarget{.files = std::move(target), .reader = "safetensors"});
  transfer.progress = progress;
  CAIRN_RETURN_IF_ERROR(transfer.Run(fs, JoinPath(partial.path(), kTensorsDir)).status());
  CAIRN_RETURN_IF_ERROR(partial.Publish(file));
  return tensors;
}

}  // namespace cairn
