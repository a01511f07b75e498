// The files are read one by one, in the order of ranks. A part of a tensor becomes an array at once, so that
// no more than two of the pickles are in memory: that of the first rank, which the index keeps for numbers
// and plain values, and the one that is read. A part that an earlier rank had too is a replica of it.

#include "convert/formats/dcp/rank_files.h"

#include <algorithm>
#include <map>

#include "ckpt/io/strict_json.h"
#include "convert/foreign/dict_entries.h"
#include "convert/foreign/file_sets.h"
#include "convert/formats/dcp/dcp.h"
#include "convert/formats/dcp/dcp_index.h"
#include "convert/formats/training/param_groups.h"
#include "convert/torch/rank_parts.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

constexpr std::string_view kMetadata = "metadata.pkl";  // of torch_checkpointing
constexpr int kMaxDepth = 32;
// The most values of a file that are visited: they may be shared, and their paths are copied.
constexpr int kMaxVisits = 1 << 22;
constexpr size_t kPathCost = 64;  // bytes of a path that cost as much as a visit

struct RankFiles {
  int world = 0;                     // that the names tell; 0: they do not
  std::map<int, std::string> files;  // by rank
};
using Items = std::map<std::string, RankFiles>;  // by the key in the state dict

// Names that tell the world. Of another kind than these are extra_state and data, which no other rank's is
// like.
Items ItemsOfWorld(const std::vector<std::string>& names) {
  Items items;
  for (const std::string& name : names) {
    std::vector<std::string> v;
    if (!FitsPattern("*_world_size_#_rank_#.pt", name, v)) continue;
    if (v[0] != "model" && v[0] != "optim") continue;
    RankFiles& item = items[v[0] == "optim" ? "optimizer" : v[0]];
    item.world = std::max(item.world, std::stoi(v[1]));
    item.files.emplace(std::stoi(v[2]), name);
  }
  return items;
}

Items ItemsByRank(const std::vector<std::string>& names) {
  Items items;
  for (const std::string& name : names)
    if (std::vector<std::string> v; FitsPattern("*_#.pt", name, v))
      items[v[0]].files.emplace(std::stoi(v[1]), name);
  std::erase_if(items, [](const auto& item) { return !item.second.files.contains(0); });
  return items;
}

// `visits` counts down.
bool HoldsPart(const PyValue& value, int depth, int& visits) {
  if (value.is(PyKind::kObject)) {
    const auto parts = RankPartsOf(value);
    return !parts.ok() || *parts;
  }
  return depth > 0 && --visits > 0 && value.is(PyKind::kDict) &&
         std::ranges::any_of(value.items,
                             [&](const PyValue* item) { return HoldsPart(*item, depth - 1, visits); });
}

Items ItemsIn(FileSystem& fs, const std::string& path, const std::vector<std::string>& names) {
  if (Items items = ItemsOfWorld(names); items.contains("model")) return items;
  Items items = ItemsByRank(names);
  if (std::ranges::find(names, kMetadata) != names.end()) return items;
  const bool parts = std::ranges::any_of(items, [&](const auto& item) {
    if (item.second.files.size() < 2) return false;
    const auto file = TorchFile::Open(fs, path, item.second.files.at(0));
    int visits = kMaxVisits;
    return file.ok() && HoldsPart(file->root(), 4, visits);
  });
  return parts ? items : Items();
}

// As torch.distributed.checkpoint flattens: lists only if they hold dicts, lists or tensors.
bool LeadsOn(const PyValue& value) {
  if (value.is(PyKind::kDict)) return true;
  return value.is(PyKind::kList) && std::ranges::any_of(value.items, [](const PyValue* item) {
           return item->is(PyKind::kTensor) || item->is(PyKind::kObject) || item->is(PyKind::kDict) ||
                  item->is(PyKind::kList);
         });
}

class Joiner {
 public:
  // A file of the rank, whose values are below `item` of the state dict.
  Status AddFile(FileSystem& fs, const std::string& path, const std::string& item, int rank,
                 const std::string& name, bool without_optimizer) {
    CAIRN_ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Open(fs, path, name));
    index_.account.AddFile(file);
    rank_ = rank;
    file_ = &file;
    visits_ = kMaxVisits;
    optimizer_ = IsOptimizerName(item);
    if (IsTrainingName(item)) return LeaveBehind(file.root(), item);
    if (optimizer_ && without_optimizer) {
      index_.account.OmitBelow(Fate::kAllowed, file, file.root(), item);
      return OkStatus();
    }
    const Status status = Walk(file.root(), {item}, kMaxDepth);
    return status.ok() ? status : status.WithContext(file.path());
  }
  DcpIndex Take() { return std::move(index_); }
  // How many ranks have parts of the item's tensors, as their meshes say; 0: it has no parts.
  uint64_t RanksOf(const std::string& item) const {
    const auto found = ranks_.find(item);
    return found == ranks_.end() ? 0 : found->second;
  }
  bool Has(const std::string& name) const { return tensors_.contains(name) || plain_.contains(name); }

 private:
  Status LeaveBehind(const PyValue& value, const std::string& name) {
    index_.account.OmitValue(name);
    index_.account.OmitBelow(Fate::kTrainingState, *file_, value, name);
    return OkStatus();
  }

  Status Walk(const PyValue& value, const std::vector<std::string>& path, int depth) {
    size_t cost = 1;
    for (const std::string& part : path) cost += part.size() / kPathCost;
    if (depth == 0 || cost > visits_) return Corrupt("its values are nested endlessly");
    visits_ -= cost;
    if (value.is(PyKind::kTensor)) {
      const Dims& shape = value.tensor->shape;
      return AddPart(NameOf(path), path, shape, {Box::Whole(shape), &value});
    }
    if (!LeadsOn(value)) return AddValue(value, path);
    const bool dict = value.is(PyKind::kDict);
    for (size_t i = dict ? 1 : 0; i < value.items.size(); i += dict ? 2 : 1) {
      std::vector<std::string> below = path;
      below.push_back(dict ? KeyText(*value.items[i - 1]) : std::to_string(i));
      CAIRN_RETURN_IF_ERROR(Walk(*value.items[i], below, depth - 1));
    }
    return OkStatus();
  }

  static std::string NameOf(const std::vector<std::string>& path) {
    return fmt::format("{}", fmt::join(path, "."));
  }

  Status AddValue(const PyValue& value, const std::vector<std::string>& path) {
    const std::string name = NameOf(path);
    auto parts = RankPartsOf(value);
    if (!parts.ok()) return parts.status().WithContext(name);
    if (!*parts) return AddPlain(value, name, path);
    uint64_t& ranks = ranks_[path[0]];
    ranks = std::max(ranks, (*parts)->ranks);
    for (const RankPart& part : (*parts)->parts)
      CAIRN_RETURN_IF_ERROR(AddPart(name, path, (*parts)->shape, part));
    index_.account.OmitBelow(Fate::kUnreferenced, *file_, *value.items[3], name);  // the mesh's ranks
    return OkStatus();
  }

  // The first rank's values are read; others that differ are named.
  Status AddPlain(const PyValue& value, const std::string& name, const std::vector<std::string>& path) {
    const auto json = PlainJson(value);
    const std::string text = json ? json->dump() : "";
    const auto [known, fresh] = plain_.try_emplace(name, text);
    if (fresh) index_.bytes.push_back({name, path, {file_->name(), {}, file_->Below(value)}});
    if (fresh || (json && known->second == text)) return OkStatus();
    return LeaveBehind(value, fmt::format("{} of rank {}", name, rank_));
  }

  Status AddPart(const std::string& name, const std::vector<std::string>& path, const Dims& shape,
                 const RankPart& part) {
    const auto [at, fresh] = tensors_.try_emplace(name, index_.tensors.size());
    if (fresh) index_.tensors.push_back({name, path, shape, part.value->tensor->type->dtype, {}});
    DcpTensor& tensor = index_.tensors[at->second];
    if (!(tensor.shape == shape) && optimizer_)
      return NotSupported(
          "{} has shape {}, but {} in another rank's file: each rank has states of its own, as FSDP1's flat "
          "parameters have; --allow optimizer takes the weights without them",
          name, ToString(shape), ToString(tensor.shape));
    if (!(tensor.shape == shape))
      return Corrupt("{} has shape {}, but another rank's file says {}", name, ToString(shape),
                     ToString(tensor.shape));
    if (part.box.Volume() == 0) {  // FSDP2 pads its storage to the size of the other ranks'
      const auto storage = file_->storages().find(part.value->tensor->storage->key);
      if (storage != file_->storages().end())
        index_.account.Omit(Fate::kUnreferenced, file_->name(), storage->second.file_offset,
                            storage->second.bytes, name);
      return OkStatus();
    }
    DcpChunk chunk{part.box, {file_->name(), {}}};
    auto array = ArrayOf(*file_, *part.value->tensor, 0, name);
    // The reader of the index reads numbers, and refuses types that are not supported.
    if (shape.Volume() == 1 || array.status().kind() == StatusKind::kNotSupported)
      chunk.item.value = file_->Below(*part.value);
    else if (!array.ok())
      return array.status();
    else
      chunk.array = *array;
    const auto [first, is_first] =
        chunks_.try_emplace({at->second, ToString(part.box)}, tensor.chunks.size());
    if (is_first)
      tensor.chunks.push_back(std::move(chunk));
    else if (array.ok())
      tensor.chunks[first->second].replicas.emplace_back(file_->name(), *std::move(array));
    else
      return LeaveBehind(*part.value, fmt::format("{} of rank {}", name, rank_));
    return OkStatus();
  }

  DcpIndex index_;
  int rank_ = 0;
  bool optimizer_ = false;  // the file is of one
  size_t visits_ = 0;       // that are left
  const TorchFile* file_ = nullptr;
  std::map<std::string, uint64_t> ranks_;  // by item
  std::map<std::string, size_t> tensors_;
  std::map<std::pair<size_t, std::string>, size_t> chunks_;  // by tensor and box
  std::map<std::string, std::string> plain_;                 // values in JSON; empty: not plain
};

Status Missing(const std::string& path, const std::string& name) {
  return NotFound("{}: is missing, but others of its kind exist", JoinPath(path, name));
}

// "model_1.pt" if `some` is "model_0.pt".
std::string NameOfRank(const RankFiles& item, uint64_t rank) {
  const auto& [some_rank, some] = *item.files.begin();
  const std::string end = fmt::format("_{}.pt", some_rank);
  return fmt::format("{}_{}.pt", some.substr(0, some.size() - end.size()), rank);
}

Status CheckComplete(const std::string& path, const RankFiles& item, uint64_t ranks) {
  for (uint64_t rank = 0; rank < ranks; ++rank)
    if (!item.files.contains(static_cast<int>(rank))) return Missing(path, NameOfRank(item, rank));
  return OkStatus();
}

// {ITEM: {"nested_path_to_metadata": {'["0.bias"]': ...}, "rank_to_layout_info": {0: ...}}}: each rank that
// it names has its file, and each tensor is in one.
Status CheckMetadata(FileSystem& fs, const std::string& path, const Items& items, const Joiner& joiner,
                     bool without_optimizer) {
  CAIRN_ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Open(fs, path, std::string(kMetadata)));
  const PyValue* all = FindKind(file.root(), "metadata", PyKind::kDict);
  if (!all) return Corrupt("{}: it has no \"metadata\"", file.path());
  for (size_t i = 0; i + 1 < all->items.size(); i += 2) {
    const std::string name = KeyText(*all->items[i]);
    const auto item = items.find(name);
    if (item == items.end()) return Missing(path, name + "_0.pt");
    if (const PyValue* ranks = FindKind(*all->items[i + 1], "rank_to_layout_info", PyKind::kDict))
      for (size_t rank = 0; rank < ranks->items.size(); rank += 2)
        if (const auto number = AsInt(ranks->items[rank]);
            number && *number >= 0 && !item->second.files.contains(static_cast<int>(*number)))
          return Missing(path, NameOfRank(item->second, static_cast<uint64_t>(*number)));
    if (without_optimizer && IsOptimizerName(name)) continue;
    const PyValue* tensors = FindKind(*all->items[i + 1], "nested_path_to_metadata", PyKind::kDict);
    for (size_t at = 0; tensors && at < tensors->items.size(); at += 2) {
      CAIRN_ASSIGN_OR_RETURN(const nlohmann::json keys, ParseStrictJson(KeyText(*tensors->items[at])));
      std::string tensor = name;
      for (const auto& key : keys) tensor += "." + (key.is_string() ? key.get<std::string>() : key.dump());
      if (!joiner.Has(tensor))
        return NotFound("{}: it names {}, which is in no rank's file", file.path(), tensor);
    }
  }
  return OkStatus();
}

Result<DcpIndex> ReadRankFiles(FileSystem& fs, const std::string& path, bool without_optimizer) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(path));
  const Items items = ItemsIn(fs, path, names);
  CAIRN_RETURN_IF_ERROR(CheckRankFiles(fs, path, names));
  Joiner joiner;
  for (const auto& [key, item] : items)
    for (const auto& [rank, name] : item.files)
      CAIRN_RETURN_IF_ERROR(joiner.AddFile(fs, path, key, rank, name, without_optimizer));
  for (const auto& [key, item] : items) CAIRN_RETURN_IF_ERROR(CheckComplete(path, item, joiner.RanksOf(key)));
  if (std::ranges::find(names, kMetadata) != names.end())
    CAIRN_RETURN_IF_ERROR(CheckMetadata(fs, path, items, joiner, without_optimizer));
  DcpIndex index = joiner.Take();
  if (const Status covered = CheckCovered(index); !covered.ok())
    return NotFound("{}: {}; a rank's file is missing", path, covered.message());
  return index;
}

}  // namespace

bool MatchesRankFiles(FileSystem& fs, const std::string& path) {
  const auto names = fs.List(path);
  return names.ok() && !ItemsIn(fs, path, *names).empty();
}

Result<std::unique_ptr<ForeignSource>> OpenRankFiles(FileSystem& fs, const std::string& path,
                                                     ReaderOptions& options) {
  const bool without_optimizer = IsAllowed(options, "optimizer");
  CAIRN_ASSIGN_OR_RETURN(DcpIndex index, ReadRankFiles(fs, path, without_optimizer));
  return OpenDcpIndex(fs, path, options, std::move(index));
}

Result<StoredNames> NamesOfRankFiles(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const DcpIndex index, ReadRankFiles(fs, path, /*without_optimizer=*/true));
  return NamesOfDcpIndex(index);
}

Status CheckRankFiles(FileSystem& /*fs*/, const std::string& directory,
                      const std::vector<std::string>& names) {
  for (const auto& [key, item] : ItemsOfWorld(names))
    CAIRN_RETURN_IF_ERROR(CheckComplete(directory, item, static_cast<uint64_t>(item.world)));
  return OkStatus();
}

}  // namespace cairn
