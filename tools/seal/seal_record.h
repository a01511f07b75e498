// The seal of a directory that another system wrote: DIR/.cairn-seal.json, written last.
//
// It says which files the directory has, how large they are, when they were written, and the digest of the
// bytes of each; which parts were found whole, and which could not be checked. So a directory with a seal is
// committed like a step of Cairn: its files can be checked later. The name begins with a dot, and loaders of
// other systems ignore it (docs/seal-format.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/digest.h"
#include "tools/place/step_files.h"

namespace cairn {

struct SealedFile {
  std::string name;  // a path below the directory
  uint64_t bytes = 0;
  int64_t modified_unix_seconds = 0;
  Digest digest{};
  bool operator==(const SealedFile&) const = default;
};

struct Seal {
  std::string system;           // a name of Systems(); empty: unknown
  std::optional<int64_t> step;  // that the directory's name says
  int64_t sealed_unix_seconds = 0;
  std::vector<SealedFile> files;      // by name
  std::vector<std::string> whole;     // parts that are complete; one line each
  std::vector<std::string> untold;    // checks that were not possible, and why
  std::vector<std::string> problems;  // despite which it was sealed
  std::vector<std::string> notes;     // what its files lack, though they are good
  std::vector<std::string> allowed;   // the globs of --allow
  bool operator==(const Seal&) const = default;

  uint64_t bytes() const;  // of all files
};

// The lines of `untold`, unless a glob with which it was sealed, or one of `allow`, fits "unchecked".
std::vector<std::string> UncheckedIn(const Seal& seal, const std::vector<std::string>& allow);

std::string EncodeSeal(const Seal& seal);
// Errors: Corrupt (a byte was changed, a name leads out of the directory), NotSupported (version). The caller
// adds the path.
Result<Seal> DecodeSeal(std::string_view text);

// The seal of `directory`. Errors: NotFound if it has none; those of DecodeSeal, naming the file.
Result<Seal> ReadSeal(FileSystem& fs, const std::string& directory);
// Puts the seal in place as a whole, and durably.
Status WriteSealFile(FileSystem& fs, const std::string& directory, const Seal& seal);

}  // namespace cairn
