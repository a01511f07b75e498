// Mixtures of experts of DeepSpeed-MoE: a file for each expert of each mixture, beside the model states,
// which have all other modules. Without ZeRO each expert parallel rank has a file of its optimizer, too.
// With ZeRO-1 and 2 the flat groups of experts are cut over the ranks that hold the same experts.
//
// Names keep the expert's number over all ranks. Source: deepspeed 0.19.8, runtime/engine.py
// (_save_moe_checkpoint), moe/utils.py, utils/groups.py (_create_expert_and_data_parallel).
#pragma once

#include "convert/formats/deepspeed/rank_slices.h"

namespace cairn {

// Whether a parameter belongs to one expert.
bool IsOfExpert(const std::string& name);

// Checks that `files` has each expert of each mixture that the model states in `root` name, and no other.
// Errors: NotFound, Corrupt; NotSupported for AutoEP.
Status CheckExpertFiles(const DeepSpeedFiles& files, const PyValue& root);

// How many experts each mixture has, by the beginning of its parameters' names.
using ExpertCounts = std::map<std::string, size_t>;
ExpertCounts ExpertsByMixture(const RankSlices& ranks);
ExpertCounts ExpertsByMixture(const std::vector<std::string>& names);
// The name over all ranks of a parameter that expert parallel rank `rank` of `size` has, under the expert's
// number among its `own`. Errors: Corrupt if it is of no expert, or the ranks' experts are not `all`.
Result<std::string> NameOverRanks(const std::string& name, const ExpertCounts& own, const ExpertCounts& all,
                                  size_t rank, size_t size);

// Adds the weights of all experts. Nothing happens if the model has none. Errors: those of CheckExpertFiles;
// Corrupt naming a file whose tensors are not those of its expert; NotSupported for pipelines, tensor
// parallel ranks and ZeRO-3.
Status ReadExperts(RankSlices& ranks);

// The optimizer of one rank, without ZeRO.
struct RankOptimizer {
  const TorchFile* file;
  const PyValue* optimizer;
  size_t rank = 0;  // expert parallel rank, which has its share of each mixture's experts
  size_t size = 1;  // of that group
};
// Those of all expert parallel ranks. `opened`: their files, which must live as long. The model states have
// the first rank's once more. Errors: NotFound for a rank whose file is missing; NotSupported if the ranks do
// not share the experts evenly.
Result<std::vector<RankOptimizer>> ExpertOptimizers(RankSlices& ranks, std::vector<TorchFile>& opened);

// Over how many ranks the experts of this group of `own` are cut, as its name says: mixtures may differ in
// it. Ranks beyond that number have copies.
size_t ExpertParallelSize(const PyValue& group, const RankOptimizer& own);
// Whether a parameter is of an expert that expert parallel rank `rank` has if its mixture is cut in `size`.
bool HasExpert(const std::string& name, const ExpertCounts& counts, size_t rank, size_t size);

// The weights that such an optimizer trains, in the order of the model: those of no expert, and its experts'.
// They are valid until slices are added.
std::vector<const RankSlice*> TrainedBy(const RankSlices& ranks, size_t model_rank, const RankOptimizer& own);

}  // namespace cairn
