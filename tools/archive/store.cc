#include "tools/archive/store.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "ckpt/layout.h"
#include "unpack_text.h"

namespace cairn {
namespace {

constexpr std::string_view kReadmeName = "README.txt";
constexpr std::string_view kUnpackName = "unpack.py";
constexpr std::string_view kReadme = R"(What lies here, and how to get it back without Cairn
====================================================

Each RUN-step-NNNNNNNN.XXXXXXXX.tar is one checkpoint of a training run: a plain POSIX (pax) tar of ordinary files, not
encrypted. RUN-step-NNNNNNNN.fp16.XXXXXXXX.tar holds the weights of that checkpoint alone, as fp16;
RUN-step-NNNNNNNN.files.XXXXXXXX.tar any other files. Beside each, .tar.json tells what is in it and where, and that it
was read back and proven after it was written; .tar.parity, where there is one, repairs it. A .tar without a .tar.json was
never proven. ledger.sqlite is made from all those and may be deleted.

With Cairn:
  cairn archive ls .
  cairn archive verify .
  cairn archive restore .:RUN@STEP DESTINATION

Without:
  tar -xf RUN-step-NNNNNNNN.XXXXXXXX.tar        makes RUN/step-NNNNNNNN/
  python3 unpack.py RUN/step-NNNNNNNN           only where it has files named *.planes.zst; needs zstd and numpy
  cd RUN/step-NNNNNNNN && sha256sum -c SHA256SUMS

unpack.py says how packed files are made, in a few lines; they are zstd frames, so `zstd -t` checks them.
manifest.json is JSON text. index.h5 shows every tensor whole to any HDF5 program, by way of the shard-*.h5 beside it:
  python3 -c 'import h5py; h5py.File("index.h5")["weight"].visititems(lambda name, data: print(name, data))'
h5py reads bfloat16 tensors as float32.
)";

Status WriteWhereOther(FileSystem& fs, const std::string& path, std::string_view text) {
  const Result<std::string> there = ReadSmallFile(fs, path, 1 << 20);
  if (there.ok() && *there == text) return OkStatus();
  const std::string next = fmt::format("{}{}", path, kPartialSuffix);
  if (fs.Stat(next).ok()) CAIRN_RETURN_IF_ERROR(fs.RemoveFile(next));
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, next, text));
  return fs.Rename(next, path);
}

std::string RecordName(const std::string& tar) { return tar + ".json"; }

ArchiveMember Describe(FileSystem& fs, const std::string& store, const std::string& tar,
                       const TarNameParts& parts) {
  ArchiveMember member{
      .run = parts.run, .step = parts.step, .form = parts.form, .tar = tar, .trouble = {}, .record = {}};
  const auto damaged = [&](std::string why) {
    member.state = MemberState::kDamaged;
    member.trouble = std::move(why);
    return member;
  };
  const Result<FileInfo> info = fs.Stat(JoinPath(store, tar));
  if (info.ok()) member.bytes = info->bytes;
  Result<ArchiveRecord> record = ReadRecord(fs, store, tar);
  if (!record.ok())
    return record.status().kind() == StatusKind::kNotFound ? member : damaged(record.status().message());
  member.record = std::move(record).value();
  if (!info.ok()) return damaged("the tar is missing");
  if (info->bytes != member.record->tar_bytes)
    return damaged(
        fmt::format("the tar has {} bytes, the ledger says {}", info->bytes, member.record->tar_bytes));
  member.state = MemberState::kVerified;
  return member;
}

// RUN@STEP, taken apart; no step: any.
struct Selector {
  std::string text;
  std::string run;
  std::optional<int64_t> step;

  bool Fits(const ArchiveMember& member) const {
    if (text.empty() || text == member.tar) return true;
    return run == member.run && (!step || *step == member.step);
  }
};

Result<Selector> ParseSelector(const std::string& text) {
  Selector selector{text, text, std::nullopt};
  const size_t at = text.rfind('@');
  if (at == text.npos) return selector;
  int64_t step = -1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + at + 1, end, step);
  if (error != std::errc() || stop != end || step < 0)
    return InvalidArgument("'{}' names no archived step; write RUN@STEP, for example gpt@5000", text);
  selector.run = text.substr(0, at);
  selector.step = step;
  return selector;
}

std::string ListNames(const std::vector<ArchiveMember>& members) {
  std::string names;
  for (const ArchiveMember& member : members)
    names += fmt::format("{}{}@{} ({})", names.empty() ? "" : ", ", member.run, member.step, member.tar);
  return names;
}

}  // namespace

std::string_view Name(MemberState state) {
  constexpr std::string_view kNames[] = {"stored", "verified", "damaged"};
  return kNames[static_cast<int>(state)];
}

Result<std::vector<std::string>> ListTars(FileSystem& fs, const std::string& store) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(store));
  std::set<std::string> tars;  // of a tar that is missing, the ledger entry is left
  for (std::string name : names) {
    if (name.ends_with(kRecordSuffix)) name.resize(name.size() - kRecordSuffix.size() + kTarSuffix.size());
    if (ParseTarName(name)) tars.insert(name);
  }
  return std::vector<std::string>(tars.begin(), tars.end());
}

ArchiveMember DescribeMember(FileSystem& fs, const std::string& store, const std::string& tar) {
  return Describe(fs, store, tar, ParseTarName(tar).value_or(TarNameParts{}));
}

Result<std::vector<ArchiveMember>> ListStore(FileSystem& fs, const std::string& store) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> tars, ListTars(fs, store));
  std::vector<ArchiveMember> members;
  for (const std::string& tar : tars) members.push_back(DescribeMember(fs, store, tar));
  std::ranges::stable_sort(members, {},
                           [](const ArchiveMember& m) { return std::tie(m.run, m.step, m.form); });
  return members;
}

Result<ArchiveMember> FindMember(FileSystem& fs, const std::string& store, const std::string& text) {
  CAIRN_ASSIGN_OR_RETURN(const Selector selector, ParseSelector(text));
  CAIRN_ASSIGN_OR_RETURN(std::vector<ArchiveMember> members, ListStore(fs, store));
  if (members.empty()) return NotFound("{}: no archived step here; is it the store?", store);
  std::vector<ArchiveMember> fits;
  for (const ArchiveMember& member : members)
    if (selector.Fits(member)) fits.push_back(member);
  if (fits.empty()) return NotFound("{}: no '{}'; there are {}", store, text, ListNames(members));
  if (fits.front().run != fits.back().run)
    return InvalidArgument("{}: several runs; name one of {}", store, ListNames(fits));
  std::erase_if(fits, [step = fits.back().step](const ArchiveMember& m) { return m.step != step; });
  const ArchiveMember& best = fits.front();  // of the newest step, the fullest form
  if (fits.size() > 1 && fits[1].form == best.form)
    return InvalidArgument("{}: several saves of one step; name the tar, one of {}", store, ListNames(fits));
  return best;
}

MemberName SplitMemberName(FileSystem& fs, const std::string& argument) {
  const size_t colon = argument.rfind(':');
  if (colon == argument.npos || colon == 0 || fs.Stat(argument).ok()) return {argument, ""};
  return {argument.substr(0, colon), argument.substr(colon + 1)};
}

Result<ArchiveRecord> ReadRecord(FileSystem& fs, const std::string& store, const std::string& tar) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text,
                         ReadSmallFile(fs, JoinPath(store, RecordName(tar)), kMaxRecordBytes));
  Result<ArchiveRecord> record = DecodeRecord(text);
  if (!record.ok()) return record.status().WithContext(RecordName(tar));
  if (TarName(*record) != tar) return Corrupt("its ledger entry belongs to another tar");
  return record;
}

Status WriteStoreReadme(FileSystem& fs, const std::string& store) {
  CAIRN_RETURN_IF_ERROR(WriteWhereOther(fs, JoinPath(store, kUnpackName), kUnpackText));
  return WriteWhereOther(fs, JoinPath(store, kReadmeName), kReadme);
}

Result<RunLock> LockStore(const std::string& store) {
  Result<RunLock> lock = RunLock::Take(store);
  if (!lock.ok() && lock.status().kind() == StatusKind::kAlreadyExists)
    return AlreadyExists("{}: another cairn archive is writing into this store; wait until it is done",
                         store);
  return lock;
}

}  // namespace cairn
