// A checkpoint of values that are made when they are read, and a native step of it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "convert/transfer/transfer.h"
#include "tests/support/whole_regions.h"

namespace cairn {

class MadeSource : public CheckpointSource {
 public:
  // Fills `out` with elements of a tensor, from row-major index `begin` on.
  using Fill = std::function<void(const TensorEntry& tensor, uint64_t begin, std::span<std::byte> out)>;

  MadeSource(const StepInfo& info, std::vector<TensorEntry> tensors, Fill fill) : fill_(std::move(fill)) {
    manifest_.run = info.identity.run;
    manifest_.step = info.identity.step;
    manifest_.topology = info.topology;
    manifest_.model = info.model;
    manifest_.state = info.state;
    catalog_.tensors = std::move(tensors);
  }
  const Manifest& manifest() const override { return manifest_; }
  const TensorTable& catalog() const override { return catalog_; }
  const Regions& regions() const override { return regions_.emplace(WholeRegions(catalog_)); }
  const std::string& directory() const override { return directory_; }
  // Requires a contiguous box.
  Status ReadBox(uint32_t tensor, const Box& box, std::span<std::byte> out) override {
    const TensorEntry& entry = catalog_.tensors[tensor];
    fill_(entry, FlatIndex(Box::Whole(entry.spec.shape), box.offset), out);
    return OkStatus();
  }
  void SetCacheBytes(uint64_t) override {}
  uint64_t bytes_read() const override { return 0; }

 protected:
  Manifest manifest_;
  TensorTable catalog_;

 private:
  Fill fill_;
  mutable std::optional<RegionList> regions_;
  std::string directory_ = "made";
};

// Writes `run_dir`/step-N as `info` describes it, without reading it back.
inline Status WriteMadeStep(const std::string& run_dir, const StepInfo& info,
                            const std::vector<TensorEntry>& tensors, MadeSource::Fill fill) {
  CAIRN_ASSIGN_OR_RETURN(StepPlan plan, StepPlan::Make(tensors, info.model, info.topology));
  MadeSource source(info, tensors, std::move(fill));
  StepTarget target{.info = info, .tensors = {}, .plan = std::move(plan), .read_back = false};
  for (uint32_t i = 0; i < tensors.size(); ++i) target.tensors.push_back({i, tensors[i]});
  return Transfer(source, std::move(target)).Run(FileSystem::Posix(), run_dir).status();
}

}  // namespace cairn
