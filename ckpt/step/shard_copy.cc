#include "ckpt/step/shard_copy.h"

#include "ckpt/io/write_ring.h"
#include "ckpt/step/verify.h"

namespace cairn {
Status CopyShard(FileSystem& fs, const std::string& from_dir, const std::string& to_dir,
                 const ShardReceipt& receipt, const StepIdentity& identity, Direct direct) {
  CAIRN_ASSIGN_OR_RETURN(const auto file, fs.Create(JoinPath(to_dir, receipt.file.name), direct));
  CAIRN_RETURN_IF_ERROR(file->Allocate(receipt.file.bytes));
  VerifyReport report;
  WriteRing ring(fs);
  SequentialWriter out(ring, file.get(), 0);
  const Status read = VerifyShard(
      fs, {from_dir, receipt.file, PackCatalog(receipt.catalog), identity}, report,
      [&](std::span<const std::byte> bytes) {
        out.Append(bytes);
        return OkStatus();
      },
      /*may_map=*/false);
  out.Flush();  // shards are whole pages
  const Status written = ring.Drain();
  CAIRN_RETURN_IF_ERROR(read);
  CAIRN_RETURN_IF_ERROR(written);
  CAIRN_RETURN_IF_ERROR(report.status());
  CAIRN_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

}  // namespace cairn
