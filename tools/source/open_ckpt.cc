#include "tools/source/open_ckpt.h"

#include <algorithm>
#include <ranges>

#include "ckpt/run/run_dir.h"
#include "convert/foreign/account.h"
#include "convert/formats/hugging_face/config_model.h"
#include "convert/formats/hugging_face/config_source.h"
#include "convert/formats/hugging_face/training_names.h"
#include "convert/formats/megatron/megatron_lm.h"
#include "convert/stream/decode_values.h"
#include "tools/archive/store/restore.h"
#include "tools/archive/store/store.h"
#include "tools/place/finished.h"

namespace cairn {
namespace {

// Lines for `options.note`. A source that is opened in another way after a failure tells them once.
using Notes = std::vector<std::string>;

auto PassOver(Notes& notes) {
  return [&](const Status& skipped) { notes.push_back("passed over: " + skipped.message()); };
}

void Report(const OpenOptions& options, const Notes& notes) {
  for (const std::string& note : notes)
    if (options.note) options.note(note);
}

bool HoldsWeights(const CheckpointSource& source) {
  const std::vector<std::string> optimizers = OptimizerPaths(source.manifest());
  return std::ranges::any_of(source.catalog().tensors, [&](const TensorEntry& tensor) {
    return tensor.role == Role::kWeight && IsFloat(tensor.dtype) && tensor.spec.shape.rank() > 0 &&
           !IsBelowAny(tensor.spec.name, optimizers);
  });
}

// How tensors under their own names become those of a model whose config.json is next to their file.
void NoteConfig(const OpenedSource& opened, Notes& notes) {
  if (opened.foreign->manifest().model.architecture || !HoldsWeights(*opened.foreign)) return;
  for (const std::string& beside : opened.DirectoriesOfConfig())
    if (opened.fs().Stat(JoinPath(beside, "config.json")).ok())
      notes.push_back(fmt::format("note: --config {} reads {} as the model of that config.json", beside,
                                  opened.foreign->name()));
}

// Opens another system's files. Notes what is not read.
Status OpenFiles(const std::string& path, OpenOptions options, OpenedSource& opened, Notes& notes) {
  opened.path = path;
  opened.log = std::make_unique<ReadLog>(opened.step.fs());
  std::string checkpoint = path;
  if (options.format.empty()) {
    CAIRN_ASSIGN_OR_RETURN(Recognised recognised, Recognise(*opened.log, path));
    for (const std::string& note : recognised.notes) notes.push_back("note: " + note);
    options.format = recognised.system->name;
    checkpoint = std::move(recognised.path);
  }
  opened.system = FindSystem(options.format);
  CAIRN_ASSIGN_OR_RETURN(opened.foreign, OpenForeign(*opened.log, checkpoint, options));
  if (opened.foreign->manifest().step == 0)
    if (const auto named = NamedStepOf(opened.step.fs(), path)) opened.foreign->SetStep(named->step);
  if (!opened.foreign->note().empty()) notes.push_back("note: " + opened.foreign->note());
  if (options.config.empty() && opened.system->own_names) NoteConfig(opened, notes);
  return OkStatus();
}

// The step to read from another system's run whose tracker does not name it: the only one, or the newest that
// its writer has finished. Errors: NotFound if no step is known to be finished.
Result<std::string> StepToRead(FileSystem& fs, const Place& run, Notes& notes) {
  std::vector<std::string> passed_over;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<FoundStep> saved, SavedSteps(fs, run.steps, passed_over));
  const std::string& step = saved.back().path;
  if (run.steps.size() == 1) {
    notes.push_back(fmt::format("note: {} is read, the only step in {}", step, run.path));
    if (!passed_over.empty()) notes.back() += "; " + passed_over.front();
    return step;
  }
  for (const std::string& why : passed_over) notes.push_back("passed over: " + why);
  notes.push_back(fmt::format("note: {} is read, the newest finished step in {}", step, run.path));
  return step;
}

// A member is opened by what its files are, as a directory is.
Result<OpenedSource> OpenAt(FileSystem& outside, Place place, const OpenOptions& options, Notes& notes) {
  OpenedSource opened{.step = {.outside = &outside}};
  const std::string name = place.name();
  const bool member = place.kind == PlaceKind::kMember;
  if (member) {
    const Store store(outside, place.path);
    CAIRN_ASSIGN_OR_RETURN(const ArchiveMember found, FindMember(store, place.member));
    CAIRN_ASSIGN_OR_RETURN(auto view, OpenMember({store, found.tar}));
    CAIRN_ASSIGN_OR_RETURN(place, PlaceAt(*view, view->root()));
    opened.step.view = std::move(view);
  }
  FileSystem& fs = opened.step.fs();
  const bool native = !place.native_path.empty();
  if (options.format.empty() ? native : options.format == "native") {
    if (member && !native)
      return NotSupported(
          "{}: files of another system; make a step of them with cairn convert {} DST --to native",
          place.path, name);
    auto reader = OpenCheckpoint(fs, native ? place.native_path : place.path, PassOver(notes));
    if (!reader.ok() && place.of_node())
      return reader.status().WithContext(name + ": only this node's part of its steps is here");
    CAIRN_ASSIGN_OR_RETURN(opened.step.reader, std::move(reader));
    return opened;
  }
  if (place.foreign_run() && !IsCheckpoint(fs, place.path)) {
    CAIRN_ASSIGN_OR_RETURN(place.path, StepToRead(fs, place, notes));
  }
  const Status status = OpenFiles(place.path, options, opened, notes);
  if (status.kind() == StatusKind::kNotFound && place.kind == PlaceKind::kTree)
    CAIRN_RETURN_IF_ERROR(RefuseRunsIn(fs, place.path));
  CAIRN_RETURN_IF_ERROR(status);
  return opened;
}

// As the readers of other systems do when they make a step.
void LeaveOutFieldsOf(StepReader& step, const std::vector<std::string>& allow) {
  Model model = step.manifest().model;
  const std::vector<std::string> history = LeaveOutFields(allow, model);
  if (!history.empty()) step.Redescribe(std::move(model), history);
}

std::unique_ptr<CheckpointSource> Taken(OpenedSource& opened) {
  if (opened.foreign) return std::move(opened.foreign);
  return std::move(opened.step.reader);
}

// The names that --config asks for are those of this model.
Status CheckFamily(FileSystem& fs, const std::string& config, const CheckpointSource& source) {
  CAIRN_ASSIGN_OR_RETURN(const ConfigModel asked, ReadConfigAt(fs, config));
  const std::string& own = *source.manifest().model.architecture;
  if (own.empty() || (asked.family && asked.family->name == own)) return OkStatus();
  return InvalidArgument(
      "{}: it is a model of {}, and {} describes another; write --names transformers, without --config",
      source.name(), own, asked.path);
}

Result<OpenedSource> OpenByConfig(FileSystem& fs, const Place& place, const OpenOptions& options,
                                  Notes& notes) {
  CAIRN_ASSIGN_OR_RETURN(OpenedSource opened, OpenAt(fs, place, options, notes));
  if (opened.step.reader) LeaveOutFieldsOf(*opened.step.reader, options.allow);
  if (options.config.empty()) return opened;
  if (const Manifest& manifest = opened.source().manifest(); manifest.model.architecture) {
    if (opened.foreign && IsReadByConfig(manifest.history)) return opened;  // instead of args
    if (options.names_in_memory)
      CAIRN_RETURN_IF_ERROR(CheckFamily(fs, options.config, opened.source()));
    else
      notes.push_back(fmt::format("note: {} describes its own model; --config is not used for it",
                                  opened.source().name()));
    return opened;
  }
  CAIRN_ASSIGN_OR_RETURN(opened.foreign, ReadByConfig(fs, Taken(opened), options));
  return opened;
}

Result<OpenedSource> OpenAny(FileSystem& fs, const Place& place, const OpenOptions& options, Notes& notes) {
  CAIRN_ASSIGN_OR_RETURN(OpenedSource opened, OpenByConfig(fs, place, options, notes));
  const bool named = !options.config.empty() && !opened.source().manifest().model.architecture;
  if (!options.names_in_memory || named) return opened;
  CAIRN_ASSIGN_OR_RETURN(opened.foreign, UnderTrainingNames(Taken(opened)));
  return opened;
}

// True if a cast to `cast` would be of 16-bit weights of a training, not of the masters that they were
// rounded from.
bool LacksMasters(const OpenedSource& opened, Dtype cast) {
  const auto& tensors = opened.source().catalog().tensors;
  return opened.system && opened.system->training &&
         std::ranges::none_of(tensors, [](const auto& tensor) { return tensor.role == Role::kMaster; }) &&
         std::ranges::any_of(tensors, [&](const auto& tensor) {
           const bool narrow = tensor.dtype == Dtype::kBF16 || tensor.dtype == Dtype::kF16;
           return tensor.role == Role::kWeight && narrow && tensor.dtype != cast;
         });
}

}  // namespace

std::vector<std::string> OpenedSource::LeftBehind() const {
  if (!log) return {};
  for (const std::string& file : foreign->catalog().files) log->Add(JoinPath(foreign->directory(), file));
  return log->Unread(path);
}

std::vector<std::string> OpenedSource::DirectoriesOfConfig() const {
  std::vector<std::string> directories = {source().directory()};
  if (log && path != directories[0] && step.fs().List(path).ok()) directories.push_back(path);
  for (size_t i = 0, known = directories.size(); i < known; ++i)
    for (const TrainerLayout& layout : TrainerLayouts())
      for (const std::string& config : layout.configs)
        if (std::string at = JoinPath(directories[i], config); step.fs().List(at).ok())
          directories.push_back(std::move(at));
  return directories;
}

Result<OpenedSource> OpenAnyCkpt(FileSystem& fs, const std::string& argument, const OpenOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const Place place, Locate(fs, argument));
  return OpenPlace(fs, place, options);
}

Result<OpenedSource> OpenPlace(FileSystem& fs, const Place& place, const OpenOptions& options) {
  Notes notes;
  auto opened = OpenAny(fs, place, options, notes);
  Report(options, notes);
  return opened;
}

Result<OpenedSource> OpenWeights(FileSystem& fs, const std::string& argument, const OpenOptions& options,
                                 std::optional<Dtype> cast) {
  CAIRN_ASSIGN_OR_RETURN(const Place place, Locate(fs, argument));
  Notes notes, of_weights;
  Result<OpenedSource> opened = OpenAny(fs, place, options, notes);
  const StatusKind kind = opened.status().kind();
  const bool not_read = kind == StatusKind::kNotSupported || kind == StatusKind::kInvalidArgument;
  if (opened.ok() || !not_read) {  // nor with a file that is missing or damaged
    Report(options, notes);
    return opened;
  }
  OpenOptions without = options;
  without.allow.emplace_back("optimizer");
  Result<OpenedSource> weights = OpenAny(fs, place, without, of_weights);
  Report(options, of_weights);
  if (!weights.ok()) return weights;
  if (cast && LacksMasters(*weights, *cast))
    return Status(opened.status().kind(), opened.status().message() + ": 16-bit ones, not their masters");
  const std::string why = opened.status().message();
  Report(options, {"note: the optimizer's state is left behind: " + why.substr(0, why.find("; --allow "))});
  return weights;
}

}  // namespace cairn
