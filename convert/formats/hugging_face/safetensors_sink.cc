// Locate() inverts the table: it finds the parts of written tensors that each parameter fills. All files are
// created first, with headers that hold a placeholder of the same length, so that blocks can go to their
// places in any order. Commit() goes in the order of durability: final headers and synced files, proofs that
// also give the SHA-256, small files, SHA256SUMS, the directory's sync, its rename, and its parent's sync.

#include "convert/formats/hugging_face/safetensors_sink.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <unordered_map>

#include "ckpt/base/sha256.h"
#include "ckpt/base/sha256_sums.h"
#include "convert/stream/stage_writer.h"

namespace cairn {
namespace {

constexpr uint64_t kCopyBytes = 1 << 20;
constexpr const char* kSourceKey = "cairn.source_fingerprint";
constexpr uint64_t kTile =
    32;  // rows and columns of a transposed tile: both sides stay in the first-level cache

template <typename T>
void TransposeAs(const std::byte* in, uint64_t rows, uint64_t columns, std::byte* out) {
  for (uint64_t r0 = 0; r0 < rows; r0 += kTile)
    for (uint64_t c0 = 0; c0 < columns; c0 += kTile)
      for (uint64_t c = c0; c < std::min(c0 + kTile, columns); ++c)
        for (uint64_t r = r0; r < std::min(r0 + kTile, rows); ++r)
          std::memcpy(out + (c * rows + r) * sizeof(T), in + (r * columns + c) * sizeof(T), sizeof(T));
}

void Transpose(const std::byte* in, uint64_t rows, uint64_t columns, uint64_t size, std::byte* out) {
  switch (size) {
    case 1:
      return TransposeAs<uint8_t>(in, rows, columns, out);
    case 2:
      return TransposeAs<uint16_t>(in, rows, columns, out);
    case 4:
      return TransposeAs<uint32_t>(in, rows, columns, out);
    default:
      return TransposeAs<uint64_t>(in, rows, columns, out);
  }
}

std::string FileName(size_t index, size_t count) {
  return count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

class SafetensorsSink final : public WeightSink {
 public:
  SafetensorsSink(FileSystem& fs, std::string directory, ForeignModel model, SafetensorsMetadata provenance,
                  const FileCopies& copies, const WriteRingOptions& ring,
                  std::function<void(uint64_t)> progress)
      : fs_(fs),
        directory_(std::move(directory)),
        model_(std::move(model)),
        metadata_(std::move(provenance)),
        copies_(copies),
        progress_(std::move(progress)),
        ring_(fs, ring) {
    for (const auto& [name, from] : copies_) model_.files.erase(name);
  }

  Status Open(const std::vector<StrippedWeight>& weights, uint64_t max_file_bytes) {
    Locate(weights);
    const std::vector<uint64_t> sizes = ForeignBytes(model_, weights);
    cut_ = CutIntoFiles(sizes, max_file_bytes);
    total_bytes_ = std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
    if (fs_.Stat(directory_).ok())
      return AlreadyExists("{} is there already and is never overwritten; choose another directory",
                           directory_);
    CAIRN_RETURN_IF_ERROR(CheckFreeSpace(fs_, directory_, total_bytes_));
    CAIRN_ASSIGN_OR_RETURN(partial_,
                           PartialDir::Make(fs_, fmt::format("{}.partial-{}", directory_, NewNonce())));
    metadata_[kSourceKey] = ToHex(Digest{});  // until it is known
    for (size_t file = 0; file < cut_.size(); ++file) CAIRN_RETURN_IF_ERROR(CreateFile(file));
    return OkStatus();
  }

  Result<std::vector<uint32_t>> Next() override { return std::exchange(parameters_, {}); }

  Status Write(const Block& block) override {
    const uint64_t size = SizeOf(dtypes_[places_[block.tensor][0].tensor]);
    for (const Place& place : places_[block.tensor]) {
      const Box& source = model_.tensors[place.tensor].parts[place.part].box;
      if (source.rank() == 0 || source == block.box || Contains(source, block.box)) {
        CAIRN_RETURN_IF_ERROR(WritePart(place, block.box, block.bytes));
      } else if (const auto common = Intersect(source, block.box)) {
        gathered_.resize(std::max(gathered_.size(), common->Volume() * size));
        ForEachRun(*common, block.box, *common, [&](uint64_t from, uint64_t to, uint64_t count) {
          std::memcpy(gathered_.data() + to * size, block.bytes.data() + from * size, count * size);
        });
        CAIRN_RETURN_IF_ERROR(WritePart(place, *common, std::span(gathered_).first(common->Volume() * size)));
      }
    }
    return OkStatus();
  }

  Result<WrittenWeights> Commit(const Digest& source) override {
    metadata_[kSourceKey] = ToHex(source);
    for (const auto& writer : writers_) CAIRN_RETURN_IF_ERROR(writer->Finish(metadata_));
    for (size_t file = 0; file < writers_.size(); ++file) {
      CAIRN_ASSIGN_OR_RETURN(std::string sha, writers_[file]->Prove(fs_, progress_));
      List(FileName(file, cut_.size()), std::move(sha), writers_[file]->file_bytes());
    }
    if (cut_.size() > 1) model_.files["model.safetensors.index.json"] = Index();
    for (const auto& [name, text] : model_.files) CAIRN_RETURN_IF_ERROR(WriteText(name, text));
    for (const auto& [name, from] : copies_) CAIRN_RETURN_IF_ERROR(CopyFile(name, from));
    std::string sums;
    for (const auto& [name, sha] : sums_) sums += Sha256Line(sha, name);
    CAIRN_RETURN_IF_ERROR(WriteText(std::string(kSha256SumsName), sums));
    CAIRN_RETURN_IF_ERROR(fs_.SyncDir(partial_->path()));
    CAIRN_RETURN_IF_ERROR(fs_.Rename(partial_->path(), directory_));
    partial_->Keep();
    CAIRN_RETURN_IF_ERROR(fs_.SyncDir(ParentDir(directory_)));
    return WrittenWeights{directory_, written_bytes_, sums_.size()};
  }

 private:
  struct Place {  // of a box of a parameter
    size_t tensor = 0;
    size_t part = 0;
  };

  // `bytes` are `box` of the parameter, which lies in the part.
  Status WritePart(const Place& place, const Box& box, std::span<const std::byte> bytes) {
    const ForeignTensor& tensor = model_.tensors[place.tensor];
    const ForeignPart& part = tensor.parts[place.part];
    const uint64_t size = SizeOf(dtypes_[place.tensor]);
    if (part.transpose) {
      transposed_.resize(std::max(transposed_.size(), bytes.size()));
      Transpose(bytes.data(), box.extent[0], box.extent[1], size, transposed_.data());
      bytes = std::span(transposed_).first(bytes.size());
    }
    const Box target = part.ToArray(box);
    CAIRN_ASSIGN_OR_RETURN(SafetensorsWriter* const writer, WriterOf(file_of_[place.tensor]));
    Status status;
    ForEachRun(target, target, Box::Whole(tensor.shape),
               [&](uint64_t source, uint64_t offset, uint64_t count) {
                 if (status.ok())
                   status = writer->Write(entry_of_[place.tensor], offset * size,
                                          bytes.subspan(source * size, count * size));
               });
    return status;
  }

  // One file at a time has a write buffer.
  Result<SafetensorsWriter*> WriterOf(size_t file) {
    SafetensorsWriter* const writer = writers_[file].get();
    SafetensorsWriter* const last = std::exchange(last_, writer);
    if (last != nullptr && last != writer) CAIRN_RETURN_IF_ERROR(last->Pause());
    return writer;
  }

  void List(const std::string& name, std::string sha, uint64_t bytes) {
    sums_[name] = std::move(sha);
    written_bytes_ += bytes;
  }

  Status WriteText(const std::string& name, const std::string& text) {
    Sha256 sha;
    sha.Update(std::as_bytes(std::span(text)));
    List(name, sha.FinishHex(), text.size());
    return WriteSmallFile(fs_, JoinPath(partial_->path(), name), text);
  }

  Status CopyFile(const std::string& name, const FileToCopy& source) {
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, source.fs->Stat(source.path));
    CAIRN_ASSIGN_OR_RETURN(const auto from, source.fs->OpenForRead(source.path));
    CAIRN_ASSIGN_OR_RETURN(const auto to, fs_.Create(JoinPath(partial_->path(), name)));
    Sha256 sha;
    std::vector<std::byte> window(std::min(info.bytes, kCopyBytes));
    for (uint64_t at = 0; at < info.bytes; at += window.size()) {
      const auto bytes = std::span(window).first(std::min<uint64_t>(window.size(), info.bytes - at));
      CAIRN_RETURN_IF_ERROR(from->ReadAt(at, bytes));
      CAIRN_RETURN_IF_ERROR(to->WriteAt(at, bytes));
      sha.Update(bytes);
    }
    List(name, sha.FinishHex(), info.bytes);
    CAIRN_RETURN_IF_ERROR(to->Sync());
    return to->Close();
  }

  // Where each parameter goes, and the type of each foreign tensor.
  void Locate(const std::vector<StrippedWeight>& weights) {
    std::unordered_map<std::string_view, uint32_t> index_of;
    for (uint32_t i = 0; i < weights.size(); ++i) index_of.emplace(weights[i].spec.name, i);
    places_.resize(weights.size());
    file_of_.resize(model_.tensors.size());
    entry_of_.resize(model_.tensors.size());
    for (size_t tensor = 0; tensor < model_.tensors.size(); ++tensor) {
      const std::vector<ForeignPart>& parts = model_.tensors[tensor].parts;
      for (size_t part = 0; part < parts.size(); ++part) {
        const uint32_t parameter = index_of.at(parts[part].parameter);
        if (places_[parameter].empty()) parameters_.push_back(parameter);
        places_[parameter].push_back({tensor, part});
        if (part == 0) dtypes_.push_back(weights[parameter].dtype);
      }
    }
  }

  SafetensorsEntry EntryOf(size_t tensor) const {
    return {model_.tensors[tensor].name, dtypes_[tensor], model_.tensors[tensor].shape};
  }

  Status CreateFile(size_t file) {
    std::vector<SafetensorsEntry> entries;
    for (size_t entry = 0; entry < cut_[file].size(); ++entry) {
      entries.push_back(EntryOf(cut_[file][entry]));
      file_of_[cut_[file][entry]] = file;
      entry_of_[cut_[file][entry]] = entry;
    }
    CAIRN_ASSIGN_OR_RETURN(
        auto writer,
        SafetensorsWriter::Create(fs_, ring_, JoinPath(partial_->path(), FileName(file, cut_.size())),
                                  std::move(entries), metadata_));
    writers_.push_back(std::move(writer));
    return OkStatus();
  }

  std::string Index() const {
    nlohmann::json index;
    uint64_t elements = 0;
    for (size_t file = 0; file < cut_.size(); ++file) {
      for (size_t tensor : cut_[file]) {
        index["weight_map"][model_.tensors[tensor].name] = FileName(file, cut_.size());
        elements += model_.tensors[tensor].shape.Volume();
      }
    }
    index["metadata"] = {{"total_parameters", elements}, {"total_size", total_bytes_}};
    return index.dump(2) + "\n";
  }

  FileSystem& fs_;
  const std::string directory_;
  ForeignModel model_;
  SafetensorsMetadata metadata_;
  const FileCopies copies_;
  const std::function<void(uint64_t)> progress_;
  std::optional<PartialDir> partial_;
  std::vector<uint32_t> parameters_;        // in the order of the foreign tensors
  std::vector<std::vector<Place>> places_;  // of each parameter
  std::vector<Dtype> dtypes_;               // of the foreign tensors
  std::vector<size_t> file_of_;             // of each foreign tensor
  std::vector<size_t> entry_of_;            // of each foreign tensor: in its file
  std::vector<std::vector<size_t>> cut_;
  uint64_t total_bytes_ = 0;
  uint64_t written_bytes_ = 0;
  std::map<std::string, std::string> sums_;  // SHA-256 of each file
  WriteRing ring_;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
  SafetensorsWriter* last_ = nullptr;  // that was written to
  std::vector<std::byte> gathered_;
  std::vector<std::byte> transposed_;
};

}  // namespace

std::vector<uint64_t> ForeignBytes(const ForeignModel& model, const std::vector<StrippedWeight>& weights) {
  std::unordered_map<std::string_view, uint64_t> size_of;
  for (const StrippedWeight& weight : weights) size_of.emplace(weight.spec.name, SizeOf(weight.dtype));
  std::vector<uint64_t> bytes;
  for (const ForeignTensor& tensor : model.tensors)
    bytes.push_back(tensor.shape.Volume() * size_of.at(tensor.parts[0].parameter));
  return bytes;
}

std::vector<std::vector<size_t>> CutIntoFiles(const std::vector<uint64_t>& tensor_bytes, uint64_t max_bytes) {
  std::vector<std::vector<size_t>> files(1);
  uint64_t bytes = 0;
  for (size_t i = 0; i < tensor_bytes.size(); ++i) {
    if (!files.back().empty() && tensor_bytes[i] > max_bytes - std::min(bytes, max_bytes)) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(i);
    bytes += tensor_bytes[i];
  }
  return files;
}

Result<std::unique_ptr<WeightSink>> MakeSafetensorsSink(
    FileSystem& fs, const std::string& directory, ForeignModel model,
    const std::vector<StrippedWeight>& weights, uint64_t max_file_bytes, SafetensorsMetadata provenance,
    const FileCopies& copies, const StepBuilderOptions& writer, std::function<void(uint64_t)> progress) {
  std::string plain = directory;
  while (plain.size() > 1 && plain.ends_with('/')) plain.pop_back();
  auto sink = std::make_unique<SafetensorsSink>(fs, std::move(plain), std::move(model), std::move(provenance),
                                                copies, RingFor(writer.max_memory, writer.jobs, /*tp=*/1),
                                                std::move(progress));
  CAIRN_RETURN_IF_ERROR(sink->Open(weights, max_file_bytes));
  return std::unique_ptr<WeightSink>(std::move(sink));
}

}  // namespace cairn
