// The sidecar of one archived member: a JSON file beside its tar, there only once the tar was proven.
//
//   STORE/RUN-step-00000040.9f8e7d6c.tar        RUN/step-00000040/{manifest.json, shards, index.h5,
//                                               SHA256SUMS}
//   STORE/RUN-step-00000040.9f8e7d6c.tar.json   this: what is in it and if, so that nothing is recalled to
//                                               list it, and one tensor is read without the rest
//   STORE/RUN-step-00000040.9f8e7d6c.tar.2      its next piece, where one file is too small (tar_pieces.h)
//   STORE/RUN-step-00000040.fp16.0a1b2c3d.tar   the same step's weights alone
//   STORE/bloom-step-00000002.files.77aa.tar    files that are not native step: another system's, or anything
//   STORE/RUN-bundle-00000040-00000900.5b6c.tar the entries of several members in one tar; its sidecar holds
//   all
//                                               their records (bundle.h)
//
// The eight digits are the first of the content's digest, so that a name stands for one content. The entry
// carries its own digest, like a manifest; any changed byte is caught.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/io/replace_file.h"
#include "ckpt/model/manifest.h"

namespace cairn {

inline constexpr std::string_view kTarSuffix = ".tar";
inline constexpr size_t kTarDigestDigits =
    8;  // before the suffix: of the manifest's digest, or of a bundle's names
inline constexpr std::string_view kRecordSuffix = ".tar.json";
inline constexpr std::string_view kParitySuffix = ".parity";  // behind the tar's name
inline constexpr uint64_t kMaxRecordBytes = 512 << 20;

enum class Form {
  kFull,     // a native step, every file of it
  kWeights,  // a native step that was stripped to its weights on the way
  kFiles,    // a tree of files, whatever they are
};
std::string_view Name(Form form);  // "full", "weights-fp16", "files"

enum class EntryKind { kFile, kDirectory, kLink };

// What an entry of a tree has besides its content.
struct EntryFacts {
  uint32_t mode = 0644;  // permission bits, 07777 at most
  uint32_t user = 0, group = 0;
  int64_t modified_unix_seconds = 0;
  uint32_t modified_nanoseconds = 0;  // 0 before 1970
  bool operator==(const EntryFacts&) const = default;
};

struct ArchivedFile {
  std::string name;  // within the step; of a tree, a path like "rank0/optim.pt"
  uint64_t bytes = 0;
  std::string sha256;         // of the file as it was and will be again; 64 hex digits
  uint64_t offset = 0;        // in the tar, of what is stored
  uint64_t stored_bytes = 0;  // differs from `bytes` where the file is packed (packed_file.h)
  bool packed = false;
  EntryFacts facts = {};  // of a tree's (ArchivedTree)
  bool operator==(const ArchivedFile&) const = default;
};

// A directory or a link of a tree.
struct ArchivedEntry {
  std::string name;  // a path like that of a file; empty: the tree's own directory
  EntryKind kind = EntryKind::kDirectory;
  std::string target = {};  // of a link, as it says it
  EntryFacts facts = {};
  bool operator==(const ArchivedEntry&) const = default;
};

// What a tree has besides its files' bytes.
struct ArchivedTree {
  bool followed_links = false;  // links that lead out of it were stored as what they lead to
  std::vector<ArchivedEntry> entries = {};
  bool operator==(const ArchivedTree&) const = default;
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
  std::string manifest_digest;        // 32 hex digits; names the content. Of a tree: TreeDigest (tree.h)
  std::string derived_from;           // of weights: the manifest digest of the step that they were taken from
  std::string source;                 // the step's directory, absolute; of a tree, a part of what it is
  uint64_t tar_bytes = 0;             // in a bundle: of its entries there
  std::vector<uint64_t> pieces = {};  // bytes of each file of the tar (tar_pieces.h); empty: it is one
  std::string bundle;                 // the tar that it lies in with others; empty: one of its own
  uint64_t bundle_offset = 0;  // of its first header there; the files' offsets count from the tar's begin too
  int64_t verified_unix_seconds = 0;  // when the tar was read back and proven
  ArchivedParity parity;
  bool healthy = true;  // as the step's own manifest says (health.h); unknown counts as healthy
  std::vector<int64_t> branches = {};  // as the step's own manifest says (ckpt/run/branch.h)
  // Who asked for it (claims.h), sorted; empty in stores of older versions: nobody knows.
  std::vector<std::string> claims = {};
  std::vector<ArchivedFile> files;  // manifest.json first, then as in the manifest
  // For a tree. Absent of one that a program before version 4 stored: its digest is of names, sizes and
  // times.
  std::optional<ArchivedTree> tree = {};
  bool operator==(const ArchiveRecord&) const = default;
};

// Identity and name of a step that comes from run directory `name`; no files yet.
ArchiveRecord RecordOf(const Manifest& manifest, std::string name);

// "RUN-step-00000040.9f8e7d6c.tar", with ".fp16" or ".files" before the digits for the other forms
std::string TarName(const ArchiveRecord& record);
// The file in the store that it lies in: its own tar, or its bundle.
std::string FileOf(const ArchiveRecord& record);
// The manifest digest of the step that is stored, or whose weights are.
const std::string& ContentOf(const ArchiveRecord& record);

// What stands before ".9f8e7d6c.tar" in the name of a tar or a bundle.
std::optional<std::string_view> StemOfTar(std::string_view name);
// The parts of a tar's name.
struct TarNameParts {
  std::string run;
  int64_t step = 0;
  Form form = Form::kFull;
  bool operator==(const TarNameParts&) const = default;
};
std::optional<TarNameParts> ParseTarName(std::string_view name);
// Digits alone, as in such names.
std::optional<int64_t> ParseStepNumber(std::string_view digits);

// Names may have any bytes, text must be UTF-8: "\\" for a backslash, "\xff" for a byte that is not a part of
// valid UTF-8, the rest as it is. So stand names, link targets and paths of trees in sidecars of version 4,
// and the path of a step in those of version 7.
std::string EscapeName(std::string_view name);
// The name that EscapeName() made this of. Errors: Corrupt.
Result<std::string> UnescapeName(std::string_view text);

// The entry of the tar that Sha256Sums() goes into: kSha256SumsName, or the first of that name with ".cairn"
// behind it that the member has no entry of.
std::string SumsName(const ArchiveRecord& record);
// What `sha256sum -c` takes: names with a backslash or line break are escaped as sha256sum does. Of a tree a
// comment comes first, with the path that it had and what became of links.
std::string Sha256Sums(const ArchiveRecord& record);
// Enters into the record what Sha256Sums() told: every file's SHA-256, a tree's path. Errors: Corrupt naming
// a file that is missing there.
Status TakeSha256Sums(std::string_view text, ArchiveRecord& record);

// The text of a sidecar: JSON that carries its own digest, so that any changed byte is caught.
std::string SignedSidecarText(nlohmann::json root);
std::string SidecarText(const nlohmann::json& value);  // one text for one value, without a digest

std::string EncodeRecord(const ArchiveRecord& record);
// Errors: Corrupt, NotSupported (version). The caller adds the path.
Result<ArchiveRecord> DecodeRecord(std::string_view text);

}  // namespace cairn
