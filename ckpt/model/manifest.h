// The manifest: the record of a committed step. A step without a valid one does not exist.
//
// One JSON object, canonical (sorted keys, one space of indentation), with its own digest inside; any changed
// byte is caught. FORMAT.md, "Manifest".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/digest.h"
#include "ckpt/model/model.h"
#include "ckpt/model/topology.h"

namespace cairn {

// 1: a step with its own shards, 2: a virtual one, 3: branches by their first steps, 4: a descent
inline constexpr int kFormatVersion = 4;
inline constexpr uint64_t kMaxManifestBytes = 64 << 20;

struct ManifestFile {
  std::string name;
  uint64_t bytes = 0;
  Digest
      digest{};  // of the bytes that no piece covers, in order; for a file without pieces, of all its bytes
  bool operator==(const ManifestFile&) const = default;
};

// A branch of a run's commits that began before the one of a step (ckpt/run/branch.h).
struct EarlierBranch {
  std::string run;    // the run that its steps belong to; empty: not known
  int64_t last = -1;  // the highest number in it that the step descends from; -1: none
  bool operator==(const EarlierBranch&) const = default;
};

// The commit that a training had loaded, or saved before, when it saved a step.
struct Origin {
  std::string run;
  int64_t branch = 0;
  int64_t step = 0;
  bool operator==(const Origin&) const = default;
};

// What a step came from.
struct Descent {
  std::vector<EarlierBranch> branches = {};  // all that began before the step's own, oldest first
  std::optional<Origin> origin = {};         // nullopt: not known
  std::vector<int64_t> first_steps = {};     // of a manifest of version 3, which says `branches` in this way
  bool operator==(const Descent&) const = default;
};

// An object with `branches` and `origin`, as far as there are any.
nlohmann::json DescentJson(const Descent& descent);
// Reads both keys of an object, in the form of any version. Throws json::exception.
Descent DescentAt(const nlohmann::json& object);

struct Manifest {
  std::string run;  // identity of the training run, 32 hex digits
  int64_t step = 0;
  Descent descent = {};
  Topology topology;
  Model model;
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

}  // namespace cairn
