#include "tools/commands/source_check.h"

#include <algorithm>

#include "convert/foreign/expert_census.h"
#include "convert/stream/master_proof.h"
#include "convert/verbs/file_sums.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"

namespace cairn {
namespace {

std::string More(const VerifyReport& report) {
  const size_t more = report.problems.size() - 1;
  return more == 0 ? "" : fmt::format(" (and {} more)", more);
}

Status CheckSums(const OpenedSource& opened, const SourceChecks& checks, bool json) {
  ForeignSource& source = *opened.foreign;
  if (!checks.skip_sums && !checks.first) return OkStatus();
  const bool any = source.SkipSums();
  if (any && checks.skip_sums)
    source.AddHistory("import: its records were not compared with their CRC-32 (--no-checksums)");
  if (checks.skip_sums) return OkStatus();
  const FileSums sums = FindZips(opened.fs(), source.directory(), source.catalog().files);
  Progress progress("checking the source", sums.bytes, !json);
  const VerifyReport report =
      CheckFileSums(opened.fs(), source.directory(), sums, [&](uint64_t done) { progress.Update(done); });
  if (report.problems.empty()) return report.trouble;
  return Corrupt("{}{}; cairn verify lists all, --no-checksums ignores them", ToString(report.problems[0]),
                 More(report));
}

}  // namespace

Status CheckNoExpertIsLost(const CheckpointSource& source, const std::vector<std::string>& allow) {
  ExpertCensus census = TakeCensus(source.catalog().tensors, source.manifest().model);
  AllowLost(allow, census);
  for (const std::string& note : census.notes) PrintProblem(fmt::format("note: {}: {}", source.name(), note));
  if (census.lost.empty()) return OkStatus();
  const size_t more = census.lost.size() - 1;
  return Corrupt("{}: {}{}; --allow experts takes it as it is", source.name(), census.lost.front(),
                 more == 0 ? "" : fmt::format(" (and {} more; cairn verify lists all)", more));
}

void AddSourceCheckFlags(CLI::App& verb, SourceChecks& checks) {
  verb.add_flag("--no-checksums", checks.skip_sums,
                "do not check the CRC-32 of the records of torch.save's files while they are read");
  verb.add_flag("--no-rounding-check", checks.skip_rounding,
                "do not check that another system's 16-bit weights are its rounded fp32 masters");
}

Status CheckSource(const OpenedSource& opened, const SourceChecks& checks, uint64_t max_memory, bool json) {
  if (!opened.foreign) return OkStatus();
  CAIRN_RETURN_IF_ERROR(CheckSums(opened, checks, json));
  if (checks.skip_rounding) {
    if (std::ranges::count(opened.foreign->catalog().tensors, Role::kMaster, &TensorEntry::role) > 0)
      opened.foreign->AddHistory(
          "import: its weights were not compared with their masters (--no-rounding-check)");
  } else if (checks.first) {
    const Status status = ProveMasters(*opened.foreign, max_memory).status();
    if (status.kind() != StatusKind::kCorrupt) return status;
    PrintProblem(fmt::format("note: {}; cairn verify --values lists all", status.message()));
  }
  return OkStatus();
}

}  // namespace cairn
