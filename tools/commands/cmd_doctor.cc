#include <cstdlib>
#include <nlohmann/json.hpp>

#include "ckpt/base/this_process.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/stop_signals.h"
#include "tools/cli/text_table.h"
#include "tools/commands/commands.h"
#include "tools/doctor/doctor.h"

namespace cairn {
namespace {

struct DoctorOptions {
  std::string directory = ".";
  bool json = false;
};

constexpr std::chrono::seconds kPatience{60};  // for ranks that do not arrive

Tone ToneOf(Severity severity) {
  constexpr Tone kTones[] = {Tone::kGood, Tone::kPlain, Tone::kNote, Tone::kNote, Tone::kBad};
  return kTones[static_cast<int>(severity)];
}

bool LosesData(const std::vector<HostReport>& reports) {
  return std::ranges::any_of(reports, &HostReport::LosesData);
}

nlohmann::ordered_json HostsJson(const std::vector<HostReport>& reports) {
  nlohmann::ordered_json hosts = nlohmann::ordered_json::array();
  for (size_t i = 1; i < reports.size(); ++i)
    hosts.push_back(
        {{"host", reports[i].host}, {"ranks", reports[i].ranks}, {"findings", ToJson(reports[i].findings)}});
  return hosts;
}

// One line: a host that differs, and how.
void PrintHost(const HostReport& report) {
  std::string line = fmt::format("{} (rank {}", report.host, report.ranks[0]);
  if (report.ranks.size() > 1) line += fmt::format(" and {} more", report.ranks.size() - 1);
  line += "):";
  for (const Finding& f : report.findings)
    line += fmt::format(" {}: {}, {} ({});", f.name, Name(f.severity), f.found, f.meaning);
  line.pop_back();
  PrintLineIn(report.LosesData() ? Tone::kBad : Tone::kNote, "{}", line);
}

void PrintPage(const std::vector<HostReport>& reports, const DoctorOptions& options, int ranks) {
  const HostReport& first = reports[0];
  const std::string job = BatchJob(std::getenv);
  PrintLine("{} on {}{}", options.directory, first.host, job.empty() ? "" : ", " + job);
  TextTable table({"check", "state", "found", "for saves here"});
  for (const Finding& f : first.findings) {
    table.Add({f.name, std::string(Name(f.severity)), f.found, f.meaning});
    table.Paint(1, ToneOf(f.severity));
  }
  table.Print();
  bool heading = false;
  for (const Finding& f : first.findings) {
    if (f.change.empty()) continue;
    if (!std::exchange(heading, true)) fmt::print("\nto change:\n");
    PrintLine("  {}: {}", f.name, f.change);
  }
  if (ranks == 1) return;
  fmt::print("\n");
  if (reports.size() == 1) PrintLine("all {} ranks found the same", ranks);
  for (size_t i = 1; i < reports.size(); ++i) PrintHost(reports[i]);
}

void Print(const std::vector<HostReport>& reports, const DoctorOptions& options, int ranks) {
  if (!options.json) return PrintPage(reports, options, ranks);
  PrintJson({{"directory", options.directory},
             {"host", reports[0].host},
             {"ranks", ranks},
             {"loses_data", LosesData(reports)},
             {"findings", ToJson(reports[0].findings)},
             {"other_hosts", HostsJson(reports)}});
}

// Why a rank cannot write its report; empty if it can.
std::string WhyNotToMeet(const Result<HostReport>& own) {
  if (!own.ok()) return own.status().message();
  const Finding& first = own->findings[0];
  return first.name == "write" ? fmt::format("{}; {}", first.found, first.meaning) : "";
}

Result<int> RunDoctor(const DoctorOptions& options) {
  RemoveOutputsAtSignals();
  FileSystem& fs = FileSystem::Posix();
  RankTeam team = RankTeam::FromTorchrun(std::getenv).value_or(RankTeam::FromEnvironment(std::getenv));
  team.start_patience = team.patience = [] { return kPatience; };
  const Result<HostReport> own = Examine(fs, options.directory, team);
  if (const std::string why = WhyNotToMeet(own); !team.leads() && !why.empty()) {
    // With success: most launchers would end rank 0 otherwise, whose status says it, too.
    PrintProblem(fmt::format("rank {} on {}: {}", team.rank, HostName(), why));
    return kExitDone;
  }
  CAIRN_RETURN_IF_ERROR(own.status());
  const Result<std::vector<HostReport>> reports = Gather(fs, options.directory, team, *own);
  // What rank 0 knows is worth reporting even if others did not arrive.
  if (team.leads()) Print(reports.ok() ? *reports : std::vector{*own}, options, reports.ok() ? team.size : 1);
  CAIRN_RETURN_IF_ERROR(reports.status());
  if (!team.leads()) return kExitDone;
  return LosesData(*reports) ? kExitCheckFailed : kExitDone;
}

}  // namespace

void AddDoctorCommand(CLI::App& app, Verb& verb) {
  const auto [doctor, options] = AddVerb(
      app, verb, "doctor",
      "report what this host and a directory offer to saves, what they lack, and what to change", RunDoctor);
  doctor->add_option("DIR", options->directory,
                     "where a training or an archive will write; default: the current directory");
  doctor->add_flag("--json", options->json, "print facts as JSON");
  doctor->footer(
      "Looks at limits, memory, fsync, renames, locks, caches of names, O_DIRECT, io_uring, space, quota,\n"
      "access times, the clock, Slurm and MPI. Writes a few MB into DIR, in a new directory, and removes\n"
      "them. Under srun, mpirun or torchrun --no-python each rank looks; rank 0 prints its facts, and a "
      "line\n"
      "for each host that differs.\n\n" +
      HelpFooter("srun --mpi=pmix -N4 cairn doctor /scratch/me",
                 "something would lose data: DIR cannot be written, fsync fails, bytes read differ from "
                 "those written, renames do not replace, locks do not exclude, or the clock is an hour off",
                 "checks again"));
}

}  // namespace cairn
