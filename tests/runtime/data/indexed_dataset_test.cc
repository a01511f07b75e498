#include "runtime/data/indexed_dataset.h"

#include "tests/runtime/data/dataset_fixture.h"

namespace cairn {
namespace {

using ::testing::Test;

template <typename T>
void Put(T value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Megatron's own example: documents of 3, 2, 1 tokens and one of two sequences of 2.
struct Example {
  static constexpr uint64_t kSequences = 5;
  static constexpr uint64_t kEntries = 5;

  static std::string Index(uint8_t type = 8, int64_t item_bytes = 2) {
    std::string bytes("MMIDIDX\0\0", 9);
    Put<uint64_t>(1, bytes);
    Put(type, bytes);
    Put(kSequences, bytes);
    Put(kEntries, bytes);
    for (const int32_t length : {3, 2, 1, 2, 2}) Put(length, bytes);
    for (const int64_t pointer : {0, 3, 5, 6, 8}) Put(pointer * item_bytes, bytes);
    for (const int64_t first : {0, 1, 2, 3, 5}) Put(first, bytes);
    return bytes;
  }

  static std::string TokenBytes() {
    std::string bytes;
    for (uint16_t token = 65000; token < 65010; ++token) Put(token, bytes);
    return bytes;
  }
};

class IndexedDatasetTest : public Test {
 protected:
  Result<IndexedDataset> OpenWith(const std::string& index,
                                  const std::string& tokens = Example::TokenBytes()) {
    WriteFile(prefix_ + ".idx", index);
    WriteFile(prefix_ + ".bin", tokens);
    return IndexedDataset::Open(prefix_);
  }

  void ExpectRefused(const std::string& index, StatusKind kind, const std::string& text) {
    const auto dataset = OpenWith(index);
    ASSERT_FALSE(dataset.ok()) << "expected: " << text;
    EXPECT_EQ(dataset.status().kind(), kind) << dataset.status().message();
    EXPECT_NE(dataset.status().message().find(text), std::string::npos) << dataset.status().message();
    EXPECT_NE(dataset.status().message().find(prefix_), std::string::npos) << dataset.status().message();
  }

  TempDir dir_;
  std::string prefix_ = dir_ / "data";
};

TEST_F(IndexedDatasetTest, ReadsMegatronsExample) {
  ASSERT_EQ(Example::Index().size(), 134u);
  const auto dataset = OpenWith(Example::Index());
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  EXPECT_EQ(dataset->token_type(), TokenType::kU16);
  EXPECT_EQ(dataset->sequence_count(), 5u);
  EXPECT_EQ(dataset->document_count(), 4u);
  EXPECT_EQ(dataset->token_count(), 10u);
  EXPECT_EQ(Tokens(*dataset, 3), (std::vector<int64_t>{65006, 65007}));
  EXPECT_EQ(dataset->SequenceLengths({1, 4}).value(), (std::vector<int32_t>{2, 1, 2}));
}

TEST_F(IndexedDatasetTest, IndexCutAtAnyByteIsRefused) {
  const std::string whole = Example::Index();
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto dataset = OpenWith(whole.substr(0, size));
    ASSERT_FALSE(dataset.ok()) << "cut to " << size;
    EXPECT_EQ(dataset.status().kind(), StatusKind::kCorrupt) << dataset.status().message();
  }
}

TEST_F(IndexedDatasetTest, IndexWithATrailingByteIsRefused) {
  ExpectRefused(Example::Index() + '\0', StatusKind::kCorrupt, "which does not fit its 135 bytes");
}

TEST_F(IndexedDatasetTest, TokensCutAtAnyByteAreRefused) {
  const std::string whole = Example::TokenBytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto dataset = OpenWith(Example::Index(), whole.substr(0, size));
    ASSERT_FALSE(dataset.ok()) << "cut to " << size;
    EXPECT_EQ(dataset.status().kind(), StatusKind::kCorrupt);
    EXPECT_NE(dataset.status().message().find("data.bin has " + std::to_string(size)), std::string::npos);
  }
  EXPECT_FALSE(OpenWith(Example::Index(), whole + "xy").ok());
}

// Any flip except one in the token type makes a field contradict another, or is refused by itself.
TEST_F(IndexedDatasetTest, AnyFlippedBitOfTheIndexIsRefused) {
  const std::string whole = Example::Index();
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    // Documents may begin anywhere, in order: another valid index.
    const bool inner_document = bit / 8 >= 34 + 12 * 5 + 8 && bit / 8 < 34 + 12 * 5 + 8 * 4;
    const auto dataset = OpenWith(damaged);
    EXPECT_TRUE(inner_document || !dataset.ok()) << "bit " << bit;
  }
}

TEST_F(IndexedDatasetTest, HugeCountsAreRefusedWithoutReading) {
  for (const uint64_t count :
       {uint64_t{1} << 32, uint64_t{1} << 60, ~uint64_t{0}, (~uint64_t{0} - 33) / 12}) {
    std::string index = Example::Index();
    Patch(index, 18, count);
    ExpectRefused(index, StatusKind::kCorrupt, fmt::format("claims {} sequences (byte 18)", count));
    index = Example::Index();
    Patch(index, 26, count);
    ExpectRefused(index, StatusKind::kCorrupt, fmt::format("{} document entries (byte 26)", count));
  }
  // 12 S + 8 D wraps around to the true size.
  std::string index = Example::Index();
  Patch(index, 18, uint64_t{5} + (uint64_t{1} << 62));
  ExpectRefused(index, StatusKind::kCorrupt, "does not fit");
}

TEST_F(IndexedDatasetTest, NumbersThatContradictEachOtherAreNamed) {
  struct Row {
    size_t at, bytes;
    int64_t value;
    const char* says;
  };
  for (const Row& row : {Row{34 + 4 * 2, 4, -1, "sequence 2 has length -1 (byte 42)"},
                         {34 + 20 + 8 * 4, 8, 18, "sequence 4 begins at 18 of the .bin file (byte 86)"},
                         {34 + 60 + 8 * 2, 8, 0, "document 2 begins with sequence 0 (byte 110)"},
                         {34 + 60 + 8 * 4, 8, 4, "ends at sequence 4, but there are 5"}}) {
    std::string index = Example::Index(), value;
    Put(row.value, value);
    index.replace(row.at, row.bytes, value, 0, row.bytes);
    ExpectRefused(index, StatusKind::kCorrupt, row.says);
  }
}

TEST_F(IndexedDatasetTest, OtherVersionsTypesAndLayoutsAreNotSupported) {
  std::string index = Example::Index();
  Patch<uint64_t>(index, 9, 2);
  ExpectRefused(index, StatusKind::kNotSupported, "version at byte 9 is 2");
  for (const uint8_t type : {0, 6, 7, 9, 255}) {
    ExpectRefused(Example::Index(type), StatusKind::kNotSupported,
                  fmt::format("token type at byte 17 is {}", type));
  }
  ExpectRefused(Example::Index() + std::string(5, '\0'), StatusKind::kNotSupported, "multimodal");
  ExpectRefused(std::string("TNTIDX\0\0", 8) + std::string(100, '\0'), StatusKind::kNotSupported, "legacy");
  ExpectRefused("PK\3\4 something else altogether, long enough", StatusKind::kCorrupt,
                "is not a Megatron index");
}

TEST_F(IndexedDatasetTest, MissingFileIsNotFound) {
  const auto dataset = IndexedDataset::Open(prefix_);
  ASSERT_FALSE(dataset.ok());
  EXPECT_EQ(dataset.status().kind(), StatusKind::kNotFound);
  EXPECT_NE(dataset.status().message().find("data.idx"), std::string::npos);
}

TEST_F(IndexedDatasetTest, AllTokenTypesRoundTrip) {
  using Type = TokenType;
  for (const Type type : {Type::kU8, Type::kI8, Type::kI16, Type::kI32, Type::kI64, Type::kU16}) {
    const std::string prefix = dir_ / std::to_string(static_cast<int>(type));
    const bool is_signed = type != Type::kU8 && type != Type::kU16;
    const int32_t big = type == Type::kU16  ? 65535
                        : type == Type::kU8 ? 255
                        : type == Type::kI8 ? 127
                                            : 32767;
    WriteDataset(prefix, type, {{1, 2, big}, {}, {is_signed ? -1 : 0}});
    const auto dataset = IndexedDataset::Open(prefix);
    ASSERT_TRUE(dataset.ok()) << dataset.status().message();
    EXPECT_EQ(dataset->token_type(), type);
    EXPECT_EQ(dataset->document_count(), 3u);
    EXPECT_EQ(Tokens(*dataset, 0), (std::vector<int64_t>{1, 2, big}));
    EXPECT_TRUE(Tokens(*dataset, 1).empty());
    EXPECT_EQ(Tokens(*dataset, 2), (std::vector<int64_t>{is_signed ? -1 : 0}));
  }
}

TEST_F(IndexedDatasetTest, EmptyDatasetOpens) {
  WriteDataset(prefix_, TokenType::kU16, {});
  const auto dataset = IndexedDataset::Open(prefix_);
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  EXPECT_EQ(dataset->document_count(), 0u);
  EXPECT_EQ(dataset->token_count(), 0u);
}

}  // namespace
}  // namespace cairn
