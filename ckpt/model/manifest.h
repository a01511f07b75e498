// The manifest: the record of a committed step. A step without a valid one does not exist.
//
// One JSON object, canonical (sorted keys, one space of indentation), with its own digest inside; any changed
// byte is caught. FORMAT.md, "Manifest".
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/digest.h"
#include "ckpt/model/topology.h"

namespace cairn {

class FileSystem;

inline constexpr int kFormatVersion = 3;  // 1: a step with its own shards, 2: a virtual one, 3: a branch
inline constexpr uint64_t kMaxManifestBytes = 64 << 20;

struct ManifestFile {
  std::string name;
  uint64_t bytes = 0;
  Digest
      digest{};  // of the bytes that no piece covers, in order; for a file without pieces, of all its bytes
  bool operator==(const ManifestFile&) const = default;
};

struct Manifest {
  std::string run;  // identity of the training run, 32 hex digits
  int64_t step = 0;
  // The first step of each branch up to this one, oldest first; empty before a training went back.
  // ckpt/run/branch.h
  std::vector<int64_t> branches = {};
  Topology topology;
  nlohmann::json model = nlohmann::json::object();   // architecture and its sizes; FORMAT.md, "Model"
  nlohmann::json state = nlohmann::json::object();   // iteration, consumed samples, loss scale, ...
  nlohmann::json history = nlohmann::json::array();  // relaxations that a user allowed, oldest first
  std::vector<ManifestFile> files;                   // shards in order of writer, then index.h5
  // The directory of the shards, relative to the step's; empty: the step's own. FORMAT.md, "Virtual steps".
  std::string shards;
  uint64_t catalog_offset = 0;  // in index.h5
  uint64_t catalog_bytes = 0;
  Digest catalog_digest{};
  bool operator==(const Manifest&) const = default;

  // The bytes of all files.
  uint64_t bytes() const;
  // The directory of a file of the step in `step_directory`: the shards of a virtual step are another step's.
  std::string DirectoryOf(const std::string& step_directory, std::string_view file) const;
};

// An integer field of an object; 0 if it is missing or not an integer.
int64_t IntField(const nlohmann::json& object, const std::string& name);
// A text field of an object; empty if it is missing or not a text.
std::string TextField(const nlohmann::json& object, const std::string& name);

// As manifests and verbs write it. Fields with the usual value are left out.
nlohmann::json TopologyJson(const Topology& topology);

std::string EncodeManifest(const Manifest& manifest);

// Errors: Corrupt (not JSON, digest, non-canonical, missing or ill-typed field), NotSupported (version). No
// message names the path: the caller adds it.
Result<Manifest> DecodeManifest(std::string_view text);

// Reads the manifest of the step in `step_dir`; `digest`, if given, becomes the digest of its text.
// Errors name the file: NotFound, IoError, and those of DecodeManifest.
Result<Manifest> ReadManifest(FileSystem& fs, const std::string& step_dir, Digest* digest = nullptr);

}  // namespace cairn
