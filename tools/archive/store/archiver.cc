// Archive opens the source, looks for its content in the store, and stores it only if it is missing. An
// existing copy is proven again only if the source will be removed: a deletion needs a proof of this process,
// not one on record. Therefore the step that stays is looked for first. Weights are stripped into a staging
// directory inside the store, which is always removed again, and are stored from there like any other step.

#include "tools/archive/store/archiver.h"

#include <chrono>

#include "ckpt/base/canonical_path.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/committer.h"
#include "ckpt/run/tokenizer_files.h"
#include "convert/verbs/strip.h"
#include "tools/archive/store/delete.h"
#include "tools/archive/store/ledger.h"
#include "tools/archive/store/leftovers.h"
#include "tools/archive/tar/recall.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {
namespace {

struct Opened {
  std::unique_ptr<StepReader> step;  // null of a tree
  ArchiveRecord record;
};

Result<Opened> Open(FileSystem& fs, const ArchiveRequest& request) {
  Opened opened;
  const std::string& path = request.source.path;
  if (!request.source.native) {
    if (request.weights)
      return InvalidArgument("{}: weights can be taken only from native steps; convert it first", path);
    CAIRN_RETURN_IF_ERROR(ListTree(fs, path, request.links).status());
    opened.record = NameTree(fs, path);  // the rest depends on its bytes
    return opened;
  }
  CAIRN_ASSIGN_OR_RETURN(opened.step, StepReader::Open(fs, path));
  opened.record = DescribeSource(*opened.step);
  return opened;
}

Result<std::optional<ArchiveRecord>> Find(const Store& store, const ArchiveRequest& request,
                                          const ArchiveRecord& record) {
  if (request.weights)
    return FindSound(
        store, [&](const ArchiveRecord& there) { return there.derived_from == record.manifest_digest; });
  if (request.source.native) return FindStored(store, record);
  if (!store.IsThere()) return std::optional<ArchiveRecord>();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveMember> members, ListSound(store));
  return FindTree(store.fs(), members, request.source.path, request.links);
}

// Whether the store has the source: the stored record, or the known part of the new one.
Result<ArchiveOutcome> OutcomeOf(const Store& store, const ArchiveRequest& request, const Opened& opened) {
  CAIRN_ASSIGN_OR_RETURN(const auto stored, Find(store, request, opened.record));
  return ArchiveOutcome{.record = stored.value_or(opened.record), .stored = !stored};
}

Result<ProvenCopy> StoreOpened(const Store& store, const ArchiveRequest& request, const Opened& opened,
                               const StoreOptions& options, const ByteProgress& progress) {
  if (request.weights) return StoreWeights(store, *opened.step, opened.record, progress, options);
  if (opened.step) return StoreStep(store, *opened.step, progress, options);
  return StoreTree(store, request.source.path, progress, options, request.links);
}

// Removes a record of damage to a member from the ledger.
void NoteProven(const Store& store, const ArchiveRecord& record) {
  if (!store.fs().Stat(store.Path(kLedgerName)).ok()) return;
  if (Result<Ledger> ledger = Ledger::Open(store); ledger.ok())
    (void)ledger->SetScrub(record, {record.verified_unix_seconds, ""});
}

}  // namespace

Result<ProvenCopy> StoreWeights(const Store& store, StepReader& step, const ArchiveRecord& whole,
                                const ByteProgress& progress, const StoreOptions& options) {
  FileSystem& fs = store.fs();
  StripOptions strip{.dtype = Dtype::kF16, .format = FindSystem("native")};
  strip.command = "cairn archive run";
  CAIRN_ASSIGN_OR_RETURN(strip.writer.beside, TokenizerOf(fs, step.directory()));
  CAIRN_ASSIGN_OR_RETURN(const Transfer transfer, PlanStrip(step, strip));
  CAIRN_ASSIGN_OR_RETURN(
      const PartialDir staging,  // always removed again
      PartialDir::MakeFor(fs, store.Path(kStagingName),
                          RunOfOneStep(step.manifest().step, NamesInStep(strip.writer.beside))));
  CAIRN_ASSIGN_OR_RETURN(const TransferResult stripped, transfer.Run(fs, staging.path()));
  if (stripped.overflowed)
    return Corrupt("{}: some weights are beyond the range of fp16; keep this step in full", step.directory());
  CAIRN_ASSIGN_OR_RETURN(const auto weights, StepReader::Open(fs, stripped.path));
  ArchiveRecord record = RecordOf(weights->manifest(), whole.name);
  record.form = Form::kWeights;
  record.run = whole.run;
  record.healthy = whole.healthy;
  record.derived_from = whole.manifest_digest;
  record.source = whole.source;
  record.saved_unix_seconds = whole.saved_unix_seconds;
  if (const auto manifest = fs.Stat(JoinPath(step.directory(), kManifestName)); manifest.ok())
    record.saved_unix_seconds = manifest->modified_unix_seconds;
  return StoreStep(store, *weights, progress, options, std::move(record));
}

Result<ProvenCopy> PutIntoStore(const Store& store, const ArchiveRequest& request,
                                const StoreOptions& options, const ByteProgress& progress) {
  CAIRN_ASSIGN_OR_RETURN(const Opened opened, Open(store.fs(), request));
  return StoreOpened(store, request, opened, options, progress);
}

Result<ArchiveOutcome> LookUp(const Store& store, const ArchiveRequest& request) {
  if (std::string why = WhyPassedOver(store.fs(), request.source); !why.empty())
    return ArchiveOutcome{.record = NameTree(store.fs(), request.source.path), .passed_over = std::move(why)};
  CAIRN_ASSIGN_OR_RETURN(const Opened opened, Open(store.fs(), request));
  return OutcomeOf(store, request, opened);
}

Result<ArchiveOutcome> Archive(const Store& store, const ArchiveRequest& request, const StoreOptions& options,
                               const ByteProgress& progress) {
  const auto start = std::chrono::steady_clock::now();
  if (std::string why = WhyPassedOver(store.fs(), request.source); !why.empty())
    return ArchiveOutcome{.record = NameTree(store.fs(), request.source.path), .passed_over = std::move(why)};
  CAIRN_ASSIGN_OR_RETURN(const Opened opened, Open(store.fs(), request));
  CAIRN_ASSIGN_OR_RETURN(ArchiveOutcome outcome, OutcomeOf(store, request, opened));
  const bool there = !outcome.stored;
  if (there && request.stored) CAIRN_RETURN_IF_ERROR(request.stored(TarName(outcome.record)));
  std::shared_ptr<const DeletionProof> stays;
  if (request.delete_source && request.find_proof) {
    Result<std::shared_ptr<const DeletionProof>> found = request.find_proof(request.source.path);
    outcome.kept = found.status();
    outcome.newest = outcome.kept.kind() == StatusKind::kInvalidArgument;
    if (found.ok()) stays = *std::move(found);
  }
  const bool deletes = request.delete_source && outcome.kept.ok();
  if (!there || deletes) {
    // An old copy is proven again before its source is removed. A copy on tape is not read for that.
    if (there) CAIRN_RETURN_IF_ERROR(CheckOnDisk(store.fs(), FilesOf(store.Place(outcome.record))));
    CAIRN_ASSIGN_OR_RETURN(const ProvenCopy copy,
                           there ? ProveMember(store, outcome.record, progress)
                                 : StoreOpened(store, request, opened, options, progress));
    outcome.record = copy.record();
    NoteProven(store, copy.record());
    if (deletes) {
      outcome.removed = CanonicalPath(request.source.path);
      outcome.kept = DeleteSource(store, request.source.path, copy, request.delete_newest, stays.get());
      outcome.deleted = outcome.kept.ok();
    }
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

}  // namespace cairn
