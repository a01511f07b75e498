// The flags override the source's topology. Then one of three ways: a virtual step, which writes only
// metadata; an estimate, for a dry run; or the reshape. Under mpirun or srun every rank reshapes its share,
// and only the leader reports or makes the virtual step.

#include "tools/commands/reshape_run.h"

#include <cstdlib>

#include "convert/verbs/virtual_step.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"

namespace cairn {
namespace {

void Print(const ReshapeFlags& flags, const OpenedSource& opened, const Topology& target,
           const TimedTransfer& done) {
  const TransferResult& result = done.result;
  const std::string fingerprint = ToHex(result.fingerprints.overall);
  if (flags.transfer.json) {
    nlohmann::ordered_json facts = TransferFacts(opened, done);
    facts.update({{"source", opened.source().name()},
                  {"topology", TopologyJson(target)},
                  {"fingerprint", fingerprint},
                  {"bytes_resumed", result.bytes_resumed},
                  {"read_back", !flags.no_read_back}});
    PrintJson(facts);
    return;
  }
  PrintTransfer(opened, done, ToString(target));
  if (result.bytes_resumed > 0)
    fmt::print("{} of it had already been written, and were correct\n", HumanBytes(result.bytes_resumed));
  fmt::print("{}: fingerprint {}\n",
             flags.no_read_back ? "not read back; check it with cairn verify" : "read back and equal",
             fingerprint);
}

// Reads no tensor, so the report has no fingerprint.
Result<int> RunVirtually(const OpenedSource& opened, const TransferFlags& flags,
                         const ReshapeOptions& options) {
  const CheckpointSource& source = opened.source();
  const StepReader* step = opened.foreign ? nullptr : opened.step.reader.get();
  if (!step || !FileSystem::Posix().Stat(step->directory()).ok())
    return NotSupported("{}: --virtual needs a Cairn step outside of archives; leave --virtual out",
                        source.name());
  if (!options.team.leads()) return kExitDone;
  if (flags.dry_run) {
    CAIRN_ASSIGN_OR_RETURN(const uint64_t bytes, EstimateVirtualBytes(*step, options));
    if (flags.json) {
      PrintJson({{"dry_run", true}, {"read_bytes", 0}, {"write_bytes", bytes}, {"files", 2}});
    } else {
      fmt::print("would read no tensor and write about {} in 2 files\n", HumanBytes(bytes));
    }
    return kExitDone;
  }
  CAIRN_ASSIGN_OR_RETURN(const VirtualStep result,
                         ReshapeVirtually(FileSystem::Posix(), *step, flags.target, options));
  if (!result.held.ok())
    PrintProblem(fmt::format("warning: {} may be pruned, because no hold could be written: {}", result.shards,
                             result.held.message()));
  if (flags.json) {
    PrintJson({{"source", source.name()},
               {"target", result.path},
               {"topology", TopologyJson(options.target)},
               {"shards", result.shards},
               {"bytes_written", result.bytes_written}});
    return kExitDone;
  }
  fmt::print("{} ({})\n-> {} ({})\n", source.name(), ToString(source.manifest().topology), result.path,
             ToString(options.target));
  fmt::print("{} of metadata; the shards stay in {}\n", HumanBytes(result.bytes_written), result.shards);
  return kExitDone;
}

}  // namespace

bool TopologyFlags::any() const {
  return tp || pp || dp || zero || virtual_stages || ep || etp || !layers_per_stage.empty() ||
         embedding_counts || loss_counts;
}

// The source's own cut of its layers is kept if its pipeline is. An ETP equal to TP is the default, so that a
// reshape back writes the manifest of the first step.
Result<Topology> TopologyFlags::Of(const Manifest& source) const {
  Topology target = source.topology;
  if (pp || virtual_stages) target.layers_per_stage.clear();
  target.tp = tp.value_or(target.tp);
  target.pp = pp.value_or(target.pp);
  target.dp = dp.value_or(target.dp);
  target.zero = zero.value_or(target.zero);
  target.virtual_stages = virtual_stages.value_or(target.virtual_stages);
  if (!layers_per_stage.empty()) target.layers_per_stage = layers_per_stage;
  if (etp) target.etp = *etp == target.tp ? 0 : *etp;
  target.ep = ep.value_or(target.ep);
  if (!ep && !Validate(target).ok()) target.ep = 1;
  if (!etp && !Validate(target).ok()) target.etp = 0;
  if (!embedding_counts && !loss_counts) return target;
  CAIRN_RETURN_IF_ERROR(Validate(target));
  CAIRN_ASSIGN_OR_RETURN(target.layers_per_stage,
                         LayersBesideEnds(static_cast<int>(IntOf(source.model.num_layers)), target,
                                          embedding_counts, loss_counts));
  return target;
}

void AddTopologyFlags(CLI::App& verb, TopologyFlags& flags) {
  verb.add_option("--tp", flags.tp, "tensor parallel size; default: that of SRC")->option_text("N");
  verb.add_option("--pp", flags.pp, "pipeline stages; default: those of SRC")->option_text("N");
  verb.add_option("--dp", flags.dp, "data parallel size; default: that of SRC")->option_text("N");
  verb.add_option("--zero", flags.zero, "ZeRO stage; default: that of SRC")->option_text("N");
  verb.add_option("--ep", flags.ep,
                  "expert parallel size; default: that of SRC, or 1 if it does not fit the other sizes")
      ->option_text("N");
  verb.add_option("--etp", flags.etp,
                  "tensor parallel size of experts; default: that of SRC, or TP if it does not fit")
      ->check(CLI::PositiveNumber)
      ->option_text("N");
  verb.add_option("--virtual-stages", flags.virtual_stages,
                  "chunks of layers on each pipeline stage, interleaved (1: not interleaved)")
      ->option_text("V");
  verb.add_option("--layers-per-stage", flags.layers_per_stage,
                  "layers of each stage (of each chunk, with --virtual-stages); default: as even as possible")
      ->delimiter(',')
      ->option_text("A,B,C");
  verb.add_flag("--account-for-embedding-in-pipeline-split", flags.embedding_counts,
                "the embedding counts as a layer of the first stage");
  verb.add_flag("--account-for-loss-in-pipeline-split", flags.loss_counts,
                "the output head and the loss count as a layer of the last stage");
}

Result<int> RunReshape(const OpenedSource& opened, const ReshapeFlags& flags, const FileCopies& tokenizer) {
  CheckpointSource& source = opened.source();
  CAIRN_ASSIGN_OR_RETURN(const Topology topology, flags.topology.Of(source.manifest()));
  ReshapeOptions options{
      .target = topology,
      .writer = flags.transfer.writer,
      .vocab_multiple = flags.vocab_multiple,
      .resume = flags.resume,
      .read_back = !flags.no_read_back,
      .team = RankTeam::FromEnvironment([](const char* name) { return std::getenv(name); })};
  options.writer.beside = tokenizer;
  if (flags.is_virtual) return RunVirtually(opened, flags.transfer, options);
  CAIRN_ASSIGN_OR_RETURN(Transfer transfer, PlanReshape(source, options));
  CAIRN_ASSIGN_OR_RETURN(const auto done,
                         RunTransfer("reshaping", std::move(transfer), flags.transfer, options.team.leads()));
  if (done && options.team.leads()) Print(flags, opened, topology, *done);
  return kExitDone;
}

}  // namespace cairn
