// ModelProto has the pieces as field 1, one message each, and the trainer_spec as field 2, whose eos_id is
// field 42. What else there is, is passed over by its wire type (protobuf.dev/programming-guides/encoding).
#include "runtime/bpe/sentencepiece_facts.h"

namespace cairn {
namespace {

constexpr uint64_t kPieces = 1, kTrainerSpec = 2, kEosId = 42;
constexpr int32_t kDefaultEos = 2;

struct ProtoField {
  uint64_t number = 0;
  uint64_t value = 0;      // of a varint
  std::string_view bytes;  // of a message or text
};

class ProtoFields {
 public:
  explicit ProtoFields(std::string_view bytes) : rest_(bytes) {}

  bool AtEnd() const { return rest_.empty(); }

  Result<ProtoField> Next() {
    CAIRN_ASSIGN_OR_RETURN(const uint64_t key, Varint());
    ProtoField field{.number = key >> 3};
    switch (key & 7) {
      case 0: {
        CAIRN_ASSIGN_OR_RETURN(field.value, Varint());
        return field;
      }
      case 1:
        CAIRN_RETURN_IF_ERROR(Take(8).status());
        return field;
      case 2: {
        CAIRN_ASSIGN_OR_RETURN(const uint64_t size, Varint());
        CAIRN_ASSIGN_OR_RETURN(field.bytes, Take(size));
        return field;
      }
      case 5:
        CAIRN_RETURN_IF_ERROR(Take(4).status());
        return field;
      default:
        return NotAModel();
    }
  }

 private:
  static Status NotAModel() { return Corrupt("this is not a SentencePiece model"); }

  Result<uint64_t> Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    return NotAModel();
  }

  Result<std::string_view> Take(uint64_t size) {
    if (size > rest_.size()) return NotAModel();
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_;
};

Result<int32_t> EosOf(std::string_view trainer_spec) {
  int32_t eos = kDefaultEos;
  for (ProtoFields fields(trainer_spec); !fields.AtEnd();) {
    CAIRN_ASSIGN_OR_RETURN(const ProtoField field, fields.Next());
    if (field.number == kEosId) eos = static_cast<int32_t>(static_cast<int64_t>(field.value));
  }
  return eos;
}

}  // namespace

Result<SentencePieceFacts> ReadSentencePieceFacts(std::string_view model) {
  SentencePieceFacts facts;
  int32_t eos = kDefaultEos;
  for (ProtoFields fields(model); !fields.AtEnd();) {
    CAIRN_ASSIGN_OR_RETURN(const ProtoField field, fields.Next());
    if (field.number == kPieces) ++facts.vocab_size;
    if (field.number == kTrainerSpec) {
      CAIRN_ASSIGN_OR_RETURN(eos, EosOf(field.bytes));
    }
  }
  if (facts.vocab_size == 0) return Corrupt("this is not a SentencePiece model: it has no pieces");
  if (eos >= 0 && static_cast<uint64_t>(eos) < facts.vocab_size) facts.eod = eos;
  return facts;
}

}  // namespace cairn
