#include "convert/formats/hugging_face/config_source.h"

#include <algorithm>

#include "ckpt/base/first_axis.h"
#include "ckpt/families/foreign_model.h"
#include "ckpt/step/partial_dir.h"
#include "convert/foreign/account.h"
#include "convert/foreign/expert_census.h"
#include "convert/foreign/replicas.h"
#include "convert/foreign/stored_source.h"
#include "convert/foreign/transpose.h"
#include "convert/formats/hugging_face/config_mapping.h"
#include "convert/formats/hugging_face/names_mapping.h"
#include "convert/formats/training/group_members.h"
#include "convert/formats/training/param_groups.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr std::string_view kByConfig = " (--config)";

// Turns the members of an optimizer's groups into parameters. Members without a tensor in the source were
// left out (--allow), and so are groups of such members alone. If no member has a tensor, they have other
// names.
void RenameMembers(const ConfigMapping& mapped, json& state) {
  const auto groups = state.find("param_groups");
  if (groups == state.end() || !groups->is_array()) return;
  const auto says = [](const json& group) {
    return group.is_object() && group.contains(kGroupMembers) && group[kGroupMembers].is_array();
  };
  const auto saying = static_cast<size_t>(std::ranges::count_if(*groups, says));
  if (saying == 0) return;
  if (saying < groups->size()) return GroupMembers().PutInto(*groups);
  json kept = json::array();
  GroupMembers named;
  for (const json& group : *groups) {
    bool any = group[kGroupMembers].empty();
    for (const json& name : group[kGroupMembers]) {
      const auto found = mapped.parameters_of.find(name.is_string() ? name.get<std::string>() : "");
      if (found == mapped.parameters_of.end()) continue;
      any = true;
      for (const std::string& parameter : found->second) named.Add(kept.size(), parameter);
    }
    if (any) kept.push_back(group);
  }
  if (named.empty()) {
    for (json& group : *groups) group.erase(kGroupMembers);
    return GroupMembers().PutInto(*groups);
  }
  named.Grow(kept.size());
  named.PutInto(kept);
  *groups = std::move(kept);
}

// In the form of Account::Close(); a tensor of the source counts as a storage.
json AccountFor(const CheckpointSource& source, const ConfigMapping& mapped) {
  const auto& tensors = source.catalog().tensors;
  std::vector<std::string> part_of;
  for (const TensorEntry& tensor : tensors) part_of.emplace_back(Name(tensor.role));
  json in_no_tensor = json::array(), left_behind = json::array();
  if (const json account = AccountOf(source); account.is_object() && account.contains("left_behind"))
    left_behind = account["left_behind"];
  for (const auto& [fate, numbers] : mapped.left)
    for (const uint32_t tensor : numbers) {
      part_of[tensor] = Name(fate);
      if (IsOpaque(tensors[tensor].role) && tensors[tensor].role != Role::kRng)
        left_behind.push_back(DisplayName(tensors[tensor]));
      if (fate != Fate::kReplica && in_no_tensor.size() < kMaxAccountNames)
        in_no_tensor.push_back(DisplayName(tensors[tensor]));
    }
  std::map<std::string, std::pair<uint64_t, uint64_t>> parts;  // count and bytes
  uint64_t all = 0;
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    auto& [count, bytes] = parts[part_of[i]];
    const uint64_t stored = source.StoredBytes(i);
    ++count;
    bytes += stored;
    all += stored;
  }
  json told = json::object();
  for (const auto& [name, part] : parts) told[name] = {{"count", part.first}, {"bytes", part.second}};
  return {{"storages", tensors.size()},
          {"bytes", all},
          {"parts", std::move(told)},
          {"in_no_tensor", std::move(in_no_tensor)},
          {"left_behind", std::move(left_behind)}};
}

class ConfigSource final : public SourceOverAnother {
 public:
  ConfigSource(std::unique_ptr<CheckpointSource> source, ConfigMapping mapped, Model model,
               std::vector<std::string> history)
      : SourceOverAnother(std::move(source)),
        parts_(std::move(mapped.parts)),
        seen_(std::move(mapped.seen)),
        made_by_turns_(std::move(mapped.made_by_turns)) {
    manifest_.model = std::move(model);
    manifest_.files.clear();
    RenameMembers(mapped, manifest_.state);
    for (const char* of_its_names : {"shared_params", "dcp_others"}) manifest_.state.erase(of_its_names);
    manifest_.state.update(mapped.state);
    manifest_.state[kAccountKey] = AccountFor(*source_, mapped);
    std::ranges::move(history, std::back_inserter(manifest_.history));
    std::ranges::move(mapped.history, std::back_inserter(manifest_.history));
    catalog_ = std::move(mapped.catalog);
    catalog_.files = source_->catalog().files;
    if (!made_by_turns_.empty()) ListRegions();
  }

  const TensorTable& catalog() const override { return catalog_; }
  const Regions& regions() const override {
    if (listed_) return *listed_;
    return regions_;
  }

  Status ReadBox(uint32_t tensor, const Box& box, std::span<std::byte> out) override {
    const auto turns = made_by_turns_.find(tensor);
    return turns == made_by_turns_.end() ? ReadParts(tensor, box, out)
                                         : ReadTurns(tensor, box, turns->second, out);
  }

  void ReadAhead(BoxSequence next) override {
    ReadAheadBy(std::move(next), [this](const TensorBox& wanted, auto& boxes) { AddBoxes(wanted, boxes); });
  }

 private:
  Status ReadParts(uint32_t tensor, const Box& box, std::span<std::byte> out) {
    for (const auto& [part, common] : regions_.parts().Meet(tensor, box)) {
      const Box seen = part.ToArray(common);
      if (!part.reorders() && common == box) return source_->ReadBox(part.array, seen, out);
      const uint64_t size = SizeOf(catalog_.tensors[tensor].dtype);
      const Box read = WholeTurns(part.array, seen), stored = InStored(part.array, read);
      read_.resize(stored.Volume() * size);
      CAIRN_RETURN_IF_ERROR(source_->ReadBox(part.array, stored, read_));
      transposer_.MapRuns(
          part.Inverse(), seen, read, read_, box,
          [&](uint64_t to, std::span<const std::byte> run) { std::ranges::copy(run, &out[to * size]); });
    }
    return OkStatus();
  }

  // Reads the turns that the box meets, all of each, and takes its columns.
  Status ReadTurns(uint32_t tensor, const Box& box, uint64_t turn, std::span<std::byte> out) {
    const int last = box.rank() - 1;
    const uint64_t first = box.offset[last] / turn,
                   end = (box.offset[last] + box.extent[last] + turn - 1) / turn;
    Box turns = box;
    turns.offset[last] = first;
    turns.extent[last] = end - first;
    turns.offset.push_back(0);
    turns.extent.push_back(turn);
    const uint64_t size = SizeOf(catalog_.tensors[tensor].dtype), columns = box.extent[last] * size;
    std::vector<std::byte> read(turns.Volume() * size);
    CAIRN_RETURN_IF_ERROR(ReadParts(tensor, turns, read));
    auto from = read.begin() + static_cast<ptrdiff_t>((box.offset[last] - first * turn) * size);
    for (; !out.empty();
         out = out.subspan(columns), from += static_cast<ptrdiff_t>((end - first) * turn * size))
      std::copy_n(from, columns, out.begin());
    return OkStatus();
  }

  // A tensor that is made by turns is one region.
  void ListRegions() {
    std::vector<Region> regions;
    for (size_t i = 0; i < regions_.size(); ++i) {
      Region region = regions_[i];
      const bool by_turns = made_by_turns_.contains(region.tensor);
      if (by_turns && !regions.empty() && regions.back().tensor == region.tensor) continue;
      if (by_turns)
        region =
            Region::Whole(region.tensor, region.file, Box::Whole(catalog_.tensors[region.tensor].spec.shape));
      regions.push_back(region);
    }
    listed_.emplace(std::move(regions));
  }

  // The box around `seen` that is one in the stored tensor, too: all of the dimension that only is seen.
  Box WholeTurns(uint32_t stored, Box seen) const {
    const auto found = seen_.find(stored);
    if (found == seen_.end()) return seen;
    const int last = seen.rank() - 1;
    seen.offset[last] = 0;
    seen.extent[last] = found->second[last];
    return seen;
  }
  // Such a box in the stored tensor.
  Box InStored(uint32_t stored, const Box& seen) const {
    if (!seen_.contains(stored)) return seen;
    const int last = seen.rank() - 1;
    const uint64_t turns = seen.extent[last];
    Box box{First(seen.offset, last), First(seen.extent, last)};
    box.offset[last - 1] *= turns;
    box.extent[last - 1] *= turns;
    return box;
  }

  // Only contiguous boxes are announced; columns of a transposed tensor are not contiguous, nor are turns.
  void AddBoxes(const TensorBox& wanted, std::deque<TensorBox>& boxes) const {
    if (made_by_turns_.contains(wanted.tensor)) return;
    for (const auto& [part, common] : regions_.parts().Meet(wanted.tensor, wanted.box)) {
      if (seen_.contains(part.array)) continue;
      const Box stored = part.ToArray(common),
                whole = Box::Whole(source_->catalog().tensors[part.array].spec.shape);
      if (LoopsOf({stored, stored}, stored, stored, whole).loops.size() == 1)
        boxes.push_back({part.array, stored});
    }
  }

  TensorTable catalog_;
  const std::vector<ArrayPart> parts_;
  const std::map<uint32_t, Dims> seen_;
  const std::map<uint32_t, uint64_t> made_by_turns_;
  std::optional<RegionList> listed_;  // if a tensor is made by turns
  const PartRegions regions_{parts_, *source_};
  std::vector<std::byte> read_;
  BoxTransposer transposer_;
};

std::string ReadAsFamily(const ConfigModel& config) {
  return fmt::format("import: its names were read as those of a {} model{}", config.family->name, kByConfig);
}

// For a type that no family's table describes.
Result<std::unique_ptr<ForeignSource>> ReadByNames(std::unique_ptr<CheckpointSource> source,
                                                   ConfigModel config, const OpenOptions& options) {
  config.model = config.UnderOwnNames();
  CAIRN_ASSIGN_OR_RETURN(const auto names, FindMemoryNames(config.model.Get("config")));
  Result<ConfigMapping> mapped = MapByNames(source->catalog(), source->manifest(), config.model, names.get(),
                                            options.names_in_memory, options.allow);
  if (!mapped.ok()) return mapped.status().WithContext(source->name());
  const std::string type = FamilyWithoutTable(config.model);
  // A release is not made of names of memory; `--config` says again which model it is.
  if (options.names_in_memory && names != nullptr) config.model = Model();
  return ReadMapped(std::move(source), *std::move(mapped), std::move(config), options,
                    {fmt::format("import: its names are those of a model in {} of transformers, {}{}",
                                 options.names_in_memory ? "memory" : "files", type, kByConfig)});
}

}  // namespace

Result<ConfigModel> ReadConfigAt(FileSystem& fs, const std::string& given) {
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(given));
  return ReadConfigModel(fs, info.is_directory() ? JoinPath(given, "config.json") : given);
}

Result<ConfigModel> ReadConfigGiven(FileSystem& fs, const OpenOptions& options,
                                    std::vector<std::string>& history) {
  CAIRN_ASSIGN_OR_RETURN(ConfigModel config, ReadConfigAt(fs, options.config));
  if (config.family == nullptr)
    return NotSupported("{}: no table knows {}; without --config the tensors keep their own names",
                        config.path, FamilyWithoutTable(config.model));
  history.push_back(ReadAsFamily(config));
  return config;
}

bool IsReadByConfig(const json& history) {
  return std::ranges::any_of(history, [](const json& line) {
    return line.is_string() && line.get_ref<const std::string&>().ends_with(kByConfig);
  });
}

Result<std::unique_ptr<ForeignSource>> ReadByConfig(FileSystem& fs, std::unique_ptr<CheckpointSource> source,
                                                    const OpenOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(ConfigModel config, ReadConfigAt(fs, options.config));
  if (config.family == nullptr) return ReadByNames(std::move(source), std::move(config), options);
  std::vector<std::string> history = ChooseMtpLayers(source->catalog(), options.allow, config);
  Result<ConfigMapping> mapped = MapByConfig(source->catalog(), &source->manifest(), config, options.allow);
  if (!mapped.ok())
    return WhyNotRead(source->name(), mapped.status().WithContext(source->name()),
                      {source->catalog().tensors, config.UnderOwnNames()}, options.allow);
  history.push_back(ReadAsFamily(config));
  return ReadMapped(std::move(source), *std::move(mapped), std::move(config), options, std::move(history));
}

Result<std::unique_ptr<ForeignSource>> ReadMapped(std::unique_ptr<CheckpointSource> source,
                                                  ConfigMapping mapped, ConfigModel config,
                                                  const OpenOptions& options,
                                                  std::vector<std::string> history) {
  for (const auto& [original, copy] : mapped.twins)
    CAIRN_RETURN_IF_ERROR(CheckTied(*source, original, copy, config.path).WithContext(source->name()));
  KeepCopies(mapped, config.model);
  std::ranges::move(LeaveOutFields(options.allow, config.model), std::back_inserter(history));
  return std::unique_ptr<ForeignSource>(std::make_unique<ConfigSource>(
      std::move(source), std::move(mapped), std::move(config.model), std::move(history)));
}

Status CheckTied(CheckpointSource& source, uint32_t original, uint32_t copy, const std::string& config) {
  CAIRN_ASSIGN_OR_RETURN(const auto distance, Distance(source, original, copy));
  if (!distance) return OkStatus();
  const auto& tensors = source.catalog().tensors;
  return Corrupt(
      "{} differs from {}, though {} makes them one; leave the copy out with --allow '{}', or, if it is the "
      "output matrix, set tie_word_embeddings to false in that file",
      tensors[copy].spec.name, tensors[original].spec.name, config, tensors[copy].spec.name);
}

}  // namespace cairn
