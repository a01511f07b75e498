// Little-endian fields one after another: binary tables of ckpt consist of them. FORMAT.md,
// "Conventions".
#pragma once

#include <bit>
#include <concepts>
#include <cstring>
#include <string>
#include <string_view>

#include "ckpt/base/box.h"
#include "ckpt/base/digest.h"

namespace cairn {
static_assert(std::endian::native == std::endian::little, "the on-disk format is little-endian");

class ByteWriter {
 public:
  template <std::integral T>
  void Put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void PutText(std::string_view text) {  // u16 length, bytes
    Put(static_cast<uint16_t>(text.size()));
    bytes_.append(text);
  }
  void PutDims(const Dims& dims) {  // rank is not written
    for (uint64_t value : dims) Put(value);
  }
  void PutDigest(const Digest& digest) {
    bytes_.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  }
  void PutRaw(std::string_view raw) { bytes_.append(raw); }
  std::string Take() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// More bytes for a ByteReader that does not have all of them in memory.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // A window that begins with `rest`, the unread end of the last one, and holds `need` bytes, or fewer at the
  // end. Invalidates the previous window.
  virtual std::string_view More(std::string_view rest, uint64_t need) = 0;
};

// Reads what ByteWriter wrote. After the first read past the end every value is zero and ok() is false, so
// that callers check once per record.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes), total_(bytes.size()) {}
  // `total` bytes out of `source`. What GetRaw and GetText return lives until the next call.
  ByteReader(ByteSource& source, uint64_t total) : source_(&source), total_(total) {}

  template <std::integral T>
  T Get() {
    T value{};
    const std::string_view raw = GetRaw(sizeof(T));
    if (raw.size() == sizeof(T)) std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }
  std::string_view GetText() { return GetRaw(Get<uint16_t>()); }
  Dims GetDims(int rank) {
    Dims dims;
    for (int i = 0; i < rank; ++i) dims.push_back(Get<uint64_t>());
    return dims;
  }
  Digest GetDigest() {
    Digest digest{};
    const std::string_view raw = GetRaw(digest.size());
    if (raw.size() == digest.size()) std::memcpy(digest.data(), raw.data(), raw.size());
    return digest;
  }
  std::string_view GetRaw(uint64_t count) {
    if (!ok_ || count > left()) {
      ok_ = false;
      return {};
    }
    if (count > bytes_.size() - at_ && !Refill(count)) return {};
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }

  bool ok() const { return ok_; }
  uint64_t offset() const { return passed_ + at_; }
  uint64_t left() const { return total_ - offset(); }

 private:
  bool Refill(uint64_t count) {
    passed_ += at_;
    bytes_ = source_->More(bytes_.substr(at_), count);
    at_ = 0;
    return ok_ = bytes_.size() >= count;
  }

  std::string_view bytes_;  // the window
  uint64_t at_ = 0;         // in the window
  ByteSource* source_ = nullptr;
  uint64_t passed_ = 0;  // before the window
  uint64_t total_ = 0;
  bool ok_ = true;
};

}  // namespace cairn
