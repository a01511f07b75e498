#include "convert/foreign/target_builder.h"

#include <cstring>

#include "convert/torch/zip_layout.h"

namespace cairn {
namespace {

// One storage and nothing around it.
class PlainLayout final : public StorageLayout {
 public:
  explicit PlainLayout(uint64_t bytes) : bytes_(bytes) {}
  uint64_t bytes() const override { return bytes_; }
  size_t storage_count() const override { return 1; }
  uint64_t storage_offset(size_t) const override { return 0; }
  uint64_t storage_bytes(size_t) const override { return bytes_; }
  bool wants_crcs() const override { return false; }
  std::vector<PlacedBytes> Around(const StorageSums&) const override { return {}; }

 private:
  const uint64_t bytes_;
};

}  // namespace

uint32_t TargetBuilder::AddFile(const std::string& name) {
  target.files.push_back({.name = name});
  return static_cast<uint32_t>(target.files.size() - 1);
}

void TargetBuilder::AddText(const std::string& name, std::string text) {
  const uint64_t bytes = text.size();
  target.files.push_back({.name = name, .bytes = bytes, .text = std::move(text)});
}

uint32_t TargetBuilder::BeginZip(uint32_t file, const std::string& archive) {
  drafts_.push_back({file, archive, {}, {}});
  return static_cast<uint32_t>(drafts_.size() - 1);
}

uint32_t TargetBuilder::AddBytes(uint32_t file, uint64_t bytes) {
  const uint32_t zip = BeginZip(file, "");
  drafts_[zip].plain = true;
  drafts_[zip].storages = {bytes};
  target.storages.push_back({zip, 0});
  AddArray({"", Dtype::kU8, {bytes}, {{{0, bytes}, static_cast<uint32_t>(target.storages.size() - 1), 0}}});
  return zip;
}

// "a/b_model_states.pt": "b_model_states"
uint32_t TargetBuilder::BeginTorchFile(const std::string& name) {
  const std::string plain = name.substr(name.rfind('/') + 1);
  return BeginZip(AddFile(name), plain.substr(0, plain.rfind('.')));
}

uint32_t TargetBuilder::EmitTensor(uint32_t zip, Dtype dtype, const Dims& shape) {
  std::vector<uint64_t>& storages = drafts_[zip].storages;
  const auto index = static_cast<uint32_t>(storages.size());
  storages.push_back(shape.Volume() * SizeOf(dtype));
  pickle(zip).Tensor(dtype, std::to_string(index), shape);
  target.storages.push_back({zip, index});
  return static_cast<uint32_t>(target.storages.size() - 1);
}

uint32_t TargetBuilder::EmitArray(uint32_t zip, Dtype dtype, const Dims& shape) {
  return AddArray({"", dtype, shape, {{{0, shape.Volume()}, EmitTensor(zip, dtype, shape), 0}}});
}

void TargetBuilder::EmitScalar(uint32_t zip, float value, const Dims& shape) {
  TargetConstant constant{EmitTensor(zip, Dtype::kF32, shape), std::string(sizeof(value), '\0')};
  std::memcpy(constant.bytes.data(), &value, sizeof(value));
  target.constants.push_back(std::move(constant));
}

uint32_t TargetBuilder::AddArray(StoredArray array) {
  target.arrays.push_back(std::move(array));
  return static_cast<uint32_t>(target.arrays.size() - 1);
}

void TargetBuilder::Place() {
  for (Draft& draft : drafts_) {
    std::shared_ptr<const StorageLayout> layout;
    if (draft.plain)
      layout = std::make_shared<PlainLayout>(draft.storages[0]);
    else
      layout = std::make_shared<ZipLayout>(draft.archive, draft.pickle.Finish(), draft.storages);
    target.containers.push_back({draft.file, 0, std::move(layout)});
  }
  drafts_.clear();
  PlaceContainers(target);
}

void TargetBuilder::DropEmptyFiles() {
  std::vector<uint32_t> place(target.files.size());
  std::vector<TargetFile> files;
  for (size_t i = 0; i < place.size(); ++i) {
    place[i] = static_cast<uint32_t>(files.size());
    if (target.files[i].bytes > 0) files.push_back(std::move(target.files[i]));
  }
  target.files = std::move(files);
  for (TargetContainer& container : target.containers) container.file = place[container.file];
}

}  // namespace cairn
