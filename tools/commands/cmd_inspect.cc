// Choose tensors by their names, read values only if --stats asks for them, print. Values are streamed
// block by block, so memory is fixed whatever the size of a tensor. Slices come in two shapes: pieces of a
// native step, and stretches of another system's arrays. A file of torch.save is shown as the tree of
// values that it is, unless --stats makes it a checkpoint.

#include <algorithm>

#include "convert/stream/block_stream.h"
#include "convert/stream/value_stats.h"
#include "tools/check/piece_ranks.h"
#include "tools/check/stored_slices.h"
#include "tools/check/torch_tree.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/printable.h"
#include "tools/cli/progress.h"
#include "tools/cli/text_table.h"
#include "tools/commands/commands.h"
#include "tools/serve/state_names.h"
#include "tools/source/open_ckpt.h"
#include "tools/source/source_flags.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

struct InspectOptions {
  std::string checkpoint;
  OpenOptions open;
  std::vector<std::string> globs;
  bool slices = false;
  bool stats = false;
  bool json = false;
};

std::vector<uint64_t> ToVector(const Dims& dims) { return {dims.begin(), dims.end()}; }

class Inspector {
 public:
  Inspector(const InspectOptions& options, OpenedSource opened, StateNames names)
      : options_(options),
        opened_(std::move(opened)),
        names_(std::move(names)),
        source_(opened_.source()),
        catalog_(source_.catalog()),
        stored_(opened_.foreign ? opened_.foreign->stored() : nullptr) {
    for (uint32_t i = 0; i < catalog_.tensors.size(); ++i)
      if (IsChosen(catalog_.tensors[i])) chosen_.push_back(i);
  }

  Status Run() {
    if (chosen_.empty())
      return NotFound("{}: no tensor matches {}", options_.checkpoint, fmt::join(options_.globs, " "));
    if (options_.slices && !stored_ && !opened_.step.reader)
      return NotSupported("{}: --slices shows tensors as they are stored; leave out --config and --replicas",
                          options_.checkpoint);
    if (options_.slices && !stored_)
      ranks_.emplace(opened_.step.reader->catalog(), source_.manifest().topology, !names_.has_state_dict());
    if (options_.stats) CAIRN_RETURN_IF_ERROR(GatherStats());
    options_.json ? PrintAsJson() : PrintAsText();
    return OkStatus();
  }

 private:
  bool IsChosen(const TensorEntry& tensor) const {
    return options_.globs.empty() || std::ranges::any_of(options_.globs, [&](const std::string& glob) {
             return names_.Fits(tensor, glob);
           });
  }

  // The state dict's name; otherwise the name without the role, which has its own column.
  std::string NameOf(const TensorEntry& tensor) const {
    const std::string* fqn = names_.Find(tensor);
    return fqn ? *fqn : tensor.spec.name;
  }

  Status GatherStats() {
    uint64_t total = 0, done = 0;
    for (uint32_t tensor : chosen_) total += catalog_.tensors[tensor].bytes();
    Progress progress("reading", total, !options_.json);
    stats_.resize(catalog_.tensors.size());
    return StreamBlocks(source_, chosen_, BlockBytesFor(kDefaultMaxMemory), [&](const Block& block) {
      stats_[block.tensor].Add(catalog_.tensors[block.tensor].dtype, block.bytes);
      progress.Update(done += block.bytes.size());
      return OkStatus();
    });
  }

  void PrintAsText() const {
    const Manifest& manifest = source_.manifest();
    PrintLine("{}: step {}, {}, run {}", source_.name(), manifest.step, ToString(manifest.topology),
              manifest.run);
    std::vector<std::string> header = {"tensor", "role", "dtype", "shape", "size"};
    if (options_.stats) header.insert(header.end(), {"NaN", "Inf", "zeros", "min", "max", "norm"});
    TextTable table(header);
    uint64_t bytes = 0;
    for (uint32_t tensor : chosen_) {
      table.Add(Row(tensor));
      bytes += catalog_.tensors[tensor].bytes();
    }
    table.Print();
    fmt::print("{}, {}\n", Counted(chosen_.size(), "tensor"), HumanBytes(bytes));
    if (options_.slices) PrintSlices();
  }

  std::vector<std::string> Row(uint32_t index) const {
    const TensorEntry& tensor = catalog_.tensors[index];
    std::vector<std::string> row = {NameOf(tensor), std::string(Name(tensor.role)),
                                    std::string(Name(tensor.dtype)), ToString(tensor.spec.shape),
                                    HumanBytes(tensor.bytes())};
    if (!options_.stats) return row;
    const ValueStats& s = stats_[index];
    for (uint64_t count : {s.nan, s.infinite, s.zeros}) row.push_back(std::to_string(count));
    for (double value : {s.min, s.max, s.norm()}) row.push_back(fmt::format("{:.6g}", value));
    return row;
  }

  void PrintSlices() const {
    if (stored_) return PrintStoredSlices();
    TextTable table({"tensor", "box", "elements of the box", "ranks", "file", "offset", "bytes", "codec"});
    for (uint32_t chosen : chosen_)
      ForEachSlice(chosen, [&](const TensorEntry& tensor, const Piece& piece) {
        table.Add({names_.Of(tensor), ToString(piece.box),
                   fmt::format("{}:{}", piece.range.begin, piece.range.end), RankList(ranks_->Of(piece)),
                   catalog_.files[piece.file], std::to_string(piece.file_offset),
                   std::to_string(piece.stored_bytes), std::string(Name(piece.codec))});
      });
    fmt::print("\n");
    table.Print();
  }

  template <typename Visit>
  void ForEachSlice(uint32_t tensor, Visit visit) const {
    const StepCatalog& catalog = opened_.step.reader->catalog();
    const auto [first, last] = catalog.PiecesOfTensor(tensor);
    for (size_t i = first; i < last; ++i) visit(catalog.tensors[tensor], catalog.pieces[i]);
  }

  // Slices of other systems' arrays.
  void PrintStoredSlices() const {
    TextTable table({"tensor", "box", "of", "stored as", "elements of it", "file", "offset", "bytes"});
    for (uint32_t chosen : chosen_)
      for (const StoredSlice& slice : SlicesOf(*stored_, source_.manifest().topology, chosen))
        table.Add({names_.Of(catalog_.tensors[chosen]), ToString(slice.box), ToString(slice.rank),
                   fmt::format("{} {}{}", slice.array->name, ToString(slice.array->shape),
                               slice.transposed ? ", transposed" : ""),
                   fmt::format("{}:{}", slice.range.begin, slice.range.end), *slice.file,
                   std::to_string(slice.file_offset), std::to_string(slice.bytes)});
    fmt::print("\n");
    table.Print();
  }

  void PrintAsJson() const {
    const Manifest& m = source_.manifest();
    ordered_json tensors = ordered_json::array();
    for (uint32_t tensor : chosen_) tensors.push_back(ToJson(tensor));
    PrintJson({{"checkpoint", source_.name()},
               {"run", m.run},
               {"step", m.step},
               {"topology", TopologyJson(m.topology)},
               {"model", nlohmann::json(m.model)},
               {"state", m.state},
               {"tensors", std::move(tensors)}});
  }

  ordered_json ToJson(uint32_t index) const {
    const TensorEntry& tensor = catalog_.tensors[index];
    ordered_json json = {{"name", NameOf(tensor)},
                         {"role", Name(tensor.role)},
                         {"dtype", Name(tensor.dtype)},
                         {"shape", ToVector(tensor.spec.shape)},
                         {"bytes", tensor.bytes()}};
    if (options_.stats) {
      const ValueStats& s = stats_[index];
      json["stats"] = {{"nan", s.nan}, {"inf", s.infinite}, {"zeros", s.zeros},
                       {"min", s.min}, {"max", s.max},      {"norm", s.norm()}};
    }
    if (options_.slices && stored_) {
      for (const StoredSlice& slice : SlicesOf(*stored_, source_.manifest().topology, index))
        json["slices"].push_back(ToJson(slice));
    } else if (options_.slices) {
      ForEachSlice(index,
                   [&](const TensorEntry&, const Piece& piece) { json["slices"].push_back(ToJson(piece)); });
    }
    return json;
  }

  static ordered_json ToJson(const StoredSlice& slice) {
    ordered_json json = {{"offset", ToVector(slice.box.offset)},
                         {"extent", ToVector(slice.box.extent)},
                         {"stored_as", slice.array->name},
                         {"stored_shape", ToVector(slice.array->shape)},
                         {"transposed", slice.transposed},
                         {"range", {slice.range.begin, slice.range.end}},
                         {"file", *slice.file},
                         {"file_offset", slice.file_offset},
                         {"bytes", slice.bytes}};
    for (const auto& [name, value] : slice.rank.Coordinates()) json[name] = value;
    return json;
  }

  ordered_json ToJson(const Piece& piece) const {
    return {{"offset", ToVector(piece.box.offset)},
            {"extent", ToVector(piece.box.extent)},
            {"range", {piece.range.begin, piece.range.end}},
            {"ranks", ranks_->Of(piece)},
            {"file", catalog_.files[piece.file]},
            {"file_offset", piece.file_offset},
            {"bytes", piece.stored_bytes},
            {"codec", Name(piece.codec)}};
  }

  const InspectOptions& options_;
  OpenedSource opened_;
  StateNames names_;
  CheckpointSource& source_;
  const TensorTable& catalog_;
  const StoredCatalog* const stored_;  // of another system; null for a native step
  std::optional<PieceRanks> ranks_;    // of a native step, with --slices
  std::vector<uint32_t> chosen_;
  std::vector<ValueStats> stats_;  // by tensor of the catalog; empty without --stats
};

// A file of torch.save shows all that is in it, not only the tensors.
Result<int> RunInspectFile(const InspectOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const TorchFile file, TorchFile::Open(FileSystem::Posix(), "", options.checkpoint));
  if (options.json)
    PrintJson(TorchTreeJson(options.checkpoint, file));
  else
    PrintTorchTree(options.checkpoint, file, options.globs, options.slices);
  return kExitDone;
}

Result<int> RunInspect(const InspectOptions& options) {
  if (!options.stats && TorchFile::Matches(FileSystem::Posix(), options.checkpoint))
    return RunInspectFile(options);
  CAIRN_ASSIGN_OR_RETURN(OpenedSource opened,
                         OpenAnyCkpt(FileSystem::Posix(), options.checkpoint, options.open));
  CAIRN_ASSIGN_OR_RETURN(StateNames names, StateNames::Of(opened.source()));
  CAIRN_RETURN_IF_ERROR(Inspector(options, std::move(opened), std::move(names)).Run());
  return kExitDone;
}

}  // namespace

void AddInspectCommand(CLI::App& app, Verb& verb) {
  const auto [inspect, options] =
      AddVerb(app, verb, "inspect", "show tensors, which rank holds which slice, and statistics of values",
              RunInspect);
  inspect
      ->add_option(
          "CKPT", options->checkpoint,
          "a step, RUN@STEP, a run directory, STORE:RUN@STEP, or a checkpoint or file of another system")
      ->required();
  inspect->add_option("GLOB", options->globs, "only tensors that match, like 'layers.0.*' or '*/master'");
  AddSourceFlags(*inspect, options->open);
  inspect->add_flag("--slices", options->slices,
                    "show where each slice lies: box, elements of it, ranks that hold it, file, offset");
  inspect->add_flag("--stats", options->stats, "read the values and show NaN, Inf, zeros, min, max, norm");
  inspect->add_flag("--json", options->json, "print facts as JSON");
  inspect->footer("For a torch.save file (.pt, .bin) it shows every value without executing the pickle.\n\n" +
                  HelpFooter("cairn inspect runs/gpt 'layers.0.mlp.*' --stats"));
}

}  // namespace cairn
