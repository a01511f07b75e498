#include "convert/formats/dcp/dcp_slices.h"

#include <algorithm>
#include <map>

#include "ckpt/io/strict_json.h"
#include "convert/foreign/file_sets.h"
#include "convert/formats/hugging_face/config_source.h"
#include "convert/formats/hugging_face/safetensors_header.h"

namespace cairn {
namespace {

constexpr std::string_view kSlices = "shard-#-model-#-of-#.safetensors";

std::vector<std::string> SlicesIn(const std::vector<std::string>& names) {
  std::vector<std::string> slices;
  for (const std::string& name : names)
    if (std::vector<std::string> v; FitsPattern(kSlices, name, v)) slices.push_back(name);
  std::ranges::sort(slices);
  return slices;
}

// Ranks count from 1, and each has a file.
Status CheckRanks(const std::string& directory, const std::vector<std::string>& slices) {
  int last = 0;
  for (const std::string& name : slices) {
    std::vector<std::string> v;
    FitsPattern(kSlices, name, v);
    const int rank = std::stoi(v[0]);
    if (rank > last + 1)
      return NotFound("{}: the files of rank {} are missing, but {} exists", directory, last + 1, name);
    last = rank;
  }
  return OkStatus();
}

// Where the file's slice of each tensor begins.
Result<std::map<std::string, Dims>> OffsetsIn(const SafetensorsHeader& header) {
  const auto info = header.metadata.find(kShardingInfo);
  if (info == header.metadata.end()) return Corrupt("its header has no {}", kShardingInfo);
  CAIRN_ASSIGN_OR_RETURN(const nlohmann::json json, ParseStrictJson(info->second));
  std::map<std::string, Dims> offsets;
  for (const auto& [name, one] : json.items()) {
    Dims& offset = offsets[name];
    const auto saved = one.is_object() ? one.value("saved_offsets", nlohmann::json()) : nlohmann::json();
    if (!saved.is_array() || saved.size() > kMaxRank) return Corrupt("{} has no saved_offsets", name);
    for (const auto& at : saved) {
      if (!at.is_number_unsigned() || at > INT64_MAX / 2)
        return Corrupt("{} has the saved_offsets {}", name, saved.dump());
      offset.push_back(at);
    }
  }
  return offsets;
}

class Reader {
 public:
  Reader(FileSystem& fs, const std::string& directory, ReaderOptions& options)
      : fs_(fs), directory_(directory), options_(options) {}

  Status Add(const std::string& file) {
    const std::string path = JoinPath(directory_, file);
    CAIRN_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(fs_, path));
    const auto offsets = OffsetsIn(header);
    if (!offsets.ok()) return offsets.status().WithContext(path);
    for (StoredArray& array : header.tensors) {
      const auto at = offsets->find(array.name);
      if (at == offsets->end() || at->second.rank() != array.shape.rank())
        return Corrupt("{}: {} does not say where {} begins", path, kShardingInfo, array.name);
      CAIRN_RETURN_IF_ERROR(AddSlice(file, at->second, std::move(array)).WithContext(path));
    }
    return OkStatus();
  }
  DcpIndex Take() { return std::move(index_); }

 private:
  Status AddSlice(const std::string& file, const Dims& offset, StoredArray array) {
    const uint64_t begin = array.extents[0].file_offset;
    index_.account.AddStorage(file, array.name, begin, array.bytes());
    if (!array.unknown_type.empty() && !IsAllowed(options_, array.name))
      return NotSupported("tensor {} is {}, which is not held here; --allow '{}' leaves it out", array.name,
                          array.unknown_type, array.name);
    if (!array.unknown_type.empty()) {
      index_.account.Omit(Fate::kAllowed, file, begin, array.bytes(), array.name);
      return OkStatus();
    }
    const auto [at, fresh] = tensors_.try_emplace(array.name, index_.tensors.size());
    if (fresh)
      index_.tensors.push_back({array.name, {array.name}, Dims::Filled(offset.rank(), 0), array.dtype, {}});
    DcpTensor& tensor = index_.tensors[at->second];
    if (tensor.dtype != array.dtype || tensor.shape.rank() != offset.rank())
      return Corrupt("{} has another type or number of dimensions than in another file", array.name);
    for (int i = 0; i < offset.rank(); ++i)
      tensor.shape[i] = std::max(tensor.shape[i], offset[i] + array.shape[i]);
    if (!CheckedBytes(tensor.shape, SizeOf(array.dtype))) return Corrupt("{} is too large", array.name);
    const Box box{offset, array.shape};
    if (box.Volume() > 0 || fresh) tensor.chunks.push_back({box, {file, {}}, std::move(array)});
    return OkStatus();
  }

  FileSystem& fs_;
  const std::string& directory_;
  ReaderOptions& options_;
  DcpIndex index_;
  std::map<std::string, size_t> tensors_;
};

// A model of a known family has each tensor's shape, which the mapping checks.
Status CheckAllRanks(FileSystem& fs, const std::string& directory, ReaderOptions& options) {
  if (!options.config.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const ConfigModel model, ReadConfigAt(fs, options.config));
    if (model.family != nullptr) return OkStatus();
  }
  if (IsAllowed(options, "ranks")) return OkStatus();
  const std::string beside = JoinPath(directory, ".hf_metadata");  // of NeMo Automodel
  return NotSupported(
      "{}: its files do not say how many ranks wrote them, so the last one's may be missing; --config {} of "
      "a "
      "known family, which has the shapes, or --allow ranks, if none is missing",
      directory, fs.Stat(beside).ok() ? beside : "DIR");
}

}  // namespace

bool HoldsDcpSlices(const std::vector<std::string>& names) { return !SlicesIn(names).empty(); }

Result<DcpIndex> ReadDcpSlices(FileSystem& fs, const std::string& directory, ReaderOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory));
  const std::vector<std::string> slices = SlicesIn(names);
  CAIRN_RETURN_IF_ERROR(CheckRanks(directory, slices));
  CAIRN_RETURN_IF_ERROR(CheckAllRanks(fs, directory, options));
  Reader reader(fs, directory, options);
  for (const std::string& file : slices) CAIRN_RETURN_IF_ERROR(reader.Add(file));
  DcpIndex index = reader.Take();
  CAIRN_RETURN_IF_ERROR(CheckCovered(index).WithContext(directory));
  return index;
}

}  // namespace cairn
