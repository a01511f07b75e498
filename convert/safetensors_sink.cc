#include "convert/safetensors_sink.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <unordered_map>

namespace cairn {
namespace {

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

std::string FileName(size_t index, size_t count) {
  return count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

class SafetensorsSink final : public WeightSink {
 public:
  SafetensorsSink(FileSystem& fs, std::string directory, ForeignModel model, SafetensorsMetadata provenance)
      : fs_(fs),
        directory_(std::move(directory)),
        model_(std::move(model)),
        metadata_(std::move(provenance)) {}

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
    const Place& place = places_[block.tensor];
    const ForeignPart& part = model_.tensors[place.tensor].parts[place.part];
    const uint64_t size = SizeOf(dtypes_[place.tensor]);
    Box target = block.box;
    std::span<const std::byte> bytes = block.bytes;
    if (part.transpose) {
      const uint64_t rows = target.extent[0], columns = target.extent[1];
      transposed_.resize(std::max(transposed_.size(), bytes.size()));
      (size == 2 ? TransposeAs<uint16_t> : TransposeAs<uint32_t>)(bytes.data(), rows, columns,
                                                                  transposed_.data());
      bytes = std::span(transposed_).first(bytes.size());
      std::swap(target.extent[0], target.extent[1]);
      std::swap(target.offset[0], target.offset[1]);
    }
    for (int d = 0; d < target.rank(); ++d) target.offset[d] += part.box.offset[d];
    Status status;
    ForEachRun(target, target, Box::Whole(model_.tensors[place.tensor].shape),
               [&](uint64_t source, uint64_t offset, uint64_t count) {
                 if (status.ok())
                   status = writers_[place.file]->Write(place.entry, offset * size,
                                                        bytes.subspan(source * size, count * size));
               });
    return status;
  }

  Result<WrittenWeights> Commit(const Digest& source) override {
    metadata_[kSourceKey] = ToHex(source);
    WrittenWeights written{.path = directory_};
    for (const auto& writer : writers_) {
      CAIRN_RETURN_IF_ERROR(writer->Finish(metadata_));
      written.bytes += writer->file_bytes();
    }
    if (cut_.size() > 1) model_.files["model.safetensors.index.json"] = Index();
    for (const auto& [name, text] : model_.files) {
      CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs_, JoinPath(partial_->path(), name), text));
      written.bytes += text.size();
    }
    written.files = writers_.size() + model_.files.size();
    CAIRN_RETURN_IF_ERROR(fs_.SyncDir(partial_->path()));
    CAIRN_RETURN_IF_ERROR(fs_.Rename(partial_->path(), directory_));
    partial_->Keep();
    CAIRN_RETURN_IF_ERROR(fs_.SyncDir(ParentDir(directory_)));
    return written;
  }

 private:
  struct Place {  // of one parameter
    size_t tensor = 0;
    size_t part = 0;
    size_t file = 0;
    size_t entry = 0;  // of the file
  };

  // Where each parameter goes, and the type of each foreign tensor.
  void Locate(const std::vector<StrippedWeight>& weights) {
    std::unordered_map<std::string_view, uint32_t> index_of;
    for (uint32_t i = 0; i < weights.size(); ++i) index_of.emplace(weights[i].spec.name, i);
    places_.resize(weights.size());
    parameters_of_.resize(model_.tensors.size());
    for (size_t tensor = 0; tensor < model_.tensors.size(); ++tensor) {
      const std::vector<ForeignPart>& parts = model_.tensors[tensor].parts;
      for (size_t part = 0; part < parts.size(); ++part) {
        const uint32_t parameter = index_of.at(parts[part].parameter);
        places_[parameter] = {tensor, part, 0, 0};
        parameters_.push_back(parameter);
        parameters_of_[tensor].push_back(parameter);
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
      for (const uint32_t parameter : parameters_of_[cut_[file][entry]]) {
        places_[parameter].file = file;
        places_[parameter].entry = entry;
      }
    }
    CAIRN_ASSIGN_OR_RETURN(
        auto writer, SafetensorsWriter::Create(fs_, JoinPath(partial_->path(), FileName(file, cut_.size())),
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
  std::optional<PartialDir> partial_;
  std::vector<uint32_t> parameters_;                  // in the order of the foreign tensors
  std::vector<std::vector<uint32_t>> parameters_of_;  // of each foreign tensor
  std::vector<Place> places_;                         // of each parameter
  std::vector<Dtype> dtypes_;                         // of the foreign tensors
  std::vector<std::vector<size_t>> cut_;
  uint64_t total_bytes_ = 0;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
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

Result<std::unique_ptr<WeightSink>> MakeSafetensorsSink(FileSystem& fs, const std::string& directory,
                                                        ForeignModel model,
                                                        const std::vector<StrippedWeight>& weights,
                                                        uint64_t max_file_bytes,
                                                        SafetensorsMetadata provenance) {
  std::string plain = directory;
  while (plain.size() > 1 && plain.ends_with('/')) plain.pop_back();
  auto sink =
      std::make_unique<SafetensorsSink>(fs, std::move(plain), std::move(model), std::move(provenance));
  CAIRN_RETURN_IF_ERROR(sink->Open(weights, max_file_bytes));
  return std::unique_ptr<WeightSink>(std::move(sink));
}

}  // namespace cairn
