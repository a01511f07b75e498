// A store is listed without reading a tar.

#include <algorithm>
#include <map>
#include <set>

#include "tools/archive/store/claims.h"
#include "tools/archive/store/ledger.h"
#include "tools/archive/store/member_title.h"
#include "tools/archive/store/rebuild.h"
#include "tools/archive/tar/tar_pieces.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/text_table.h"
#include "tools/commands/archive/archive_verbs.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

struct LsOptions {
  std::string store;
  bool rebuild = false;
  bool json = false;
};

ordered_json ToJson(const CheckedMember& entry, const std::string& state, bool on_tape) {
  const ArchiveMember& m = entry.member;
  ordered_json json = {{"run", m.run},   {"step", m.step}, {"form", Name(m.form)},
                       {"state", state}, {"tar", m.tar},   {"bytes", m.bytes}};
  if (m.file() != m.tar) json["bundle"] = m.file();
  if (on_tape) json["on_tape"] = true;
  for (size_t i = 0; m.record && i < m.record->pieces.size(); ++i)
    json["pieces"].push_back({{"name", TarPieceName(m.tar, i + 1)}, {"bytes", m.record->pieces[i]}});
  if (!m.trouble.empty()) json["trouble"] = m.trouble;
  if (!entry.scrub.trouble.empty()) json["trouble"] = entry.scrub.trouble;
  if (m.record) {
    json["tokens"] = m.record->tokens;
    json["run_id"] = m.record->run;
    json["source"] = m.record->source;
    json["claims"] = ClaimsOf(*m.record);
    json["healthy"] = m.record->healthy;
    json["verified_unix_seconds"] = entry.checked_unix_seconds();
  }
  return json;
}

// The members that match RUN@STEP but are not meant by it, by their tars: a training that goes back
// saves a number twice.
std::set<std::string> EarlierSaves(const std::vector<CheckedMember>& members, const MemberTitles& titles) {
  std::map<std::string, std::vector<ArchiveMember>> by_title;
  for (const CheckedMember& entry : members) by_title[titles.Of(entry.member)].push_back(entry.member);
  std::set<std::string> earlier;
  for (auto& [title, fits] : by_title) {
    if (fits.size() < 2) continue;
    for (const ArchiveMember& m : fits) earlier.insert(m.tar);
    for (const ArchiveMember& m : OfNewestCommit(std::move(fits))) earlier.erase(m.tar);
  }
  return earlier;
}

// Sources that were seen and are not stored yet. A store that is read-only has no ledger of them.
Result<std::vector<SeenSource>> WaitingSources(const Store& store) {
  std::vector<SeenSource> waiting;
  Result<Ledger> ledger = Ledger::Open(store);
  if (!ledger.ok()) return waiting;
  CAIRN_ASSIGN_OR_RETURN(waiting, ledger->Sources());
  std::erase_if(waiting, [&](const SeenSource& source) { return !store.fs().Stat(source.path).ok(); });
  return waiting;
}

Result<int> RunArchiveLs(const LsOptions& options) {
  const Store store(FileSystem::Posix(), options.store);
  std::vector<std::string> problems;
  if (options.rebuild) {
    CAIRN_ASSIGN_OR_RETURN(problems, RebuildSidecars(store));
  }
  for (const std::string& problem : problems) PrintProblem(problem);
  CAIRN_ASSIGN_OR_RETURN(const std::vector<CheckedMember> members, ListChecked(store));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<SeenSource> waiting, WaitingSources(store));
  ordered_json list = ordered_json::array();
  MemberTitles titles;
  for (const CheckedMember& entry : members) titles.Add(entry.member);
  const std::set<std::string> earlier = EarlierSaves(members, titles);
  std::vector<std::string> columns{"member", "form", "state", "tokens", "size", "verified", "tar"};
  if (titles.ambiguous()) columns.emplace_back("source");
  TextTable table(columns);
  for (const CheckedMember& entry : members) {
    const ArchiveMember& m = entry.member;
    const std::string state = StateText(store.fs(), entry);
    const std::string trouble = m.trouble.empty() ? entry.scrub.trouble : m.trouble;
    const bool on_tape = !CheckOnDisk(store.fs(), FilesOf(store, {m})).ok();
    list.push_back(ToJson(entry, state, on_tape));
    const bool is_earlier = earlier.contains(m.tar);
    if (is_earlier) list.back()["earlier_save"] = true;
    std::vector<std::string> row{titles.Of(m) + (is_earlier ? " (earlier)" : ""),
                                 std::string(Name(m.form)),
                                 on_tape ? state + ", on tape" : state,
                                 m.record ? std::to_string(m.record->tokens) : "-",
                                 HumanBytes(m.bytes),
                                 m.record ? DateText(entry.checked_unix_seconds()) : "-",
                                 fmt::format("{}{}{}", m.record ? FilesText(*m.record) : m.file(),
                                             trouble.empty() ? "" : ": ", trouble)};
    if (titles.ambiguous()) row.push_back(m.record ? m.record->source : "-");
    table.Add(row);
  }
  const std::string state = IsBusy(store) ? "archiving" : "scratch only";
  for (const SeenSource& source : waiting) {
    const std::string title = fmt::format("{}@{}", source.run, source.step);
    std::vector<std::string> row{title, "-", state, "-", HumanBytes(source.bytes), "-", source.path};
    if (titles.ambiguous()) row.push_back(source.path);
    table.Add(row);
    list.push_back({{"run", source.run},
                    {"step", source.step},
                    {"state", state},
                    {"source", source.path},
                    {"bytes", source.bytes}});
  }
  options.json ? PrintJson(list) : table.Print();
  if (!options.json && !earlier.empty())
    PrintLine(
        "If a step was saved twice, its number names the later save; the name of the tar names the earlier "
        "one: {}:{}",
        options.store, *earlier.begin());
  return problems.empty() ? kExitDone : kExitCheckFailed;
}

}  // namespace

void AddArchiveLs(CLI::App& archive, Verb& verb) {
  const auto [ls, options] =
      AddVerb(archive, verb, "ls", "list what a store holds, without reading the tar files", RunArchiveLs);
  ls->add_option("STORE", options->store, "the store")->required();
  ls->add_flag("--json", options->json, "print facts as JSON");
  ls->add_flag("--rebuild", options->rebuild, "rebuild lost sidecars from their tars");
  ls->footer(HelpFooter("cairn archive ls /tape/me/store"));
}

}  // namespace cairn
