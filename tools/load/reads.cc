#include "tools/load/reads.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "ckpt/base/cores.h"
#include "ckpt/base/threads.h"
#include "tools/serve/packet.h"
#include "tools/serve/state_names.h"
#include "tools/source/source_flags.h"

namespace cairn {
namespace {

constexpr int kMostThreads = 12;            // each may hold kExtentBytes: together less than 64 MiB
constexpr uint64_t kShareBytes = 32 << 20;  // less is not worth opening a source for another thread
constexpr double kAnswerSeconds = 60;       // for a part of a file from another rank

std::string Quoted(std::string_view text) { return CompactJson(text); }

// True of JSON and of a pickle, which the description of the checkpoint has as values.
bool IsObject(const TensorEntry& tensor, const StateNames& names) {
  return (names.has_state_dict() && !names.Find(tensor)) || tensor.role == Role::kPickle;
}

std::vector<std::string> NamesOf(const TensorTable& table, const StateNames& names) {
  std::vector<std::string> all;
  all.reserve(table.tensors.size());
  for (const TensorEntry& tensor : table.tensors) all.push_back(names.Of(tensor));
  return all;
}

// A column as JSON, written as text.
template <typename TextOfRow>
std::string Column(std::string_view name, size_t rows, const TextOfRow& text_of) {
  std::string text = fmt::format(R"("{}":[)", name);
  for (size_t row = 0; row < rows; ++row) {
    if (row > 0) text += ',';
    text += text_of(row);
  }
  return text + "]";
}

nlohmann::json PathsOf(const ReadStateDict& read) {
  nlohmann::json paths = nlohmann::json::object();
  for (const ReadStateDict::Tensor& tensor : read.tensors)
    if (!tensor.path.is_null()) paths[tensor.fqn] = tensor.path;
  return paths;
}

// The next `rank` numbers of an array.
Dims Next(const uint64_t*& numbers, int rank) {
  Dims dims;
  for (int i = 0; i < rank; ++i) dims.push_back(*numbers++);
  return dims;
}

Result<std::vector<ReadRequest>> RequestsOf(const WantedBoxes& wanted, const TensorTable& catalog) {
  std::vector<ReadRequest> requests;
  requests.reserve(wanted.count);
  const uint64_t *offsets = wanted.offsets, *extents = wanted.extents;
  const bool whole = offsets == nullptr && extents == nullptr;
  for (uint64_t i = 0; i < wanted.count; ++i) {
    const uint64_t tensor = wanted.tensors[i];
    if (tensor >= catalog.tensors.size()) return InvalidArgument("the checkpoint has no tensor {}", tensor);
    const TensorEntry& entry = catalog.tensors[tensor];
    const Dims& shape = entry.spec.shape;
    if (whole && entry.bytes() == 0) continue;
    const Box box = whole ? Box::Whole(shape) : Box{Next(offsets, shape.rank()), Next(extents, shape.rank())};
    if (!Contains(Box::Whole(shape), box) || box.Volume() == 0)
      return InvalidArgument("tensor {} of shape {} has no box {}", DisplayName(entry), ToString(shape),
                             ToString(box));
    if (wanted.places[i] == nullptr) return InvalidArgument("tensor {}: no memory", DisplayName(entry));
    requests.push_back({static_cast<uint32_t>(tensor),
                        box,
                        {static_cast<std::byte*>(wanted.places[i]), box.Volume() * SizeOf(entry.dtype)}});
  }
  return requests;
}

// Takes requests out whose memory others of `requests` share, such as that of tied weights: of two, the
// later.
std::vector<ReadRequest> TakeShared(std::vector<ReadRequest>& requests) {
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return std::pair(requests[i].out.data(), i); });
  std::vector<bool> shares(requests.size());
  const std::byte* end = nullptr;
  for (const size_t i : order) {
    const std::span<std::byte> out = requests[i].out;
    shares[i] = out.data() < end;
    if (!shares[i]) end = out.data() + out.size();
  }
  std::vector<ReadRequest> alone, shared;
  for (size_t i = 0; i < requests.size(); ++i) (shares[i] ? shared : alone).push_back(requests[i]);
  requests = std::move(alone);
  return shared;
}

Status LoadAll(StepReader& step, std::vector<ReadRequest> requests) {
  const int threads = std::min(AllowedCores(), kMostThreads);
  while (!requests.empty()) {
    std::vector<ReadRequest> next = TakeShared(requests);
    CAIRN_RETURN_IF_ERROR(step.Load(
        requests, {.threads = threads, .spread = true, .depth = std::max(4, threads), .map = false}));
    requests = std::move(next);
  }
  return OkStatus();
}

// Cuts requests into at most `most` shares of about equal bytes, in order of the tensors. A tensor is in one
// share, whose source then sees all bytes that its checksum covers.
std::vector<std::vector<ReadRequest>> SharesOf(std::vector<ReadRequest> requests, int most) {
  std::ranges::stable_sort(requests, {}, &ReadRequest::tensor);
  uint64_t bytes = 0, begun = 0;
  for (const ReadRequest& request : requests) bytes += request.out.size();
  const uint64_t share_bytes = std::max(kShareBytes, bytes / static_cast<uint64_t>(std::max(1, most)) + 1);
  std::vector<std::vector<ReadRequest>> shares(1);
  for (size_t i = 0; i < requests.size(); ++i) {
    const bool next_tensor = i > 0 && requests[i].tensor != requests[i - 1].tensor;
    if (next_tensor && begun >= share_bytes) {
      shares.emplace_back();
      begun = 0;
    }
    begun += requests[i].out.size();
    shares.back().push_back(requests[i]);
  }
  return shares;
}

Status ReadShare(const OpenedSource& opened, std::span<const ReadRequest> share) {
  if (opened.step.reader && !opened.foreign)  // its split masters are joined with their weights
    return opened.step.reader->Load(share, {.threads = 1, .map = false});
  for (const ReadRequest& box : share)
    CAIRN_RETURN_IF_ERROR(opened.source().ReadBox(box.tensor, box.box, box.out));
  return OkStatus();
}

Result<OpenedSource> OpenLocalStep(FileSystem& fs, const std::string& directory, const nlohmann::json& said,
                                   std::unique_ptr<PeerFiles>& peers) {
  peers = std::make_unique<PeerFiles>(fs, kAnswerSeconds, [] {});
  peers->Join({.rank = -1,
               .secret = said.at("secret").get<std::string>(),
               .places = said.at("places").get<std::vector<std::string>>(),
               .names = said.at("names").get<std::vector<std::string>>()},
              nullptr);
  std::map<std::string, PeerFileSystem::Place> elsewhere;
  for (const auto& [name, place] : said.at("elsewhere").items()) {
    elsewhere[name] = {place.at(0).get<int>(), place.at(1).get<uint64_t>()};
    if (elsewhere[name].rank < 0 || elsewhere[name].rank >= peers->size())
      return InvalidArgument("{} is of a rank that does not exist", name);
  }
  OpenedSource opened{.step = {.outside = &fs}, .path = directory};
  opened.step.view = std::make_unique<PeerFileSystem>(fs, directory, std::move(elsewhere), *peers);
  CAIRN_ASSIGN_OR_RETURN(opened.step.reader, StepReader::Open(*opened.step.view, directory));
  return opened;
}

std::atomic<int64_t> next_handle = 1;  // a forked child continues it: its parent's handles stay unknown to it

}  // namespace

Reads::Opened::Opened(OpenedSource from, StateNames of, std::unique_ptr<PeerFiles> others)
    : peers(std::move(others)),
      source(std::move(from)),
      names(std::move(of)),
      fqns(NamesOf(source.source().catalog(), names)),
      parallel(is_step() && !source.step.reader->JoinsTensors()),
      read(fqns.size()) {}

Result<Reads::Contents> Reads::Open(const std::string& path, const nlohmann::json& options, int64_t& handle) {
  std::unique_ptr<PeerFiles> peers;
  const auto local = options.find("local");
  const auto open = [&fs = fs_, path, options]() -> Result<OpenedSource> {
    CAIRN_ASSIGN_OR_RETURN(OpenOptions how, ParseSourceOptions(options));
    how.skip_types = true;
    return OpenAnyCkpt(fs, path, how);
  };
  CAIRN_ASSIGN_OR_RETURN(OpenedSource opened,
                         local == options.end() ? open() : OpenLocalStep(fs_, path, *local, peers));
  CheckpointSource& source = opened.source();
  CAIRN_ASSIGN_OR_RETURN(StateNames names, StateNames::Of(source));
  const ReadStateDict& read = names.state_dict();
  const Manifest& manifest = source.manifest();
  Contents contents;
  nlohmann::json objects = read.values;
  for (const auto& [fqn, where] : read.pickles.items()) {
    CAIRN_ASSIGN_OR_RETURN(const uint32_t tensor, TensorLookup(source.catalog()).Find(fqn, Role::kPickle));
    CAIRN_ASSIGN_OR_RETURN(const std::string bytes, ReadWhole(source, tensor));
    objects[fqn] = where;
    objects[fqn]["pickle"] = {contents.pickles.size(), bytes.size()};
    contents.pickles += bytes;
  }
  nlohmann::json described = {
      {"dir", source.name()},
      {"step", manifest.step},
      {"format", opened.foreign ? "foreign" : "cairn"},
      {"objects", std::move(objects)},
      {"tensors", names.has_state_dict() ? read.tensors.size() : source.catalog().tensors.size()},
      {"state", manifest.state},
      {"model", manifest.model}};
  for (const EarlierBranch& branch : manifest.descent.branches)
    described["branches"].push_back({{"last", branch.last}});
  contents.json = CompactJson(described);
  auto kept = std::make_shared<Opened>(std::move(opened), std::move(names), std::move(peers));
  if (kept->is_step()) {
    kept->again = [step = &kept->source.step]() -> Result<OpenedSource> {
      OpenedSource again{.step = {.outside = &step->fs()}};
      CAIRN_ASSIGN_OR_RETURN(again.step.reader, StepReader::Open(step->fs(), step->reader->directory()));
      return again;
    };
  } else {
    kept->again = open;
  }
  const std::lock_guard lock(mutex_);
  handle = next_handle++;
  opened_.emplace(handle, std::move(kept));
  return contents;
}

Result<std::shared_ptr<Reads::Opened>> Reads::At(int64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto opened = opened_.find(handle);
  if (opened == opened_.end()) return InvalidArgument("the checkpoint {} is not open", handle);
  return opened->second;
}

Result<std::string> Reads::Tensors(int64_t handle) {
  CAIRN_ASSIGN_OR_RETURN(const auto opened, At(handle));
  const std::vector<TensorEntry>& tensors = opened->source.source().catalog().tensors;
  const auto column = [&](std::string_view name, const auto& text_of) {
    return Column(name, tensors.size(), [&](size_t i) -> std::string { return text_of(tensors[i], i); });
  };
  return fmt::format(
      "{{{},{},{},{},{},\"paths\":{}}}",
      column("fqn",
             [&](const TensorEntry& tensor, size_t i) {
               return IsObject(tensor, opened->names) ? "null" : Quoted(opened->fqns[i]);
             }),
      column("name", [](const TensorEntry& tensor, size_t) { return Quoted(tensor.spec.name); }),
      column("role", [](const TensorEntry& tensor, size_t) { return Quoted(Name(tensor.role)); }),
      column("dtype", [](const TensorEntry& tensor, size_t) { return Quoted(Name(tensor.dtype)); }),
      column("shape",
             [](const TensorEntry& tensor, size_t) {
               return fmt::format("[{}]", fmt::join(tensor.spec.shape.begin(), tensor.spec.shape.end(), ","));
             }),
      CompactJson(PathsOf(opened->names.state_dict())));
}

Status Reads::Match(int64_t handle, const WantedTensors& wanted, int64_t* numbers) {
  CAIRN_ASSIGN_OR_RETURN(const auto opened, At(handle));
  const std::vector<TensorEntry>& tensors = opened->source.source().catalog().tensors;
  const std::lock_guard lock(opened->marks);
  if (opened->numbers.empty()) {
    opened->numbers.reserve(tensors.size());
    for (uint32_t i = 0; i < tensors.size(); ++i)
      if (!IsObject(tensors[i], opened->names)) opened->numbers[opened->fqns[i]] = i;
  }
  const char* name = wanted.names;
  const uint64_t* shape = wanted.shapes;
  for (uint64_t i = 0; i < wanted.count; ++i) {
    const std::string_view fqn(name);
    const std::span extents(shape, wanted.ranks[i]);
    name += fqn.size() + 1;
    shape += extents.size();
    const auto found = opened->numbers.find(fqn);
    numbers[i] = -1;
    if (found == opened->numbers.end()) continue;
    const TensorEntry& tensor = tensors[found->second];
    if (tensor.dtype == Dtype{wanted.dtypes[i]} && std::ranges::equal(tensor.spec.shape, extents))
      numbers[i] = found->second;
  }
  return OkStatus();
}

Status Reads::Read(int64_t handle, const WantedBoxes& wanted) {
  CAIRN_ASSIGN_OR_RETURN(const auto opened, At(handle));
  CheckpointSource& source = opened->source.source();
  CAIRN_ASSIGN_OR_RETURN(std::vector<ReadRequest> boxes, RequestsOf(wanted, source.catalog()));
  {
    const std::lock_guard lock(opened->marks);
    for (const ReadRequest& box : boxes) opened->read[box.tensor] = true;
  }
  std::unique_lock lock(opened->mutex, std::defer_lock);
  if (!opened->parallel) lock.lock();
  return opened->parallel ? LoadAll(*opened->source.step.reader, std::move(boxes))
                          : ReadByShares(*opened, std::move(boxes));
}

Status Reads::ReadByShares(Opened& opened, std::vector<ReadRequest> requests) {
  while (!requests.empty()) {
    std::vector<ReadRequest> next = TakeShared(requests);
    const std::vector<std::vector<ReadRequest>> shares =
        SharesOf(std::move(requests), std::min(AllowedCores(), kMostThreads));
    while (opened.more.size() + 1 < shares.size()) {
      CAIRN_ASSIGN_OR_RETURN(OpenedSource again, opened.again());
      if (again.source().catalog().tensors != opened.source.source().catalog().tensors)
        return Corrupt("{}: it has changed since it was opened", opened.source.source().name());
      opened.more.push_back(std::move(again));
    }
    std::atomic<size_t> taken = 0;
    std::mutex mutex;
    Status status;
    RunOnThreads(static_cast<int>(shares.size()), [&] {
      for (size_t i = taken++; i < shares.size(); i = taken++) {
        const Status read = ReadShare(i == 0 ? opened.source : opened.more[i - 1], shares[i]);
        const std::lock_guard lock(mutex);
        if (status.ok()) status = read;
      }
    });
    CAIRN_RETURN_IF_ERROR(status);
    requests = std::move(next);
  }
  return OkStatus();
}

Status Reads::Check(int64_t handle) {
  CAIRN_ASSIGN_OR_RETURN(const auto opened, At(handle));
  const std::lock_guard lock(opened->mutex);
  for (const OpenedSource& more : opened->more) CAIRN_RETURN_IF_ERROR(more.source().CheckRead());
  return opened->source.source().CheckRead();
}

std::optional<nlohmann::json> Reads::Origin(int64_t handle) {
  {
    const std::lock_guard lock(mutex_);
    if (auto closed = closed_.extract(handle)) return OriginJson(closed.mapped());
  }
  const auto opened = At(handle);
  if (!opened.ok() || (*opened)->source.foreign) return std::nullopt;
  const std::lock_guard lock((*opened)->marks);
  return OriginJson(
      {BranchedStep::Of((*opened)->source.source().manifest()), (*opened)->fqns, (*opened)->read});
}

void Reads::Close(int64_t handle) {
  std::shared_ptr<Opened> opened;  // outlives the lock
  const std::lock_guard lock(mutex_);
  if (auto found = opened_.extract(handle)) opened = std::move(found.mapped());
  if (!opened || opened->source.foreign) return;
  const std::lock_guard marks(opened->marks);
  if (std::ranges::find(opened->read, true) == opened->read.end()) return;
  const bool last = opened.use_count() == 1;  // nobody reads it meanwhile
  closed_[handle] = {BranchedStep::Of(opened->source.source().manifest()),
                     last ? std::move(opened->fqns) : opened->fqns, opened->read};
  if (closed_.size() > kMostClosed) closed_.erase(closed_.begin());
}

}  // namespace cairn
