// Every file and dataset name of a checkpoint, built and parsed here and nowhere else. FORMAT.md, "Tree of
// files".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ckpt/base/box.h"

namespace cairn {

struct TensorEntry;

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kIndexName = "index.h5";
inline constexpr std::string_view kLatestName = "latest";
inline constexpr std::string_view kRunName = ".run";
inline constexpr std::string_view kLockName = ".lock";
inline constexpr std::string_view kDeletionLockName = ".deletion.lock";  // deletion.h
inline constexpr std::string_view kHeldName = "held";
inline constexpr std::string_view kVerifiedName = "verified";
inline constexpr std::string_view kHealthName = "health";

// "step-00001000"
std::string StepDirName(int64_t step);
// The step of a committed directory's name; nullopt for any other name, also a partial or superseded one.
std::optional<int64_t> ParseStepDirName(std::string_view name);

// "step-00001000.partial-<nonce>": being written. Never read.
std::string PartialDirName(int64_t step, std::string_view nonce);
// "step-00001000.superseded-<nonce>": a step that was saved again by a training that went back before it.
std::string SupersededDirName(int64_t step, std::string_view nonce);
// "step-00001000.deleting-<nonce>": retired by retention; only its removal is unfinished.
std::string DeletingDirName(int64_t step, std::string_view nonce);
// "held/step-00001000.<nonce>" names a step elsewhere that uses this one's shards (step_hold.h).
std::string HoldName(int64_t step, std::string_view nonce);
// The word after the step in such a name ("partial", "superseded", "deleting"); nullopt for other names.
std::optional<std::string> ParseMarkedDirName(std::string_view name);

// "latest.<nonce>": the next `latest`, until it is renamed.
std::string LatestTempName(std::string_view nonce);

// "shard-00003.h5"
std::string ShardName(int writer);
// "shard-00003.parity": the writer's share of its group's parity.
std::string ParityName(int writer);

bool IsParityName(std::string_view name);
// True for the names that only Cairn gives to the files of a step, finished or not.
bool IsStepFileName(std::string_view name);

// "/exp_avg/layers.0.mlp.up.weight": a whole tensor in index.h5.
std::string TensorPath(const TensorEntry& entry);
// "/master_low/layers.0.mlp.up.weight": the low halves of the split pieces of a master.
std::string LowHalvesPath(const TensorEntry& entry);
// "/exp_avg/layers.0.mlp.up.weight@512,0+128": the piece of a shard that starts at this offset of the tensor,
// and, if it is a flat range, at this element of the box.
std::string PiecePath(const TensorEntry& entry, const Box& box, FlatRange range);
// The same of elements [begin, ...) of a piece with a codec, where every dataset is a vector. `path`:
// TensorPath or LowHalvesPath.
std::string PackedPath(const std::string& path, const Box& box, uint64_t begin);
inline constexpr const char* kCatalogPath = "/cairn/catalog";

// A plain file name: not empty, no '/', no NUL, not "." or "..". Names in a manifest must be
// plain.
bool IsPlainFileName(std::string_view name);

}  // namespace cairn
