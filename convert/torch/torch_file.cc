// The first bytes say which container it is. Of a zip, data.pkl is the object and records data/KEY are its
// storages. A stream is five pickles (magic, protocol, platform, object, keys) and then the storages; where
// a pickle ends is known only from itself, so the window doubles until the machine no longer runs out of
// bytes. Both readers end with Make(), which checks that each storage that the pickle names exists and is
// long enough; Locate() checks each tensor against its storage.

#include "convert/torch/torch_file.h"

#include <algorithm>
#include <cstring>

#include "ckpt/io/window_file.h"

namespace cairn {
namespace {

constexpr std::string_view kZipMagic("PK\3\4", 4);
// LONG1 of the magic number. Before it come the protocol, any version, and perhaps a frame.
constexpr std::string_view kStreamMagic("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e", 13);
constexpr size_t kMaxBeforeMagic = 11;
constexpr uint64_t kSniffBytes = 262;
constexpr uint64_t kStreamWindowBytes = 1 << 20;

Result<std::string> Head(File& file, Stretch where, uint64_t bytes) {
  return ReadBytes(file, where.begin, std::min(bytes, where.size()));
}

bool IsPickle(std::string_view head) {
  return head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
}

// The reason why a file with this beginning is not torch's.
Status Explain(std::string_view head) {
  if (head.empty()) return Corrupt("it is empty; its save was interrupted");
  if (head.starts_with("version https://git-lfs"))
    return InvalidArgument("it is a pointer of Git LFS, not the file itself; run `git lfs pull`");
  if (head.size() >= kSniffBytes && head.substr(257, 5) == "ustar")
    return NotSupported("it was saved by torch before 0.4; load and save it with a newer torch");
  if (std::ranges::all_of(head, [](char c) { return c == 0; }))
    return Corrupt("it begins with zeros; its blocks were never written");
  return NotSupported("it is not a file of torch.save");
}

// Reads pickles that other bytes follow, so that their end is known only from themselves.
class StreamReader {
 public:
  StreamReader(File& file, Stretch where) : file_(file), where_(where) {}

  Result<std::unique_ptr<Pickle>> Next() {
    while (true) {
      if (window_) {
        bool ran_out = false;
        auto pickle = Unpickle(window_, at_, &ran_out);
        if (pickle.ok()) at_ = (*pickle)->end;
        if (pickle.ok() || !ran_out || window_->size() == where_.size() || window_->size() >= kMaxPickleBytes)
          return pickle;
      }
      const uint64_t bytes = window_ ? window_->size() * 2 : kStreamWindowBytes;
      CAIRN_ASSIGN_OR_RETURN(std::string head, Head(file_, where_, std::min(bytes, kMaxPickleBytes)));
      window_ = std::make_shared<const std::string>(std::move(head));
    }
  }
  uint64_t offset() const { return where_.begin + at_; }

 private:
  File& file_;
  const Stretch where_;
  std::shared_ptr<const std::string> window_;
  uint64_t at_ = 0;
};

}  // namespace

bool TorchFile::Matches(FileSystem& fs, const std::string& path) {
  const auto info = fs.Stat(path);
  if (!info.ok() || info->is_directory() || info->bytes < kStreamMagic.size()) return false;
  const auto file = fs.OpenForRead(path);
  if (!file.ok()) return false;
  const auto head = Head(**file, {0, info->bytes}, kSniffBytes);
  return head.ok() && (head->starts_with(kZipMagic) || IsPickle(*head));
}

Result<TorchFile> TorchFile::Open(FileSystem& fs, const std::string& directory, const std::string& name) {
  const std::string path = JoinPath(directory, name);
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  CAIRN_ASSIGN_OR_RETURN(const auto file, fs.OpenForRead(path));
  Result<TorchFile> torch = Read(*file, {0, info.bytes}, directory, name);
  if (!torch.ok()) return torch.status().WithContext(path);
  return torch;
}

Result<TorchFile> TorchFile::Read(File& file, Stretch where, std::string directory, std::string name) {
  WindowFile windows(file, where.end);
  CAIRN_ASSIGN_OR_RETURN(TorchFile torch, ReadUnnamed(windows, where));
  torch.directory_ = std::move(directory);
  torch.name_ = std::move(name);
  return torch;
}

Result<TorchFile> TorchFile::ReadUnnamed(File& file, Stretch where) {
  CAIRN_ASSIGN_OR_RETURN(const std::string head, Head(file, where, kSniffBytes));
  if (head.starts_with(kZipMagic)) return ReadZip(file, where);
  if (IsPickle(head) && head.find(kStreamMagic) <= kMaxBeforeMagic) return ReadStream(file, where);
  if (IsPickle(head)) return ReadPickle(file, where);
  return Explain(head);
}

Result<TorchFile> TorchFile::ReadZip(File& file, Stretch where) {
  CAIRN_ASSIGN_OR_RETURN(const ZipContainer zip, ZipContainer::Read(file, where));
  if (zip.Find("constants.pkl"))
    return NotSupported("it is a TorchScript program, not a checkpoint; save the module's state_dict()");
  const ZipRecord* data = zip.Find("data.pkl");
  if (!data) return NotSupported("it is a zip file without data.pkl, so torch.save did not write it");
  if (const ZipRecord* order = zip.Find("byteorder")) {
    CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadRecord(file, *order, 16));
    if (text != "little") return NotSupported("its byte order is {}, not little-endian", text);
  }
  CAIRN_ASSIGN_OR_RETURN(std::string bytes, ReadRecord(file, *data, kMaxPickleBytes));
  CAIRN_ASSIGN_OR_RETURN(auto pickle, Unpickle(std::make_shared<const std::string>(std::move(bytes))));
  Storages storages;
  constexpr std::string_view kPrefix = "data/";
  for (const ZipRecord& record : zip.records())
    if (record.name.starts_with(kPrefix))
      storages[record.name.substr(kPrefix.size())] = {record.file_offset, record.bytes, record.crc};
  return Make(TorchContainer::kZip, std::move(pickle), std::move(storages));
}

// Magic, protocol, platform, the object, the keys; then for each key a count of elements and the elements.
Result<TorchFile> TorchFile::ReadStream(File& file, Stretch where) {
  StreamReader reader(file, where);
  CAIRN_RETURN_IF_ERROR(reader.Next().status());
  CAIRN_ASSIGN_OR_RETURN(const auto protocol, reader.Next());
  if (AsInt(protocol->root) != 1001) return NotSupported("a version of torch's stream that is not 1001");
  CAIRN_ASSIGN_OR_RETURN(const auto platform, reader.Next());
  if (AsInt(Find(*platform->root, "little_endian")) != 1)
    return NotSupported("it was saved on a big-endian machine");
  CAIRN_ASSIGN_OR_RETURN(auto pickle, reader.Next());
  CAIRN_ASSIGN_OR_RETURN(const auto keys, reader.Next());
  if (!keys->root->is(PyKind::kList)) return Corrupt("torch's stream has no list of storages");
  std::map<std::string_view, const StorageRef*> known;
  for (const StorageRef& storage : pickle->storages) known.try_emplace(storage.key, &storage);
  Storages storages;
  uint64_t at = reader.offset();
  for (const PyValue* key : keys->root->items) {
    const auto found = known.find(AsText(key).value_or(""));
    if (found == known.end()) return Corrupt("torch's stream has a storage that no value names");
    uint64_t elements = 0;
    if (where.end - at < sizeof(elements))
      return Corrupt("storage {} is missing; the file was truncated", found->first);
    CAIRN_RETURN_IF_ERROR(file.ReadAt(at, std::as_writable_bytes(std::span(&elements, 1))));
    at += sizeof(elements);
    if (elements != found->second->elements)
      return Corrupt("storage {} at byte {} has {} elements, but the pickle says {}", found->first, at,
                     elements, found->second->elements);
    if (found->second->bytes > where.end - at)
      return Corrupt("storage {} at byte {} is incomplete; the file was truncated", found->first, at);
    storages[std::string(found->first)] = {at, found->second->bytes};
    at += found->second->bytes;
  }
  return Make(TorchContainer::kStream, std::move(pickle), std::move(storages));
}

Result<TorchFile> TorchFile::ReadPickle(File& file, Stretch where) {
  if (where.size() > kMaxPickleBytes) return NotSupported("a pickle of {} bytes", where.size());
  CAIRN_ASSIGN_OR_RETURN(std::string bytes, Head(file, where, where.size()));
  CAIRN_ASSIGN_OR_RETURN(auto pickle, Unpickle(std::make_shared<const std::string>(std::move(bytes))));
  if (!pickle->storages.empty())
    return NotSupported("a bare pickle refers to storages that are not in the file");
  return Make(TorchContainer::kPickle, std::move(pickle), {});
}

Result<TorchFile> TorchFile::Make(TorchContainer container, std::unique_ptr<Pickle> pickle,
                                  Storages storages) {
  for (const StorageRef& storage : pickle->storages) {
    const auto found = storages.find(storage.key);
    // A storage on the meta device has no bytes.
    if (found == storages.end() && storage.location == "meta") continue;
    if (found == storages.end())
      return Corrupt("storage {} is named but missing; the file is damaged", storage.key);
    if (found->second.bytes < storage.bytes)
      return Corrupt("storage {} at byte {} has {} bytes, but should have {}", storage.key,
                     found->second.file_offset, found->second.bytes, storage.bytes);
  }
  TorchFile torch;
  torch.container_ = container;
  torch.root_ = pickle->root;
  torch.pickle_ = std::move(pickle);
  torch.storages_ = std::make_shared<const Storages>(std::move(storages));
  return torch;
}

Result<uint64_t> TorchFile::Locate(const TensorRef& tensor) const {
  if (!tensor.storage) return NotSupported("a tensor on the meta device has no values");
  const auto found = storages_->find(tensor.storage->key);
  if (found == storages_->end()) return Corrupt("storage {} is not in the file", tensor.storage->key);
  const auto within = [&](unsigned __int128 end) { return end <= found->second.bytes / tensor.type->bytes; };
  unsigned __int128 last = tensor.offset;
  bool empty = false;
  for (int i = 0; i < tensor.shape.rank(); ++i) {
    if (tensor.shape[i] == 0)
      empty = true;
    else
      last += static_cast<unsigned __int128>(tensor.shape[i] - 1) * tensor.stride[i];
  }
  if (!within(empty ? tensor.offset : last + 1))
    return Corrupt("a tensor of shape {} reaches beyond the end of storage {} at byte {} ({} bytes)",
                   ToString(tensor.shape), tensor.storage->key, found->second.file_offset,
                   found->second.bytes);
  return found->second.file_offset;
}

}  // namespace cairn
