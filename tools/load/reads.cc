#include "tools/load/reads.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "ckpt/base/cores.h"
#include "tools/serve/packet.h"
#include "tools/serve/state_names.h"
#include "tools/source/source_flags.h"

namespace cairn {
namespace {

constexpr double kAnswerSeconds = 60;  // for a part of a file from another rank

std::string Quoted(std::string_view text) { return CompactJson(text); }

// The tensors as a JSON array, written as text: a checkpoint may have 100,000 of them.
std::string DescribeTensors(const TensorTable& table, const StateNames& names) {
  std::string rows = "[";
  for (const TensorEntry& tensor : table.tensors) {
    // JSON and pickles are sent as objects.
    const bool own = (names.has_state_dict() && !names.Find(tensor)) || tensor.role == Role::kPickle;
    const Dims& shape = tensor.spec.shape;
    fmt::format_to(
        std::back_inserter(rows), R"({}{{"fqn":{},"name":{},"role":{},"dtype":"{}","shape":[{}]}})",
        rows.size() > 1 ? "," : "", own ? "null" : Quoted(names.Of(tensor)), Quoted(tensor.spec.name),
        Quoted(Name(tensor.role)), Name(tensor.dtype), fmt::join(shape.begin(), shape.end(), ","));
  }
  return rows + "]";
}

Origins::Known KnownStep(const CheckpointSource& step, const StateNames& names) {
  Origins::Known known{.commit = BranchedStep::Of(step.manifest())};
  for (const TensorEntry& tensor : step.catalog().tensors) known.names.push_back(names.Of(tensor));
  known.has.resize(known.names.size());
  return known;
}

nlohmann::json PathsOf(const ReadStateDict& read) {
  nlohmann::json paths = nlohmann::json::object();
  for (const auto& [fqn, where] : read.tensors.items())
    if (where.contains("path")) paths[fqn] = where["path"];
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
  for (uint64_t i = 0; i < wanted.count; ++i) {
    const uint64_t tensor = wanted.tensors[i];
    if (tensor >= catalog.tensors.size()) return InvalidArgument("the checkpoint has no tensor {}", tensor);
    const TensorEntry& entry = catalog.tensors[tensor];
    const Dims& shape = entry.spec.shape;
    const Box box{Next(offsets, shape.rank()), Next(extents, shape.rank())};
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
  const int threads = AllowedCores();
  while (!requests.empty()) {
    std::vector<ReadRequest> next = TakeShared(requests);
    CAIRN_RETURN_IF_ERROR(step.Load(
        requests, {.threads = threads, .spread = true, .depth = std::max(4, threads), .map = false}));
    requests = std::move(next);
  }
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

Reads::Opened::Opened(OpenedSource from, std::unique_ptr<PeerFiles> others)
    : peers(std::move(others)),
      source(std::move(from)),
      parallel(source.step.reader && !source.step.reader->JoinsTensors()) {}

Result<Reads::Contents> Reads::Open(const std::string& path, const nlohmann::json& options, int64_t& handle) {
  std::unique_ptr<PeerFiles> peers;
  const auto open = [&]() -> Result<OpenedSource> {
    if (const auto local = options.find("local"); local != options.end())
      return OpenLocalStep(fs_, path, *local, peers);
    CAIRN_ASSIGN_OR_RETURN(OpenOptions how, ParseSourceOptions(options));
    how.skip_types = true;
    return OpenAnyCkpt(fs_, path, how);
  };
  CAIRN_ASSIGN_OR_RETURN(OpenedSource opened, open());
  CheckpointSource& source = opened.source();
  CAIRN_ASSIGN_OR_RETURN(const StateNames names, StateNames::Of(source));
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
  nlohmann::json described = {{"dir", source.name()},
                              {"step", manifest.step},
                              {"format", opened.foreign ? "foreign" : "cairn"},
                              {"objects", std::move(objects)},
                              {"paths", PathsOf(read)},
                              {"state", manifest.state},
                              {"model", manifest.model}};
  for (const EarlierBranch& branch : manifest.descent.branches)
    described["branches"].push_back({{"last", branch.last}});
  contents.json = CompactJson(described);
  contents.json.replace(contents.json.size() - 1, 1,
                        fmt::format(R"(,"tensors":{}}})", DescribeTensors(source.catalog(), names)));
  auto kept = std::make_shared<Opened>(std::move(opened), std::move(peers));
  if (!kept->source.foreign) kept->step = KnownStep(*kept->source.step.reader, names);
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

Status Reads::Read(int64_t handle, const WantedBoxes& wanted) {
  CAIRN_ASSIGN_OR_RETURN(const auto opened, At(handle));
  CheckpointSource& source = opened->source.source();
  CAIRN_ASSIGN_OR_RETURN(std::vector<ReadRequest> boxes, RequestsOf(wanted, source.catalog()));
  std::unique_lock lock(opened->mutex);
  for (size_t i = 0; opened->step && i < boxes.size(); ++i) opened->step->has[boxes[i].tensor] = true;
  if (opened->parallel) lock.unlock();
  if (const auto& step = opened->source.step.reader; step && !opened->source.foreign)
    return LoadAll(*step, std::move(boxes));
  for (const ReadRequest& box : boxes) CAIRN_RETURN_IF_ERROR(source.ReadBox(box.tensor, box.box, box.out));
  return OkStatus();
}

Status Reads::Check(int64_t handle) {
  CAIRN_ASSIGN_OR_RETURN(const auto opened, At(handle));
  const std::lock_guard lock(opened->mutex);
  return opened->source.source().CheckRead();
}

Result<std::optional<nlohmann::json>> Reads::Origin(int64_t handle) {
  CAIRN_ASSIGN_OR_RETURN(const auto opened, At(handle));
  const std::lock_guard lock(opened->mutex);
  return opened->step ? std::optional(OriginJson(*opened->step)) : std::nullopt;
}

void Reads::Close(int64_t handle) {
  const std::lock_guard lock(mutex_);
  opened_.erase(handle);
}

}  // namespace cairn
