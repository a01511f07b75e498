#include "tools/serve/reads.h"

#include "ckpt/io/page_cache.h"
#include "convert/stream/block_stream.h"
#include "tools/serve/save_plan.h"
#include "tools/serve/state_names.h"
#include "tools/source/source_flags.h"

namespace cairn {
namespace {

nlohmann::json DescribeTensors(const TensorTable& table, const StateNames& names) {
  nlohmann::json rows = nlohmann::json::array();
  for (const TensorEntry& tensor : table.tensors) {
    // JSON and pickles are sent as objects.
    const bool own = (names.has_state_dict() && !names.Find(tensor)) || tensor.role == Role::kPickle;
    const Dims& shape = tensor.spec.shape;
    rows.push_back({{"fqn", own ? nlohmann::json() : nlohmann::json(names.Of(tensor))},
                    {"name", tensor.spec.name},
                    {"role", Name(tensor.role)},
                    {"dtype", Name(tensor.dtype)},
                    {"shape", std::vector<uint64_t>(shape.begin(), shape.end())}});
  }
  return rows;
}

// Whether most of a step's first shard is in the page cache: a guess at the whole step.
bool IsCached(const OpenedSource& opened) {
  if (!opened.step.reader || opened.step.reader->manifest().files.empty()) return false;
  const ManifestFile& shard = opened.step.reader->manifest().files.front();
  const auto file =
      opened.fs().OpenForRead(JoinPath(opened.step.reader->DirectoryOf(shard.name), shard.name));
  return file.ok() && CachedBytes(**file, 0, shard.bytes).value_or(0) > shard.bytes / 2;
}

std::shared_ptr<Origins::Known> KnownStep(const CheckpointSource& step, const StateNames& names) {
  Origins::Known known{.commit = BranchedStep::Of(step.manifest())};
  for (const TensorEntry& tensor : step.catalog().tensors) known.names.push_back(names.Of(tensor));
  known.has.resize(known.names.size());
  return std::make_shared<Origins::Known>(std::move(known));
}

nlohmann::json PathsOf(const ReadStateDict& read) {
  nlohmann::json paths = nlohmann::json::object();
  for (const auto& [fqn, where] : read.tensors.items())
    if (where.contains("path")) paths[fqn] = where["path"];
  return paths;
}

}  // namespace

Reads::Opened::Opened(OpenedSource from)
    : source(std::move(from)),
      parallel(source.step.reader && !source.step.reader->JoinsTensors()),
      cached(IsCached(source)) {}

Result<Packet> Reads::Open(const nlohmann::json& request) {
  CAIRN_ASSIGN_OR_RETURN(OpenOptions options,
                         ParseSourceOptions(request.value("options", nlohmann::json::object())));
  options.skip_types = true;
  CAIRN_ASSIGN_OR_RETURN(OpenedSource opened,
                         OpenAnyCkpt(fs_, request.at("path").get<std::string>(), options));
  CheckpointSource& source = opened.source();
  CAIRN_ASSIGN_OR_RETURN(const StateNames names, StateNames::Of(source));
  const ReadStateDict& read = names.state_dict();
  const Manifest& manifest = source.manifest();
  Packet reply;
  nlohmann::json objects = read.values;
  for (const auto& [fqn, where] : read.pickles.items()) {
    CAIRN_ASSIGN_OR_RETURN(const uint32_t tensor, TensorLookup(source.catalog()).Find(fqn, Role::kPickle));
    CAIRN_ASSIGN_OR_RETURN(const std::string bytes, ReadWhole(source, tensor));
    objects[fqn] = where;
    objects[fqn]["pickle"] = {reply.tail.size(), bytes.size()};
    reply.tail += bytes;
  }
  reply.head = {{"dir", source.name()},
                {"step", manifest.step},
                {"format", opened.foreign ? "foreign" : "cairn"},
                {"tensors", DescribeTensors(source.catalog(), names)},
                {"objects", std::move(objects)},
                {"paths", PathsOf(read)},
                {"state", manifest.state},
                {"model", manifest.model}};
  for (const EarlierBranch& branch : manifest.descent.branches)
    reply.head["branches"].push_back({{"last", branch.last}});
  auto kept = std::make_shared<Opened>(std::move(opened));
  if (!kept->source.foreign) kept->step = KnownStep(*kept->source.step.reader, names);
  reply.head["cached"] = kept->cached;
  const std::lock_guard lock(mutex_);
  reply.head["handle"] = next_handle_;
  opened_.emplace(next_handle_++, std::move(kept));
  return reply;
}

Status Reads::AddWindow(const nlohmann::json& request, UniqueFd descriptor) {
  CAIRN_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Map(std::move(descriptor)));
  CAIRN_ASSIGN_OR_RETURN(const auto window, IntegerAt<int64_t>(request, "window"));
  const std::lock_guard lock(mutex_);
  windows_.insert_or_assign(window, std::make_shared<SharedMemory>(std::move(memory)));
  return OkStatus();
}

Result<std::shared_ptr<Reads::Opened>> Reads::At(const nlohmann::json& request) {
  CAIRN_ASSIGN_OR_RETURN(const auto handle, IntegerAt<int64_t>(request, "handle"));
  const std::lock_guard lock(mutex_);
  const auto opened = opened_.find(handle);
  if (opened == opened_.end()) return Corrupt("the handle does not exist");
  return opened->second;
}

Result<std::shared_ptr<SharedMemory>> Reads::WindowAt(const nlohmann::json& request) {
  CAIRN_ASSIGN_OR_RETURN(const auto number, IntegerAt<int64_t>(request, "window"));
  const std::lock_guard lock(mutex_);
  const auto window = windows_.find(number);
  if (window == windows_.end()) return Corrupt("the window does not exist");
  return window->second;
}

Status Reads::Read(const nlohmann::json& request) {
  CAIRN_ASSIGN_OR_RETURN(const auto opened, At(request));
  CAIRN_ASSIGN_OR_RETURN(const auto window, WindowAt(request));
  CheckpointSource& source = opened->source.source();
  const std::span<std::byte> memory = window->bytes();
  std::vector<ReadRequest> boxes;
  for (const nlohmann::json& said : request.at("boxes")) {
    CAIRN_ASSIGN_OR_RETURN(const auto tensor, IntegerAt<uint64_t>(said, "tensor"));
    CAIRN_ASSIGN_OR_RETURN(const auto at, IntegerAt<uint64_t>(said, "at"));
    if (tensor >= source.catalog().tensors.size()) return Corrupt("the tensor does not exist");
    const TensorEntry& entry = source.catalog().tensors[tensor];
    CAIRN_ASSIGN_OR_RETURN(const Box box, BoxIn(entry.spec.shape, said));
    const uint64_t bytes = box.Volume() * SizeOf(entry.dtype);
    if (at > memory.size() || bytes > memory.size() - at) return Corrupt("a place outside of the window");
    boxes.push_back({static_cast<uint32_t>(tensor), box, memory.subspan(at, bytes)});
    if (opened->step) origins_.Read(opened->step, tensor);
  }
  std::unique_lock lock(opened->mutex, std::defer_lock);
  if (!opened->parallel) lock.lock();
  if (const auto& step = opened->source.step.reader)
    return step->Load(boxes, {.threads = 1, .map = false});
  for (const ReadRequest& box : boxes) CAIRN_RETURN_IF_ERROR(source.ReadBox(box.tensor, box.box, box.out));
  return OkStatus();
}

Status Reads::Check(const nlohmann::json& request) {
  CAIRN_ASSIGN_OR_RETURN(const auto opened, At(request));
  const std::lock_guard lock(opened->mutex);
  return opened->source.source().CheckRead();
}

void Reads::Close(const nlohmann::json& request) {
  const std::lock_guard lock(mutex_);
  windows_.erase(request.value("window", int64_t{-1}));
  opened_.erase(request.value("handle", int64_t{-1}));
}

}  // namespace cairn
