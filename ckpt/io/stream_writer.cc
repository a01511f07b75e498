#include "ckpt/io/stream_writer.h"

namespace cairn {

Result<std::unique_ptr<StreamWriter>> StreamWriter::Create(FileSystem& fs, WriteRing& ring,
                                                           const std::string& path, uint64_t bytes) {
  const Direct direct = bytes % kPageBytes == 0 ? Direct::kAuto : Direct::kOff;
  CAIRN_ASSIGN_OR_RETURN(auto file, fs.Create(path, direct));
  return std::unique_ptr<StreamWriter>(new StreamWriter(ring, std::move(file)));
}

Status StreamWriter::Append(std::span<const std::byte> bytes) {
  out_.Append(bytes);
  return ring_.error();
}

Status StreamWriter::Skip(uint64_t bytes) {
  out_.Flush();
  out_.Skip(bytes);
  return ring_.error();
}

Status StreamWriter::Drain() {
  out_.Flush();
  return ring_.Drain();
}

Status StreamWriter::Finish() {
  CAIRN_RETURN_IF_ERROR(Drain());
  CAIRN_RETURN_IF_ERROR(file_->Sync());
  return file_->Close();
}

}  // namespace cairn
