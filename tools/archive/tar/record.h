// The sidecar of one archived member: a JSON file next to its tar, written only once the tar was proven.
//
//   STORE/RUN-step-00000040.9f8e7d6c.tar        RUN/step-00000040/{manifest.json, shards, index.h5,
//                                               SHA256SUMS}
//   STORE/RUN-step-00000040.9f8e7d6c.tar.json   this: entries of the tar and where they lie, so a listing
//                                               recalls nothing, and one tensor can be read
//   STORE/RUN-step-00000040.9f8e7d6c.tar.2      its next piece, if one file is too small (tar_pieces.h)
//   STORE/RUN-step-00000040.fp16.0a1b2c3d.tar   only the same step's weights
//   STORE/bloom-step-00000002.files.77aa.tar    files that are not a native step: another system's, or any
//   STORE/RUN-bundle-00000040-00000900.5b6c.tar the entries of several members; its sidecar holds all their
//                                               records (bundle.h)
//
// The eight digits are the first of the content's digest, so a name identifies its content. The sidecar
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

inline constexpr uint64_t kTarBlockBytes = 512;
// `bytes` in whole blocks.
constexpr uint64_t TarBlocksBytes(uint64_t bytes) {
  return (bytes + kTarBlockBytes - 1) / kTarBlockBytes * kTarBlockBytes;
}

inline constexpr std::string_view kTarSuffix = ".tar";
inline constexpr size_t kTarDigestDigits = 8;  // before the suffix
inline constexpr std::string_view kRecordSuffix = ".tar.json";
inline constexpr std::string_view kParitySuffix = ".parity";  // after the tar's name
inline constexpr uint64_t kMaxRecordBytes = 512 << 20;

enum class Form {
  kFull,     // a native step, every file of it
  kWeights,  // a native step stripped to its weights
  kFiles,    // a tree of any files
};
std::string_view Name(Form form);  // "full", "weights-fp16", "files"

enum class EntryKind { kFile, kDirectory, kLink };

// The metadata of an entry of a tree.
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
  std::string sha256 = {};    // of the unpacked file; 64 hex digits
  uint64_t offset = 0;        // in the tar, of the stored bytes
  uint64_t stored_bytes = 0;  // differs from `bytes` if the file is packed (packed_file.h)
  bool packed = false;
  EntryFacts facts = {};  // of a tree's (ArchivedTree)
  bool operator==(const ArchivedFile&) const = default;
};

// A directory or a link of a tree.
struct ArchivedEntry {
  std::string name;  // a path like that of a file; empty: the tree's own directory
  EntryKind kind = EntryKind::kDirectory;
  std::string target = {};  // of a link
  EntryFacts facts = {};
  bool operator==(const ArchivedEntry&) const = default;
};

// Directories and links of a tree.
struct ArchivedTree {
  bool followed_links = false;  // links that lead out of it were stored as their targets
  std::vector<ArchivedEntry> entries = {};
  bool operator==(const ArchivedTree&) const = default;
};

// The name in the tar: "shard-00000.h5", or "shard-00000.h5.planes.zst" if it is packed.
std::string StoredName(const ArchivedFile& file);
inline constexpr std::string_view kPackedSuffix = ".planes.zst";

// Blocks next to the tar that repair it (tar_parity.h).
struct ArchivedParity {
  std::string name;  // of the file in the store; empty: none
  uint64_t bytes = 0;
  bool operator==(const ArchivedParity&) const = default;
};

struct ArchiveRecord {
  std::string name;  // of the run: its directory's name when it was archived
  std::string run;   // identity of the training run, as in the manifest
  int64_t step = 0;
  std::string directory;           // of the entries: "RUN/step-00000040", of a tree "RUN/global_step40"
  int64_t tokens = 0;              // consumed so far
  int64_t saved_unix_seconds = 0;  // when the source was written
  Form form = Form::kFull;
  std::string manifest_digest;        // 32 hex digits; names the content. Of a tree: TreeDigest (tree.h)
  std::string derived_from = {};      // of weights: the manifest digest of their step
  std::string source = {};            // its directory, absolute; a part of a tree's identity
  uint64_t tar_bytes = 0;             // in a bundle: of its entries there
  std::vector<uint64_t> pieces = {};  // bytes of each file of the tar (tar_pieces.h); empty: it is one
  std::string bundle = {};            // that holds it; empty: it has a tar of its own
  uint64_t bundle_offset = 0;  // of its first header in it; files' offsets count from the bundle's start
  int64_t verified_unix_seconds = 0;  // when the tar was read back and proven
  ArchivedParity parity = {};
  bool healthy = true;   // by the step's manifest (health.h); unknown counts as healthy
  Descent descent = {};  // by the step's manifest (ckpt/run/branch.h), without the origin
  // Who asked for it (claims.h), sorted; empty if unknown, in stores of older versions.
  std::vector<std::string> claims = {};
  std::vector<ArchivedFile> files = {};  // manifest.json first, then as in the manifest
  // For a tree. Missing if a program before version 4 stored it: then its digest covers names, sizes and
  // times.
  std::optional<ArchivedTree> tree = {};
  bool operator==(const ArchiveRecord&) const = default;
};

// The record of a step from run directory `name`, without files.
ArchiveRecord RecordOf(const Manifest& manifest, std::string name);

// "RUN-step-00000040.9f8e7d6c.tar", with ".fp16" or ".files" before the digits for the other forms
std::string TarName(const ArchiveRecord& record);
// The file in the store that holds it: its own tar, or its bundle.
std::string FileOf(const ArchiveRecord& record);
// The manifest digest of the step that is stored, or whose weights are.
const std::string& ContentOf(const ArchiveRecord& record);

// The part before ".9f8e7d6c.tar" in the name of a tar or a bundle.
std::optional<std::string_view> StemOfTar(std::string_view name);
// The parts of a tar's name.
struct TarNameParts {
  std::string run;
  int64_t step = 0;
  Form form = Form::kFull;
  bool operator==(const TarNameParts&) const = default;
};
std::optional<TarNameParts> ParseTarName(std::string_view name);

// "X.tar", 3 -> "X.tar.3"; 1: itself. The suffix of a file that is being written stays at the end.
std::string TarPieceName(std::string_view tar, size_t number);
// The parts of the name of any piece but the first; nullopt for any other name.
struct TarPieceParts {
  std::string tar;
  size_t number = 0;
};
std::optional<TarPieceParts> ParseTarPieceName(std::string_view name);

std::string EncodeRecord(const ArchiveRecord& record);
// Errors: Corrupt, NotSupported (version). The caller adds the path.
Result<ArchiveRecord> DecodeRecord(std::string_view text);

}  // namespace cairn
