// Which files a path means, for every verb. Rows of the table are asked in their order. A directory that none
// of them knows is looked into once, one level deep; a directory with more entries than any checkpoint has
// around it is not, nor is a run of Cairn, which is always native.

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/glob.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/base/short_list.h"
#include "ckpt/model/layout.h"
#include "convert/formats/hugging_face/weight_files.h"
#include "convert/formats/systems.h"
#include "convert/formats/torch/torch.h"
#include "convert/formats/whole_check.h"

namespace cairn {
namespace {

constexpr size_t kMostEntries = 256;  // of a directory that is looked into

// Puts every relaxation that was used into the history, by name; some readers have put it there already.
void RecordAllowed(const ReaderOptions& options, ForeignSource& source) {
  if (options.vocab_size > 0)
    source.AddHistory(
        fmt::format("import: {} rows of the vocabulary are tokens (--true-vocab-size)", options.vocab_size));
  for (const std::string& name : options.allowed_names) {
    std::string line = AllowedLine(name);
    const auto says_it = [&](const nlohmann::json& entry) {
      const std::string text = entry.is_string() ? entry.get<std::string>() : "";
      return text == line || text == "left out " + name ||
             (name == "optimizer" && text.starts_with(kOptimizerLeftOut));
    };
    if (std::ranges::none_of(source.manifest().history, says_it)) source.AddHistory(std::move(line));
  }
}

// Notes files beside released weights that are not read.
void NoteOthers(FileSystem& fs, const std::string& path, std::vector<std::string>& notes) {
  for (const char* name : {"optimizer.pt", "optimizer.bin"})
    if (const std::string file = JoinPath(path, name); fs.Stat(file).ok())
      notes.push_back(
          fmt::format("{}, the optimizer's state, is not read: only the weights of {} are", file, path));
  if (fs.Stat(JoinPath(path, kAdapterFile)).ok() &&
      (HasAny(fs, path, kSafetensors) || HasAny(fs, path, kPickles)))
    notes.push_back(
        fmt::format("{} is not read: transformers adds this adapter to the model; merge it first, or give "
                    "the file itself",
                    JoinPath(path, kAdapterFile)));
}

struct Unsupported {
  const char* file;  // glob of a name that only this format has
  const char* what;
  const char* advice;
};

constexpr Unsupported kUnsupported[] = {
    {"model-rank-*-part-*.safetensors", "vLLM's sharded_state, with a part of each tensor in each file",
     "give the model that it was made from"},
    {"*.gguf", "GGUF, llama.cpp's quantized form", "convert the Hugging Face model that it was made from"},
    {"_CHECKPOINT_METADATA", "Orbax, of JAX", "export it to safetensors with the program that wrote it"},
    {"manifest.ocdbt", "Orbax, of JAX", "export it to safetensors with the program that wrote it"},
    {"flax_model.msgpack", "Flax weights",
     "load them with transformers' from_pretrained(from_flax=True) and save_pretrained"},
    {"tf_model.h5", "TensorFlow weights",
     "load them with transformers' from_pretrained(from_tf=True) and save_pretrained"},
};

// Errors: NotSupported naming the format that is not read, and what to do.
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
      return NotSupported("{}: {} has a format that Cairn does not read: {}; {}", path, *found, what, advice);
  }
  return OkStatus();
}

// The names that `--from` takes.
std::string ReadableNames(std::span<const System> systems) {
  std::vector<std::string_view> names;
  for (const System& system : systems)
    if (system.open) names.push_back(system.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// Names of files of weights, without those that trainers write next to them.
bool MayBeWeights(const std::string& name) {
  constexpr std::string_view kSuffixes[] = {".safetensors", ".pt", ".pth", ".bin", ".ckpt"};
  return std::ranges::any_of(kSuffixes, [&](auto suffix) { return name.ends_with(suffix); }) &&
         std::ranges::none_of(TrainerLayouts(),
                              [&](const TrainerLayout& of) { return FitsAnyGlob(name, of.beside); });
}

// By what is at `path` itself; without a system if no format recognises it.
Result<Recognised> RecogniseAt(FileSystem& fs, const std::string& path, std::span<const System> systems) {
  const System *weights = nullptr, *training = nullptr;
  for (const System& system : systems) {
    if (!system.matches) continue;
    const bool covered = training != nullptr && training->covers == system.name;
    const System*& found = system.training ? training : weights;
    if ((found != nullptr && !system.training) || covered || !system.matches(fs, path)) continue;
    if (found != nullptr)
      return InvalidArgument("{} holds two trainings; choose one: --from {} or --from {}", path, found->name,
                             system.name);
    found = &system;
  }
  Recognised recognised{training ? training : weights, path, {}};
  if (training && !training->note.empty())
    recognised.notes.push_back(fmt::format("{}: {}", path, training->note));
  if (training && weights)
    recognised.notes.push_back(fmt::format(
        "{} holds a training ({}) and weights for use ({}); the training is read; --from {} reads only the "
        "weights{}",
        path, training->name, weights->name, weights->name,
        weights->name == "hf" ? fmt::format("; --config {} reads the training as that model", path) : ""));
  else if (weights)
    NoteOthers(fs, path, recognised.notes);
  return recognised;
}

// The directories and files of weights in `path` that one of `systems` recognises.
std::vector<Recognised> RecogniseIn(FileSystem& fs, const std::string& path,
                                    std::span<const System> systems) {
  std::vector<Recognised> found;
  const auto names = fs.List(path);
  if (!names.ok() || names->size() > kMostEntries || IsOfCairn(*names)) return found;
  for (const std::string& name : *names) {
    const std::string below = JoinPath(path, name);
    const auto info = fs.Stat(below);
    if (!info.ok() || name.starts_with('.') || (!info->is_directory() && !MayBeWeights(name))) continue;
    Result<Recognised> there = RecogniseAt(fs, below, systems);
    if (there.ok() && there->system) found.push_back(*std::move(there));
  }
  std::erase_if(found, [&](const Recognised& one) { return IsWithoutWeights(fs, one.path); });
  return found;
}

// The checkpoints at `place`, whose last name may be a glob, where `program` is known to keep them.
std::vector<Recognised> RecognisePlace(FileSystem& fs, const std::string& place, const std::string& program,
                                       std::span<const System> systems) {
  std::vector<Recognised> found;
  const auto names = fs.List(ParentDir(place));
  for (size_t i = 0; names.ok() && names->size() <= kMostEntries && i < names->size(); ++i) {
    const std::string at = JoinPath(ParentDir(place), (*names)[i]);
    const auto info = fs.Stat(at);
    if (!FitsGlob((*names)[i], std::string(LastName(place))) || !info.ok() || !info->is_directory()) continue;
    Result<Recognised> there = RecogniseAt(fs, at, systems);
    if (!there.ok() || !there->system) continue;
    there->placed = true;
    there->notes.insert(there->notes.begin(),
                        fmt::format("{} is read, where {} keeps the model", at, program));
    found.push_back(*std::move(there));
  }
  return found;
}

// Those of the first place that has any. Errors: as CheckUnsupported(): a model that is not read is refused
// before the rest of its step is taken for the whole.
Result<std::vector<Recognised>> RecognisePlaces(FileSystem& fs, const std::string& path,
                                                std::span<const System> systems) {
  for (const TrainerLayout& layout : TrainerLayouts())
    for (const std::string& model : layout.models)
      if (auto found = RecognisePlace(fs, JoinPath(path, model), layout.program, systems); !found.empty())
        return found;
  for (const TrainerLayout& layout : TrainerLayouts())
    for (const std::string& model : layout.models)
      CAIRN_RETURN_IF_ERROR(CheckUnsupported(fs, ParentDir(JoinPath(path, model))));
  return std::vector<Recognised>();
}

// A number after "step=" in a name: "epoch=1-step=187.ckpt".
std::optional<int64_t> StepSaidIn(std::string_view name) {
  constexpr std::string_view kSaid = "step=";
  const size_t at = name.find(kSaid);
  if (at == name.npos) return std::nullopt;
  name.remove_prefix(at + kSaid.size());
  const auto step = TakeNumber<int64_t>(name);
  return step >= 0 ? step : std::nullopt;
}

// "; cairn inspect CKPT --from dcp reads ...", if the format that `system` is a special form of can read what
// the system cannot: `path`, or the step in it that the error `why` begins with.
std::string OtherFormat(FileSystem& fs, std::string path, const System& system, const OpenOptions& options,
                        std::span<const System> systems, const std::string& why) {
  const auto general = std::ranges::find(systems, system.covers, &System::name);
  if (system.covers.empty() || general == systems.end()) return "";
  if (!general->matches(fs, path)) {
    const auto steps = RecogniseIn(fs, path, std::span(&*general, 1));
    const auto named =
        std::ranges::find_if(steps, [&](const Recognised& step) { return why.starts_with(step.path); });
    if (named == steps.end()) return "";
    path = named->path;
  }
  ReaderOptions used{options, {}};
  if (!general->open(fs, path, used).ok()) return "";
  return fmt::format("; its tensors can be read under their own names: cairn inspect {} --from {}", path,
                     general->name);
}

// A refusal does not hide lost experts: they are counted by the names in the files.
void CountIfRefused(FileSystem& fs, const std::string& path, const System& system, const OpenOptions& options,
                    Result<std::unique_ptr<ForeignSource>>& source) {
  const StatusKind kind = source.status().kind();
  if (!system.names || (kind != StatusKind::kNotSupported && kind != StatusKind::kInvalidArgument)) return;
  if (const Result<StoredNames> names = system.names(fs, path); names.ok())
    source = WhyNotRead(path, source.status(), *names, options.allow);
}

}  // namespace

bool IsOfCairn(const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [](const std::string& name) {
    return name == kManifestName || name == kRunName || ParseStepDirName(name) || ParseMarkedDirName(name);
  });
}

std::optional<NamedStep> NamedStepOf(FileSystem& fs, const std::string& directory) {
  const std::string name = std::filesystem::path(CanonicalPath(directory)).filename().string();
  if (const auto named = ParseForeignStep(name)) return named;
  const auto of = [](const System& system, int64_t step) {
    const auto layout = std::ranges::find(TrainerLayouts(), system.name, &TrainerLayout::format);
    return NamedStep{layout == TrainerLayouts().end() ? nullptr : &*layout, step};
  };
  if (const auto said = StepSaidIn(name))
    if (const auto found = Recognise(fs, directory); found.ok()) return of(*found->system, *said);
  for (const TrainerLayout& layout : TrainerLayouts())
    if (const auto step = layout.StepOfFile(name))
      if (const auto info = fs.Stat(directory); info.ok() && info->kind == FileKind::kFile)
        return NamedStep{&layout, *step};
  for (const System& system : Systems())
    if (system.step_of)
      if (const auto step = system.step_of(fs, directory)) return of(system, *step);
  return std::nullopt;
}

bool IsCheckpoint(FileSystem& fs, const std::string& path) {
  const Result<Recognised> here = RecogniseAt(fs, path, Systems());
  return !here.ok() || here->system != nullptr;  // two trainings are an error
}

Result<std::vector<Recognised>> RecogniseAll(FileSystem& fs, const std::string& path,
                                             std::span<const System> systems) {
  CAIRN_ASSIGN_OR_RETURN(Recognised here, RecogniseAt(fs, path, systems));
  if (here.system) return std::vector{std::move(here)};
  CAIRN_ASSIGN_OR_RETURN(std::vector<Recognised> placed, RecognisePlaces(fs, path, systems));
  return placed.empty() ? RecogniseIn(fs, path, systems) : std::move(placed);
}

Result<std::vector<Recognised>> RecogniseStep(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<Recognised> found, RecogniseAll(fs, path));
  if (found.empty() || !found.front().placed) return found;
  const auto has = [&](const std::string& directory) {
    return std::ranges::any_of(
        found, [&](const auto& one) { return (one.path + "/").starts_with(directory + "/"); });
  };
  for (Recognised& other : RecogniseIn(fs, path, Systems()))
    if (!has(other.path)) found.push_back(std::move(other));
  return found;
}

Result<Recognised> Recognise(FileSystem& fs, const std::string& path, std::span<const System> systems) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<Recognised> found, RecogniseAll(fs, path, systems));
  if (found.size() == 1) {
    if (const std::string& at = found[0].path; at != path && !found[0].placed)
      found[0].notes.insert(found[0].notes.begin(),
                            fmt::format("{} is read, the only checkpoint in {}", at, path));
    return std::move(found[0]);
  }
  if (const auto info = fs.Stat(path); found.empty() && info.ok() && !info->is_directory())
    return NotSupported(
        "{} is a file that is not a checkpoint of {}; name another, a directory, or its format with --from",
        path, ReadableNames(systems));
  if (found.empty())
    return NotFound(
        "{}: it is neither a step or run of Cairn nor a checkpoint of {}; name the directory or file that "
        "holds one, or its format with --from",
        path, ReadableNames(systems));
  std::vector<std::string> names;
  for (const Recognised& one : found) names.push_back(one.path.substr(one.path.rfind('/') + 1));
  return InvalidArgument("{} holds several checkpoints: {}; name one: cairn inspect {}", path,
                         ShortList(names), found[0].path);
}

Result<std::unique_ptr<ForeignSource>> OpenForeign(FileSystem& fs, const std::string& given,
                                                   const OpenOptions& options,
                                                   std::span<const System> systems) {
  const auto named = std::ranges::find(systems, options.format, &System::name);
  const System* system = named == systems.end() ? nullptr : &*named;
  std::string path = given;
  if (options.format.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const Recognised recognised, Recognise(fs, path, systems));
    system = recognised.system;
    path = recognised.path;
  } else if (!system || !system->open) {
    return InvalidArgument("format {} is unknown; the formats are {}", options.format,
                           ReadableNames(systems));
  } else if (!system->matches(fs, path)) {
    const auto found = RecogniseIn(fs, path, std::span(system, 1));
    if (found.size() == 1) path = found[0].path;
  }
  ReaderOptions used{options, {}};
  Result<std::unique_ptr<ForeignSource>> source = system->open(fs, path, used);
  CountIfRefused(fs, path, *system, options, source);
  if (const StatusKind kind = source.status().kind();
      kind == StatusKind::kNotSupported || kind == StatusKind::kNotFound)
    return Status(kind, source.status().message() +
                            OtherFormat(fs, path, *system, options, systems, source.status().message()));
  if (!source.ok()) return source;
  if (const Result<FileInfo> info = fs.Stat(path); info.ok() && !info->is_directory())
    (*source)->SetName(path);
  CAIRN_RETURN_IF_ERROR(CheckWhole(**source, used));
  RecordAllowed(used, **source);
  return source;
}

}  // namespace cairn
