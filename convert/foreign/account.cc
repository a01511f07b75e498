// Close() makes claims of the catalog's arrays too, sorts all claims of a file by where they begin, and walks
// them beside the storages: a gap between what is claimed and a storage's end is a byte without a fate. Bytes
// that are claimed twice (views of one storage) count once, for the claim that comes first.
#include "convert/foreign/account.h"

#include <algorithm>
#include <unordered_set>

#include "ckpt/base/box_cover.h"
#include "ckpt/base/enum_names.h"
#include "convert/foreign/dict_entries.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxRuns = 1 << 20;
constexpr size_t kMaxListedPathBytes = 512;

constexpr std::string_view kFateNames[] = {"training_state", "buffer",    "allowed",      "replica",
                                           "padding",        "alignment", "unreferenced", "optimizer"};

struct Reference {
  std::string path;
  const TensorRef* tensor = nullptr;    // or
  const StorageRef* storage = nullptr;  // a bare one
};

// Every tensor and storage below a value, hidden in calls or not; each value once.
void ForEachReference(const PyValue& root, const std::string& name,
                      const std::function<void(const Reference&)>& visit) {
  std::unordered_set<const PyValue*> seen;
  std::vector<std::pair<const PyValue*, std::string>> todo{{&root, name}};
  const auto push = [&](const PyValue* value, const std::string& path, auto key) {
    if (!value || value->is(PyKind::kStr) || value->is(PyKind::kInt) || value->is(PyKind::kFloat)) return;
    std::string longer = path.size() > kMaxListedPathBytes ? path : path + (path.empty() ? "" : ".") + key();
    todo.emplace_back(value, std::move(longer));
  };
  while (!todo.empty()) {
    const auto [value, path] = std::move(todo.back());
    todo.pop_back();
    if (value->is(PyKind::kTensor) && value->tensor->storage) visit({path, value->tensor, nullptr});
    if (value->is(PyKind::kStorage)) visit({path, nullptr, value->storage});
    if (!seen.insert(value).second) continue;
    const bool dict = value->is(PyKind::kDict);
    for (size_t i = value->items.size(); i-- > 0;)
      push(value->items[i], path,
           [&] { return dict ? KeyText(*value->items[i & ~size_t{1}]) : std::to_string(i); });
    push(value->state, path, [] { return std::string("state"); });
    push(value->contents, path, [] { return std::string("contents"); });
  }
}

using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

// The bytes of its storage that a tensor has.
Ranges BytesOf(const TensorRef& tensor) {
  const uint64_t size = tensor.type->bytes;
  if (!CheckedBytes(tensor.shape, size) || tensor.shape.Volume() == 0) return {};
  const auto [outer, run, count] = RunsOf(tensor);
  if (count > kMaxRuns) return {{0, UINT64_MAX}};
  Ranges ranges;
  ForEachTensorRun(tensor, [&, run = run](uint64_t element) {
    ranges.emplace_back(element * size, (element + run) * size);
  });
  return ranges;
}

// The stretches of [0, bytes) outside all ranges.
Ranges Gaps(Ranges ranges, uint64_t bytes) {
  std::ranges::sort(ranges);
  Ranges gaps;
  uint64_t end = 0;
  for (const auto& [from, to] : ranges) {
    if (from > end) gaps.emplace_back(end, std::min(from, bytes));
    end = std::max(end, std::min(to, bytes));
  }
  if (end < bytes) gaps.emplace_back(end, bytes);
  return gaps;
}

// True if two parts read an element of their array twice. A number may stand for many parameters, as that of
// the steps does.
bool Overlap(const std::vector<const ArrayPart*>& parts) {
  if (parts[0]->in_array.rank() == 0) return false;
  std::vector<Box> boxes;
  for (const ArrayPart* part : parts) boxes.push_back(part->in_array);
  return FindOverlap(boxes).has_value();
}

}  // namespace

std::string_view Name(Fate fate) { return NameIn<Fate::kOptimizer>(kFateNames, fate); }

bool IsOptimizerName(std::string_view path) {
  for (size_t begin = 0; begin <= path.size();) {
    const std::string_view part = path.substr(begin, path.find('.', begin) - begin);
    if (part == "optim" || part.ends_with("_optim") || part.find("optimizer") != part.npos) return true;
    begin += part.size() + 1;
  }
  return false;
}

bool MayHoldMoments(const TensorEntry& tensor) {
  return (tensor.role == Role::kPickle || tensor.role == Role::kTraining) && tensor.spec.shape.Volume() > 1 &&
         IsOptimizerName(tensor.spec.name);
}

void Account::AddStorage(const std::string& file, std::string name, uint64_t begin, uint64_t bytes) {
  if (bytes > 0) ledgers_[file].storages.push_back({begin, begin + bytes, std::move(name)});
}

void Account::AddFile(const TorchFile& file) {
  for (const auto& [key, storage] : file.storages())
    if (storage.bytes > 0 && !listed_.emplace(file.name(), storage.file_offset).second) return;
  std::map<std::string_view, std::pair<std::string, Ranges>> used;  // of a storage's key
  ForEachReference(file.root(), "", [&](const Reference& reference) {
    const StorageRef* storage = reference.tensor ? reference.tensor->storage : reference.storage;
    auto& [name, ranges] = used.try_emplace(storage->key, reference.path, Ranges()).first->second;
    if (!reference.tensor) return;
    const Ranges more = BytesOf(*reference.tensor);
    ranges.insert(ranges.end(), more.begin(), more.end());
  });
  for (const auto& [key, storage] : file.storages()) {
    const auto found = used.find(key);
    const bool known = found != used.end();
    AddStorage(file.name(), known ? found->second.first : "storage " + key, storage.file_offset,
               storage.bytes);
    if (storage.crc != 0)
      records_[file.name()].push_back({"data/" + key, storage.file_offset, storage.bytes, storage.crc});
    if (!known || found->second.second.empty()) continue;
    for (const auto& [from, to] : Gaps(std::move(found->second.second), storage.bytes))
      ledgers_[file.name()].claims.push_back(
          {storage.file_offset + from, storage.file_offset + to, LabelOf(Fate::kUnreferenced)});
  }
}

std::vector<SummedRecord> Account::RecordsIn(const std::vector<std::string>& files) const {
  std::vector<SummedRecord> records;
  for (uint32_t i = 0; i < files.size(); ++i)
    if (const auto found = records_.find(files[i]); found != records_.end())
      for (const ZipRecord& record : found->second) records.push_back({i, record});
  return records;
}

void Account::Omit(Fate fate, const std::string& file, uint64_t begin, uint64_t bytes, std::string name) {
  if (bytes > 0) ledgers_[file].claims.push_back({begin, begin + bytes, LabelOf(fate)});
  names_.emplace(fate, std::move(name));
}

void Account::Omit(Fate fate, const StoredCatalog& catalog, const StoredArray& array) {
  names_.emplace(fate, array.name);
  for (const StoredExtent& extent : array.extents)
    Omit(fate, catalog.files[extent.file], extent.file_offset, extent.range.size() * SizeOf(array.dtype),
         array.name);
}

void Account::Omit(Fate fate, const TorchFile& file, const TensorRef& tensor, const std::string& name) {
  const auto found = tensor.storage ? file.storages().find(tensor.storage->key) : file.storages().end();
  if (found == file.storages().end()) return;
  names_.emplace(fate, name);
  if (fate < Fate::kAllowed && tensor.shape.Volume() > 1 && IsOptimizerName(name))
    optimizer_left_.insert(name);
  for (auto [from, to] : BytesOf(tensor)) {
    to = std::min(to, found->second.bytes);
    if (from < to) Omit(fate, file.name(), found->second.file_offset + from, to - from, name);
  }
}

void Account::OmitBelow(Fate fate, const TorchFile& file, const PyValue& value, const std::string& name) {
  ForEachReference(value, name, [&](const Reference& reference) {
    if (reference.tensor) return Omit(fate, file, *reference.tensor, reference.path);
    const auto found = file.storages().find(reference.storage->key);
    if (found != file.storages().end())
      Omit(fate, file.name(), found->second.file_offset, found->second.bytes, reference.path);
  });
}

Status Account::OmitRest(const TorchFile& file, const std::set<std::string>& taken, ReaderOptions& options) {
  const PyValue& root = file.root();
  if (!root.is(PyKind::kDict)) return OkStatus();
  for (size_t i = 0; i + 1 < root.items.size(); i += 2) {
    const std::string key = KeyText(*root.items[i]);
    if (taken.contains(key)) continue;
    const bool state = IsTrainingName(key);
    uint64_t elements = 0;
    std::string first;
    ForEachReference(*root.items[i + 1], key, [&](const Reference& reference) {
      if (elements++ == 0) first = reference.path;
    });
    if (elements == 0) continue;
    if (!state && !IsAllowed(options, key))
      return NotSupported(
          "{}: {} holds {} tensors that Cairn has no place for ({} is the first); --allow '{}' leaves them "
          "out",
          file.name(), key, elements, first, key);
    OmitBelow(state ? Fate::kTrainingState : Fate::kAllowed, file, *root.items[i + 1], key);
  }
  return OkStatus();
}

Account::Label Account::LabelOf(Fate fate) { return {256 + static_cast<int>(fate), Name(fate)}; }

Account::Label Account::LabelOf(const TensorEntry& tensor) const {
  if (optimizer_.contains(tensor.spec.name)) return LabelOf(Fate::kOptimizer);
  return {tensor.role.has_number() ? tensor.role.number() : 255, Name(tensor.role)};
}

// Which label each array's bytes have; what an array has beyond its parts is padding.
Status Account::CheckArrays(const StoredCatalog& catalog, Totals& totals, std::vector<Label>& labels) const {
  std::vector<std::vector<const ArrayPart*>> parts(catalog.arrays.size());
  for (const ArrayPart& part : catalog.parts) parts[part.array].push_back(&part);
  labels.assign(catalog.arrays.size(), {});
  for (uint32_t i = 0; i < catalog.arrays.size(); ++i) {
    const StoredArray& array = catalog.arrays[i];
    if (parts[i].empty()) {
      if (replicas_.contains(i)) labels[i] = LabelOf(Fate::kReplica);
      continue;
    }
    const TensorEntry& tensor = catalog.tensors[parts[i][0]->tensor];
    labels[i] = LabelOf(tensor);
    uint64_t volume = 0;
    for (const ArrayPart* part : parts[i]) volume += part->in_array.Volume();
    if (Overlap(parts[i])) return Corrupt("elements of {} would be read twice", array.name);
    const uint64_t left = array.shape.Volume() - std::min(volume, array.shape.Volume());
    if (left == 0 || replicas_.contains(i)) continue;
    if (!tensor.spec.padded()) return Corrupt("{} elements of {} are in no tensor", left, array.name);
    totals[labels[i]].second -= left * SizeOf(array.dtype);
    auto& padding = totals[LabelOf(Fate::kPadding)];
    padding.first += 1;
    padding.second += left * SizeOf(array.dtype);
  }
  return OkStatus();
}

Status Account::Settle(const std::string& file, Ledger ledger, Totals& totals) {
  std::ranges::sort(ledger.storages, {}, &Storage::begin);
  std::ranges::sort(ledger.claims, {}, [](const Claim& c) { return std::pair(c.begin, c.label); });
  auto claim = ledger.claims.begin();
  uint64_t at = 0;  // all before it is settled
  for (const Storage& storage : ledger.storages) {
    at = std::max(at, storage.begin);
    while (at < storage.end) {
      while (claim != ledger.claims.end() && claim->end <= at) ++claim;
      if (claim == ledger.claims.end() || claim->begin > at) {
        const uint64_t end = claim == ledger.claims.end() ? storage.end : std::min(storage.end, claim->begin);
        return Corrupt(
            "{}: bytes {} to {} ({} at byte {}) are in no tensor of the result, for no known reason: the "
            "file is damaged, or Cairn does not know all of its format",
            file, at, end, storage.name, storage.begin);
      }
      const uint64_t end = std::min(storage.end, claim->end);
      totals[claim->label].second += end - at;
      at = end;
    }
  }
  return OkStatus();
}

Result<nlohmann::json> Account::Close(const StoredCatalog& catalog) const {
  std::map<std::string, Ledger> ledgers = ledgers_;
  Totals totals;
  std::vector<Label> labels;
  for (const TensorEntry& tensor : catalog.tensors) ++totals[LabelOf(tensor)].first;
  for (const auto& [fate, name] : names_) ++totals[LabelOf(fate)].first;
  CAIRN_RETURN_IF_ERROR(CheckArrays(catalog, totals, labels));
  totals[LabelOf(Fate::kReplica)].first += replicas_.size();
  for (uint32_t i = 0; i < catalog.arrays.size(); ++i) {
    const StoredArray& array = catalog.arrays[i];
    for (const StoredExtent& extent : array.extents) {
      if (labels[i].order < 0) break;
      if (extent.range.size() == 0) continue;
      ledgers[catalog.files[extent.file]].claims.push_back(
          {extent.file_offset, extent.file_offset + extent.range.size() * SizeOf(array.dtype), labels[i]});
    }
  }
  uint64_t storages = 0, bytes = 0;
  for (auto& [file, ledger] : ledgers) {
    if (ledger.storages.empty()) return Corrupt("{}: its storages are not listed", file);
    storages += ledger.storages.size();
    for (const Storage& storage : ledger.storages) bytes += storage.end - storage.begin;
    CAIRN_RETURN_IF_ERROR(Settle(file, std::move(ledger), totals));
  }
  nlohmann::json parts = nlohmann::json::object(), in_no_tensor = nlohmann::json::array();
  for (const auto& [label, total] : totals) {
    if (total.first == 0 && total.second == 0) continue;
    parts[std::string(label.name)] = {{"count", total.first}, {"bytes", total.second}};
  }
  for (const auto& [fate, name] : names_)
    if (fate <= Fate::kAllowed && in_no_tensor.size() < kMaxAccountNames) in_no_tensor.push_back(name);
  nlohmann::json account = {
      {"storages", storages}, {"bytes", bytes}, {"parts", parts}, {"in_no_tensor", std::move(in_no_tensor)}};
  for (const auto& [key, names] :
       {std::pair("left_behind", &left_behind_), std::pair(kOptimizerLeft, &optimizer_left_)})
    for (const std::string& name : *names)
      if (!account.contains(key) || account[key].size() < kMaxAccountNames) account[key].push_back(name);
  return account;
}

nlohmann::json AccountOf(const CheckpointSource& source) {
  if (source.native_step()) return nullptr;
  return source.manifest().state.value(kAccountKey, nlohmann::json());
}

std::vector<std::string> OptimizerPaths(const Manifest& manifest) {
  std::vector<std::string> paths;
  for (const auto& path : manifest.state.value("optimizers", nlohmann::json::array()))
    if (path.is_string()) paths.push_back(path.get<std::string>());
  return paths;
}

bool IsBelowAny(const std::string& name, const std::vector<std::string>& paths) {
  return std::ranges::any_of(
      paths, [&](const std::string& path) { return path.empty() || name.starts_with(path + "."); });
}

std::vector<std::string> ValuesLeftBehind(const CheckpointSource& source,
                                          const std::vector<WrittenTensor>& written) {
  std::vector<std::string> names;
  const nlohmann::json account = AccountOf(source);
  if (account.is_object() && account.contains("left_behind"))
    names = account["left_behind"].get<std::vector<std::string>>();
  std::vector<bool> kept(source.catalog().tensors.size());
  for (const WrittenTensor& tensor : written) kept[tensor.source] = true;
  const std::vector<std::string> optimizers = OptimizerPaths(source.manifest());
  std::set<std::string> left;
  for (size_t i = 0; i < kept.size(); ++i) {
    const TensorEntry& tensor = source.catalog().tensors[i];
    if (kept[i]) continue;
    if (IsOpaque(tensor.role) && tensor.role != Role::kRng) names.push_back(DisplayName(tensor));
    for (const std::string& path : optimizers)
      if (IsBelowAny(tensor.spec.name, {path})) left.insert(path.empty() ? "the optimizer" : path);
  }
  std::erase_if(names, [&](const std::string& name) { return IsBelowAny(name, {left.begin(), left.end()}); });
  names.insert(names.end(), left.begin(), left.end());
  return names;
}

}  // namespace cairn
