// Arrays that should be equal are compared before the source is made, each as a separate tensor, in
// windows. If they differ and a mean is wanted, the catalog is copied once for each further copy, with
// the differing arrays in place of those that are read. MeanSource then reads the same box of all catalogs
// and averages in fp32; tensors whose copies are equal are read once.

#include "convert/foreign/replicas.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "ckpt/codec/cast.h"
#include "convert/stream/block_stream.h"

namespace cairn {
namespace {

constexpr uint64_t kWindowElements = 1 << 20;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<float> ToFloats(Dtype dtype, std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / SizeOf(dtype));
  Cast(dtype, bytes, Dtype::kF32, std::as_writable_bytes(std::span(values)), OnOverflow::kInfinity);
  return values;
}

// Reads the mean of all copies if some differ, else the first copy. The i-th source has the i-th copy of each
// array, or the first one if there are fewer. Averages in fp32, as converters of BLOOM do.
class MeanSource final : public ForeignSource {
 public:
  // `copies`: how many each array of the first source has, if some differ.
  MeanSource(std::vector<std::unique_ptr<StoredSource>> sources, std::map<uint32_t, size_t> copies)
      : ForeignSource(sources[0]->manifest()), sources_(std::move(sources)), copies_(std::move(copies)) {}

  const TensorTable& catalog() const override { return sources_[0]->catalog(); }
  const Regions& regions() const override { return sources_[0]->regions(); }
  const std::string& directory() const override { return sources_[0]->directory(); }
  void ReadAhead(BoxSequence next) override { sources_[0]->ReadAhead(std::move(next)); }
  void SetCacheBytes(uint64_t bytes) override {
    for (const auto& source : sources_) source->SetCacheBytes(bytes / sources_.size());
  }
  uint64_t bytes_read() const override {
    uint64_t bytes = 0;
    for (const auto& source : sources_) bytes += source->bytes_read();
    return bytes;
  }
  Status CheckRead() override {
    for (const auto& source : sources_) CAIRN_RETURN_IF_ERROR(source->CheckRead());
    return OkStatus();
  }
  bool SkipSums() override {
    bool had = false;
    for (const auto& source : sources_) had |= source->SkipSums();
    return had;
  }

  Status ReadBox(uint32_t tensor, const Box& box, std::span<std::byte> out) override {
    CAIRN_RETURN_IF_ERROR(sources_[0]->ReadBox(tensor, box, out));
    const uint64_t size = SizeOf(catalog().tensors[tensor].dtype);
    std::vector<std::byte> mean;
    for (const auto& [part, common] : sources_[0]->parts().Meet(tensor, box)) {
      const auto copies = copies_.find(part.array);
      if (copies == copies_.end()) continue;
      mean.resize(common.Volume() * size);
      CAIRN_RETURN_IF_ERROR(ReadMean(tensor, common, copies->second, mean));
      ForEachRun(common, common, box, [&](uint64_t from, uint64_t to, uint64_t count) {
        std::memcpy(&out[to * size], &mean[from * size], count * size);
      });
    }
    return OkStatus();
  }

 private:
  Status ReadMean(uint32_t tensor, const Box& box, size_t copies, std::span<std::byte> out) {
    const Dtype dtype = catalog().tensors[tensor].dtype;
    std::vector<float> sum(box.Volume());
    for (size_t copy = 0; copy < copies; ++copy) {
      CAIRN_RETURN_IF_ERROR(sources_[copy]->ReadBox(tensor, box, out));
      const std::vector<float> values = ToFloats(dtype, out);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
    }
    for (float& value : sum) value /= static_cast<float>(copies);
    Cast(Dtype::kF32, std::as_bytes(std::span(sum)), dtype, out, OnOverflow::kInfinity);
    return OkStatus();
  }

  std::vector<std::unique_ptr<StoredSource>> sources_;
  std::map<uint32_t, size_t> copies_;
};

struct Differing {
  std::vector<StoredReplica> replicas;
  std::vector<std::string> each;  // of these: tensor, files and distance
  std::string worst;
  double distance = 0;
};

// Where the array begins; the name of the file says the rank.
std::string FileOf(const StoredCatalog& catalog, uint32_t array) {
  const StoredArray& stored = catalog.arrays[array];
  return stored.extents.empty() ? stored.name : catalog.files[stored.extents[0].file];
}

Result<Differing> Compare(FileSystem& fs, const std::string& directory, const StoredCatalog& catalog,
                          const std::vector<StoredReplica>& replicas) {
  Differing differing;
  if (replicas.empty()) return differing;
  std::vector<uint32_t> arrays;
  for (const StoredReplica& replica : replicas) arrays.insert(arrays.end(), {replica.array, replica.first});
  std::ranges::sort(arrays);
  arrays.erase(std::unique(arrays.begin(), arrays.end()), arrays.end());
  std::vector<StoredArray> compared;
  for (const uint32_t array : arrays) compared.push_back(catalog.arrays[array]);
  CAIRN_ASSIGN_OR_RETURN(const auto source, OpenArrays(fs, directory, catalog.files, std::move(compared)));
  const auto place = [&](uint32_t array) {
    return static_cast<uint32_t>(std::ranges::lower_bound(arrays, array) - arrays.begin());
  };
  for (const StoredReplica& replica : replicas) {
    CAIRN_ASSIGN_OR_RETURN(const auto apart, Distance(*source, place(replica.array), place(replica.first)));
    const double distance = apart.value_or(0);
    if (distance == 0) continue;
    differing.replicas.push_back(replica);
    differing.each.push_back(
        fmt::format("{}: {} and {} by {:.3g}", DisplayName(catalog.tensors[replica.tensor]),
                    FileOf(catalog, replica.first), FileOf(catalog, replica.array), distance));
    if (distance <= differing.distance) continue;
    differing.distance = distance;
    differing.worst = DisplayName(catalog.tensors[replica.tensor]);
  }
  return differing;
}

// All copies, equal ones too, of each array that is read and has a copy which differs.
std::map<uint32_t, std::vector<uint32_t>> CopiesOf(const std::vector<StoredReplica>& replicas,
                                                   const std::vector<StoredReplica>& differing) {
  std::map<uint32_t, std::vector<uint32_t>> copies;
  for (const StoredReplica& replica : differing) copies.try_emplace(replica.first);
  for (const StoredReplica& replica : replicas)
    if (const auto found = copies.find(replica.first); found != copies.end())
      found->second.push_back(replica.array);
  return copies;
}

// Opens a source for the second, third, ... copy too.
Result<std::unique_ptr<ForeignSource>> OpenMean(FileSystem& fs, const std::string& directory,
                                                Manifest manifest, StoredCatalog catalog,
                                                const std::map<uint32_t, std::vector<uint32_t>>& copies) {
  size_t most = 0;
  for (const auto& [array, others] : copies) most = std::max(most, others.size());
  std::vector<StoredCatalog> catalogs(most, catalog);
  std::map<uint32_t, size_t> averaged;
  for (size_t i = 0; i < catalog.parts.size(); ++i) {
    const ArrayPart& part = catalog.parts[i];
    const auto found = copies.find(part.array);
    if (found == copies.end() || !CanCast(catalog.arrays[part.array].dtype, Dtype::kF32))
      continue;  // the first one for integers
    for (size_t other = 0; other < found->second.size(); ++other)
      catalogs[other].parts[i].array = found->second[other];
    averaged[part.array] = found->second.size() + 1;
  }
  std::vector<std::unique_ptr<StoredSource>> sources(1);
  CAIRN_ASSIGN_OR_RETURN(sources[0],
                         StoredSource::Make(fs, directory, std::move(manifest), std::move(catalog)));
  for (StoredCatalog& other : catalogs) {
    CAIRN_ASSIGN_OR_RETURN(auto source, StoredSource::Make(fs, directory, {}, std::move(other)));
    sources.push_back(std::move(source));
  }
  return std::unique_ptr<ForeignSource>(new MeanSource(std::move(sources), std::move(averaged)));
}

}  // namespace

Result<std::unique_ptr<StoredSource>> OpenArrays(FileSystem& fs, const std::string& directory,
                                                 const std::vector<std::string>& files,
                                                 std::vector<StoredArray> arrays) {
  StoredCatalog plain;
  plain.files = files;
  for (uint32_t i = 0; i < arrays.size(); ++i) {
    plain.tensors.push_back(WholeTensor(arrays[i]));
    const Box whole = Box::Whole(arrays[i].tensor_shape());
    plain.parts.push_back({arrays[i].Stored({whole, whole}), i, i});
  }
  plain.arrays = std::move(arrays);
  return StoredSource::Make(fs, directory, {}, std::move(plain));
}

Result<std::optional<double>> Distance(CheckpointSource& source, uint32_t a, uint32_t b) {
  const TensorEntry& entry = source.catalog().tensors[a];
  if (!(entry.spec.shape == source.catalog().tensors[b].spec.shape) ||
      entry.dtype != source.catalog().tensors[b].dtype)
    return std::optional(kInfinity);
  std::optional<double> distance;
  std::vector<std::byte> one, other;
  BoxSequence blocks = BlocksOf(source.catalog(), {{a, b}}, kWindowElements * SizeOf(entry.dtype));
  source.ReadAhead(blocks);
  while (const std::optional<TensorBox> block = blocks()) {
    one.resize(block->box.Volume() * SizeOf(entry.dtype));
    other.resize(one.size());
    CAIRN_RETURN_IF_ERROR(source.ReadBox(a, block->box, one));
    CAIRN_RETURN_IF_ERROR(source.ReadBox(b, blocks()->box, other));
    if (std::memcmp(one.data(), other.data(), one.size()) == 0) continue;
    if (!CanCast(entry.dtype, Dtype::kF32)) return std::optional(kInfinity);
    const std::vector<float> x = ToFloats(entry.dtype, one), y = ToFloats(entry.dtype, other);
    for (size_t i = 0; i < x.size(); ++i) {
      const double difference = std::abs(static_cast<double>(x[i]) - y[i]);
      distance = std::isnan(difference) ? kInfinity : std::max(distance.value_or(0), difference);
    }
  }
  return distance;
}

Result<std::unique_ptr<ForeignSource>> OpenWithReplicas(FileSystem& fs, const std::string& directory,
                                                        Manifest manifest, StoredCatalog catalog,
                                                        const std::vector<StoredReplica>& replicas,
                                                        Replicas how) {
  CAIRN_ASSIGN_OR_RETURN(const Differing differing, Compare(fs, directory, catalog, replicas));
  if (!differing.replicas.empty()) {
    const std::string what = fmt::format("{} copies on several ranks differ, most {} by {:.3g}",
                                         differing.replicas.size(), differing.worst, differing.distance);
    if (how == Replicas::kStrict)
      return Corrupt("{}: {}: {}; --replicas mean averages them, --replicas first takes the first rank's",
                     directory, what, fmt::join(differing.each, "; "));
    manifest.history.push_back(what + (how == Replicas::kMean ? "; averaged" : "; the first was taken"));
  }
  if (how == Replicas::kMean && !differing.replicas.empty())
    return OpenMean(fs, directory, std::move(manifest), std::move(catalog),
                    CopiesOf(replicas, differing.replicas));
  CAIRN_ASSIGN_OR_RETURN(auto source,
                         StoredSource::Make(fs, directory, std::move(manifest), std::move(catalog)));
  return std::unique_ptr<ForeignSource>(std::move(source));
}

}  // namespace cairn
