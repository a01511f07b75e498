// The sidecar of one archived member: a JSON file beside its tar, there only once the tar was proven.
//
//   STORE/RUN-step-00000040.9f8e7d6c.tar        RUN/step-00000040/{manifest.json, shards, index.h5,
//                                               SHA256SUMS}
//   STORE/RUN-step-00000040.9f8e7d6c.tar.json   this: what is in it and where, so that nothing is recalled to
//                                               list it, and one tensor is read without the rest
//   STORE/RUN-step-00000040.9f8e7d6c.tar.2      its next piece, where one file is too small (tar_pieces.h)
//   STORE/RUN-step-00000040.fp16.0a1b2c3d.tar   the same step's weights alone
//   STORE/bloom-step-00000002.files.77aa.tar    files that are no native step: another system's, or anything
//   STORE/RUN-bundle-00000040-00000900.5b6c.tar the entries of several members in one tar; its sidecar holds
//   all
//                                               their records (bundle.h)
//
// The eight digits are the first of the content's digest, so that a name stands for one content. The entry
// carries its own digest, like a manifest; any changed byte is caught.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/manifest.h"

namespace cairn {

inline constexpr std::string_view kTarSuffix = ".tar";
inline constexpr std::string_view kRecordSuffix = ".tar.json";
inline constexpr std::string_view kParitySuffix = ".parity";  // behind the tar's name
inline constexpr std::string_view kPartialSuffix =
    ".partial";  // behind the name of a file that is being written
inline constexpr std::string_view kSumsName = "SHA256SUMS";  // last entry of the tar
inline constexpr uint64_t kMaxRecordBytes = 64 << 20;

enum class Form {
  kFull,     // a native step, every file of it
  kWeights,  // a native step that was stripped to its weights on the way
  kFiles,    // a tree of files, whatever they are
};
std::string_view Name(Form form);  // "full", "weights-fp16", "files"

struct ArchivedFile {
  std::string name;  // within the step; of a tree, a path like "rank0/optim.pt"
  uint64_t bytes = 0;
  std::string sha256;         // of the file as it was and will be again; 64 hex digits
  uint64_t offset = 0;        // in the tar, of what is stored
  uint64_t stored_bytes = 0;  // differs from `bytes` where the file is packed (packed_file.h)
  bool packed = false;
  bool operator==(const ArchivedFile&) const = default;
};

// "shard-00000.h5", or "shard-00000.h5.planes.zst" where it is packed: the name in the tar.
std::string StoredName(const ArchivedFile& file);
inline constexpr std::string_view kPackedSuffix = ".planes.zst";

// Blocks beside the tar that repair it (tar_parity.h).
struct ArchivedParity {
  std::string name;  // of the file in the store; empty: none
  uint64_t bytes = 0;
  bool operator==(const ArchivedParity&) const = default;
};

struct ArchiveRecord {
  std::string name;  // of the run: its directory's name when it was archived
  std::string run;   // identity of the training run, as in the manifest
  int64_t step = 0;
  std::string directory;  // of the entries in the tar: "RUN/step-00000040", of a tree "RUN/global_step40"
  int64_t tokens = 0;     // consumed so far
  int64_t saved_unix_seconds = 0;  // when the source was written
  Form form = Form::kFull;
  std::string manifest_digest;  // 32 hex digits; names the content. Of a tree: of its names, sizes and times
  std::string derived_from;     // of weights: the manifest digest of the step that they were taken from
  std::string source;           // the step's directory, absolute, for people
  uint64_t tar_bytes = 0;       // in a bundle: of its entries there
  std::vector<uint64_t> pieces = {};  // bytes of each file of the tar (tar_pieces.h); empty: it is one
  std::string bundle;                 // the tar that it lies in with others; empty: one of its own
  uint64_t bundle_offset = 0;  // of its first header there; the files' offsets count from the tar's begin too
  int64_t verified_unix_seconds = 0;  // when the tar was read back and proven
  ArchivedParity parity;
  std::vector<ArchivedFile> files;  // manifest.json first, then as in the manifest
  bool operator==(const ArchiveRecord&) const = default;
};

// Identity and name of a step that comes from run directory `name`; no files yet.
ArchiveRecord RecordOf(const Manifest& manifest, std::string name);

// "RUN-step-00000040.9f8e7d6c.tar", with ".fp16" or ".files" before the digits for the other forms
std::string TarName(const ArchiveRecord& record);
// The file in the store that it lies in: its own tar, or its bundle.
std::string FileOf(const ArchiveRecord& record);
// What such a name tells; nothing for any other.
struct TarNameParts {
  std::string run;
  int64_t step = 0;
  Form form = Form::kFull;
  bool operator==(const TarNameParts&) const = default;
};
std::optional<TarNameParts> ParseTarName(std::string_view name);

// The entry of the tar that Sha256Sums() goes into: kSumsName, unless the member has a file of that name.
std::string SumsName(const ArchiveRecord& record);
// What `sha256sum -c` takes.
std::string Sha256Sums(const ArchiveRecord& record);

std::string EncodeRecord(const ArchiveRecord& record);
// Errors: Corrupt, NotSupported (version). The caller adds the path.
Result<ArchiveRecord> DecodeRecord(std::string_view text);

}  // namespace cairn
