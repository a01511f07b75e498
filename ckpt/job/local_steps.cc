// Survey() shares the file lists of all ranks. Load() gets manifest and catalog from any good copy, and then
// loads at once, through a file system that shows the files of other ranks in this rank's directory: an
// intact step is not verified twice. Only if a file is missing, or a load meets damage, all ranks verify
// their files, rebuild the lost ones into a partial directory, install it, and load again. Ranks agree on
// each outcome before the next collective, because all must take the same branch.

#include "ckpt/job/local_steps.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "ckpt/base/byte_codec.h"
#include "ckpt/job/job_ranks.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/committer.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/step/verify.h"

namespace cairn {
std::string LocalSteps::Directory(int64_t step) const { return JoinPath(place_.run_dir, StepDirName(step)); }

Committer LocalSteps::CommitterOf(int64_t step) const { return Committer(fs_, place_.run_dir, step, nonce_); }

// ---- Which rank holds what ----

std::string LocalSteps::FactsOfThisRank() const {
  ByteWriter out;
  const Result<std::vector<int64_t>> steps = ListSteps(fs_, place_.run_dir);
  for (int64_t step : steps.ok() ? *steps : std::vector<int64_t>()) {
    const std::string directory = Directory(step);
    const auto names = fs_.List(directory);
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      const auto info = fs_.Stat(JoinPath(directory, name));
      if (!info.ok() || info->is_directory()) continue;
      Digest digest{};
      nlohmann::json said = nlohmann::json::object();
      if (name == kManifestName) {
        const auto text = ReadSmallFile(fs_, JoinPath(directory, name), kMaxManifestBytes);
        if (!text.ok()) continue;
        const Result<Manifest> manifest = DecodeManifest(*text);
        if (!manifest.ok() || manifest->step != step) continue;
        digest = DigestOf(*text);
        said = DescentJson(manifest->descent);
        if (const auto health = HealthOf(manifest->state)) said["health"] = ToJson(*health);
      }
      out.Put(step);
      out.PutText(name);
      out.Put(info->bytes);
      out.PutDigest(digest);
      out.PutText(said.dump());
    }
  }
  return std::move(out).Take();
}

// If manifests differ (a training that went back wrote the step again, but not everywhere), the one that most
// ranks have counts.
Status LocalSteps::Survey() {
  CAIRN_ASSIGN_OR_RETURN(const auto facts, ShareAll(ranks_, FactsOfThisRank(), "local steps"));
  steps_.clear();
  std::map<int64_t, std::map<Digest, std::vector<Holder>>> manifests;
  std::map<Digest, nlohmann::json> said;  // by manifest
  for (int rank = 0; rank < static_cast<int>(facts.size()); ++rank) {
    for (ByteReader in(facts[rank]); in.left() > 0 && in.ok();) {
      const auto step = in.Get<int64_t>();
      const std::string name(in.GetText());
      const Holder holder{rank, in.Get<uint64_t>()};
      const Digest digest = in.GetDigest();
      const std::string text(in.GetText());
      if (!in.ok()) return Corrupt("truncated message between ranks");
      if (name == kManifestName) {
        manifests[step][digest].push_back(holder);
        said[digest] = nlohmann::json::parse(text);
      } else {
        steps_[step].files[name].push_back(holder);
      }
    }
  }
  std::erase_if(steps_, [&](const auto& entry) { return !manifests.contains(entry.first); });
  for (const auto& [step, versions] : manifests) {
    const auto most =
        std::ranges::max_element(versions, {}, [](const auto& version) { return version.second.size(); });
    steps_[step].manifest = most->first;
    steps_[step].health = HealthOf(said[most->first]);
    steps_[step].descent = cairn::DescentAt(said[most->first]);
    steps_[step].files[std::string(kManifestName)] = most->second;
  }
  return OkStatus();
}

std::vector<int64_t> LocalSteps::steps() const {
  std::vector<int64_t> steps;
  for (const auto& [step, known] : steps_) steps.push_back(step);
  return steps;
}

std::map<std::string, PeerFiles::Offer> LocalSteps::Offers(int64_t step) const {
  std::map<std::string, PeerFiles::Offer> offers;
  for (const auto& [name, holders] : steps_.at(step).files)
    if (std::ranges::count(holders, ranks_.rank(), &Holder::rank) > 0)
      offers[name] = {{}, JoinPath(Directory(step), name)};
  return offers;
}

// ---- Loading ----

Status LocalSteps::Load(int64_t step, const Loader& load, bool verify) {
  CAIRN_RETURN_IF_ERROR(Open(step));
  if (AllShardsThere() && !verify) {
    const Status status = LoadOnce(load);
    const Status agreed = Agree(ranks_, status, "outcome of the load");
    if (agreed.ok() || !IsDamage(agreed.kind())) return status;
    if (ranks_.rank() == 0) say_(fmt::format("local step {}: {}", step, agreed.message()));
  }
  CAIRN_RETURN_IF_ERROR(Repair());
  CAIRN_RETURN_IF_ERROR(Survey());
  CAIRN_RETURN_IF_ERROR(Open(step));
  return LoadOnce(load);
}

// Gives every rank the manifest and the index.
Status LocalSteps::Open(int64_t step) {
  current_ = {.step = step};
  const auto known = steps_.find(step);
  if (known == steps_.end()) return NotFound("local step {} no longer exists", step);
  const Status read = peers_.Session(Offers(step), [&]() -> Status {
    const std::string name(kManifestName);
    CAIRN_ASSIGN_OR_RETURN(current_.manifest_text,
                           ReadCopy(name, known->second.manifest, known->second.files.at(name)[0].bytes));
    CAIRN_ASSIGN_OR_RETURN(current_.manifest, DecodeManifest(current_.manifest_text));
    const auto& files = current_.manifest.files;
    const auto index = std::ranges::find(files, kIndexName, &ManifestFile::name);
    if (index == files.end()) return Corrupt("local step {}: its manifest names no index", step);
    CAIRN_ASSIGN_OR_RETURN(current_.index, ReadCopy(index->name, index->digest, index->bytes));
    CAIRN_ASSIGN_OR_RETURN(current_.catalog, CatalogIn(current_.manifest, current_.index));
    return OkStatus();
  });
  return Agree(ranks_, read, "opening a local step");
}

// The ranks that have a file of this size, this rank first.
std::vector<int> LocalSteps::RanksWith(const std::string& name, uint64_t bytes) const {
  const Holders& files = steps_.at(current_.step).files;
  const auto found = files.find(name);
  std::vector<int> ranks;
  if (found == files.end()) return ranks;
  for (const Holder& holder : found->second)
    if (holder.bytes == bytes) ranks.push_back(holder.rank);
  std::ranges::stable_partition(ranks, [&](int rank) { return rank == ranks_.rank(); });
  return ranks;
}

// Reads a small file that many ranks have: this rank's copy, or else another's that is whole.
Result<std::string> LocalSteps::ReadCopy(const std::string& name, const Digest& digest, uint64_t bytes) {
  std::string text(bytes, '\0');
  for (const int rank : RanksWith(name, bytes)) {
    const auto out = std::as_writable_bytes(std::span(text));
    if (ReadPeerFile(peers_, rank, name, 0, out).ok() && DigestOf(text) == digest) return text;
  }
  return Corrupt("local step {}: no rank has a good {}", current_.step, name);
}

bool LocalSteps::AllShardsThere() const {
  return std::ranges::none_of(current_.manifest.files, [&](const ManifestFile& file) {
    return RanksWith(file.name, file.bytes).empty();
  });
}

Status LocalSteps::LoadOnce(const Loader& load) {
  std::map<std::string, PeerFileSystem::Place> elsewhere;
  const auto find = [&](const std::string& name, uint64_t bytes) {
    const std::vector<int> ranks = RanksWith(name, bytes);
    if (!ranks.empty() && ranks[0] != ranks_.rank()) elsewhere[name] = {ranks[0], bytes};
  };
  find(std::string(kManifestName), current_.manifest_text.size());
  for (const ManifestFile& file : current_.manifest.files) find(file.name, file.bytes);
  const std::string directory = Directory(current_.step);
  PeerFileSystem files(fs_, directory, std::move(elsewhere), peers_);
  return peers_.Session(Offers(current_.step), [&] { return load(files, directory); });
}

// ---- Rebuilding ----

Status LocalSteps::Repair() {
  CAIRN_ASSIGN_OR_RETURN(const Verified verified, VerifyAll());
  CAIRN_RETURN_IF_ERROR(CheckRebuildable(verified));  // the same everywhere
  const Status rebuilt = peers_.Session(Offers(current_.step), [&] { return RebuildHere(verified); });
  const Status agreed = Agree(ranks_, rebuilt, "rebuilding a local step");
  Status installed;
  if (place_.leader && fs_.Stat(CommitterOf(current_.step).partial()).ok()) {
    if (agreed.ok())
      installed = Install();
    else
      CommitterOf(current_.step).Abandon();
  }
  const Status all_installed = Agree(ranks_, installed, "rebuilding a local step");
  return agreed.ok() ? all_installed : agreed;
}

// The good files, as reported by the ranks that have them.
Result<LocalSteps::Verified> LocalSteps::VerifyAll() {
  CAIRN_ASSIGN_OR_RETURN(const auto blobs, ShareAll(ranks_, VerifyHere(), "verifying a local step"));
  Verified verified;
  for (int rank = 0; rank < static_cast<int>(blobs.size()); ++rank) {
    for (ByteReader in(blobs[rank]); in.left() > 0 && in.ok();) {
      const std::string name(in.GetText());
      verified.rank_of.emplace(name, rank);
      if (rank == ranks_.rank()) verified.here.insert(name);
      if (in.Get<uint8_t>() == 0) continue;
      CAIRN_ASSIGN_OR_RETURN(const ParityGroup group,
                             ParityGroup::DecodeMembers({current_.manifest.run, current_.step}, in));
      for (const ParityGroup::Member& member : group.members())
        verified.group_of.emplace(member.shard, group);
    }
  }
  return verified;
}

// Good files of this rank's directory: text name, u8, and if that is 1 the group of a parity file. Each of
// the ranks that share it verifies its own files, and the leader those of ranks that do not. A parity file
// does not identify its shards, but it is beside the manifest of their step. If that manifest differs,
// because a training went back since, the parity belongs to the shards of that one.
std::string LocalSteps::VerifyHere() const {
  ByteWriter good;
  const std::string directory = Directory(current_.step);
  const Result<std::string> text = ReadSmallFile(fs_, JoinPath(directory, kManifestName), kMaxManifestBytes);
  const bool of_another = text.ok() && *text != current_.manifest_text && DecodeManifest(*text).ok();
  for (const auto& [name, offer] : Offers(current_.step)) {
    const int number = WriterOf(name);
    const bool own =
        number == ranks_.rank() || (place_.leader && std::ranges::count(place_.sharers, number) == 0);
    if (!own) continue;
    if (name.ends_with(".parity")) {
      if (of_another) continue;
      const Result<ParityHeader> header = ReadParityHeader(fs_, offer.path);
      const bool fits = header.ok() && header->group.identity().run == current_.manifest.run &&
                        header->group.identity().step == current_.step &&
                        ParityNameOf(header->group.members()[header->member].shard) == name;
      if (!fits || !VerifyParity(fs_, offer.path, *header).ok()) continue;
      good.PutText(name);
      good.Put(uint8_t{1});
      header->group.EncodeMembers(good);
    } else if (number >= 0 && VerifyShardAt(directory, name).ok()) {
      good.PutText(name);
      good.Put(uint8_t{0});
    }
  }
  return std::move(good).Take();
}

Status LocalSteps::VerifyShardAt(const std::string& directory, const std::string& name) const {
  const Manifest& m = current_.manifest;
  const auto file = std::ranges::find(m.files, name, &ManifestFile::name);
  if (file == m.files.end()) return NotFound("{} is not of this step", name);
  VerifyReport report;
  if (CheckSize(fs_, directory, *file, report))
    CAIRN_RETURN_IF_ERROR(VerifyShard(fs_, {directory, *file, current_.catalog, {m.run, m.step}}, report));
  return report.status();
}

Status LocalSteps::CheckRebuildable(const Verified& verified) const {
  std::set<std::string> lost;
  for (const ManifestFile& file : current_.manifest.files)
    if (file.name != kIndexName && !verified.rank_of.contains(file.name)) lost.insert(file.name);
  for (const std::string& shard : lost) {
    const auto group = verified.group_of.find(shard);
    if (group == verified.group_of.end())
      return Corrupt("local step {}: {} is lost, and it has no parity", current_.step, shard);
    if (!CanRebuild(group->second, FilesOf(group->second, verified.rank_of, peers_)))
      return Corrupt("local step {}: {} is lost, and more of its group than parity can rebuild",
                     current_.step, shard);
  }
  if (ranks_.rank() == 0)
    say_(fmt::format("local step {}: rebuilding {}", current_.step,
                     lost.empty() ? "only small files" : fmt::format("{}", fmt::join(lost, ", "))));
  return OkStatus();
}

// Rebuilds the lost files of this rank in a partial directory. If there are fewer ranks than before, each
// rebuilds the files whose number modulo the count of ranks is its own.
Status LocalSteps::RebuildHere(const Verified& verified) {
  const std::string partial = CommitterOf(current_.step).partial();
  std::vector<std::function<Status()>> jobs;
  for (const ManifestFile& file : current_.manifest.files) {
    const auto found = verified.group_of.find(file.name);
    if (WriterOf(file.name) % ranks_.size() != ranks_.rank() || found == verified.group_of.end()) continue;
    const ParityGroup& group = found->second;
    const int member = static_cast<int>(
        std::ranges::find(group.members(), file.name, &ParityGroup::Member::shard) - group.members().begin());
    const MemberFiles files = FilesOf(group, verified.rank_of, peers_);
    if (!verified.rank_of.contains(file.name))
      jobs.emplace_back([=, this, &group]() -> Status {
        CAIRN_RETURN_IF_ERROR(RebuildShard(fs_, JoinPath(partial, file.name), group, member, files));
        return VerifyShardAt(partial, file.name);
      });
    const std::string parity = ParityNameOf(file.name);
    if (!verified.rank_of.contains(parity) && CanRebuild(group, files))
      jobs.emplace_back(
          [=, this, &group] { return WriteParity(fs_, JoinPath(partial, parity), group, member, files); });
  }
  if (place_.leader) {
    const auto restore = [&](std::string_view name, const std::string& bytes) {
      const auto here = ReadSmallFile(fs_, JoinPath(Directory(current_.step), name), bytes.size());
      if (here.ok() && *here == bytes) return;
      jobs.emplace_back(
          [this, &bytes, path = JoinPath(partial, name)] { return WriteSmallFile(fs_, path, bytes); });
    };
    RestoreCopies(verified, partial, jobs);
    restore(kIndexName, current_.index);
    restore(kManifestName, current_.manifest_text);
  }
  if (!jobs.empty()) CAIRN_RETURN_IF_ERROR(CommitterOf(current_.step).MakePartial());
  for (const auto& job : jobs) CAIRN_RETURN_IF_ERROR(job());
  return OkStatus();
}

// Shards that this directory and another have (LocalSave::CopyFurtherShards), if this copy is damaged.
void LocalSteps::RestoreCopies(const Verified& verified, const std::string& partial,
                               std::vector<std::function<Status()>>& jobs) {
  const auto offers = Offers(current_.step);
  for (const ManifestFile& file : current_.manifest.files) {
    const auto good = verified.rank_of.find(file.name);
    if (!offers.contains(file.name) || verified.here.contains(file.name) || good == verified.rank_of.end() ||
        std::ranges::count(place_.sharers, good->second) > 0)
      continue;
    jobs.emplace_back([this, &file, rank = good->second, partial]() -> Status {
      CAIRN_RETURN_IF_ERROR(
          CopyPeerFile(peers_, rank, file.name, file.bytes, fs_, JoinPath(partial, file.name)));
      return VerifyShardAt(partial, file.name);
    });
  }
}

// Moves the files one by one into an existing step directory, each in place of a damaged or missing one;
// otherwise publishes the whole directory.
Status LocalSteps::Install() const {
  const std::string partial = CommitterOf(current_.step).partial(), directory = Directory(current_.step);
  if (!fs_.Stat(directory).ok()) return CommitterOf(current_.step).Publish();
  CAIRN_RETURN_IF_ERROR(fs_.SyncDir(partial));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_.List(partial));
  for (const std::string& name : names)
    CAIRN_RETURN_IF_ERROR(fs_.Rename(JoinPath(partial, name), JoinPath(directory, name)));
  CAIRN_RETURN_IF_ERROR(fs_.SyncDir(directory));
  return RemoveMarked(fs_, partial, {.step = true});
}

Status LocalSteps::SetAsideNewerThan(int64_t step) {
  Status status;
  const Result<std::vector<int64_t>> mine = ListSteps(fs_, place_.run_dir);
  if (place_.leader && mine.ok())
    for (int64_t newer : *mine)
      if (newer > step && status.ok())
        status = fs_.Rename(Directory(newer), JoinPath(place_.run_dir, SupersededDirName(newer, nonce_)));
  if (place_.leader && status.ok()) status = fs_.SyncDir(place_.run_dir);
  return Agree(ranks_, status, "setting local steps aside");
}

}  // namespace cairn
