#include "runtime/data/bus_guard.h"

#include <unistd.h>

#include <csignal>
#include <numeric>

#include "runtime/data/gpt_dataset.h"
#include "runtime/data/mapped_file.h"
#include "tests/runtime/data/dataset_fixture.h"

namespace cairn {
namespace {

class BusGuardTest : public testing::Test {
 protected:
  void SetUp() override { HandleBusErrors(); }
  void TearDown() override { std::signal(SIGBUS, SIG_DFL); }
  TempDir dir_;
};

int Sum(std::span<const std::byte> bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), 0, [](int sum, std::byte b) { return sum + int(b); });
}

TEST_F(BusGuardTest, ATruncatedFileIsAFailedReadThatNamesIt) {
  WriteFile(dir_ / "f", std::string(1 << 16, 'x'));
  const MappedFile mapped = MappedFile::Open(dir_ / "f").value();
  int sum = 0;
  EXPECT_TRUE(ReadMapped([&] { sum = Sum(mapped.bytes()); }));
  EXPECT_EQ(sum, 'x' << 16);
  ASSERT_EQ(::truncate((dir_ / "f").c_str(), 10), 0);
  for (int round = 0; round < 3; ++round) {
    std::string file;
    EXPECT_FALSE(ReadMapped([&] { sum = Sum(mapped.bytes()); }, &file));
    EXPECT_EQ(file, dir_ / "f");
  }
}

TEST_F(BusGuardTest, AMappingThatWasMovedKeepsItsNameAndOneThatIsGoneHasNone) {
  for (int round = 0; round < 40; ++round) {  // more than the table holds
    const std::string path = dir_ / std::to_string(round);
    WriteFile(path, std::string(1 << 16, 'x'));
    MappedFile first = MappedFile::Open(path).value();
    const MappedFile mapped = std::move(first);
    ASSERT_EQ(::truncate(path.c_str(), 0), 0);
    std::string file;
    volatile int sum = 0;  // or nothing is read
    EXPECT_FALSE(ReadMapped([&] { sum = Sum(mapped.bytes()); }, &file));
    EXPECT_EQ(file, path);
  }
}

// It used to kill without a word.
TEST_F(BusGuardTest, OutsideOfAGuardTheProcessEndsWithALineThatNamesTheFile) {
  WriteFile(dir_ / "f", std::string(1 << 16, 'x'));
  const MappedFile mapped = MappedFile::Open(dir_ / "f").value();
  ASSERT_EQ(::truncate((dir_ / "f").c_str(), 0), 0);
  EXPECT_EXIT(std::exit(Sum(mapped.bytes())), testing::KilledBySignal(SIGBUS), "/f was truncated");
}

TEST_F(BusGuardTest, ADatasetThatIsTruncatedBetweenSamplesIsAnError) {
  for (const std::string file : {".bin", ".idx"}) {
    const std::string prefix = dir_ / ("data" + file);
    WriteDataset(prefix, TokenType::kU16, CountingDocuments(std::vector<int32_t>(4000, 8)));
    const auto indexed = std::make_shared<const IndexedDataset>(IndexedDataset::Open(prefix).value());
    const GptDataset dataset = GptDataset::Create(indexed, {0, 4000}, 100, 16).value();
    std::vector<int64_t> tokens(17);
    ASSERT_TRUE(dataset.Sample(0, tokens).ok());
    ASSERT_EQ(::truncate((prefix + file).c_str(), 100), 0);
    const Status status = dataset.Sample(0, tokens);
    EXPECT_EQ(status.kind(), StatusKind::kIoError);
    EXPECT_NE(status.message().find(prefix + file + " was truncated"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace cairn
