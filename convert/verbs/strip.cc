// The plan comes first: which tensor is read for each parameter, and the type of each written tensor. Then
// the sink asks for parameters in its own order. Their blocks go through the cast into the sink, while the
// reading thread sums the source. Overflows are known only at the end: the sink is then not committed, and
// what it wrote is removed with it. TryStrip() is the same pass with a sink that keeps nothing, so both
// count alike.

#include "convert/verbs/strip.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>

#include "ckpt/base/glob.h"
#include "convert/foreign/shared_parameters.h"
#include "convert/formats/hugging_face/safetensors.h"
#include "convert/formats/hugging_face/safetensors_sink.h"
#include "convert/stream/memory_estimate.h"
#include "convert/stream/native_sink.h"

namespace cairn {
namespace {

constexpr uint64_t kSumsLineBytes = 90;     // of SHA256SUMS
constexpr uint64_t kHeaderEntryBytes = 70;  // of a tensor in safetensors, beside its name
constexpr uint64_t kIndexLineBytes = 45;    // of a tensor in the index, beside its name
constexpr uint64_t kMinStripBlockBytes = 64 << 10;
constexpr uint64_t kMaxBlockBytes = 64 << 20;

// Blocks are larger than elsewhere: rows of a block become runs of a transposed tensor.
uint64_t StripBlockBytes(uint64_t max_memory) {
  return std::clamp(max_memory / 8, kMinStripBlockBytes, kMaxBlockBytes);
}

struct StripPlan {
  std::vector<StrippedWeight> weights;  // one a parameter
  std::vector<uint32_t> sources;        // of each: the tensor to read
  std::vector<StrippedTensor> tensors;  // of each: what to report
  ForeignModel model;
};

bool MatchesAnyOf(const std::vector<std::string>& globs, const std::string& name, std::vector<bool>& used) {
  bool matches = false;
  for (size_t i = 0; i < globs.size(); ++i) {
    if (!FitsGlob(name, globs[i])) continue;
    matches = true;
    used[i] = true;
  }
  return matches;
}

// A tensor of the result has one type, so that what keeps one of its parts in fp32 keeps all.
Status ChooseTypes(const StripOptions& options, StripPlan& plan) {
  std::unordered_map<std::string_view, StrippedWeight*> weight_of;
  for (StrippedWeight& weight : plan.weights) weight_of.emplace(weight.spec.name, &weight);
  std::vector<bool> used(options.keep_fp32.size());
  for (const ForeignTensor& tensor : plan.model.tensors) {
    bool keep = MatchesAnyOf(options.keep_fp32, tensor.name, used);
    for (const ForeignPart& part : tensor.parts)
      keep |= MatchesAnyOf(options.keep_fp32, part.parameter, used);
    for (const ForeignPart& part : tensor.parts)
      if (keep || options.dtype) weight_of.at(part.parameter)->dtype = keep ? Dtype::kF32 : *options.dtype;
    const Dtype dtype = weight_of.at(tensor.parts[0].parameter)->dtype;
    for (const ForeignPart& part : tensor.parts)
      if (weight_of.at(part.parameter)->dtype != dtype)
        return NotSupported("{} would have parts of different types ({}, {}); choose one with --dtype",
                            tensor.name, Name(dtype), Name(weight_of.at(part.parameter)->dtype));
  }
  for (size_t i = 0; i < used.size(); ++i)
    if (!used[i])
      return InvalidArgument("--keep-fp32 {} matches no tensor; cairn inspect lists them",
                             options.keep_fp32[i]);
  return OkStatus();
}

// That of most bytes.
Dtype MainType(const std::vector<StrippedWeight>& weights) {
  std::map<Dtype, uint64_t> bytes;
  for (const StrippedWeight& weight : weights)
    bytes[weight.dtype] += weight.spec.shape.Volume() * SizeOf(weight.dtype);
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& row) { return row.second; });
  return most == bytes.end() ? Dtype::kF32 : most->first;
}

// Where a file of torch.save holds optimizers beside its weights (formats/torch/torch.h).
std::vector<std::string> OptimizerPaths(const Manifest& manifest) {
  std::vector<std::string> paths;
  for (const auto& path : manifest.state.value("optimizers", nlohmann::json::array()))
    if (path.is_string()) paths.push_back(path.get<std::string>());
  return paths;
}

// What is released.
std::vector<ParameterSpec> ReleasedParameters(const CheckpointSource& source) {
  std::vector<ParameterSpec> parameters = source.catalog().Parameters();
  for (const std::string& path : OptimizerPaths(source.manifest()))
    std::erase_if(parameters, [&](const ParameterSpec& spec) {
      return path.empty() || spec.name.starts_with(path + ".");
    });
  return parameters;
}

Result<StripPlan> PlanStrip(const CheckpointSource& source, const StripOptions& options) {
  const TensorTable& catalog = source.catalog();
  const TensorLookup lookup(catalog);
  StripPlan plan;
  const std::vector<ParameterSpec> parameters = ReleasedParameters(source);
  if (parameters.empty()) return NotFound("{}: there are no weights in it", source.name());
  const Role first = options.dtype ? Role::kMaster : Role::kWeight;
  const Role second = options.dtype ? Role::kWeight : Role::kMaster;
  for (const ParameterSpec& spec : parameters) {
    Result<uint32_t> tensor = lookup.Find(spec.name, first);
    if (!tensor.ok()) tensor = lookup.Find(spec.name, second);
    if (!tensor.ok()) return tensor.status();
    plan.weights.push_back({spec, options.dtype.value_or(catalog.tensors[*tensor].dtype)});
    plan.sources.push_back(*tensor);
  }
  if (options.format == StripFormat::kHuggingFace) {
    CAIRN_ASSIGN_OR_RETURN(plan.model, HuggingFaceModel(source.manifest().model, MainType(plan.weights)));
  } else {
    plan.model = CanonicalModel(parameters);
  }
  CAIRN_RETURN_IF_ERROR(CheckAgainst(plan.model, parameters).WithContext(source.name()));
  if (options.format == StripFormat::kSafetensors)
    for (const auto& [spec, first] : SecondNames(source))
      plan.model.tensors.push_back(
          {spec.name, spec.shape, {{{Box::Whole(spec.shape), Box::Whole(spec.shape)}, first}}});
  CAIRN_RETURN_IF_ERROR(ChooseTypes(options, plan));
  for (size_t i = 0; i < plan.weights.size(); ++i) {
    const TensorEntry& tensor = catalog.tensors[plan.sources[i]];
    if (tensor.dtype != plan.weights[i].dtype && !CanCast(tensor.dtype, plan.weights[i].dtype))
      return NotSupported("tensor {} is {}; strip casts fp32, bf16 and fp16", DisplayName(tensor),
                          Name(tensor.dtype));
    plan.tensors.push_back({tensor.spec.name, tensor.role, tensor.dtype, plan.weights[i].dtype, {}});
  }
  return plan;
}

// What was allowed on the way here, and now.
nlohmann::json HistoryOf(const Manifest& manifest, const StripOptions& options) {
  nlohmann::json history = manifest.history;
  for (const std::string& path : OptimizerPaths(manifest))
    history.push_back(fmt::format("left out {}, an optimizer's state", path));
  if (options.dtype && options.on_overflow == OnOverflow::kSaturate)
    history.push_back(fmt::format(
        "values beyond the range of {} became its largest finite number (--saturate)", Name(*options.dtype)));
  return history;
}

SafetensorsMetadata ProvenanceOf(const CheckpointSource& source, const StripOptions& options) {
  const Manifest& manifest = source.manifest();
  SafetensorsMetadata metadata = {{"cairn.version", CAIRN_VERSION},
                                  {"cairn.run", manifest.run},
                                  {"cairn.step", std::to_string(manifest.step)}};
  if (!options.command.empty()) metadata["cairn.command"] = options.command;
  const nlohmann::json history = HistoryOf(manifest, options);
  if (!history.empty()) metadata["cairn.history"] = history.dump();
  if (options.format != StripFormat::kSafetensors) return metadata;
  metadata["cairn.model"] = manifest.model.dump();
  std::vector<ParameterSpec> parameters = ReleasedParameters(source);
  for (const SecondName& name : SecondNames(source)) parameters.push_back(name.spec);
  metadata["cairn.parameters"] = EncodeParameters(parameters);
  return metadata;
}

// Streams the source's tensors through the cast into the sink.
class Stripper {
 public:
  Stripper(CheckpointSource& source, StripPlan plan, const StripOptions& options)
      : source_(source),
        plan_(std::move(plan)),
        options_(options),
        parameter_of_(source.catalog().tensors.size()) {
    for (uint32_t i = 0; i < plan_.sources.size(); ++i) {
      parameter_of_[plan_.sources[i]] = i;
      sums_.emplace_back(source.catalog().tensors[plan_.sources[i]]);
    }
  }

  Status Run(WeightSink& sink) {
    while (true) {
      CAIRN_ASSIGN_OR_RETURN(std::vector<uint32_t> tensors, sink.Next());
      if (tensors.empty()) return OkStatus();
      for (uint32_t& tensor : tensors) tensor = plan_.sources[tensor];
      CAIRN_RETURN_IF_ERROR(StreamBlocks(
          source_, tensors, StripBlockBytes(options_.writer.max_memory),
          [&](const Block& block) { return Visit(block, sink); },
          [&](const Block& block) { sums_[parameter_of_[block.tensor]].Add(block.begin, block.bytes); }));
    }
  }

  void Advance(uint64_t bytes) {
    done_ += bytes;
    if (options_.progress) options_.progress(done_);
  }

  Digest source_fingerprint() const {
    std::vector<NamedFingerprint> tensors;
    for (size_t i = 0; i < sums_.size(); ++i) {
      const TensorEntry& tensor = source_.catalog().tensors[plan_.sources[i]];
      tensors.push_back({DisplayName(tensor), sums_[i].Finish(tensor)});
    }
    return Combine(std::move(tensors)).overall;
  }

  StripPlan& plan() { return plan_; }

 private:
  Status Visit(const Block& block, WeightSink& sink) {
    const uint32_t parameter = parameter_of_[block.tensor];
    StrippedTensor& tensor = plan_.tensors[parameter];
    const uint64_t bytes = block.box.Volume() * SizeOf(tensor.to);
    Advance(block.bytes.size());
    if (tensor.from == tensor.to) {
      tensor.counts.elements += block.box.Volume();
      return sink.Write({parameter, block.box, block.begin, block.bytes});
    }
    cast_.resize(std::max(cast_.size(), bytes));
    tensor.counts +=
        Cast(tensor.from, block.bytes, tensor.to, std::span(cast_).first(bytes), options_.on_overflow);
    return sink.Write({parameter, block.box, block.begin, std::span(cast_).first(bytes)});
  }

  CheckpointSource& source_;
  StripPlan plan_;
  const StripOptions& options_;
  std::vector<uint32_t> parameter_of_;  // of each source tensor
  std::vector<TensorFingerprint> sums_;
  std::vector<std::byte> cast_;
  uint64_t done_ = 0;
};

Result<std::unique_ptr<WeightSink>> MakeSink(FileSystem& fs, const CheckpointSource& source,
                                             const std::string& target, const StripOptions& options,
                                             Stripper& stripper) {
  const StripPlan& plan = stripper.plan();
  const Manifest& manifest = source.manifest();
  const auto advance = [&stripper](uint64_t bytes) { stripper.Advance(bytes); };
  if (options.format == StripFormat::kNative)
    return MakeNativeSink(fs, target, manifest, options.topology.value_or(manifest.topology),
                          HistoryOf(manifest, options), plan.weights, options.writer, advance);
  return MakeSafetensorsSink(fs, target, plan.model, plan.weights, options.max_file_bytes,
                             ProvenanceOf(source, options), options.copies, options.writer, advance);
}

// Takes all and keeps nothing.
class NullSink final : public WeightSink {
 public:
  explicit NullSink(size_t parameters) : next_(parameters) { std::iota(next_.begin(), next_.end(), 0); }
  Result<std::vector<uint32_t>> Next() override { return std::exchange(next_, {}); }
  Status Write(const Block&) override { return OkStatus(); }
  Result<WrittenWeights> Commit(const Digest&) override { return WrittenWeights{}; }

 private:
  std::vector<uint32_t> next_;
};

bool Overflows(const StripResult& result, const StripOptions& options) {
  return options.on_overflow == OnOverflow::kInfinity &&
         std::ranges::any_of(result.tensors, [](const StrippedTensor& t) { return t.counts.overflowed > 0; });
}

uint64_t LargestSource(const CheckpointSource& source, const StripPlan& plan) {
  uint64_t largest = 0;
  for (const uint32_t tensor : plan.sources)
    largest = std::max(largest, source.catalog().tensors[tensor].bytes());
  return largest;
}

// The largest block in its new type is beside those that are read.
uint64_t MemoryOfStrip(const CheckpointSource& source, const StripPlan& plan, const StripOptions& options) {
  const uint64_t max_memory = options.writer.max_memory, block = StripBlockBytes(max_memory);
  uint64_t cast = 0;
  for (const StrippedTensor& tensor : plan.tensors)
    if (tensor.from != tensor.to) cast = std::max(cast, SizeOf(tensor.to) * 100 / SizeOf(tensor.from));
  const WriteRingOptions ring = RingFor(max_memory, options.writer.jobs, /*tp=*/1);
  return kProgramMemory + MemoryOfReading(source, plan.sources, block, max_memory) +
         std::min(block, LargestSource(source, plan)) * cast / 100 +
         MemoryOfWriting(source, plan.sources, ring.buffer_bytes, static_cast<uint64_t>(2 + ring.in_flight),
                         1);
}

}  // namespace

Result<StripResult> TryStrip(CheckpointSource& source, const StripOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(StripPlan plan, PlanStrip(source, options));
  source.SetCacheBytes(ReaderCacheFor(options.writer.max_memory));
  Stripper stripper(source, std::move(plan), options);
  NullSink sink(stripper.plan().weights.size());
  CAIRN_RETURN_IF_ERROR(stripper.Run(sink));
  source.SetCacheBytes(0);
  StripResult result;
  result.tensors = std::move(stripper.plan().tensors);
  result.bytes_read = source.bytes_read();
  result.source_fingerprint = stripper.source_fingerprint();
  result.overflowed = Overflows(result, options);
  return result;
}

Result<StripCost> EstimateStrip(const CheckpointSource& source, const StripOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const StripPlan plan, PlanStrip(source, options));
  StripCost cost;
  for (uint32_t tensor : plan.sources) cost.read_bytes += source.catalog().tensors[tensor].bytes();
  const std::vector<uint64_t> sizes = ForeignBytes(plan.model, plan.weights);
  const uint64_t written = std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
  cost.moved_bytes = cost.read_bytes + written;  // read back, too
  const uint64_t cut = CutIntoFiles(sizes, options.max_file_bytes).size();
  std::map<std::string, uint64_t> beside;
  for (const auto& [name, text] : plan.model.files) beside[name] = text.size();
  for (const auto& [name, from] : options.copies) {
    const auto info = from.fs->Stat(from.path);
    beside[name] = info.ok() ? info->bytes : 0;
  }
  cost.file_bytes = written + kSumsLineBytes * (cut + beside.size());
  for (const auto& [name, bytes] : beside) cost.file_bytes += bytes;
  for (const auto& [key, value] : ProvenanceOf(source, options))
    cost.file_bytes += cut * (nlohmann::json(value).dump().size() + key.size() + 4);
  for (const ForeignTensor& tensor : plan.model.tensors)
    cost.file_bytes +=
        tensor.name.size() + kHeaderEntryBytes + (cut > 1 ? tensor.name.size() + kIndexLineBytes : 0);
  cost.files = cut + (cut > 1) + beside.size() + 1;  // index, SHA256SUMS
  if (options.format == StripFormat::kNative) {
    CAIRN_ASSIGN_OR_RETURN(const StepPlan target,
                           StepPlan::Make(NativeTensors(plan.weights), source.manifest().model,
                                          options.topology.value_or(source.manifest().topology)));
    const StepSize size = EstimateStepSize(target);
    cost.file_bytes = size.file_bytes;
    cost.files = size.files + options.writer.beside.size();
    cost.peak_memory = MemoryOfNativeWriter(target.topology(), options.writer.max_memory);
  }
  cost.peak_memory += MemoryOfStrip(source, plan, options);
  return cost;
}

Result<StripResult> Strip(FileSystem& fs, CheckpointSource& source, const std::string& target,
                          const StripOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(StripPlan plan, PlanStrip(source, options));
  source.SetCacheBytes(ReaderCacheFor(options.writer.max_memory));
  Stripper stripper(source, std::move(plan), options);
  CAIRN_ASSIGN_OR_RETURN(const auto sink, MakeSink(fs, source, target, options, stripper));
  CAIRN_RETURN_IF_ERROR(stripper.Run(*sink));
  source.SetCacheBytes(0);  // a native result is read back with it
  StripResult result;
  result.tensors = std::move(stripper.plan().tensors);
  result.bytes_read = source.bytes_read();
  result.source_fingerprint = stripper.source_fingerprint();
  result.overflowed = Overflows(result, options);
  if (result.overflowed) return result;
  CAIRN_ASSIGN_OR_RETURN(const WrittenWeights written, sink->Commit(result.source_fingerprint));
  result.path = written.path;
  result.bytes_written = written.bytes;
  result.files = written.files;
  return result;
}

}  // namespace cairn
