// Little-endian fields one behind the other: what binary tables of ckpt are made of. FORMAT.md,
// "Conventions".
#pragma once

#include <bit>
#include <concepts>
#include <cstring>
#include <string>
#include <string_view>

#include "ckpt/box.h"

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
  void PutRaw(std::string_view raw) { bytes_.append(raw); }
  std::string Take() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what ByteWriter wrote. After the first read past the end every value is zero and ok() is false, so
// that callers check once per record.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

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
  std::string_view GetRaw(uint64_t count) {
    if (!ok_ || count > bytes_.size() - at_) {
      ok_ = false;
      return {};
    }
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }

  bool ok() const { return ok_; }
  uint64_t offset() const { return at_; }
  uint64_t left() const { return bytes_.size() - at_; }

 private:
  std::string_view bytes_;
  uint64_t at_ = 0;
  bool ok_ = true;
};

}  // namespace cairn
