// The ledger entry of one archived step: a JSON file beside its tar, there only once the tar was proven.
//
//   STORE/RUN-step-00000040.9f8e7d6c.tar        RUN/step-00000040/{manifest.json, shards, index.h5,
//   SHA256SUMS} STORE/RUN-step-00000040.9f8e7d6c.tar.json   this
//
// The eight digits are the first of the manifest's digest, so that a name stands for one content. The entry
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
inline constexpr std::string_view kPartialSuffix =
    ".partial";  // behind the name of a file that is being written
inline constexpr std::string_view kSumsName = "SHA256SUMS";  // last entry of the tar
inline constexpr uint64_t kMaxRecordBytes = 64 << 20;

struct ArchivedFile {
  std::string name;
  uint64_t bytes = 0;
  std::string sha256;  // 64 hex digits
  bool operator==(const ArchivedFile&) const = default;
};

struct ArchiveRecord {
  std::string name;  // of the run: its directory's name when it was archived
  std::string run;   // identity of the training run, as in the manifest
  int64_t step = 0;
  int64_t tokens = 0;           // consumed so far
  std::string manifest_digest;  // 32 hex digits; names the content
  std::string source;           // the step's directory, absolute, for people
  uint64_t tar_bytes = 0;
  int64_t verified_unix_seconds = 0;  // when the tar was read back and proven
  std::vector<ArchivedFile> files;    // manifest.json first, then as in the manifest
  bool operator==(const ArchiveRecord&) const = default;
};

// Identity and name of a step that comes from run directory `name`; no files yet.
ArchiveRecord RecordOf(const Manifest& manifest, std::string name);

// "RUN-step-00000040.9f8e7d6c.tar"
std::string TarName(const ArchiveRecord& record);
// Run and step of such a name; nothing for any other.
std::optional<std::pair<std::string, int64_t>> ParseTarName(std::string_view name);

// "RUN/step-00000040"
std::string EntryDirectory(const ArchiveRecord& record);
// What `sha256sum -c` takes.
std::string Sha256Sums(const ArchiveRecord& record);

std::string EncodeRecord(const ArchiveRecord& record);
// Errors: Corrupt, NotSupported (version). The caller adds the path.
Result<ArchiveRecord> DecodeRecord(std::string_view text);

}  // namespace cairn
