// open_bench make RUN [flags] writes a step of any size as metadata only: the shards are sparse files with
// HDF5's pages and no values, and every digest is zero. Then open_bench open STEP opens it and plans what one
// of its ranks reads. Both print one line of JSON: seconds of the processor, and peak memory.
//
// Without flags the step has 100,000 tensors in 64 shards, as TP=8 PP=8 saves it; with --whole each tensor is
// one piece.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>

#include "ckpt/base/proc_memory.h"
#include "ckpt/model/canonical_modules.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/committer.h"
#include "ckpt/step/step_reader.h"
#include "convert/stream/step_plan.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

constexpr Role kRoles[] = {Role::kWeight, Role::kMaster, Role::kExpAvg, Role::kExpAvgSq};
const StepIdentity kIdentity{"0123456789abcdef0123456789abcdef", 1};

struct Flags {
  std::string run_dir;
  std::string step;
  ModelShape model{.layers = 1562,
                   .hidden = 256,
                   .heads = 8,
                   .ffn = 1024,
                   .vocab = 4096,
                   .positions = 512,
                   .vocab_multiple = 8};
  Topology topology{8, 8, 1, 1};
  bool llama = false;
  bool whole = false;
};

// The work of one thread: other processes of the machine do not count.
double CpuSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

nlohmann::json Describe(const ModelShape& m) {
  return {{"num_layers", m.layers},
          {"hidden_size", m.hidden},
          {"num_attention_heads", m.heads},
          {"head_dim", m.HeadDim()},
          {"num_key_value_heads", m.KvHeads()},
          {"ffn_hidden_size", m.Ffn()},
          {"vocab_size", m.vocab},
          {"tied_embeddings", m.tied}};
}

std::vector<TensorEntry> TensorsOf(const ModelShape& model) {
  std::vector<TensorEntry> tensors;
  for (const ParameterSpec& spec : GptSpecs(model))
    for (const Role role : kRoles)
      tensors.push_back({spec, role, role == Role::kWeight ? Dtype::kBF16 : Dtype::kF32});
  return tensors;
}

Result<std::vector<std::vector<Piece>>> PiecesOfRanks(const Flags& flags,
                                                      const std::vector<TensorEntry>& tensors) {
  std::vector<std::vector<Piece>> ranks(flags.topology.world());
  if (flags.whole) {
    for (uint32_t t = 0; t < tensors.size(); ++t) {
      const Dims& shape = tensors[t].spec.shape;
      ranks[t % ranks.size()].push_back(
          {.tensor = t, .box = Box::Whole(shape), .range = {0, shape.Volume()}});
    }
    return ranks;
  }
  CAIRN_ASSIGN_OR_RETURN(const StepPlan plan, StepPlan::Make(tensors, Describe(flags.model), flags.topology));
  for (int stage = 0; stage < flags.topology.pp; ++stage)
    for (PlannedShard& shard : plan.Stage(stage)) ranks[shard.rank] = std::move(shard.pieces);
  return ranks;
}

Status WriteSparse(const std::string& path, const ShardPlan& plan, const std::string& own_catalog) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  bool good = fd >= 0 && ::ftruncate(fd, static_cast<off_t>(plan.file_bytes())) == 0;
  const auto write = [&](const std::string& bytes, uint64_t offset) {
    good = good && ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset)) ==
                       static_cast<ssize_t>(bytes.size());
  };
  for (const H5Extent& extent : plan.metadata()) write(extent.bytes, extent.offset);
  write(own_catalog, plan.catalog_offset());
  if (fd >= 0) ::close(fd);
  return good ? OkStatus() : IoError("cannot write {}", path);
}

// Seconds of `plan` are those of all ranks, which plan at the same time in a training; `seal` is one rank's.
Status Make(const Flags& flags) {
  const std::vector<TensorEntry> tensors = TensorsOf(flags.model);
  Committer committer(FileSystem::Posix(), flags.run_dir, kIdentity.step, NewNonce());
  CAIRN_RETURN_IF_ERROR(MakeDirs(FileSystem::Posix(), committer.partial()));
  double plan_seconds = -CpuSeconds();
  CAIRN_ASSIGN_OR_RETURN(std::vector<std::vector<Piece>> ranks, PiecesOfRanks(flags, tensors));
  plan_seconds += CpuSeconds();
  std::vector<ShardReceipt> receipts;
  uint64_t bytes = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    plan_seconds -= CpuSeconds();
    CAIRN_ASSIGN_OR_RETURN(ShardPlan plan, ShardPlan::Make(ShardName(static_cast<int>(rank)), kIdentity,
                                                           tensors, std::move(ranks[rank])));
    plan_seconds += CpuSeconds();
    const std::string own_catalog = plan.EncodeOwnCatalog();
    CAIRN_RETURN_IF_ERROR(WriteSparse(JoinPath(committer.partial(), plan.name()), plan, own_catalog));
    receipts.push_back({plan.EntryOf(own_catalog), std::move(plan.catalog())});
  }
  for (const TensorEntry& tensor : tensors) bytes += tensor.bytes();
  const double start = CpuSeconds();
  CAIRN_ASSIGN_OR_RETURN(StepSeal seal,
                         MakeSeal({kIdentity, flags.topology, Describe(flags.model)}, tensors, receipts));
  const double seal_seconds = CpuSeconds() - start;
  CAIRN_RETURN_IF_ERROR(committer.Commit(seal));
  fmt::print("{}\n", ordered_json{{"tensors", tensors.size()},
                                  {"bytes", bytes},
                                  {"metadata", seal.index.size() + seal.manifest.size()},
                                  {"plan", plan_seconds},
                                  {"seal", seal_seconds},
                                  {"peak", PeakMemoryBytes()}}
                         .dump());
  return OkStatus();
}

Status Open(const std::string& directory) {
  const uint64_t memory = PeakMemoryBytes();
  const double start = CpuSeconds();
  CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(FileSystem::Posix(), directory));
  const double opened = CpuSeconds();
  const auto& catalog = step->catalog();
  const Topology& ranks = step->manifest().topology;
  const std::vector<ParameterSpec> specs = catalog.Parameters();
  CAIRN_ASSIGN_OR_RETURN(const RankLayout layout, LayoutOf(specs, ranks, ranks.world() / 2));
  uint64_t pieces = 0, elements = 0, local = 0;
  for (const LocalParameter& parameter : layout.parameters) {
    local += parameter.box.Volume();
    for (const Role role : kRoles) {
      CAIRN_ASSIGN_OR_RETURN(const uint32_t tensor, catalog.Find(specs[parameter.index].name, role));
      const auto [first, last] = catalog.PiecesOfTensor(tensor);
      for (size_t i = first; i < last; ++i) {
        const Piece& piece = catalog.pieces[i];
        const std::optional<Box> common = Intersect(piece.box, parameter.box);
        pieces += common ? 1 : 0;
        // A box is cut into ranges where a data parallel rank's share ends.
        if (common && piece.range.begin == 0) elements += common->Volume();
      }
    }
  }
  const double planned = CpuSeconds();
  if (elements != 4 * local) return Corrupt("the plan covers {} elements, not {}", elements, 4 * local);
  fmt::print("{}\n", ordered_json{{"tensors", catalog.tensors.size()},
                                  {"pieces", catalog.pieces.size()},
                                  {"pieces_of_rank", pieces},
                                  {"open", opened - start},
                                  {"plan", planned - opened},
                                  {"memory", PeakMemoryBytes() - memory}}
                         .dump());
  return OkStatus();
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  cairn::Flags flags;
  CLI::App app("opens steps that have only metadata");
  app.require_subcommand(1);
  CLI::App* make = app.add_subcommand("make");
  make->add_option("RUN", flags.run_dir)->required();
  make->add_option("--layers", flags.model.layers);
  make->add_option("--hidden", flags.model.hidden);
  make->add_option("--heads", flags.model.heads);
  make->add_option("--kv-heads", flags.model.kv_heads);
  make->add_option("--head-dim", flags.model.head_dim);
  make->add_option("--ffn", flags.model.ffn);
  make->add_option("--vocab", flags.model.vocab);
  make->add_option("--tp", flags.topology.tp);
  make->add_option("--pp", flags.topology.pp);
  make->add_option("--dp", flags.topology.dp);
  make->add_option("--zero", flags.topology.zero);
  make->add_flag("--llama", flags.llama, "no biases and positions, a gated MLP, an output of its own");
  make->add_flag("--whole", flags.whole, "each tensor is one piece");
  CLI::App* open = app.add_subcommand("open");
  open->add_option("STEP", flags.step)->required();
  CLI11_PARSE(app, argc, argv);
  if (flags.llama) {
    flags.model.tied = false;
    flags.model.modules = cairn::kLlamaModules;
  }
  const cairn::Status status = make->parsed() ? cairn::Make(flags) : cairn::Open(flags.step);
  if (status.ok()) return 0;
  std::fprintf(stderr, "open_bench: %s\n", status.message().c_str());
  return 2;
}
