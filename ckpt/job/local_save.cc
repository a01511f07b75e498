#include "ckpt/job/local_save.h"

#include <algorithm>

#include "ckpt/base/byte_codec.h"
#include "ckpt/job/peer_file_system.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/manifest.h"

namespace cairn {
LocalSave::LocalSave(FileSystem& fs, const LocalPlace& place, JobRanks& ranks, PeerFiles& peers,
                     StepIdentity identity, const std::string& nonce)
    : fs_(fs),
      place_(place),
      ranks_(ranks),
      peers_(peers),
      identity_(std::move(identity)),
      committer_(fs, place.run_dir, identity_.step, nonce) {}

// Enters each collective even if an earlier one failed: ranks stay in step.
Status LocalSave::Commit(const Result<SavePart>& part, Offers offers, const JobSave::Sealer& seal) {
  const Result<StepSeal> sealed = Seal(part, offers, seal);
  Status status = Agree(ranks_, WriteShare(sealed, offers), "local save");
  if (status.ok()) status = Agree(ranks_, place_.leader ? committer_.Publish() : OkStatus(), "local commit");
  if (!status.ok() && place_.leader) committer_.Abandon();
  return status;
}

// Rank 0 makes the seal of all parts; every rank gets it.
Result<StepSeal> LocalSave::Seal(const Result<SavePart>& part, Offers& offers, const JobSave::Sealer& seal) {
  Result<std::vector<SavePart>> parts = GatherParts(messages_, part);
  std::string bytes;
  const auto make = [&]() -> Status {
    CAIRN_RETURN_IF_ERROR(parts.status());
    if (ranks_.rank() != 0) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const StepSeal made, seal(*parts));
    ByteWriter out;
    out.Put(static_cast<uint64_t>(made.index.size()));
    out.PutRaw(made.index);
    out.PutRaw(made.manifest);
    bytes = std::move(out).Take();
    return OkStatus();
  };
  const Status status = offers.sealer_reads ? peers_.Session(std::move(offers.contents), make) : make();
  const auto told = FromRoot(ranks_, "local seal", [&]() -> Result<std::string> {
    CAIRN_RETURN_IF_ERROR(status);
    return std::move(bytes);
  });
  CAIRN_RETURN_IF_ERROR(told.status());
  CAIRN_RETURN_IF_ERROR(status);
  ByteReader in(*told);
  StepSeal sealed;
  sealed.index = in.GetRaw(in.Get<uint64_t>());
  sealed.manifest = in.GetRaw(in.left());
  return sealed;
}

Status LocalSave::WriteShare(const Result<StepSeal>& seal, Offers& offers) {
  const auto work = [&]() -> Status {
    CAIRN_RETURN_IF_ERROR(seal.status());
    CAIRN_ASSIGN_OR_RETURN(const Manifest manifest, DecodeManifest(seal->manifest));
    CAIRN_RETURN_IF_ERROR(CopyFurtherShards(manifest));
    return WriteParityOf(manifest, offers.spare);
  };
  Status status = seal.status();
  if (status.ok() && place_.leader) status = committer_.Seal(*seal);
  const Status shared = peers_.Session(std::move(offers.files), work);
  return status.ok() ? shared : status;
}

// Each directory gets those that are of no rank: they are small, and parity does not cover them.
Status LocalSave::CopyFurtherShards(const Manifest& manifest) {
  if (!place_.leader || ranks_.rank() == 0) return OkStatus();
  for (const ManifestFile& file : manifest.files) {
    if (WriterOf(file.name) >= ranks_.size())
      CAIRN_RETURN_IF_ERROR(CopyPeerFile(peers_, /*rank=*/0, file.name, file.bytes, fs_,
                                         JoinPath(committer_.partial(), file.name)));
  }
  return OkStatus();
}

Status LocalSave::WriteParityOf(const Manifest& manifest,
                                const std::function<std::string(uint64_t bytes)>& spare) {
  if (place_.group.empty()) return OkStatus();
  std::vector<ParityGroup::Member> members;
  std::map<std::string, int> rank_of;
  for (const int rank : place_.group) {
    const auto file = std::ranges::find(manifest.files, ShardName(rank), &ManifestFile::name);
    members.push_back({ShardName(rank), file == manifest.files.end() ? 0 : file->bytes});
    rank_of.emplace(ShardName(rank), rank);
  }
  CAIRN_ASSIGN_OR_RETURN(const ParityGroup group,
                         ParityGroup::Make(identity_, std::move(members), place_.parity));
  const int rank = ranks_.rank();
  const auto own = static_cast<int>(std::ranges::find(place_.group, rank) - place_.group.begin());
  return WriteParity(fs_, JoinPath(committer_.partial(), ParityName(rank)), group, own,
                     FilesOf(group, rank_of, peers_), spare ? spare(group.parity_file_bytes()) : "");
}

std::vector<int64_t> LocalStepsToRetire(const std::vector<StepFacts>& steps, int64_t keep_last) {
  std::vector<int64_t> retire;
  int64_t healthy = 0;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const bool evidence = step->current() && !step->unhealthy.empty() && healthy == 0;
    const bool counts = step->current() && step->unhealthy.empty() && healthy++ < keep_last;
    if (!counts && !evidence) retire.push_back(step->step);
  }
  std::ranges::reverse(retire);
  return retire;
}

Status RetireLocalSteps(FileSystem& fs, const LocalPlace& place, const std::string& nonce,
                        const std::function<bool(int64_t step)>& in_use, const Complain& left) {
  if (!place.leader) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const RunSteps run, ReadRunSteps(fs, place.run_dir));
  for (const int64_t step : LocalStepsToRetire(run.steps, place.keep_last)) {
    if (in_use(step)) continue;
    const Status retired = RetireStep(fs, place.run_dir, StepDirName(step), nonce, Shards::kSpread);
    if (!retired.ok()) left(retired);
  }
  return RemoveSuperseded(fs, place.run_dir, nonce, Shards::kSpread, left);
}

}  // namespace cairn
