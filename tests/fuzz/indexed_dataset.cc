// PREFIX.idx of Megatron's indexed datasets. What follows the first half of a 2-byte length is the .bin
// file or, where that does not say, as many bytes as the index describes.
#include "runtime/data/indexed_dataset.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "tests/fuzz/bytes.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxTokens = 1 << 12;

// Both files in memory, under one prefix.
class Files {
 public:
  Files() {
    (void)!symlink(Descriptor(index_).c_str(), IndexPath(prefix()).c_str());
    (void)!symlink(Descriptor(tokens_).c_str(), TokensPath(prefix()).c_str());
  }
  std::string prefix() const { return directory_ / "x"; }
  void Write(std::string_view index, uint64_t token_bytes) {
    FuzzCheck(ftruncate(index_, static_cast<off_t>(index.size())) == 0 &&
              pwrite(index_, index.data(), index.size(), 0) == static_cast<ssize_t>(index.size()) &&
              ftruncate(tokens_, static_cast<off_t>(token_bytes)) == 0);
  }

 private:
  static std::string Descriptor(int file) {
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
  }

  TempDir directory_{TempDir::Place::kMemory};
  const int index_ = memfd_create("idx", MFD_CLOEXEC), tokens_ = memfd_create("bin", MFD_CLOEXEC);
};

// The contents of a sound index of these bytes: it must not be refused only because of the other file.
uint64_t TokenBytes(std::string_view index) {
  if (index.size() < kIndexHeaderBytes) return 0;
  uint64_t sequences = 0, bytes = 0;
  std::memcpy(&sequences, index.data() + 18, sizeof(sequences));
  sequences = std::min<uint64_t>(sequences, (index.size() - kIndexHeaderBytes) / 4);
  const TokenTypeRow* const type = FindTokenType(static_cast<uint8_t>(index[17]));
  for (uint64_t i = 0; i < sequences; ++i) {
    uint32_t length = 0;
    std::memcpy(&length, index.data() + kIndexHeaderBytes + 4 * i, sizeof(length));
    bytes += uint64_t{length} * (type ? type->bytes : 1);
  }
  return std::min(bytes, uint64_t{1} << 30);  // a hole, of which little is read
}

void ReadThrough(const IndexedDataset& dataset) {
  std::vector<int64_t> tokens;
  const std::vector<int32_t> lengths = dataset.SequenceLengths({0, dataset.sequence_count()}).value();
  FuzzCheck(lengths.size() == dataset.sequence_count());
  for (uint64_t i = 0; i < std::min<uint64_t>(lengths.size(), 64); ++i) {
    const auto length = static_cast<uint64_t>(lengths[i]);
    const uint64_t count = std::min(length, kMaxTokens);
    tokens.resize(count);
    FuzzCheck(dataset.CopyTokens(i, length - count, tokens).value() == count);
  }
}

}  // namespace

std::vector<std::string> FuzzSeeds() { return {}; }

std::vector<std::string> FuzzWords() {
  return {std::string(kIndexMagic),
          std::string(kLegacyIndexMagic),
          Little(1, 8),
          Little(0, 8),
          Little(2, 4),
          Little(INT32_MAX, 4),
          Little(INT64_MAX, 8),
          Little(UINT64_MAX / 12 + 1, 8),
          Little(UINT64_MAX / 8 + 1, 8),
          Little(UINT64_MAX, 8),
          "\x08"};
}

}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  static Files files;
  const std::string_view index = TextOf(data, size);
  files.Write(index, TokenBytes(index));
  const auto dataset = IndexedDataset::Open(files.prefix());
  if (dataset.ok())
    ReadThrough(*dataset);
  else
    FuzzCheck(!dataset.status().message().empty());
  return 0;
}
