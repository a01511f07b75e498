#include "tests/faults/scenario.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "tests/support/transfers.h"
#include "tools/archive/bundle/bundler.h"
#include "tools/archive/store/archiver.h"
#include "tools/archive/store/delete.h"
#include "tools/archive/store/ledger.h"
#include "tools/archive/store/leftovers.h"
#include "tools/archive/store/restore.h"
#include "tools/archive/store/source.h"

namespace cairn {
namespace {

constexpr int64_t kFirstStep = 100;

std::string Text(const std::optional<Content>& content) {
  if (!content) return "nothing";
  return fmt::format("step {} with values {}", content->step, ToHex(content->values).substr(0, 8));
}

bool Among(const std::optional<Content>& found, const std::vector<std::optional<Content>>& allowed) {
  return std::ranges::find(allowed, found) != allowed.end();
}

// A disk with these steps in `run_dir`; without any, not even the directory.
std::unique_ptr<SimDisk> DiskWith(const std::string& run_dir, const std::vector<StepRecipe>& steps) {
  SimDisk disk;
  // The directories above, and real ones of the same names for the locks.
  (void)MakeDirs(disk, std::filesystem::path(run_dir).parent_path().string());
  std::filesystem::create_directories(run_dir);
  for (const StepRecipe& step : steps)
    if (!MakeStep(disk, run_dir, step).ok()) return nullptr;
  return disk.Settled();
}

// ---- Saving and pruning ----

// One training: what its run directory held when it began, what it saves, how many steps it keeps.
struct Session {
  std::string run_dir;
  std::vector<StepRecipe> before;
  std::vector<StepRecipe> saves;
  int64_t keep_last = 0;
  bool walks_back = false;     // the newest step is damaged from the beginning
  bool lost_manifest = false;  // the oldest step has none, from the beginning: it must not be deleted
  bool exchanges = true;       // the disk can exchange two names
};

Status SaveAll(FileSystem& fs, const Session& session, const std::function<void()>& reported) {
  for (const StepRecipe& recipe : session.saves) {
    const Status saved = MakeStep(fs, session.run_dir, recipe);
    if (!saved.ok())  // as the trainer does
      Committer(fs, session.run_dir, recipe.step, recipe.nonce).Abandon();
    CAIRN_RETURN_IF_ERROR(saved);
    reported();
    CAIRN_RETURN_IF_ERROR(
        ApplyRetention(fs, session.run_dir, {.keep_last = session.keep_last}, recipe.nonce));
  }
  return OkStatus();
}

// The versions of the state in the order in which they were committed; the first `committed` of them surely.
std::vector<std::optional<Content>> VersionsOf(const Session& session) {
  std::vector<std::optional<Content>> versions{std::nullopt};
  if (!session.before.empty()) versions = {ContentOf(session.before.back())};
  for (const StepRecipe& save : session.saves) versions.push_back(ContentOf(save));
  return versions;
}

// Steps that the policy keeps, besides the newest, are whole; with the values that were saved last or are
// being saved.
std::string CheckKept(FileSystem& fs, const Session& session,
                      const std::vector<std::optional<Content>>& versions, size_t reported) {
  std::vector<std::pair<int64_t, std::vector<std::optional<Content>>>> kept;  // the last commit first
  const auto with_number = [&](int64_t step) {
    return std::ranges::find(kept, step, &decltype(kept)::value_type::first);
  };
  for (size_t i = 0; i <= reported; ++i) {
    if (!versions[i]) continue;
    if (const auto replaced = with_number(versions[i]->step); replaced != kept.end()) kept.erase(replaced);
    kept.insert(kept.begin(), {versions[i]->step, {versions[i]}});
  }
  if (reported + 1 < versions.size())
    if (const auto again = with_number(versions[reported + 1]->step); again != kept.end())
      again->second.push_back(versions[reported + 1]);
  int64_t left = session.keep_last == 0 ? INT64_MAX : session.keep_last;
  for (const auto& [step, contents] : kept) {
    if (left-- == 0) break;
    if (step == kept.front().first) continue;
    const Result<Content> found = ReadWhole(fs, JoinPath(session.run_dir, StepDirName(step)));
    if (!found.ok()) return fmt::format("a step that is kept is gone: {}", found.status().message());
    if (!Among(*found, contents)) return fmt::format("step {} holds other values", step);
  }
  return "";
}

// No step under a committed name is incomplete, kept or not.
std::string CheckNames(FileSystem& fs, const std::string& run_dir, const std::string& except) {
  const auto steps = ListSteps(fs, run_dir);
  if (!steps.ok()) return "";
  for (const int64_t step : *steps) {
    const std::string directory = JoinPath(run_dir, StepDirName(step));
    if (directory == except) continue;
    const Status opened = StepReader::Open(fs, directory).status();
    if (!opened.ok()) return "damaged under a committed name: " + opened.message();
  }
  return "";
}

Scenario SaveScenario(std::string name, Session session) {
  Scenario scenario{
      .name = std::move(name), .run_dir = session.run_dir, .disk = DiskWith(session.run_dir, session.before)};
  if (!session.exchanges) scenario.disk->RefuseExchange();
  if (session.walks_back) {  // its newest step lost a byte long ago
    const std::string shard =
        JoinPath(JoinPath(session.run_dir, StepDirName(session.before.back().step)), ShardName(0));
    scenario.disk->MutableBytes(shard)->pop_back();
    scenario.disk = scenario.disk->Settled();
    session.before.pop_back();
  }
  const std::string oldest =
      session.before.empty() ? "" : JoinPath(session.run_dir, StepDirName(session.before.front().step));
  if (session.lost_manifest) {
    (void)scenario.disk->RemoveFile(JoinPath(oldest, kManifestName));
    scenario.disk = scenario.disk->Settled();
  }
  const auto versions = VersionsOf(session);
  scenario.act = [session](FileSystem& fs, const std::function<void()>& reported) {
    return SaveAll(fs, session, reported);
  };
  scenario.check = [session, versions, oldest](FileSystem& fs, size_t reported) -> std::string {
    std::vector<std::string> damaged;
    const auto found = Resume(fs, session.run_dir, &damaged);
    const std::vector allowed(versions.begin() + reported,
                              std::min(versions.begin() + reported + 2, versions.end()));
    if (!Among(found, allowed))
      return fmt::format("found {}, expected {} or newer", Text(found), Text(allowed[0]));
    if (!session.walks_back) {
      if (!damaged.empty()) return "damaged under a committed name: " + damaged[0];
      const std::string trouble = CheckNames(fs, session.run_dir, session.lost_manifest ? oldest : "");
      if (!trouble.empty()) return trouble;
    }
    if (session.lost_manifest && !fs.Stat(JoinPath(oldest, ShardName(0))).ok())
      return "a step without a manifest was deleted";
    return CheckKept(fs, session, versions, reported);
  };
  scenario.clean = [session](FileSystem& fs) {
    return fs.Stat(session.run_dir).ok() ? CleanLeftovers(fs, session.run_dir) : OkStatus();
  };
  scenario.redo = [session](FileSystem& fs) -> std::string {
    StepRecipe next = session.saves.back();
    next.step += 1000;
    next.seed += 1000;
    next.nonce = "a9a1";
    const Session again{.run_dir = session.run_dir, .saves = {next}, .keep_last = 1};
    if (const Status saved = SaveAll(fs, again, [] {}); !saved.ok()) return saved.message();
    const auto found = Resume(fs, session.run_dir);
    return found == ContentOf(next) ? "" : "the save that followed is not what is found: " + Text(found);
  };
  return scenario;
}

// ---- Reshape ----

Scenario ReshapeScenario(const std::string& root, const Topology& from, const Topology& to) {
  const std::string source = JoinPath(root, "source"), target = JoinPath(root, "target");
  const StepRecipe recipe = SmallRecipe(from, kFirstStep, 1);
  const Content content = ContentOf(recipe);
  Scenario scenario{.name = fmt::format("reshape {} to {}", ToString(from), ToString(to)),
                    .run_dir = target,
                    .disk = DiskWith(source, {recipe})};
  std::filesystem::create_directories(target);
  const auto reshape = [=](FileSystem& fs) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const auto reader, OpenNewestStep(fs, source, [](const Status&) {}));
    return Reshape(fs, *reader, target, {.target = to, .writer = {.jobs = 1}}).status();
  };
  scenario.act = [=](FileSystem& fs, const std::function<void()>& reported) {
    CAIRN_RETURN_IF_ERROR(reshape(fs));
    reported();
    return OkStatus();
  };
  scenario.check = [=](FileSystem& fs, size_t reported) -> std::string {
    if (Resume(fs, source) != content) return "the source is gone";
    std::vector<std::string> damaged;
    const auto found = Resume(fs, target, &damaged);
    if (!damaged.empty()) return "damaged under a committed name: " + damaged[0];
    return found == content || (!found && reported == 0) ? "" : "found " + Text(found) + " in the target";
  };
  scenario.clean = [=](FileSystem& fs) {
    return fs.Stat(target).ok() ? CleanLeftovers(fs, target) : OkStatus();
  };
  scenario.redo = [=](FileSystem& fs) -> std::string {
    const Status again = reshape(fs);
    if (!again.ok() && again.kind() != StatusKind::kAlreadyExists) return again.message();
    return Resume(fs, target) == content ? "" : "reshaped again, and nothing there";
  };
  return scenario;
}

// ---- Archive ----

// Counts wholly verified members of the store; returns a complaint if one claims to be verified and is not.
// Parts of the step `going` may be left.
std::string CheckStore(FileSystem& fs, const std::string& store, size_t& proven, int64_t going = -1) {
  proven = 0;
  const auto members = ListStore({fs, store});
  if (!members.ok()) return "";
  for (const ArchiveMember& member : *members) {
    if (member.state == MemberState::kStored) continue;  // it was not reported
    if (member.state == MemberState::kDamaged && member.step == going) continue;
    const VerifyReport report = VerifyMember({fs, store}, member);
    if (!report.problems.empty()) return "the store: " + ToString(report.problems.front());
    ++proven;
  }
  return "";
}

bool HasProven(FileSystem& fs, const std::string& store, int64_t step) {
  const auto members = ListStore({fs, store});
  return members.ok() && std::ranges::any_of(*members, [&](const ArchiveMember& member) {
           return member.state == MemberState::kVerified && member.step == step;
         });
}

void Unheard() {}

constexpr StoreOptions kInPieces{.max_tar_bytes = 1};  // every entry in a file of its own

Status StoreNewest(FileSystem& fs, const std::string& run_dir, const std::string& store,
                   const std::function<void()>& reported, const StoreOptions& options = {}) {
  CAIRN_RETURN_IF_ERROR(MakeDirs(fs, store));
  CAIRN_RETURN_IF_ERROR(WriteStoreReadme({fs, store}));
  CAIRN_ASSIGN_OR_RETURN(const auto step, OpenNewestStep(fs, run_dir, [](const Status&) {}));
  CAIRN_ASSIGN_OR_RETURN(const auto stored, FindStored({fs, store}, DescribeSource(*step)));
  CAIRN_ASSIGN_OR_RETURN(const ProvenCopy copy, stored ? ProveMember({fs, store}, *stored, {})
                                                       : StoreStep({fs, store}, *step, {}, options));
  reported();
  return DeleteSource({fs, store}, step->directory(), copy, /*newest_too=*/true);
}

Scenario ArchiveScenario(const std::string& root, const Topology& topology,
                         const StoreOptions& options = {}) {
  const std::string run_dir = JoinPath(root, "run"), store = JoinPath(root, "store");
  const StepRecipe recipe = SmallRecipe(topology, kFirstStep, 1);
  const Content content = ContentOf(recipe);
  const std::string how = options.max_tar_bytes > 0 ? "archive in pieces and delete " : "archive and delete ";
  Scenario scenario{
      .name = how + ToString(topology), .run_dir = run_dir, .disk = DiskWith(run_dir, {recipe})};
  scenario.act = [=](FileSystem& fs, const std::function<void()>& reported) {
    CAIRN_RETURN_IF_ERROR(StoreNewest(fs, run_dir, store, reported, options));
    reported();
    return OkStatus();
  };
  scenario.check = [=](FileSystem& fs, size_t reported) -> std::string {
    size_t proven = 0;
    if (const std::string trouble = CheckStore(fs, store, proven); !trouble.empty()) return trouble;
    if (reported > 0) return proven == 1 ? "" : "the store lost what it had proven";
    std::vector<std::string> damaged;
    const bool whole = Resume(fs, run_dir, &damaged) == content;
    return whole || proven == 1 ? "" : "neither the source nor a proven copy";
  };
  scenario.clean = [=](FileSystem& fs) -> Status {
    if (fs.Stat(store).ok()) CAIRN_RETURN_IF_ERROR(CleanStore({fs, store}));
    return CleanLeftovers(fs, run_dir);
  };
  scenario.redo = [=](FileSystem& fs) -> std::string {
    const Status again = StoreNewest(fs, run_dir, store, Unheard, options);
    if (!again.ok() && again.kind() != StatusKind::kNotFound) return again.message();
    size_t proven = 0;
    const std::string trouble = CheckStore(fs, store, proven);
    return trouble.empty() && proven == 1 ? "" : "archived again, and nothing there: " + trouble;
  };
  return scenario;
}

// A run of two steps that were archived.
Scenario ScenarioOfTwo(const std::string& root, std::string name, const Topology& topology,
                       const StoreOptions& options) {
  const std::string run_dir = JoinPath(root, "run"), store = JoinPath(root, "store");
  Scenario scenario{.name = std::move(name),
                    .run_dir = run_dir,
                    .disk = DiskWith(run_dir, {SmallRecipe(topology, kFirstStep, 1),
                                               SmallRecipe(topology, kFirstStep + 1, 2)})};
  for (int i = 0; i < 2; ++i)
    if (!StoreNewest(*scenario.disk, run_dir, store, Unheard, options).ok()) return {};
  scenario.disk = scenario.disk->Settled();
  scenario.clean = [=](FileSystem& fs) { return CleanStore({fs, store}); };
  return scenario;
}

// The work of a scenario, and its reports.
std::function<Status(FileSystem&, const std::function<void()>&)> Reporting(
    std::function<Status(FileSystem&)> work) {
  return [work = std::move(work)](FileSystem& fs, const std::function<void()>& reported) {
    CAIRN_RETURN_IF_ERROR(work(fs));
    reported();
    return OkStatus();
  };
}

// The first of two archived steps may be removed, and must be once that was reported.
std::function<std::string(FileSystem&, size_t)> OnlyTheFirstGoes(const std::string& store) {
  return [=](FileSystem& fs, size_t reported) -> std::string {
    size_t proven = 0;
    if (const std::string trouble = CheckStore(fs, store, proven, kFirstStep); !trouble.empty())
      return trouble;
    if (!HasProven(fs, store, kFirstStep + 1)) return "the step that stays is gone";
    return reported == 0 || proven == 1 ? "" : "what was removed is back";
  };
}

// The first of two archived steps in pieces is removed.
Scenario PruneScenario(const std::string& root, const Topology& topology) {
  const std::string store = JoinPath(root, "store");
  Scenario scenario = ScenarioOfTwo(root, "prune what is in pieces", topology, kInPieces);
  const auto prune = [=](FileSystem& fs) -> Status {
    const auto member = FindMember({fs, store}, fmt::format("run@{}", kFirstStep));
    if (member.status().kind() == StatusKind::kNotFound) return OkStatus();
    return member.ok() ? RemoveMember({fs, store}, member->tar) : member.status();
  };
  scenario.act = Reporting(prune);
  scenario.check = OnlyTheFirstGoes(store);
  scenario.redo = [=](FileSystem& fs) -> std::string {
    if (const Status again = prune(fs); !again.ok()) return again.message();
    const auto names = fs.List(store);
    if (!names.ok()) return names.status().message();
    for (const std::string& name : *names)
      if (name.find(StepDirName(kFirstStep) + ".") != name.npos) return "removed again, and there is " + name;
    return HasProven(fs, store, kFirstStep + 1) ? "" : "removed again, and the other is gone";
  };
  return scenario;
}

// Two archived steps become one bundle.
Scenario BundleScenario(const std::string& root, const Topology& topology) {
  const std::string store = JoinPath(root, "store");
  Scenario scenario = ScenarioOfTwo(root, "bundle " + ToString(topology), topology, {});
  const auto bundle = [=](FileSystem& fs) -> Status {
    constexpr uint64_t kLarge = uint64_t{1} << 40;
    CAIRN_ASSIGN_OR_RETURN(
        const auto problems,
        MakeBundles({fs, store}, {.sizes = {kLarge, kLarge, kLarge}, .parity = 0.05, .all = true}));
    return problems.empty() ? OkStatus() : Corrupt("{}", problems.front());
  };
  scenario.act = Reporting(bundle);
  scenario.check = [=](FileSystem& fs, size_t) -> std::string {
    size_t proven = 0;
    if (const std::string trouble = CheckStore(fs, store, proven); !trouble.empty()) return trouble;
    return proven == 2 ? "" : fmt::format("{} of 2 members are proven", proven);
  };
  scenario.redo = [=](FileSystem& fs) -> std::string {
    if (const Status again = bundle(fs); !again.ok()) return again.message();
    size_t proven = 0;
    if (const std::string trouble = CheckStore(fs, store, proven); !trouble.empty()) return trouble;
    const auto bundles = ListBundles({fs, store});
    const auto tars = ListTars({fs, store});
    return proven == 2 && bundles.ok() && bundles->size() == 1 && tars.ok() && tars->empty()
               ? ""
               : "bundled again, and not in one bundle";
  };
  return scenario;
}

Scenario RestoreScenario(const std::string& root, const Topology& topology) {
  const std::string run_dir = JoinPath(root, "run"), store = JoinPath(root, "store"),
                    back = JoinPath(root, "back");
  const StepRecipe recipe = SmallRecipe(topology, kFirstStep, 1);
  const Content content = ContentOf(recipe);
  Scenario scenario{
      .name = "restore " + ToString(topology), .run_dir = back, .disk = DiskWith(run_dir, {recipe})};
  if (!StoreNewest(*scenario.disk, run_dir, store, [] {}).ok()) return {};
  scenario.disk = scenario.disk->Settled();
  std::filesystem::create_directories(back);  // for its lock
  const auto restore = [=](FileSystem& fs) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const ArchiveMember member, FindMember({fs, store}, ""));
    return RestoreTar({{fs, store}, member.tar}, JoinPath(back, StepDirName(kFirstStep)), {});
  };
  scenario.act = [=](FileSystem& fs, const std::function<void()>& reported) {
    CAIRN_RETURN_IF_ERROR(restore(fs));
    reported();
    return OkStatus();
  };
  scenario.check = [=](FileSystem& fs, size_t reported) -> std::string {
    size_t proven = 0;
    if (const std::string trouble = CheckStore(fs, store, proven); !trouble.empty()) return trouble;
    if (proven != 1) return "the store lost its step";
    std::vector<std::string> damaged;
    const auto found = Resume(fs, back, &damaged);
    if (!damaged.empty()) return "damaged under a committed name: " + damaged[0];
    return found == content || (!found && reported == 0) ? "" : "restored " + Text(found);
  };
  scenario.clean = [=](FileSystem& fs) { return fs.Stat(back).ok() ? CleanLeftovers(fs, back) : OkStatus(); };
  scenario.redo = [=](FileSystem& fs) -> std::string {
    const Status again = restore(fs);
    if (!again.ok() && again.kind() != StatusKind::kAlreadyExists) return again.message();
    return Resume(fs, back) == content ? "" : "restored again, and nothing there";
  };
  return scenario;
}

}  // namespace

size_t Recording::ReportedBefore(size_t at) const {
  return std::ranges::count_if(reports, [&](size_t report) { return report <= at; });
}

std::string Recording::Describe(size_t at) const {
  return fmt::format("{}, at operation {} of {} ({})", scenario.name, at, journal.size(),
                     at < journal.size() ? ToString(*journal[at]) : "the end");
}

Result<Recording> Record(Scenario scenario) {
  if (!scenario.disk) return Aborted("{}: cannot set up", scenario.name);
  Recording recording{.scenario = std::move(scenario)};
  const auto disk = recording.scenario.disk->Settled();
  const Status status =
      recording.scenario.act(*disk, [&] { recording.reports.push_back(disk->operations()); });
  if (!status.ok()) return status.WithContext(recording.scenario.name);
  recording.journal = disk->journal();
  const std::string trouble = recording.scenario.check(*disk, recording.reports.size());
  if (!trouble.empty()) return Corrupt("{}, undisturbed: {}", recording.scenario.name, trouble);
  return recording;
}

std::vector<Scenario> SaveScenarios(const std::string& lock_dir) {
  std::vector<Scenario> scenarios;
  const auto root = [&] { return JoinPath(lock_dir, fmt::format("save-{}", scenarios.size())); };
  for (const Topology& topology : {Topology{2, 1, 1, 0}, Topology{1, 2, 2, 1}}) {
    const auto step = [&](int64_t step, uint64_t seed) { return SmallRecipe(topology, step, seed); };
    const auto add = [&](const std::string& what, Session session) {
      session.run_dir = JoinPath(root(), "run");
      scenarios.push_back(SaveScenario(fmt::format("{} ({})", what, ToString(topology)), session));
    };
    add("first saves of a run", {.saves = {step(100, 1), step(110, 2)}});
    add("saves that keep one step",
        {.before = {step(90, 1), step(100, 2)}, .saves = {step(110, 3), step(120, 4)}, .keep_last = 1});
    add("saves that keep two steps",
        {.before = {step(100, 1)}, .saves = {step(110, 2), step(120, 3)}, .keep_last = 2});
    for (const bool exchanges : {true, false}) {
      const char* how = exchanges ? "" : " without an exchange";
      add(fmt::format("a step saved again{}", how), {.before = {step(90, 1), step(100, 2)},
                                                     .saves = {step(100, 3), step(110, 4)},
                                                     .keep_last = 2,
                                                     .exchanges = exchanges});
      add(fmt::format("a damaged step saved again{}", how), {.before = {step(90, 1), step(100, 2)},
                                                             .saves = {step(100, 3)},
                                                             .walks_back = true,
                                                             .exchanges = exchanges});
    }
    add("a training goes back twice", {.before = {step(100, 1), step(110, 2), step(120, 3)},
                                       .saves = {step(105, 4), step(106, 5), step(101, 6), step(102, 7)},
                                       .keep_last = 2});
    add("saves beside a step that lost its manifest", {.before = {step(90, 1), step(100, 2)},
                                                       .saves = {step(110, 3)},
                                                       .keep_last = 1,
                                                       .lost_manifest = true});
  }
  return scenarios;
}

std::vector<Scenario> AllScenarios(const std::string& lock_dir) {
  std::vector<Scenario> scenarios = SaveScenarios(lock_dir);
  const auto root = [&] { return JoinPath(lock_dir, fmt::format("other-{}", scenarios.size())); };
  scenarios.push_back(ReshapeScenario(root(), {2, 1, 1, 0}, {1, 2, 1, 0}));
  scenarios.push_back(ReshapeScenario(root(), {1, 2, 1, 0}, {2, 1, 2, 1}));
  scenarios.push_back(ArchiveScenario(root(), {2, 1, 1, 0}));
  scenarios.push_back(RestoreScenario(root(), {2, 1, 1, 0}));
  scenarios.push_back(BundleScenario(root(), {1, 1, 1, 0}));
  scenarios.push_back(ArchiveScenario(root(), {2, 1, 1, 0}, kInPieces));
  scenarios.push_back(PruneScenario(root(), {1, 1, 1, 0}));
  for (const bool exchanges : {true, false}) scenarios.push_back(PublishScenario(root(), exchanges));
  return scenarios;
}

}  // namespace cairn
