#include "runtime/log/event_writer.h"

#include "tests/runtime/data/dataset_fixture.h"

namespace cairn {
namespace {

TEST(EventWriterTest, FileBeginsWithTheVersionRecord) {
  TempDir dir;
  const auto writer = EventWriter::Open(dir / "logs/run");
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  EXPECT_NE(writer->path().find("logs/run/events.out.tfevents."), std::string::npos);
  const std::string bytes = ReadFile(writer->path());
  // length 26 | crc | 09 wall time | 10 00 | 1A 0D "brain.Event:2" | crc
  ASSERT_EQ(bytes.size(), 8u + 4 + 26 + 4);
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x1A\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(bytes.substr(12 + 9, 17), std::string("\x10\0\x1A\x0D", 4) + "brain.Event:2");
}

TEST(EventWriterTest, ScalarsAppearAtFlush) {
  TempDir dir;
  auto writer = EventWriter::Open(dir.path());
  ASSERT_TRUE(writer.ok());
  const size_t before = ReadFile(writer->path()).size();
  writer->AddScalar("lm loss", 300, 1.0f, 0.0);
  EXPECT_EQ(ReadFile(writer->path()).size(), before);
  writer->Flush();
  EXPECT_EQ(writer->pending(), 0);
  const std::string record = ReadFile(writer->path()).substr(before);
  const std::string event =
      std::string("\x09\0\0\0\0\0\0\0\0\x10\xAC\x02\x2A\x10\x0A\x0E\x0A\x07lm loss\x15\0\0\x80\x3F", 30);
  EXPECT_EQ(record.substr(12, record.size() - 16), event);
}

TEST(EventWriterTest, WritersOfTheSameSecondHaveDifferentFiles) {
  TempDir dir;
  const auto a = EventWriter::Open(dir.path());
  const auto b = EventWriter::Open(dir.path());
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a->path(), b->path());
}

TEST(EventWriterTest, RefusesAPathThatIsAFile) {
  TempDir dir;
  WriteFile(dir / "file", "");
  EXPECT_FALSE(EventWriter::Open(dir / "file").ok());
}

}  // namespace
}  // namespace cairn
