// Arrays that should be equal are compared before there is a source, each as a tensor of its own, in
// windows. Where they differ and a mean is wanted, the catalog is copied once for each further copy, with
// the differing arrays in place of those that are read. MeanSource then reads the same box of all catalogs
// and averages in fp32; tensors whose copies are equal are read once.

#include "convert/formats/training/replicas.h"

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

std::vector<float> ToFloats(Dtype dtype, std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / SizeOf(dtype));
  Cast(dtype, bytes, Dtype::kF32, std::as_writable_bytes(std::span(values)), OnOverflow::kInfinity);
  return values;
}

// A source that reads all arrays of a catalog as tensors of their own, so that any two can be compared.
Result<std::unique_ptr<StoredSource>> ArraysOf(FileSystem& fs, const std::string& directory,
                                               const StoredCatalog& catalog,
                                               const std::vector<uint32_t>& arrays) {
  StoredCatalog plain;
  plain.files = catalog.files;
  for (const uint32_t index : arrays) {
    const StoredArray& array = catalog.arrays[index];
    const auto at = static_cast<uint32_t>(plain.arrays.size());
    plain.tensors.push_back(
        {{.name = fmt::format("{}", index), .shape = array.shape}, Role::kWeight, array.dtype});
    plain.arrays.push_back(array);
    plain.parts.push_back({{Box::Whole(array.shape), Box::Whole(array.shape)}, at, at});
  }
  return StoredSource::Make(fs, directory, {}, std::move(plain));
}

// The largest difference of two arrays; 0 where their bytes are equal.
Result<double> Distance(StoredSource& arrays, uint32_t a, uint32_t b) {
  const TensorEntry& entry = arrays.catalog().tensors[a];
  if (!(entry.spec.shape == arrays.catalog().tensors[b].spec.shape) ||
      entry.dtype != arrays.catalog().tensors[b].dtype)
    return std::numeric_limits<double>::infinity();
  double distance = 0;
  std::vector<std::byte> one, other;
  for (BlockCursor cursor(entry.spec.shape, kWindowElements); !cursor.done(); cursor.Advance()) {
    const Box box = cursor.box();
    one.resize(box.Volume() * SizeOf(entry.dtype));
    other.resize(one.size());
    CAIRN_RETURN_IF_ERROR(arrays.ReadBox(a, box, one));
    CAIRN_RETURN_IF_ERROR(arrays.ReadBox(b, box, other));
    if (one == other) continue;
    if (!CanCast(entry.dtype, Dtype::kF32)) return std::numeric_limits<double>::infinity();
    const std::vector<float> x = ToFloats(entry.dtype, one), y = ToFloats(entry.dtype, other);
    for (size_t i = 0; i < x.size(); ++i) {
      const double difference = std::abs(static_cast<double>(x[i]) - y[i]);
      distance =
          std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(distance, difference);
    }
  }
  return distance;
}

// Reads the mean of several sources where their tensors differ. Averages in fp32, as converters of BLOOM do.
class MeanSource final : public ForeignSource {
 public:
  MeanSource(std::vector<std::unique_ptr<StoredSource>> sources, std::vector<bool> averaged)
      : sources_(std::move(sources)), averaged_(std::move(averaged)) {}

  const Manifest& manifest() const override { return sources_[0]->manifest(); }
  const TensorTable& catalog() const override { return sources_[0]->catalog(); }
  const std::string& directory() const override { return sources_[0]->directory(); }
  const std::string& name() const override { return sources_[0]->name(); }
  void SetName(std::string name) override { sources_[0]->SetName(std::move(name)); }
  void AddHistory(std::string entry) override { sources_[0]->AddHistory(std::move(entry)); }
  void SetCacheBytes(uint64_t bytes) override {
    for (const auto& source : sources_) source->SetCacheBytes(bytes / sources_.size());
  }
  uint64_t bytes_read() const override {
    uint64_t bytes = 0;
    for (const auto& source : sources_) bytes += source->bytes_read();
    return bytes;
  }

  Status ReadBox(uint32_t tensor, const Box& box, std::span<std::byte> out) override {
    if (!averaged_[tensor]) return sources_[0]->ReadBox(tensor, box, out);
    const Dtype dtype = catalog().tensors[tensor].dtype;
    std::vector<float> sum(box.Volume());
    for (const auto& source : sources_) {
      CAIRN_RETURN_IF_ERROR(source->ReadBox(tensor, box, out));
      const std::vector<float> values = ToFloats(dtype, out);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
    }
    for (float& value : sum) value /= static_cast<float>(sources_.size());
    Cast(Dtype::kF32, std::as_bytes(std::span(sum)), dtype, out, OnOverflow::kInfinity);
    return OkStatus();
  }

 private:
  std::vector<std::unique_ptr<StoredSource>> sources_;
  std::vector<bool> averaged_;  // of each tensor
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
  std::vector<uint32_t> arrays;
  for (const StoredReplica& replica : replicas) arrays.insert(arrays.end(), {replica.array, replica.first});
  std::ranges::sort(arrays);
  arrays.erase(std::unique(arrays.begin(), arrays.end()), arrays.end());
  CAIRN_ASSIGN_OR_RETURN(const auto source, ArraysOf(fs, directory, catalog, arrays));
  const auto place = [&](uint32_t array) {
    return static_cast<uint32_t>(std::ranges::lower_bound(arrays, array) - arrays.begin());
  };
  Differing differing;
  for (const StoredReplica& replica : replicas) {
    CAIRN_ASSIGN_OR_RETURN(const double distance,
                           Distance(*source, place(replica.array), place(replica.first)));
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

// The catalogs that read the second, third, ... replica of each tensor.
std::vector<StoredCatalog> Alternatives(const StoredCatalog& catalog,
                                        const std::vector<StoredReplica>& replicas) {
  std::map<uint32_t, std::vector<uint32_t>> others;  // of an array that is read
  for (const StoredReplica& replica : replicas) others[replica.first].push_back(replica.array);
  size_t count = 0;
  for (const auto& [array, list] : others) count = std::max(count, list.size());
  std::vector<StoredCatalog> catalogs;
  for (size_t i = 0; i < count; ++i) {
    StoredCatalog& other = catalogs.emplace_back(catalog);
    for (ArrayPart& part : other.parts)
      if (const auto found = others.find(part.array); found != others.end() && i < found->second.size())
        part.array = found->second[i];
  }
  return catalogs;
}

}  // namespace

Result<std::unique_ptr<ForeignSource>> OpenWithReplicas(FileSystem& fs, const std::string& directory,
                                                        Manifest manifest, StoredCatalog catalog,
                                                        const std::vector<StoredReplica>& replicas,
                                                        Replicas how) {
  CAIRN_ASSIGN_OR_RETURN(const Differing differing, Compare(fs, directory, catalog, replicas));
  if (!differing.replicas.empty()) {
    const std::string what = fmt::format("{} copies on several ranks differ, most {} by {:.3g}",
                                         differing.replicas.size(), differing.worst, differing.distance);
    if (how == Replicas::kStrict)
      return Corrupt("{}: {}; --replicas mean averages them, --replicas first takes the first rank's:\n  {}",
                     directory, what, fmt::join(differing.each, "\n  "));
    manifest.history.push_back(what + (how == Replicas::kMean ? "; averaged" : "; the first was taken"));
  }
  std::vector<StoredCatalog> others;
  std::vector<bool> averaged(catalog.tensors.size());
  if (how == Replicas::kMean) {
    others = Alternatives(catalog, differing.replicas);
    for (const StoredReplica& replica : differing.replicas)  // of integers the first is taken
      averaged[replica.tensor] = CanCast(catalog.tensors[replica.tensor].dtype, Dtype::kF32);
  }
  std::vector<std::unique_ptr<StoredSource>> sources;
  CAIRN_ASSIGN_OR_RETURN(auto first,
                         StoredSource::Make(fs, directory, std::move(manifest), std::move(catalog)));
  if (others.empty()) return std::unique_ptr<ForeignSource>(std::move(first));
  sources.push_back(std::move(first));
  for (StoredCatalog& other : others) {
    CAIRN_ASSIGN_OR_RETURN(auto source, StoredSource::Make(fs, directory, {}, std::move(other)));
    sources.push_back(std::move(source));
  }
  return std::unique_ptr<ForeignSource>(new MeanSource(std::move(sources), std::move(averaged)));
}

}  // namespace cairn
