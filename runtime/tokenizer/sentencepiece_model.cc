// A ModelProto has the pieces as field 1, one message each, the trainer_spec as field 2 and the
// normalizer_spec as field 3. Fields that are not needed are skipped by their wire type
// (protobuf.dev/programming-guides/encoding).
#include "runtime/tokenizer/sentencepiece_model.h"

#include <cstring>

namespace cairn {
namespace {

// The fields of a protobuf message, one after the other.
class ProtoFields {
 public:
  explicit ProtoFields(std::string_view bytes) : rest_(bytes) {}

  // False at the end, and if the message is damaged: then ok() is false.
  bool Next() {
    if (rest_.empty() || !ok_) return false;
    const uint64_t key = Varint();
    number = key >> 3;
    switch (key & 7) {
      case 0:
        value = Varint();
        break;
      case 1:
        bytes = Take(8);
        break;
      case 2:
        bytes = Take(Varint());
        break;
      case 5:
        bytes = Take(4);
        break;
      default:
        ok_ = false;
    }
    return ok_;
  }
  bool ok() const { return ok_; }

  uint64_t number = 0;
  uint64_t value = 0;      // of a varint
  std::string_view bytes;  // of anything else

 private:
  uint64_t Varint() {
    uint64_t result = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      result |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return result;
    }
    ok_ = false;
    return 0;
  }

  std::string_view Take(uint64_t size) {
    ok_ = ok_ && size <= rest_.size();
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view rest_;
  bool ok_ = true;
};

bool ReadPiece(std::string_view bytes, SentencePiece& piece) {
  ProtoFields field(bytes);
  while (field.Next()) {
    if (field.number == 1) piece.text = field.bytes;
    if (field.number == 2 && field.bytes.size() == sizeof(piece.score))
      std::memcpy(&piece.score, field.bytes.data(), sizeof(piece.score));
    if (field.number == 3) piece.type = field.value;
  }
  return field.ok();
}

bool ReadTrainerSpec(std::string_view bytes, SentencePieceModel& model) {
  ProtoFields field(bytes);
  while (field.Next()) {
    if (field.number == 3) model.type = field.value;
    if (field.number == 24) model.treat_whitespace_as_suffix = field.value != 0;
    if (field.number == 42) model.eos_id = static_cast<int32_t>(static_cast<int64_t>(field.value));
  }
  return field.ok();
}

bool ReadNormalizerSpec(std::string_view bytes, SentencePieceModel& model) {
  ProtoFields field(bytes);
  while (field.Next()) {
    if (field.number == 2) model.normalizes = !field.bytes.empty();
    if (field.number == 3) model.add_dummy_prefix = field.value != 0;
    if (field.number == 4) model.remove_extra_whitespaces = field.value != 0;
    if (field.number == 5) model.escape_whitespaces = field.value != 0;
  }
  return field.ok();
}

}  // namespace

std::optional<int32_t> SentencePieceModel::eod() const {
  return eos_id >= 0 && static_cast<size_t>(eos_id) < pieces.size() ? std::optional(eos_id) : std::nullopt;
}

Result<SentencePieceModel> ReadSentencePieceModel(std::string_view content) {
  SentencePieceModel model;
  ProtoFields field(content);
  bool ok = true;
  while (ok && field.Next()) {
    if (field.number == 1) ok = ReadPiece(field.bytes, model.pieces.emplace_back());
    if (field.number == 2) ok = ReadTrainerSpec(field.bytes, model);
    if (field.number == 3) ok = ReadNormalizerSpec(field.bytes, model);
  }
  if (!ok || !field.ok()) return Corrupt("this is not a SentencePiece model");
  if (model.pieces.empty()) return Corrupt("this is not a SentencePiece model: it has no pieces");
  return model;
}

}  // namespace cairn
