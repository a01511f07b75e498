// The largest files begin first, so that no single thread is left with one of them at the end.

#include "tools/seal/read_files.h"

#include <algorithm>
#include <mutex>
#include <numeric>

#include "ckpt/base/threads.h"
#include "ckpt/io/file_scan.h"
#include "convert/torch/record_sums.h"

namespace cairn {
namespace {

class FilesReader {
 public:
  FilesReader(FileSystem& fs, const std::string& directory, const ReadFilesOptions& options)
      : fs_(fs), directory_(directory), options_(options) {}

  FileRead Read(const FileToRead& file) {
    FileRead result;
    result.status = Read(file, result.digest);
    return result;
  }

 private:
  Status Read(const FileToRead& file, Digest& digest) {
    const std::string path = JoinPath(directory_, file.name);
    if (options_.sync) CAIRN_RETURN_IF_ERROR(Sync(path));
    std::vector<SummedRecord> records;
    for (const ZipRecord& record : file.records) records.push_back({0, record});
    RecordSums sums(std::move(records));
    Hasher hasher;
    if (file.bytes > 0) {
      CAIRN_ASSIGN_OR_RETURN(const auto scan,
                             FileScan::Open(fs_, path, file.bytes, Direct::kAuto, /*may_map=*/false));
      while (scan->offset() < file.bytes) {
        if (options_.stop && *options_.stop) return IoError("{}: stopped while it was read", path);
        const uint64_t offset = scan->offset();
        CAIRN_ASSIGN_OR_RETURN(const auto bytes, scan->Next(file.bytes - offset));
        hasher.Update(bytes);
        sums.Add(0, offset, bytes);
        Report(bytes.size());
      }
    }
    digest = hasher.Finish();
    return sums.Check(std::vector{path});
  }

  // Files that were not synced are lost in a power loss, with or without a seal.
  Status Sync(const std::string& path) {
    CAIRN_ASSIGN_OR_RETURN(const auto file, fs_.OpenForRead(path));
    CAIRN_RETURN_IF_ERROR(file->Sync());
    return file->Close();
  }

  void Report(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    if (options_.progress) options_.progress(done_);
  }

  FileSystem& fs_;
  const std::string& directory_;
  const ReadFilesOptions& options_;
  std::mutex mutex_;
  uint64_t done_ = 0;
};

}  // namespace

std::vector<FileRead> ReadFiles(FileSystem& fs, const std::string& directory,
                                const std::vector<FileToRead>& files, const ReadFilesOptions& options) {
  std::vector<size_t> order(files.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return files[i].bytes; });
  std::vector<FileRead> results(files.size());
  FilesReader reader(fs, directory, options);
  std::atomic<size_t> next = 0;
  RunOnThreads(options.jobs, [&] {
    for (size_t i; (i = next++) < order.size();) results[order[i]] = reader.Read(files[order[i]]);
  });
  return results;
}

}  // namespace cairn
