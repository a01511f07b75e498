// PairUp() needs no data: it pairs tensors by name and role, and reports tensors that one side lacks or has
// in another shape or type. Then A streams block by block, and the same box of B is read for each block.
// Memory holds a block of each and the readers' caches, for any topologies. Blocks of a tensor come in order,
// and its distance is reported once all its elements have been seen.

#include "convert/verbs/diff.h"

#include <algorithm>

#include "ckpt/base/glob.h"
#include "ckpt/model/tensor.h"
#include "convert/stream/value_distance.h"

namespace cairn {
namespace {

std::string Describe(const TensorEntry& tensor) {
  if (tensor.role == Role::kJson || tensor.role == Role::kPickle)
    return fmt::format("{} of {} bytes", Name(tensor.role), tensor.bytes());
  return fmt::format("{} {}", Name(tensor.dtype), ToString(tensor.spec.shape));
}

std::string Beginning(const std::string* text) {
  constexpr size_t kShown = 60;
  if (!text) return "";
  return text->size() <= kShown ? *text : text->substr(0, kShown - 3) + "...";
}

struct TensorPair {
  uint32_t a, b;
  Tolerance tolerance;
};

class Differ {
 public:
  Differ(CheckpointSource& a, CheckpointSource& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options) {
    used_.resize(options.ignore.size() + options.tolerances.size());
  }

  Result<DiffResult> Run() {
    PairUp();
    if (ComparesOthers() && !ignores_others_) CompareOthers();
    CAIRN_RETURN_IF_ERROR(AllGlobsUsed());
    CAIRN_RETURN_IF_ERROR(CompareValues());
    std::ranges::stable_sort(result_.tensors, [](const TensorDiff& x, const TensorDiff& y) {
      if (x.kind != y.kind) return x.kind < y.kind;
      if ((x.beyond > 0) != (y.beyond > 0)) return x.beyond > 0;
      return x.relative_norm > y.relative_norm;
    });
    for (const TensorDiff& tensor : result_.tensors)
      result_.within_tolerance &= tensor.kind == Difference::kValues && tensor.beyond == 0;
    return std::move(result_);
  }

 private:
  bool ComparesOthers() const { return options_.others_a && options_.others_b; }
  bool IsInOthers(const TensorEntry& tensor) const { return ComparesOthers() && tensor.role == Role::kJson; }

  bool IsIgnored(const TensorEntry& tensor, const std::string& name) {
    bool ignored = tensor.role == Role::kRng || (options_.ignore_optimizer && tensor.role != Role::kWeight);
    for (size_t i = 0; i < options_.ignore.size(); ++i)
      if (FitsGlob(tensor, options_.ignore[i]) || FitsGlob(name, options_.ignore[i]))
        ignored = used_[i] = true;
    if (ignored && tensor.role == Role::kJson) ignores_others_ = true;
    return ignored;
  }

  Tolerance ToleranceOf(const TensorEntry& tensor, const std::string& name) {
    Tolerance found;
    for (size_t i = 0; i < options_.tolerances.size(); ++i) {
      const std::string& glob = options_.tolerances[i].glob;
      if (!FitsGlob(tensor, glob) && !FitsGlob(name, glob)) continue;
      found = options_.tolerances[i];
      used_[options_.ignore.size() + i] = true;
    }
    return found;
  }

  void PairUp() {
    const TensorTable &of_a = a_.catalog(), &of_b = b_.catalog();
    const TensorLookup in_a(of_a), in_b(of_b);
    for (uint32_t i = 0; i < of_a.tensors.size(); ++i) {
      const TensorEntry& tensor = of_a.tensors[i];
      const std::string name = options_.name_a(tensor);
      if (IsIgnored(tensor, name) || IsInOthers(tensor)) continue;
      const Tolerance tolerance = ToleranceOf(tensor, name);
      const Result<uint32_t> other = in_b.Find(tensor.spec.name, tensor.role);
      if (!other.ok())
        Report(name, Difference::kOnlyInA, Describe(tensor), "");
      else
        CompareStructure({i, *other, tolerance});
    }
    for (const TensorEntry& tensor : of_b.tensors) {
      std::string name = options_.name_b(tensor);
      if (!IsIgnored(tensor, name) && !IsInOthers(tensor) && !in_a.Find(tensor.spec.name, tensor.role).ok())
        Report(std::move(name), Difference::kOnlyInB, "", Describe(tensor));
    }
  }

  void CompareOthers() {
    std::map<std::string, std::pair<const std::string*, const std::string*>> found;
    for (const auto& [name, text] : *options_.others_a) found[name].first = &text;
    for (const auto& [name, text] : *options_.others_b) found[name].second = &text;
    for (const auto& [name, texts] : found) {
      bool ignored = false;
      for (size_t i = 0; i < options_.ignore.size(); ++i)
        if (FitsGlob(name, options_.ignore[i])) ignored = used_[i] = true;
      const auto& [a, b] = texts;
      if (ignored || (a && b && *a == *b)) continue;
      const Difference kind = !a ? Difference::kOnlyInB : !b ? Difference::kOnlyInA : Difference::kOther;
      Report(name, kind, Beginning(a), Beginning(b));
    }
  }

  Status AllGlobsUsed() const {
    for (size_t i = 0; i < used_.size(); ++i)
      if (!used_[i])
        return InvalidArgument("{} matches no tensor of either checkpoint; cairn inspect lists them",
                               i < options_.ignore.size()
                                   ? "--ignore " + options_.ignore[i]
                                   : "--tolerance " + options_.tolerances[i - options_.ignore.size()].glob);
    return OkStatus();
  }

  void CompareStructure(const TensorPair& pair) {
    const TensorEntry &x = a_.catalog().tensors[pair.a], &y = b_.catalog().tensors[pair.b];
    if (!(x.spec.shape == y.spec.shape))
      return Report(options_.name_a(x), Difference::kShape, Describe(x), Describe(y));
    if (x.dtype != y.dtype && !options_.ignore_dtype)
      Report(options_.name_a(x), Difference::kDtype, Describe(x), Describe(y));
    ++result_.compared;
    if (x.spec.shape.Volume() == 0) return (void)++result_.equal;
    pairs_.resize(a_.catalog().tensors.size());
    pairs_[pair.a] = pair;
    compared_.push_back(pair.a);
  }

  void Report(std::string name, Difference kind, std::string a, std::string b) {
    TensorDiff& diff = result_.tensors.emplace_back();
    diff.name = std::move(name), diff.kind = kind, diff.a = std::move(a), diff.b = std::move(b);
  }

  // Another thread reads A ahead; this one reads B.
  Status CompareValues() {
    const uint64_t cache = ReaderCacheFor(options_.max_memory / 2);
    a_.SetCacheBytes(cache), b_.SetCacheBytes(cache);
    std::vector<std::byte> other;
    std::optional<ValueDistance> distance;
    uint64_t done = 0;
    CAIRN_RETURN_IF_ERROR(
        StreamBlocks(a_, compared_, BlockBytesFor(options_.max_memory), [&](const Block& block) -> Status {
          const TensorPair& pair = pairs_[block.tensor];
          const TensorEntry &x = a_.catalog().tensors[pair.a], &y = b_.catalog().tensors[pair.b];
          if (block.begin == 0)
            distance.emplace(x.dtype, y.dtype, pair.tolerance.absolute, pair.tolerance.relative);
          other.resize(block.box.Volume() * SizeOf(y.dtype));
          CAIRN_RETURN_IF_ERROR(b_.ReadBox(pair.b, block.box, other));
          distance->Add(block.begin, block.bytes, other);
          if (distance->elements == x.spec.shape.Volume()) Take(options_.name_a(x), *distance);
          if (options_.progress) options_.progress(done += block.bytes.size());
          return OkStatus();
        }));
    return b_.CheckRead();
  }

  void Take(std::string name, const ValueDistance& distance) {
    if (distance.differing == 0) return (void)++result_.equal;
    TensorDiff& diff = result_.tensors.emplace_back();
    diff.name = std::move(name);
    diff.elements = distance.elements;
    diff.differing = distance.differing;
    diff.beyond = distance.beyond;
    diff.nan_payloads = distance.nan_payloads;
    diff.first = distance.beyond > 0 ? distance.first_beyond : distance.first;
    diff.max_absolute = distance.max_absolute;
    diff.max_relative = distance.max_relative;
    diff.max_ulp = distance.max_ulp;
    diff.relative_norm = distance.relative_norm();
    diff.cosine = distance.cosine();
  }

  CheckpointSource& a_;
  CheckpointSource& b_;
  const DiffOptions& options_;
  bool ignores_others_ = false;     // with the JSON that holds them
  std::vector<bool> used_;          // globs to ignore, then those of tolerances
  std::vector<TensorPair> pairs_;   // by tensor of A
  std::vector<uint32_t> compared_;  // tensors of A
  DiffResult result_;
};

}  // namespace

std::string_view Name(Difference difference) {
  switch (difference) {
    case Difference::kOnlyInA:
      return "only in A";
    case Difference::kOnlyInB:
      return "only in B";
    case Difference::kShape:
      return "shape";
    case Difference::kDtype:
      return "dtype";
    case Difference::kOther:
      return "value";
    case Difference::kValues:
      return "values";
  }
  return "?";
}

Result<DiffResult> Diff(CheckpointSource& a, CheckpointSource& b, const DiffOptions& options) {
  return Differ(a, b, options).Run();
}

}  // namespace cairn
