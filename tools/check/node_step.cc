#include "tools/check/node_step.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "ckpt/job/peer_files.h"
#include "ckpt/model/catalog.h"
#include "ckpt/model/layout.h"
#include "ckpt/step/find_step.h"
#include "ckpt/step/parity_file.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxIndexBytes = uint64_t{4} << 30;

class PartChecker {
 public:
  PartChecker(FileSystem& fs, const std::string& directory, bool hash, VerifyReport& report,
              const std::function<void(uint64_t)>& progress)
      : fs_(fs), directory_(directory), hash_(hash), report_(report), progress_(progress) {}

  NodePart Check() {
    const Result<Manifest> manifest = ReadManifest(fs_, directory_);
    if (!manifest.ok()) {
      report_.Add(manifest.status(), JoinPath(directory_, kManifestName));
      return {};
    }
    part_.manifest = *manifest;
    if (hash_) ReadCatalog();
    for (const ManifestFile& file : manifest->files) CheckFile(file);
    const int world = manifest->topology.world();
    for (int rank = 0; rank < world; ++rank)  // one without a shard has parity, too
      if (const std::string name = ParityNameOf(ShardName(rank)); Exists(name)) CheckParity(name);
    const size_t shards = part_.here.size() + part_.elsewhere.size();
    if (part_.here.empty() && part_.groups.empty() && shards == static_cast<size_t>(world))
      report_.problems.push_back({directory_, {}, "", "none of the step's shards is here"});
    for (const std::string& shard : part_.here)
      if (!part_.groups.empty() && !Exists(ParityNameOf(shard)))
        Missing(ParityNameOf(shard), "its shard is here, and others have parity");
    return std::move(part_);
  }

 private:
  bool Exists(const std::string& name) const { return fs_.Stat(JoinPath(directory_, name)).ok(); }
  void Missing(const std::string& name, const char* why) {
    report_.problems.push_back({JoinPath(directory_, name), {}, "", fmt::format("is missing: {}", why)});
  }

  void ReadCatalog() {
    const auto text = ReadSmallFile(fs_, JoinPath(directory_, kIndexName), kMaxIndexBytes);
    auto catalog = text.ok() ? CatalogIn(*part_.manifest, *text) : text.status();
    if (catalog.ok()) catalog_ = *std::move(catalog);  // else CheckFile says so
  }

  void CheckFile(const ManifestFile& file) {
    const int writer = WriterOf(file.name);
    const bool of_rank = writer >= 0 && writer < part_.manifest->topology.world();
    const bool here = fs_.Stat(JoinPath(directory_, file.name)).status().kind() != StatusKind::kNotFound;
    const bool parity = of_rank && Exists(ParityNameOf(file.name));
    if (!here && of_rank && !parity) return part_.elsewhere.push_back(file.name);
    if (!here)
      Missing(file.name, of_rank ? "its parity is here" : "every node has it");
    else if (CheckSize(fs_, directory_, file, report_) && hash_)
      VerifyBytes(file);
    if (of_rank && here) part_.here.push_back(file.name);
  }

  void VerifyBytes(const ManifestFile& file) {
    const Manifest& m = *part_.manifest;
    const uint64_t before = report_.bytes_checked;
    const Status read = VerifyShard(fs_, {directory_, file, catalog_, {m.run, m.step}}, report_);
    if (!read.ok()) report_.Add(read, JoinPath(directory_, file.name));
    if (progress_ && report_.bytes_checked > before) progress_(report_.bytes_checked);
  }

  void CheckParity(const std::string& name) {
    const std::string path = JoinPath(directory_, name);
    const Result<ParityHeader> header = ReadParityHeader(fs_, path);
    const Manifest& m = *part_.manifest;
    if (!header.ok()) return report_.Add(header.status(), path);
    if (header->group.identity().run != m.run || header->group.identity().step != m.step)
      return report_.problems.push_back({path, {}, "", "is of another step"}), void();
    NodePart::Group group{.parity = header->group.code().parity()};
    for (const ParityGroup::Member& member : header->group.members()) group.shards.push_back(member.shard);
    if (std::ranges::find(part_.groups, group.shards, &NodePart::Group::shards) == part_.groups.end())
      part_.groups.push_back(std::move(group));
    if (!hash_) return;
    const Status good = VerifyParity(fs_, path, *header);
    if (!good.ok()) return report_.Add(good, path);
    report_.bytes_checked += header->group.parity_file_bytes();
    if (progress_) progress_(report_.bytes_checked);
  }

  FileSystem& fs_;
  const std::string& directory_;
  const bool hash_;
  VerifyReport& report_;
  const std::function<void(uint64_t)>& progress_;
  NodePart part_;
  StepCatalog catalog_;
};

}  // namespace

std::string NodePart::Group::Text() const {
  return parity == 1 ? fmt::format("xor:{}", shards.size()) : fmt::format("rs:{},{}", shards.size(), parity);
}

std::string NodePart::RebuiltFrom() const {
  std::vector<std::string> each;
  for (const Group& group : groups)
    each.push_back(
        fmt::format("any {} of {}", group.shards.size() - group.parity, fmt::join(group.shards, ", ")));
  return fmt::format("{}", fmt::join(each, "; "));
}

NodePart CheckNodePart(FileSystem& fs, const std::string& directory, bool hash, VerifyReport& report,
                       const std::function<void(uint64_t)>& progress) {
  const Result<FileInfo> before = fs.Stat(directory);
  NodePart part = PartChecker(fs, directory, hash, report, progress).Check();
  const Result<FileInfo> after = fs.Stat(directory);
  const bool same =
      before.ok() && after.ok() && before->device == after->device && before->inode == after->inode;
  if (!report.good() && !same) report = {.trouble = NotFound("{} was removed while it was read", directory)};
  return part;
}

}  // namespace cairn
