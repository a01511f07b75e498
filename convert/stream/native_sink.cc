#include "convert/stream/native_sink.h"

#include "convert/stream/step_proof.h"

namespace cairn {
namespace {

class NativeSink final : public WeightSink {
 public:
  NativeSink(StepPlan plan, const StepBuilderOptions& options, std::function<void(uint64_t)> progress)
      : plan_(std::move(plan)), options_(options), progress_(std::move(progress)), sums_(CatalogOf(plan_)) {}

  Status Open(FileSystem& fs, const std::string& run_dir, const StepInfo& info) {
    CAIRN_ASSIGN_OR_RETURN(builder_, StepBuilder::Create(fs, run_dir, info, plan_, options_));
    return OkStatus();
  }

  Result<std::vector<uint32_t>> Next() override {
    if (stage_ > 0) CAIRN_RETURN_IF_ERROR(builder_->EndStage());
    if (stage_++ == plan_.topology().pp) return std::vector<uint32_t>{};
    return builder_->BeginStage();
  }

  Status Write(const Block& block) override {
    sums_.Add(block);
    return builder_->Append(block);
  }

  Result<WrittenWeights> Commit(const Digest&) override {
    CAIRN_ASSIGN_OR_RETURN(const auto written, builder_->Seal());
    CAIRN_RETURN_IF_ERROR(ProveStep(*written, sums_, BlockBytesFor(options_.max_memory), progress_));
    CAIRN_RETURN_IF_ERROR(builder_->Publish());
    return WrittenWeights{builder_->final_path(), written->manifest().bytes(),
                          written->manifest().files.size() + 1};
  }

 private:
  static Catalog CatalogOf(const StepPlan& plan) {
    Catalog catalog;
    catalog.tensors = plan.tensors();
    return catalog;
  }

  const StepPlan plan_;
  const StepBuilderOptions options_;
  const std::function<void(uint64_t)> progress_;
  StepFingerprint sums_;
  std::unique_ptr<StepBuilder> builder_;
  int stage_ = 0;
};

}  // namespace

std::vector<TensorEntry> NativeTensors(const std::vector<StrippedWeight>& weights) {
  std::vector<TensorEntry> tensors;
  for (const StrippedWeight& weight : weights) tensors.push_back({weight.spec, Role::kWeight, weight.dtype});
  return tensors;
}

Result<std::unique_ptr<WeightSink>> MakeNativeSink(FileSystem& fs, const std::string& run_dir,
                                                   const Manifest& source, const Topology& topology,
                                                   const nlohmann::json& history,
                                                   const std::vector<StrippedWeight>& weights,
                                                   const StepBuilderOptions& options,
                                                   std::function<void(uint64_t)> progress) {
  CAIRN_ASSIGN_OR_RETURN(StepPlan plan, StepPlan::Make(NativeTensors(weights), source.model, topology));
  const StepInfo info{{source.run, source.step}, topology, source.model, source.state, history};
  auto sink = std::make_unique<NativeSink>(std::move(plan), options, std::move(progress));
  CAIRN_RETURN_IF_ERROR(sink->Open(fs, run_dir, info));
  return std::unique_ptr<WeightSink>(std::move(sink));
}

}  // namespace cairn
