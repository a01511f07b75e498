// Files come first, since the checks of folders rely on them. A check that does not know what it sees (a
// compressed zip, a model of an unknown family) reports no problem: the seal records that it could not tell.

#include "tools/seal/step_parts.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <span>

#include "ckpt/base/box_cover.h"
#include "ckpt/io/open_files.h"
#include "ckpt/run/run_dir.h"
#include "convert/formats/dcp/dcp_index.h"
#include "convert/formats/deepspeed/deepspeed_files.h"
#include "convert/formats/hugging_face/config_source.h"
#include "convert/formats/hugging_face/safetensors_header.h"
#include "convert/formats/hugging_face/weight_index.h"
#include "convert/formats/megatron/megatron_dist.h"
#include "convert/formats/systems.h"
#include "convert/torch/torch_file.h"

namespace cairn {
namespace {

constexpr std::string_view kTorchSuffixes[] = {".pt", ".pth", ".ckpt", ".bin"};

// "12" of "rng_state_12.pth" with `before` "rng_state_" and `after` ".pth".
std::optional<uint64_t> NumberBetween(std::string_view name, std::string_view before,
                                      std::string_view after) {
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after))
    return std::nullopt;
  name = name.substr(before.size(), name.size() - before.size() - after.size());
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

std::string Counted(uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

class PartsChecker {
 public:
  PartsChecker(FileSystem& fs, const std::string& directory, const std::vector<StepFile>& files)
      : fs_(fs), directory_(directory) {
    for (const StepFile& file : files) folders_[FolderOf(file.name)][NameIn(file.name)] = file.bytes;
  }

  StepParts Check(const OpenOptions& options) {
    for (const auto& [folder, names] : folders_)
      for (const auto& [name, bytes] : names) CheckFile(folder + name, bytes);
    if (zips_ > 0)
      parts_.whole.push_back(Counted(zips_, "torch.save file") + ", each with its directory at the end");
    if (safetensors_ > 0)
      parts_.whole.push_back(Counted(safetensors_, "safetensors file") + ", each as long as its header says");
    for (const auto& [folder, names] : folders_) {
      CheckDcp(folder, names);
      CheckIndices(folder, names);
      CheckNumbered(folder, names);
      CheckDeepSpeed(folder, names);
    }
    CheckMegatronRanks();
    OpenAsAWhole(options);
    return std::move(parts_);
  }

 private:
  using Names = std::map<std::string, uint64_t>;  // files of a folder, and their bytes

  static std::string NameIn(const std::string& path) { return path.substr(FolderOf(path).size()); }
  std::string PathOf(const std::string& name) const {
    return name.empty() ? directory_ : JoinPath(directory_, name);
  }
  std::string FolderPath(const std::string& folder) const {
    return folder.empty() ? directory_ : JoinPath(directory_, folder.substr(0, folder.size() - 1));
  }

  void AddProblem(const std::string& name, std::string what) {
    parts_.problems.push_back({PathOf(name), 0, "", std::move(what)});
  }
  // A failure that may name its file already.
  void AddFailure(const std::string& name, const Status& status) {
    if (status.kind() == StatusKind::kNotSupported || status.kind() == StatusKind::kInvalidArgument) {
      parts_.untold.push_back(status.message());
      return;
    }
    std::string_view what = status.message();
    const std::string file = PathOf(name) + ": ";
    if (what.starts_with(file)) what.remove_prefix(file.size());
    AddProblem(name, std::string(what));
  }

  void CheckFile(const std::string& name, uint64_t bytes) {
    if (name.ends_with(".safetensors")) {
      if (const auto header = ReadSafetensorsHeader(fs_, PathOf(name)); !header.ok())
        AddFailure(name, header.status());
      else
        ++safetensors_;
    } else if (std::ranges::any_of(kTorchSuffixes, [&](auto suffix) { return name.ends_with(suffix); })) {
      if (bytes == 0) return AddProblem(name, "is empty");
      const auto file = fs_.OpenForRead(PathOf(name));
      if (!file.ok()) return AddProblem(name, file.status().message());
      if (TakeZip(name, **file, {0, bytes})) ++zips_;
    } else if (name.ends_with(".json")) {
      CheckJson(name, bytes);
    }
  }

  // Checks only that the end is there: writers take liberties, such as NaN.
  void CheckJson(const std::string& name, uint64_t bytes) {
    if (bytes == 0) return AddProblem(name, "is empty");
    const auto file = fs_.OpenForRead(PathOf(name));
    std::array<char, 1> first{};
    std::array<char, 4096> end{};
    const auto last = std::span(end).first(std::min<uint64_t>(end.size(), bytes));
    Status status = file.ok() ? (*file)->ReadAt(0, std::as_writable_bytes(std::span(first))) : file.status();
    if (status.ok()) status = (*file)->ReadAt(bytes - last.size(), std::as_writable_bytes(last));
    if (!status.ok()) return AddProblem(name, status.message());
    const std::string_view text(last.data(), last.size());
    const size_t at = text.find_last_not_of(" \r\n\t");
    const char closing = first[0] == '{' ? '}' : ']';
    if ((first[0] == '{' || first[0] == '[') && (at == text.npos || text[at] != closing))
      AddProblem(name, fmt::format("is cut short: it does not end with {}", closing));
  }

  // True for a sound zip. A file that is not a zip is not reported.
  bool TakeZip(const std::string& name, File& file, Stretch where) {
    std::array<std::byte, 4> start{};
    if (where.size() < start.size() || !file.ReadAt(where.begin, start).ok() ||
        std::memcmp(start.data(), "PK\3\4", start.size()) != 0)
      return false;
    const auto zip = ZipContainer::Read(file, where);
    if (!zip.ok()) {
      AddFailure(name, zip.status());
      return false;
    }
    std::vector<ZipRecord>& records = parts_.records[name];
    std::ranges::copy_if(zip->records(), std::back_inserter(records),
                         [](const ZipRecord& record) { return record.crc != 0 && record.bytes > 0; });
    return true;
  }

  void CheckDcp(const std::string& folder, const Names& names) {
    if (!names.contains(".metadata")) {
      for (const auto& [name, bytes] : names)
        if (name.ends_with(".distcp"))
          return AddProblem(folder + name, "there is no .metadata beside it: the save did not finish");
      return;
    }
    if (names.contains("common.pt") && !names.contains("metadata.json"))  // Megatron-Core looks for it first
      AddProblem(folder + "metadata.json", "is missing; common.pt is there");
    const auto index = ReadDcpIndex(fs_, FolderPath(folder));
    if (!index.ok()) return AddFailure(folder + ".metadata", index.status());
    OpenFiles open(fs_, FolderPath(folder));
    bool good = true;
    const auto item = [&](const std::string& name, const DcpItem& place) {
      good = good && HoldsItem(folder, names, name, place, open);
    };
    for (const DcpTensor& tensor : index->tensors) {
      for (const DcpChunk& chunk : tensor.chunks) item(tensor.name, chunk.item);
      good = good && Covers(folder, tensor);
    }
    for (const DcpBytes& bytes : index->bytes) item(bytes.name, bytes.item);
    if (good)
      parts_.whole.push_back(
          fmt::format("{}.metadata: {} and {}, every chunk in its file, every shape covered once", folder,
                      Counted(index->tensors.size(), "tensor"), Counted(index->bytes.size(), "item")));
  }

  bool HoldsItem(const std::string& folder, const Names& names, const std::string& tensor,
                 const DcpItem& item, OpenFiles& open) {
    const auto file = names.find(item.file);
    if (file == names.end()) {
      AddProblem(folder + item.file, fmt::format("is missing; .metadata says that {} lies in it", tensor));
      return false;
    }
    if (item.where.end > file->second) {
      AddProblem(folder + item.file,
                 fmt::format("ends at byte {}; .metadata says that {} lies in it up to byte {}", file->second,
                             tensor, item.where.end));
      return false;
    }
    const auto opened = open.Get(item.file, Direct::kOff);
    if (!opened.ok()) {
      AddProblem(folder + item.file, opened.status().message());
      return false;
    }
    const size_t before = parts_.problems.size();
    TakeZip(folder + item.file, **opened, item.where);
    return parts_.problems.size() == before;
  }

  bool Covers(const std::string& folder, const DcpTensor& tensor) {
    const auto shape_bytes = CheckedBytes(tensor.shape, 1);
    std::vector<Box> boxes;
    uint64_t volume = 0;
    bool inside = shape_bytes.has_value();
    for (const DcpChunk& chunk : tensor.chunks) {
      inside =
          inside && chunk.box.rank() == tensor.shape.rank() && Contains(Box::Whole(tensor.shape), chunk.box);
      if (!inside) break;
      volume += chunk.box.Volume();
      boxes.push_back(chunk.box);
    }
    const auto overlap = inside ? FindOverlap(boxes) : std::nullopt;
    if (inside && !overlap && volume == *shape_bytes) return true;
    AddProblem(folder + ".metadata",
               !inside
                   ? fmt::format("a chunk of {} is not in its shape {}", tensor.name, ToString(tensor.shape))
               : overlap ? fmt::format("chunks {} and {} of {} overlap", ToString(boxes[overlap->first]),
                                       ToString(boxes[overlap->second]), tensor.name)
                         : fmt::format("the chunks of {} have {} of the {} elements of its shape {}",
                                       tensor.name, volume, *shape_bytes, ToString(tensor.shape)));
    return false;
  }

  void CheckIndices(const std::string& folder, const Names& names) {
    for (const auto& [name, bytes] : names) {
      if (!name.ends_with(".safetensors.index.json") && !name.ends_with(".bin.index.json")) continue;
      const auto index = ReadWeightIndex(fs_, PathOf(folder + name));
      if (!index.ok()) {
        AddFailure(folder + name, index.status());
        continue;
      }
      const size_t before = parts_.problems.size();
      for (const std::string& file : index->files)
        if (!names.contains(file)) AddProblem(folder + file, fmt::format("is missing; {} names it", name));
      if (name.ends_with(".safetensors.index.json") && parts_.problems.size() == before)
        CheckIndexedTensors(folder, folder + name, *index);
      if (parts_.problems.size() == before)
        parts_.whole.push_back(fmt::format("{}{}: {} in {}, all there", folder, name,
                                           Counted(index->file_of.size(), "tensor"),
                                           Counted(index->files.size(), "file")));
    }
  }

  void CheckIndexedTensors(const std::string& folder, const std::string& name, const WeightIndex& index) {
    WeightIndexCheck check(PathOf(name), index);
    for (const std::string& file : index.files) {
      const auto header = ReadSafetensorsHeader(fs_, PathOf(folder + file));
      if (!header.ok()) return;  // CheckFile reports it if it has this suffix
      for (const StoredArray& tensor : header->tensors)
        if (const Status status = check.Add(tensor.name, file); !status.ok())
          return AddProblem(name, status.message());
    }
    if (const Status status = check.Finish(); !status.ok()) AddProblem(name, status.message());
  }

  // "model-00002-of-00005.safetensors", "rng_state_3.pth": if one is there, all must be.
  void CheckNumbered(const std::string& folder, const Names& names) {
    std::map<std::string, std::pair<std::set<uint64_t>, uint64_t>>
        shards;  // by their names, without the number
    std::set<uint64_t> random_states;
    for (const auto& [name, bytes] : names) {
      if (const auto rank = NumberBetween(name, "rng_state_", ".pth")) random_states.insert(*rank);
      const size_t of = name.find("-of-");
      const size_t begin = of == name.npos ? of : name.find_last_not_of("0123456789", of - 1) + 1;
      const size_t end = of == name.npos ? of : name.find_first_not_of("0123456789", of + 4);
      if (of == name.npos || of == 0 || begin == of || end == of + 4 || end == name.npos) continue;
      const auto number = NumberBetween(name.substr(begin, of - begin), "", "");
      const auto count = NumberBetween(name.substr(of + 4, end - of - 4), "", "");
      if (!number || !count) continue;
      auto& [found, wanted] = shards[name.substr(0, begin) + "N" + name.substr(of)];
      found.insert(*number);
      wanted = *count;
    }
    for (const auto& [pattern, shard] : shards)
      if (shard.first.size() < shard.second)
        AddProblem(folder + pattern,
                   fmt::format("only {} of {} such files are there", shard.first.size(), shard.second));
    if (!random_states.empty() && *random_states.rbegin() != random_states.size() - 1)
      AddProblem(folder + "rng_state_N.pth",
                 fmt::format("{} of ranks 0 to {} are there; a rank did not write its file",
                             random_states.size(), *random_states.rbegin()));
  }

  // The ranks that the model states name, else those up to the last that is there.
  void CheckDeepSpeed(const std::string& folder, const Names& names) {
    const auto any = [&](std::string_view suffix) {
      return std::ranges::any_of(names, [&](const auto& file) { return file.first.ends_with(suffix); });
    };
    if (!any("model_states.pt")) {
      if (any("_optim_states.pt"))
        AddProblem(folder + "mp_rank_00_model_states.pt", "is missing; the optimizer's states are there");
      return;
    }
    const auto files = FindDeepSpeedFiles(fs_, FolderPath(folder));
    if (!files.ok()) return AddFailure(folder, files.status());
    int models = 0, ranks = 0, stage = 0;
    for (const auto& [model, file] : files->models) {
      models = std::max(models, model + 1);
      ReadWorld(folder + file, models, ranks, stage);
    }
    const auto parameters = folders_.lower_bound(folder + "zero/");
    if (parameters != folders_.end() && parameters->first.starts_with(folder + "zero/")) {
      stage = ranks = 0;  // a universal checkpoint has no rank's own files
      CheckUniversal(folder + "zero/");
    }
    if (stage > 0 && files->optimizers.empty())
      AddProblem(folder + "zero_pp_rank_*_optim_states.pt",
                 fmt::format("are missing; the training has ZeRO stage {}", stage));
    for (const auto* grid : {&files->optimizers, &files->zero3_models})
      for (const auto& [place, file] : *grid) {
        models = std::max(models, place.first + 1);
        ranks = std::max(ranks, place.second + 1);
      }
    const size_t before = parts_.problems.size();
    for (int model = 0; model < models; ++model) {
      if (!files->models.empty() && !files->models.contains(model))
        AddProblem(folder + fmt::format("mp_rank_{:02}_model_states.pt", model),
                   fmt::format("is missing; there are {} model parallel ranks", models));
      for (const auto& [grid, kind] :
           {std::pair{&files->optimizers, "optim"}, {&files->zero3_models, "model"}})
        for (int rank = 0; rank < ranks && !grid->empty(); ++rank)
          if (!grid->contains({model, rank}))
            AddProblem(folder + fmt::format("zero_pp_rank_{}_mp_rank_{:02}_{}_states.pt", rank, model, kind),
                       fmt::format("is missing; there are {} data parallel ranks", ranks));
    }
    CheckLayers(folder, files->layers);
    if (parts_.problems.size() == before)
      parts_.whole.push_back(fmt::format("{}the files of {} and {} of DeepSpeed", folder,
                                         Counted(std::max(models, 1), "model parallel rank"),
                                         Counted(std::max(ranks, 1), "data parallel rank")));
  }

  // A folder for each parameter: if one has a file, all must have it.
  void CheckUniversal(const std::string& zero) {
    for (const std::string name : {"fp32.pt", "exp_avg.pt", "exp_avg_sq.pt", "step.pt"}) {
      std::vector<std::string> without;
      bool any = false;
      for (auto it = folders_.lower_bound(zero); it != folders_.end() && it->first.starts_with(zero); ++it) {
        if (it->second.contains(name))
          any = true;
        else if (it->first != zero)
          without.push_back(it->first + name);
      }
      for (const std::string& missing : without)
        if (any) AddProblem(missing, "is missing; other parameters have theirs");
    }
  }

  void ReadWorld(const std::string& name, int& models, int& ranks, int& stage) {
    const auto file = TorchFile::Open(fs_, PathOf(name));
    if (!file.ok()) return;  // CheckFile reported a truncated zip; the rest cannot be judged here
    constexpr int64_t kMostRanks = 1 << 20;
    const auto take = [&](std::string_view key, int& count) {
      const auto world = AsInt(Find(file->root(), key));
      if (world && *world > count && *world <= kMostRanks) count = static_cast<int>(*world);
    };
    take("mp_world_size", models);
    take("dp_world_size", ranks);
    const PyValue* config = Find(file->root(), "ds_config");
    const PyValue* zero = config ? Find(*config, "zero_optimization") : nullptr;
    const auto number = zero ? AsInt(Find(*zero, "stage")) : std::nullopt;
    if (number && *number > 0 && *number <= 3) stage = static_cast<int>(*number);
  }

  void CheckLayers(const std::string& folder, const std::map<std::pair<int, int>, std::string>& layers) {
    std::set<int> numbers;
    int ranks = 0;
    for (const auto& [place, file] : layers) {
      numbers.insert(place.first);
      ranks = std::max(ranks, place.second + 1);
    }
    for (const int layer : numbers)
      for (int rank = 0; rank < ranks; ++rank)
        if (!layers.contains({layer, rank}))
          AddProblem(folder + fmt::format("layer_{:02}-model_{:02}-model_states.pt", layer, rank),
                     fmt::format("is missing; other layers have {} tensor parallel ranks", ranks));
  }

  // mp_rank_TT, mp_rank_TT_PPP, mp_rank_TT_PPP_EEE: every tensor parallel rank has the same others, and each
  // of them the same of Megatron's two files.
  void CheckMegatronRanks() {
    constexpr std::string_view kRank = "mp_rank_";
    std::map<std::string, std::map<std::string, std::set<std::string>>> runs;  // folder -> rank -> names
    for (const auto& [folder, names] : folders_) {
      const size_t at = folder.rfind(kRank);
      if (at == folder.npos || (at > 0 && folder[at - 1] != '/') || folder.find('/', at) + 1 != folder.size())
        continue;
      auto& found = runs[folder.substr(0, at)][folder.substr(at, folder.size() - at - 1)];
      for (const auto& [name, bytes] : names) found.insert(name);
    }
    for (const auto& [folder, ranks] : runs) CheckRanksOf(folder, ranks);
  }

  void CheckRanksOf(const std::string& folder, const std::map<std::string, std::set<std::string>>& ranks) {
    constexpr size_t kTensorDigits = sizeof("mp_rank_00") - 1;
    std::set<std::string> tensor, rest, files;
    for (const auto& [rank, names] : ranks) {
      tensor.insert(rank.substr(0, kTensorDigits));
      rest.insert(rank.size() > kTensorDigits ? rank.substr(kTensorDigits) : "");
      files.insert(names.begin(), names.end());
    }
    const size_t before = parts_.problems.size();
    for (const std::string& first : tensor)
      for (const std::string& second : rest) {
        const auto found = ranks.find(first + second);
        if (found == ranks.end()) {
          AddProblem(folder + first + second, "is missing; other ranks have theirs");
          continue;
        }
        for (const std::string_view name : {"model_optim_rng.pt", "distrib_optim.pt"})
          if (files.contains(std::string(name)) && !found->second.contains(std::string(name)))
            AddProblem(fmt::format("{}{}{}/{}", folder, first, second, name),
                       "is missing; other ranks have theirs");
      }
    if (parts_.problems.size() == before)
      parts_.whole.push_back(folder + Counted(ranks.size(), "folder") + " mp_rank_*, none missing");
  }

  // As every verb opens it. Replicas are not compared: that would read them.
  void OpenAsAWhole(OpenOptions options) {
    if (IsSavedByCairnMegatron(fs_, directory_)) return OpenStepInside();
    options.replicas = Replicas::kFirst;
    parts_.system = options.format.empty() ? SystemOf(fs_, directory_) : options.format;
    if (parts_.system.empty()) {
      parts_.untold.push_back("no format recognises the files: what must be there could not be told");
      return;
    }
    if (!parts_.problems.empty()) return;  // opening would report the same again
    auto source = OpenForeign(fs_, directory_, options);
    if (source.ok() && !options.config.empty() && !(*source)->manifest().model.contains("architecture"))
      source = ReadByConfig(fs_, std::move(source).value(), options);
    if (!source.ok()) return AddFailure("", source.status());
    parts_.whole.push_back(fmt::format("{}: {} of {} bytes, every element covered once", parts_.system,
                                       Counted((*source)->catalog().tensors.size(), "tensor"),
                                       (*source)->catalog().bytes()));
  }

  void OpenStepInside() {
    parts_.system = "cairn";
    const auto step = OpenCheckpoint(fs_, directory_, [&](const Status& why) { AddFailure("", why); });
    if (!step.ok()) return AddFailure("", step.status());
    parts_.whole.push_back((*step)->directory() + ", a step of Cairn");
  }

  FileSystem& fs_;
  const std::string& directory_;
  std::map<std::string, Names> folders_;
  uint64_t zips_ = 0, safetensors_ = 0;
  StepParts parts_;
};

}  // namespace

std::string SystemOf(FileSystem& fs, const std::string& directory) {
  const Result<Recognised> found = Recognise(fs, directory);
  return found.ok() ? std::string(found->system->name) : "";
}

StepParts CheckStepParts(FileSystem& fs, const std::string& directory, const std::vector<StepFile>& files,
                         const OpenOptions& options) {
  return PartsChecker(fs, directory, files).Check(options);
}

}  // namespace cairn
