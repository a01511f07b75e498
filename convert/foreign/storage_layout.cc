#include "convert/foreign/storage_layout.h"

namespace cairn {
namespace {

class ZipStorages final : public StorageLayout {
 public:
  explicit ZipStorages(ZipLayout layout) : layout_(std::move(layout)) {}

  uint64_t bytes() const override { return layout_.bytes(); }
  size_t storage_count() const override { return layout_.storage_count(); }
  uint64_t storage_offset(size_t storage) const override { return layout_.storage_offset(storage); }
  uint64_t storage_bytes(size_t storage) const override { return layout_.storage_bytes(storage); }
  bool wants_crcs() const override { return true; }
  std::vector<PlacedBytes> Around(const StorageSums& sums) const override {
    return layout_.Around(sums.crcs);
  }

 private:
  const ZipLayout layout_;
};

}  // namespace

std::unique_ptr<StorageLayout> MakeZipStorages(ZipLayout layout) {
  return std::make_unique<ZipStorages>(std::move(layout));
}

}  // namespace cairn
