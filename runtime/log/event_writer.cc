// From the inside out: protobuf fields, an event, a record with its checksums, the file.

#include "runtime/log/event_writer.h"

#include <isa-l/crc.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <chrono>

#include "ckpt/base/this_process.h"
#include "ckpt/io/file_system.h"

namespace cairn {
namespace {

template <typename T>
void PutFixed(T value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutVarint(uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void PutBytes(uint8_t key, std::string_view bytes, std::string& out) {
  PutFixed(key, out);
  PutVarint(bytes.size(), out);
  out.append(bytes);
}

// A protobuf key is field number * 8 + wire type: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes.
constexpr uint8_t kEventWallTime = 1 << 3 | 1;
constexpr uint8_t kEventStep = 2 << 3 | 0;
constexpr uint8_t kEventFileVersion = 3 << 3 | 2;
constexpr uint8_t kEventSummary = 5 << 3 | 2;
constexpr uint8_t kSummaryValue = 1 << 3 | 2;
constexpr uint8_t kValueTag = 1 << 3 | 2;
constexpr uint8_t kValueSimple = 2 << 3 | 5;

std::string EncodeEvent(double wall_time, int64_t step, uint8_t what, std::string_view payload) {
  std::string event;
  PutFixed(kEventWallTime, event);
  PutFixed(wall_time, event);
  PutFixed(kEventStep, event);
  PutVarint(static_cast<uint64_t>(step), event);
  PutBytes(what, payload, event);
  return event;
}

std::string EncodeScalar(std::string_view tag, float value) {
  std::string summary_value;
  PutBytes(kValueTag, tag, summary_value);
  PutFixed(kValueSimple, summary_value);
  PutFixed(value, summary_value);
  std::string summary;
  PutBytes(kSummaryValue, summary_value, summary);
  return summary;
}

// A CRC over data that holds CRCs is weak, hence TFRecord's mask. ISA-L takes CRC-32C's initial value and
// leaves the final inversion to its caller.
uint32_t MaskedCrc(std::string_view bytes) {
  auto* data = reinterpret_cast<unsigned char*>(const_cast<char*>(bytes.data()));
  const uint32_t crc = ~crc32_iscsi(data, static_cast<int>(bytes.size()), UINT32_MAX);
  return std::rotr(crc, 15) + 0xA282EAD8;
}

void PutRecord(std::string_view data, std::string& out) {
  std::string length;
  PutFixed(uint64_t{data.size()}, length);
  out.append(length);
  PutFixed(MaskedCrc(length), out);
  out.append(data);
  PutFixed(MaskedCrc(data), out);
}

}  // namespace

Result<EventWriter> EventWriter::Open(const std::string& directory) {
  static std::atomic<int> files = 0;  // of this process
  CAIRN_RETURN_IF_ERROR(MakeDirs(FileSystem::Posix(), directory));
  const double now = Now();
  const int number = files++;
  const std::string name = fmt::format("events.out.tfevents.{:010}.{}.{}{}", static_cast<int64_t>(now),
                                       HostName(), ::getpid(), number > 0 ? fmt::format(".{}", number) : "");
  CAIRN_ASSIGN_OR_RETURN(auto file,
                         LogFile::Open(JoinPath(directory, name), "--tensorboard-dir " + directory));
  EventWriter writer(std::move(file));
  std::string record;
  PutRecord(EncodeEvent(now, 0, kEventFileVersion, "brain.Event:2"), record);
  writer.file_->Add(record);
  CAIRN_RETURN_IF_ERROR(writer.file_->Write());
  return writer;
}

double EventWriter::Now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void EventWriter::AddScalar(std::string_view tag, int64_t step, float value, double wall_time_seconds) {
  std::string record;
  PutRecord(EncodeEvent(wall_time_seconds, step, kEventSummary, EncodeScalar(tag, value)), record);
  file_->Add(record);
  ++pending_;
}

void EventWriter::Flush() {
  file_->Flush();
  if (!file_->failing()) pending_ = 0;
}

}  // namespace cairn
