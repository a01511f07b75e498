// verify.h reads a file once, front to back. So the copy is a file system that hands on what is read through
// it.
#include "tools/verified_copy.h"

#include <algorithm>

#include "ckpt/verify.h"
#include "tools/read_only_file_system.h"

namespace cairn {
namespace {

class TeeFile final : public ReadOnlyFile {
 public:
  TeeFile(std::unique_ptr<File> source, uint64_t& copied, const ByteSink& sink)
      : source_(std::move(source)), copied_(copied), sink_(sink) {}

  Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
    CAIRN_RETURN_IF_ERROR(source_->ReadAt(offset, bytes));
    if (offset != copied_)  // pieces that overlap in the file
      return Corrupt("{} at byte {}: pieces overlap; run cairn verify", path(), offset);
    copied_ += bytes.size();
    return sink_(bytes);
  }
  const std::string& path() const override { return source_->path(); }

 private:
  std::unique_ptr<File> source_;
  uint64_t& copied_;
  const ByteSink& sink_;
};

class TeeFileSystem final : public ReadOnlyFileSystem {
 public:
  TeeFileSystem(FileSystem& source, const ByteSink& sink) : source_(source), sink_(sink) {}

  Result<std::unique_ptr<File>> OpenForRead(const std::string& path, Direct direct) override {
    CAIRN_ASSIGN_OR_RETURN(auto file, source_.OpenForRead(path, direct));
    return std::unique_ptr<File>(std::make_unique<TeeFile>(std::move(file), copied_, sink_));
  }
  Result<FileInfo> Stat(const std::string& path) override { return source_.Stat(path); }
  Result<std::vector<std::string>> List(const std::string& directory) override {
    return source_.List(directory);
  }

  uint64_t copied() const { return copied_; }

 private:
  FileSystem& source_;
  const ByteSink& sink_;
  uint64_t copied_ = 0;  // of the one file that is opened
};

}  // namespace

Status CopyVerified(FileSystem& fs, const StepReader& step, const ManifestFile& file, const ByteSink& sink) {
  TeeFileSystem tee(fs, sink);
  const StepCatalog& catalog = step.catalog();
  const auto index =
      static_cast<uint32_t>(std::ranges::find(catalog.files, file.name) - catalog.files.begin());
  VerifyReport report;
  CAIRN_RETURN_IF_ERROR(VerifyShard(tee, step.directory(), file, catalog, index, step.manifest().run,
                                    step.manifest().step, report));
  if (!report.problems.empty()) return Corrupt("{}", ToString(report.problems.front()));
  if (tee.copied() != file.bytes)
    return Corrupt("{}: {} of {} bytes were read", JoinPath(step.directory(), file.name), tee.copied(),
                   file.bytes);
  return OkStatus();
}

}  // namespace cairn
