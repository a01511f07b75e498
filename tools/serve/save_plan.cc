#include "tools/serve/save_plan.h"

#include "ckpt/model/layout.h"
#include "ckpt/model/path_check.h"

namespace cairn {
namespace {

Result<Dims> DimsOf(const nlohmann::json& said) {
  if (!said.is_array() || said.size() > kMaxRank) return Corrupt("not a list of extents");
  Dims dims;
  for (const nlohmann::json& number : said) {
    if (!number.is_number_unsigned()) return Corrupt("not a list of extents");
    dims.push_back(number.get<uint64_t>());
  }
  return dims;
}

// A box as {"offset": [...], "extent": [...]}. Errors: Corrupt if it is empty, has another rank, or is
// outside of the shape.
Result<Box> BoxIn(const Dims& shape, const nlohmann::json& said) {
  Box box;
  CAIRN_ASSIGN_OR_RETURN(box.offset, DimsOf(said.value("offset", nlohmann::json())));
  CAIRN_ASSIGN_OR_RETURN(box.extent, DimsOf(said.value("extent", nlohmann::json())));
  if (box.offset.rank() != shape.rank() || box.extent.rank() != shape.rank())
    return Corrupt("a box has a different number of dimensions than its tensor");
  if (!Contains(Box::Whole(shape), box) || box.Volume() == 0)
    return Corrupt("a box is outside of its tensor");
  return box;
}

}  // namespace

Result<std::unique_ptr<SavePlan>> SavePlan::Make(const nlohmann::json& request, const MakeMemory& make) {
  CAIRN_ASSIGN_OR_RETURN(SharedMemory none, SharedMemory::Make(0));
  auto plan = std::make_unique<SavePlan>(SavePlan{.memory = std::move(none)});
  CAIRN_ASSIGN_OR_RETURN(plan->rank, IntegerAt<int>(request, "rank"));
  CAIRN_ASSIGN_OR_RETURN(plan->world, IntegerAt<int>(request, "world"));
  if (plan->rank < 0 || plan->rank >= plan->world || plan->world > kMaxWorld)
    return InvalidArgument("rank {} of {}", plan->rank, plan->world);
  std::vector<Piece> pieces;
  for (const nlohmann::json& said : request.at("tensors")) {
    CAIRN_ASSIGN_OR_RETURN(StateTensor tensor, DescribedTensor(said));
    const Dims& shape = tensor.entry.spec.shape;
    plan->offsets.emplace_back();
    for (const nlohmann::json& where : said.at("pieces")) {
      const Result<Box> box = BoxIn(shape, where);
      if (!box.ok()) return box.status().WithContext(tensor.fqn);
      plan->offsets.back().push_back(pieces.size());
      pieces.push_back(
          {.tensor = static_cast<uint32_t>(plan->tensors.size()), .box = *box, .range = {0, box->Volume()}});
    }
    plan->tensors.push_back(std::move(tensor));
  }
  const size_t large = plan->tensors.size();
  for (const nlohmann::json& said : request.value("small", nlohmann::json::array())) {
    CAIRN_ASSIGN_OR_RETURN(StateTensor tensor, DescribedTensor(said));
    plan->tensors.push_back(std::move(tensor));
  }
  PlaceTensors(plan->tensors, request.value("names", std::vector<std::string>()));
  std::vector<TensorEntry> entries;
  for (const StateTensor& tensor : plan->tensors) {
    entries.push_back(tensor.entry);
    plan->names.push_back(tensor.fqn);
  }
  CAIRN_RETURN_IF_ERROR(CheckPaths(entries));
  plan->tensors.erase(plan->tensors.begin() + static_cast<std::ptrdiff_t>(large), plan->tensors.end());
  plan->table = EncodeTable(plan->tensors);
  if (pieces.empty()) return plan;
  CAIRN_ASSIGN_OR_RETURN(ShardPlan shard,
                         ShardPlan::Make(ShardName(plan->rank), StepIdentity{}, entries, std::move(pieces)));
  for (auto& places : plan->offsets)
    for (uint64_t& place : places) place = shard.OffsetOf(place);
  CAIRN_ASSIGN_OR_RETURN(plan->memory, make(shard.file_bytes()));
  plan->shard.emplace(std::move(shard));
  return plan;
}

}  // namespace cairn
