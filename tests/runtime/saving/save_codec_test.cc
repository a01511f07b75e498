#include "runtime/saving/save_codec.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

constexpr uint64_t kBytes = 1 << 30;

// A training that saves: the seconds of both kinds of flush, and the prediction of a sample.
struct Machine {
  double plain_seconds = 1;
  double packed_seconds = 2;
  CodecSpeed sample = {.bytes = kBytes, .stored_bytes = kBytes / 2, .encode_seconds = 0.1};
  SaveCodec codec{"auto", 1};
  int samples = 0;

  bool Save() {
    const Result<bool> compress = codec.ShouldCompress([this]() -> Result<CodecSpeed> {
      ++samples;
      return sample;
    });
    EXPECT_TRUE(compress.ok());
    codec.NoteFlush(*compress, kBytes, *compress ? packed_seconds : plain_seconds);
    return *compress;
  }
  int Compressed(int saves) {
    int compressed = 0;
    for (int i = 0; i < saves; ++i) compressed += Save();
    return compressed;
  }
};

TEST(SaveCodecTest, FixedModesTakeNoSamples) {
  for (const std::string mode : {"none", "zstd"}) {
    Machine machine{.codec = SaveCodec(mode, 1)};
    EXPECT_EQ(machine.Compressed(3), mode == "zstd" ? 3 : 0);
    EXPECT_EQ(machine.samples, 0);
  }
}

TEST(SaveCodecTest, AutoMeasuresTheDiskFirstAndKeepsTheFasterMode) {
  Machine machine{.packed_seconds = 0.6};
  EXPECT_FALSE(machine.Save());
  EXPECT_EQ(machine.Compressed(20), 20);
  EXPECT_EQ(machine.samples, 1);
}

TEST(SaveCodecTest, AnOptimisticSampleCostsOneSave) {
  Machine machine;  // the sample predicts 0.5 s; on cores that train it takes 2
  EXPECT_EQ(machine.Compressed(SaveCodec::kLookAgain), 1);
}

TEST(SaveCodecTest, AnUnpromisingSampleIsNotRepeatedEverySave) {
  Machine machine;
  machine.sample.encode_seconds = 3;
  EXPECT_EQ(machine.Compressed(SaveCodec::kLookAgain), 0);
  EXPECT_EQ(machine.samples, 1);
}

TEST(SaveCodecTest, NoticesADiskThatBecomesFaster) {
  Machine machine{.packed_seconds = 0.6};
  machine.Compressed(10);
  machine.plain_seconds = 0.1;  // a faster disk: one plain save in kLookAgain shows it
  EXPECT_GT(machine.Compressed(2 * SaveCodec::kLookAgain), SaveCodec::kLookAgain / 2);
  EXPECT_LE(machine.Compressed(2 * SaveCodec::kLookAgain), 2);
  machine.plain_seconds = 5;  // a slower one: the next plain save shows it
  EXPECT_FALSE(machine.Save());
  EXPECT_TRUE(machine.Save());
}

}  // namespace
}  // namespace cairn
