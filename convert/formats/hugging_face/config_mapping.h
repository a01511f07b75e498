// Which parameters of a config.json's model tensors hold that have Hugging Face's names: those of a model's
// own files, or of a checkpoint that a training saved.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/base/box_map.h"
#include "ckpt/model/source.h"
#include "convert/foreign/account.h"
#include "convert/formats/hugging_face/config_model.h"

namespace cairn {

// Parameters, and their places in the stored tensors.
struct ConfigMapping {
  TensorTable catalog;
  std::vector<ArrayPart> parts;   // array: a stored tensor. Of one tensor after the other
  std::map<uint32_t, Dims> seen;  // stored tensors that parts see in another shape (ForeignTensor)
  // Tensors of the catalog that parts see so: columns in a turn.
  std::map<uint32_t, uint64_t> made_by_turns;
  std::map<std::string, std::vector<std::string>> parameters_of;  // by each name of a stored tensor
  std::map<Fate, std::vector<uint32_t>> left;                     // stored tensors in no parameter
  // Stored tensors: tied embeddings, and a replica that must hold the same bytes (CheckTied).
  std::vector<std::pair<uint32_t, uint32_t>> twins;
  std::vector<std::string> copies;  // names of those of layers of multi-token prediction (CopiesIn)
  std::vector<std::string> history;
  nlohmann::json state = nlohmann::json::object();  // more of the manifest's state
  // The files keep their names, and the rest of this is not used: they are of a class of the family that has
  // another output than the family's, or none; or have tensors beyond the family's table.
  bool own_names = false;
};

// Pure. `training`: the manifest of a training's checkpoint, whose names may begin with a prefix; null: these
// are a model's own files. `allow`: globs of names to leave out; of files, only names that have no place.
// Errors: those of ReadByConfig (config_source.h), without the source's name.
Result<ConfigMapping> MapByConfig(const TensorTable& stored, const Manifest* training,
                                  const ConfigModel& config, const std::vector<std::string>& allow);

// Notes the copies in a manifest's `model`, so that a release of it has them, too.
void KeepCopies(const ConfigMapping& mapping, Model& model);

}  // namespace cairn
