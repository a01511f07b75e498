// Files come first, since the checks of folders rely on them. A check that does not know what it sees (a
// compressed zip, a model of an unknown family) reports no problem: the seal records that it could not check.

#include "tools/seal/step_parts.h"

#include <algorithm>
#include <array>
#include <span>

#include "ckpt/run/run_dir.h"
#include "convert/foreign/expert_census.h"
#include "convert/foreign/file_sets.h"
#include "convert/formats/hugging_face/config_source.h"
#include "convert/formats/hugging_face/safetensors_header.h"
#include "convert/formats/megatron/megatron_dist.h"
#include "convert/formats/systems.h"
#include "convert/formats/training/part_of_state.h"
#include "convert/verbs/file_sums.h"
#include "tools/cli/human.h"
#include "tools/place/place.h"

namespace cairn {
namespace {

constexpr std::string_view kTorchSuffixes[] = {".pt", ".pth", ".ckpt", ".bin"};

class PartsChecker {
 public:
  PartsChecker(FileSystem& fs, const std::string& directory, const std::vector<StepFile>& files)
      : fs_(fs), directory_(directory) {
    for (const StepFile& file : files) {
      names_.push_back(file.name);
      folders_[FolderOf(file.name)].push_back(file.name.substr(FolderOf(file.name).size()));
    }
  }

  StepParts CheckFiles(const std::vector<StepFile>& files) {
    for (const StepFile& file : files) CheckFile(file.name, file.bytes);
    ReadZips();
    for (const System& system : Systems()) {
      for (const std::string_view pattern : system.sets)
        Take(CheckFileSets(pattern, directory_, names_), directory_);
      if (!system.check_files) continue;
      for (const auto& [folder, names] : folders_) {
        const std::string path = PathOf(folder.substr(0, folder.rfind('/')));
        Take(system.check_files(fs_, path, names), path);
      }
    }
    return std::move(parts_);
  }

  StepParts Check(const std::vector<StepFile>& files, const OpenOptions& options) {
    parts_ = CheckFiles(files);
    OpenAsAWhole(options);
    return std::move(parts_);
  }

 private:
  std::string PathOf(const std::string& name) const {
    return name.empty() ? directory_ : JoinPath(directory_, name);
  }
  static bool IsTorch(const std::string& name) {
    return std::ranges::any_of(kTorchSuffixes, [&](auto suffix) { return name.ends_with(suffix); });
  }

  static bool IsHidden(const std::string& folder) {
    return folder.starts_with('.') || folder.find("/.") != folder.npos;
  }

  void Add(std::string path, std::string what) {
    parts_.problems.push_back({std::move(path), {}, "", std::move(what)});
  }
  // A failure, whose message may begin with a path in `path`. NotSupported and InvalidArgument do not say
  // that anything is wrong with the files.
  void Take(const Status& status, const std::string& path) {
    const std::string& message = status.message();
    const size_t colon = message.starts_with(path) ? message.find(": ", path.size()) : message.npos;
    if (status.ok()) return;
    if (status.kind() == StatusKind::kNotSupported || status.kind() == StatusKind::kInvalidArgument)
      parts_.untold.push_back(message);
    else if (colon == message.npos)
      Add(path, message);
    else
      Add(message.substr(0, colon), message.substr(colon + 2));
  }

  void CheckFile(const std::string& name, uint64_t bytes) {
    const bool safetensors = name.ends_with(".safetensors"), json = name.ends_with(".json");
    const std::string path = PathOf(name);
    if (bytes == 0 && IsHidden(FolderOf(name))) return;  // the hub's cache: .no_exist
    if (bytes == 0 && (IsTorch(name) || json)) return Add(path, "is empty");
    if (json) return CheckJson(path, bytes);
    if (!safetensors) return;
    if (const auto header = ReadSafetensorsHeader(fs_, path); !header.ok())
      Take(header.status(), path);
    else
      ++safetensors_;
  }

  // Checks only that the end exists: writers deviate from JSON, for example by NaN.
  void CheckJson(const std::string& path, uint64_t bytes) {
    const auto file = fs_.OpenForRead(path);
    std::array<char, 1> first{};
    std::array<char, 4096> end{};
    const auto last = std::span(end).first(std::min<uint64_t>(end.size(), bytes));
    Status status = file.ok() ? (*file)->ReadAt(0, std::as_writable_bytes(std::span(first))) : file.status();
    if (status.ok()) status = (*file)->ReadAt(bytes - last.size(), std::as_writable_bytes(last));
    if (!status.ok()) return Add(path, status.message());
    const std::string_view text(last.data(), last.size());
    const size_t at = text.find_last_not_of(" \r\n\t");
    const char closing = first[0] == '{' ? '}' : ']';
    if ((first[0] == '{' || first[0] == '[') && (at == text.npos || text[at] != closing))
      Add(path, fmt::format("is truncated: it does not end with {}", closing));
  }

  // The records of torch.save's zips. A file that is not a zip is not reported.
  void ReadZips() {
    std::vector<std::string> names;
    std::ranges::copy_if(names_, std::back_inserter(names),
                         [](const std::string& name) { return IsTorch(name) || name.ends_with(".distcp"); });
    const FileSums sums = FindZips(fs_, directory_, names);
    std::map<std::string, FileSums> by_file;
    for (const std::string& name : sums.zips) by_file[name].zips = {name};
    for (const auto& item : sums.items)
      if (std::ranges::binary_search(names, item.first)) by_file[item.first].items.push_back(item);
    uint64_t whole = 0;
    for (const auto& [name, own] : by_file) {
      const auto records = RecordsOf(fs_, directory_, {name}, own);
      if (!records.ok()) {
        Take(records.status(), PathOf(name));
        continue;
      }
      for (const SummedRecord& record : *records)
        if (record.record.crc != 0 && record.record.bytes > 0) parts_.records[name].push_back(record.record);
      whole += own.zips.size();
    }
    if (whole > 0)
      parts_.whole.push_back(Counted(whole, "torch.save file") + ", each with its directory at the end");
    if (safetensors_ > 0)
      parts_.whole.push_back(Counted(safetensors_, "safetensors file") + ", each as long as its header says");
  }

  // As every verb opens it. Replicas are not compared: that would read them.
  void OpenAsAWhole(OpenOptions options) {
    if (IsSavedByCairnMegatron(fs_, directory_)) return OpenStepInside(directory_);
    options.replicas = Replicas::kFirst;
    if (!options.format.empty()) {
      parts_.system = options.format;
      Open(directory_, options);
      return CheckWeights();
    }
    const Result<std::vector<Recognised>> found = RecogniseStep(fs_, directory_);
    if (!found.ok()) return Take(found.status(), directory_);
    if (found->empty()) return OpenRunsInside();
    parts_.system = SystemOf(fs_, directory_);
    for (const Recognised& one : *found) {
      options.format = one.system->name;
      Open(one.path, options);
    }
    CheckWeights();
  }

  // A step may keep its optimizer in a directory of its own, but not only that.
  void CheckWeights() {
    if (!weights_ && parts_.problems.empty() && parts_.untold.empty())
      parts_.untold.push_back("no weights are in it, so whether their files are lost is not known");
  }

  void Open(const std::string& path, const OpenOptions& options) {
    if (!parts_.problems.empty()) return;  // opening would report the same again
    auto source = OpenForeign(fs_, path, options);
    if (source.ok() && !options.config.empty() && !(*source)->manifest().model.architecture)
      source = ReadByConfig(fs_, std::move(source).value(), options);
    if (!source.ok()) return Take(source.status(), path);
    const std::set<Role> roles = (*source)->catalog().Roles();
    weights_ |= roles.contains(Role::kWeight) || roles.contains(Role::kMaster);
    ExpertCensus census = TakeCensus((*source)->catalog().tensors, (*source)->manifest().model);
    AllowLost(options.allow, census);
    for (std::string& lost : census.lost) Add(path, std::move(lost));
    if (!census.mixtures.empty()) parts_.whole.push_back(ToString(census.mixtures));
    std::ranges::move(census.notes, std::back_inserter(parts_.notes));
    if (const std::string state = FirstOfUnknownShape((*source)->catalog()); !state.empty())
      parts_.untold.push_back(fmt::format("{}: {}; whether it is whole is not known", path, state));
    parts_.whole.push_back(fmt::format("{}: {} of {} bytes, every element covered once", options.format,
                                       Counted((*source)->catalog().tensors.size(), "tensor"),
                                       (*source)->catalog().bytes()));
  }

  // As cairn.hf saves a checkpoint.
  void OpenRunsInside() {
    bool any = false;
    for (const auto& [folder, names] : folders_) {
      const std::string path = PathOf(folder.substr(0, folder.rfind('/')));
      if (const auto place = PlaceAt(fs_, path); !place.ok() || !place->native_run()) continue;
      any = true;
      OpenStepInside(path);
    }
    parts_.system = "";
    if (!any)
      parts_.untold.push_back("no format recognises the files, so their completeness could not be checked");
  }

  void OpenStepInside(const std::string& path) {
    parts_.system = "cairn";
    const auto step = OpenCheckpoint(fs_, path, [&](const Status& why) { Take(why, path); });
    if (!step.ok()) return Take(step.status(), path);
    parts_.whole.push_back((*step)->directory() + ", a step of Cairn");
  }

  FileSystem& fs_;
  const std::string& directory_;
  std::vector<std::string> names_;                           // of all files
  std::map<std::string, std::vector<std::string>> folders_;  // names in each folder
  uint64_t safetensors_ = 0;
  bool weights_ = false;  // are in one of the checkpoints
  StepParts parts_;
};

}  // namespace

std::string SystemOf(FileSystem& fs, const std::string& directory) {
  const auto found = RecogniseAll(fs, directory);
  if (!found.ok() || found->empty()) return "";
  const System* const first = found->front().system;
  const bool all = std::ranges::all_of(*found, [&](const auto& one) { return one.system == first; });
  return all ? std::string(first->name) : "";
}

StepParts CheckStepParts(FileSystem& fs, const std::string& directory, const std::vector<StepFile>& files,
                         const OpenOptions& options) {
  return PartsChecker(fs, directory, files).Check(files, options);
}

StepParts CheckStepFiles(FileSystem& fs, const std::string& directory, const std::vector<StepFile>& files) {
  return PartsChecker(fs, directory, files).CheckFiles(files);
}

}  // namespace cairn
