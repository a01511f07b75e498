// Random trainings against an oracle that keeps the true tree of descent. They save at any
// interval and number, go back to current and abandoned steps, restart, lose a manifest, are copied, and have
// steps put into other directories. After each action the newest step, the step that the run means, `latest`,
// the superseded steps and the retired ones must agree with the oracle.
//
// CAIRN_LONG=1 walks 2,000 times.
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "ckpt/model/layout.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/run/run_identity.h"
#include "ckpt/step/find_step.h"
#include "ckpt/step/step_reader.h"
#include "tests/support/long_form.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

// A commit.
struct Node {
  int64_t number = 0;
  std::string run;
  const Node* parent = nullptr;  // the commit that it truly came from, or the one that its number implies
  int branch = 0;                // of the whole walk, by age
  bool first_branch = true;      // of its directory
  bool healthy = true;
  std::set<std::string> runs;  // that its manifest names
  BranchedStep commit;         // as its manifest says
};

// A run directory, as it should be.
struct Dir {
  std::string path;
  std::string owner;                       // the run that saved here last; empty: none yet
  const Node* tip = nullptr;               // the newest commit
  std::map<int64_t, const Node*> present;  // by number
  std::multiset<int64_t> aside;            // saved again, and not yet removed
  std::set<int64_t> torn;
  std::set<int64_t> strangers;  // put here by hand
};

class Walk {
 public:
  explicit Walk(uint64_t seed) : random_(seed) { NewDir(); }

  void Run() {
    const int64_t actions = 6 + Below(14);
    for (int64_t i = 0; i < actions && !testing::Test::HasFailure(); ++i) {
      Act();
      for (const Dir& dir : dirs_) Check(dir);
    }
  }
  std::string story;

 private:
  int64_t Below(int64_t count) { return std::uniform_int_distribution<int64_t>(0, count - 1)(random_); }
  bool Chance(double share) { return std::bernoulli_distribution(share)(random_); }
  void Tell(const std::string& what) { story += what + "\n"; }

  Dir& NewDir() {
    dirs_.push_back({.path = temp_ / ("run" + std::to_string(dirs_.size())), .owner = {}});
    return dirs_.back();
  }

  void Act() {
    Dir& dir = dirs_[static_cast<size_t>(Below(static_cast<int64_t>(dirs_.size())))];
    if (&dir != here_ || Chance(0.1)) Start(dir);
    const int64_t action = Below(20);
    if (action < 4) return Load(dir);
    if (action < 5) return Tear(dir);
    if (action < 6 && dirs_.size() < 4) return Copy(dir);
    if (action < 7 && dirs_.size() < 4) return Reshape(dir);
    if (action < 8) return PutByHand(dir);
    Save(dir);
  }

  // ---- Actions ----

  // A training starts: from the newest step, or from an unrecorded source.
  void Start(Dir& dir) {
    here_ = &dir;
    state_ = dir.present.empty() ? nullptr : Meant(dir);
    known_ = !Chance(0.15);
    Tell(fmt::format("start in {}{}", dir.path, known_ ? "" : ", loads by other means"));
  }

  // Mostly of its own directory.
  void Load(const Dir& own) {
    const bool other = Chance(0.1);
    const Dir& dir = other ? dirs_[static_cast<size_t>(Below(static_cast<int64_t>(dirs_.size())))] : own;
    std::vector<const Node*> readable;
    for (const auto& [number, node] : dir.present)
      if (!dir.torn.contains(number) && !dir.strangers.contains(number)) readable.push_back(node);
    if (readable.empty()) return;
    state_ = readable[static_cast<size_t>(Below(static_cast<int64_t>(readable.size())))];
    known_ = true;
    Tell(fmt::format("load {} of {}", state_->number, dir.path));
  }

  int64_t NextNumber(const Dir& dir) {
    const int64_t tip = dir.tip == nullptr ? 0 : dir.tip->number;
    const int64_t from = state_ == nullptr ? tip : state_->number;
    switch (Below(6)) {
      case 0:
        return from + 1;
      case 1:
        return from + 10;
      case 2:
        return tip + 10;
      case 3:
        return 1 + Below(from + 5);  // any number, mostly a lower one
      default:
        return from + 1 + Below(20);
    }
  }

  void Save(Dir& dir) {
    const bool in_line =
        known_ && state_ != nullptr && dir.tip != nullptr && dir.tip->runs.contains(state_->run);
    if (!in_line && dir.tip != nullptr && dir.torn.contains(dir.tip->number)) return;  // cannot be known
    const int64_t number = NextNumber(dir);
    const int64_t keep_last = Below(4);
    StepRecipe recipe = RecipeOf({.layers = 1, .hidden = 8, .heads = 2, .ffn = 8, .vocab = 8}, {});
    recipe.step = number;
    recipe.nonce = fmt::format("{:x}", ++saves_);
    recipe.optimizer = false;
    ASSERT_TRUE(MakeDirs(fs_, dir.path).ok());
    recipe.run = OwnRun(fs_, dir.path)->run;
    const bool healthy = !Chance(0.1);
    if (!healthy) recipe.state["health"] = ToJson(Health{.loss = 1, .nonfinite = 1});
    if (known_ && state_ != nullptr) recipe.origin = state_->commit;
    Tell(fmt::format("save {} in {}, from {}, keep_last={}{}", number, dir.path,
                     recipe.origin ? std::to_string(state_->number) : "?", keep_last,
                     healthy ? "" : ", bad"));
    ASSERT_TRUE(MakeStep(fs_, dir.path, recipe).ok());
    Commit(dir, recipe, healthy, in_line ? state_ : Before(dir.tip, number));
    Retain(dir, keep_last);
    state_ = dir.tip;
    known_ = true;
  }

  // The manifest of a step is cut, if it is the last one or any other.
  void Tear(Dir& dir) {
    if (dir.present.empty() || !dir.strangers.empty()) return;
    auto at = dir.present.begin();
    std::advance(at, Below(static_cast<int64_t>(dir.present.size())));
    const int64_t number = Chance(0.5) && dir.tip != nullptr ? dir.tip->number : at->first;
    if (!dir.present.contains(number)) return;
    Tell(fmt::format("tear {} in {}", number, dir.path));
    stdfs::resize_file(Step(dir, number) + "/manifest.json", 300);
    dir.torn.insert(number);
    if (state_ != nullptr && state_->number == number) Start(dir);
  }

  void Copy(const Dir& from) {
    if (from.present.empty()) return;
    const Dir before = from;  // dirs_ may grow
    Dir& copy = NewDir();
    const std::string path = copy.path;
    copy = before;
    copy.path = path;
    stdfs::copy(before.path, path, stdfs::copy_options::recursive);
    Tell(fmt::format("copy {} to {}", before.path, path));
  }

  // Only the newest step goes into a new directory without an owner, as reshape makes one.
  void Reshape(const Dir& from) {
    if (from.tip == nullptr || !from.present.contains(from.tip->number) ||
        from.torn.contains(from.tip->number))
      return;
    const Node* step = from.tip;
    const std::string source = Step(from, step->number);
    Dir& made = NewDir();
    Put(made, source, *step);
    made.tip = step;
    std::ofstream(made.path + "/latest") << StepDirName(step->number) << "\n";
    Tell(fmt::format("reshape {} to {}", step->number, made.path));
  }

  // A command refuses to put a step of another run there; a user may do it by hand.
  void PutByHand(Dir& dir) {
    const Dir& other = dirs_[static_cast<size_t>(Below(static_cast<int64_t>(dirs_.size())))];
    if (other.tip == nullptr || dir.owner.empty() || other.tip->run == dir.owner || !dir.torn.empty()) return;
    const Node* step = other.tip;
    if (step->commit.descent == Descent()) return;  // as of an older version: lower numbers count everywhere
    const bool owned =
        std::ranges::any_of(dir.present, [&](const auto& p) { return p.second->run == dir.owner; });
    if (!owned || dir.present.contains(step->number) || !other.present.contains(step->number) ||
        other.torn.contains(step->number))
      return;
    EXPECT_EQ(CheckSameRun(fs_, dir.path, step->commit).kind(), StatusKind::kInvalidArgument);
    Put(dir, Step(other, step->number), *step);
    dir.strangers.insert(step->number);
    Tell(fmt::format("put {} of {} into {}", step->number, other.path, dir.path));
  }

  void Put(Dir& dir, const std::string& source, const Node& step) {
    stdfs::create_directories(dir.path);
    stdfs::copy(source, Step(dir, step.number), stdfs::copy_options::recursive);
    dir.present[step.number] = &step;
  }

  // ---- The oracle ----

  static std::string Step(const Dir& dir, int64_t number) { return JoinPath(dir.path, StepDirName(number)); }

  // `tip` and its ancestors. Along the line numbers ascend: a step replaces higher ones.
  static std::set<const Node*> Line(const Node* tip) {
    std::set<const Node*> line;
    int64_t below = std::numeric_limits<int64_t>::max();
    for (const Node* node = tip; node != nullptr; node = node->parent)
      if (node->number < below) {
        line.insert(node);
        below = node->number;
      }
    return line;
  }

  // The origin of a step of that number if only the number tells.
  static const Node* Before(const Node* tip, int64_t number) {
    const Node* best = nullptr;
    for (const Node* node : Line(tip))
      if (node->number < number && (best == nullptr || node->number > best->number)) best = node;
    return best;
  }

  void Commit(Dir& dir, const StepRecipe& recipe, bool healthy, const Node* parent) {
    const Node* before = dir.tip;
    Node node{.number = recipe.step, .run = recipe.run, .parent = parent, .healthy = healthy};
    const bool torn =
        before != nullptr && dir.torn.contains(before->number) && dir.present.contains(before->number);
    const bool continues = before != nullptr && parent == before && recipe.step > before->number &&
                           recipe.run == before->run && !torn;
    node.branch = continues ? before->branch : ++branches_;
    node.first_branch = before == nullptr || (continues && before->first_branch);
    node.commit = BranchedStep::Of(*ReadManifest(fs_, Step(dir, recipe.step)));
    node.runs.insert(recipe.run);
    for (const EarlierBranch& earlier : node.commit.descent.branches) node.runs.insert(earlier.run);
    nodes_.push_back(node);
    if (dir.present.contains(node.number)) {
      dir.torn.erase(node.number);
      dir.strangers.erase(node.number);
      dir.aside.insert(node.number);
    }
    dir.owner = recipe.run;
    dir.present[node.number] = dir.tip = &nodes_.back();
  }

  // With rules for health: the newest healthy steps count, and newer ones are evidence.
  void Retain(Dir& dir, int64_t keep_last) {
    ASSERT_TRUE(ApplyRetention(fs_, dir.path, {.keep_last = keep_last, .run = dir.owner}, "ab").ok());
    if (keep_last == 0) return;
    const std::set<const Node*> line = Line(dir.tip);
    std::vector<const Node*> healthy;
    int64_t of_branch = 0;
    for (const auto& [number, node] : dir.present) {
      if (!line.contains(node) || dir.torn.contains(number) || dir.strangers.contains(number) ||
          !node->healthy)
        continue;
      healthy.push_back(node);
      of_branch += node->branch == dir.tip->branch ? 1 : 0;
    }
    if (healthy.empty()) return;
    const bool settled = dir.tip->first_branch || of_branch > 1;
    const int64_t least = healthy.back() == dir.tip ? std::max<int64_t>(keep_last, 2) : keep_last;
    std::set<const Node*> keep(healthy.end() - std::min<int64_t>(least, std::ssize(healthy)), healthy.end());
    std::erase_if(dir.present, [&](const auto& entry) {
      const auto& [number, node] = entry;
      if (node->run != dir.owner || dir.torn.contains(number)) return false;
      const bool current = line.contains(node);
      const bool goes = !current || (number <= healthy.back()->number && !keep.contains(node));
      return goes && (settled || (current && node->branch == dir.tip->branch));
    });
    if (settled) AsideGoes(dir);
  }

  // Only steps of this run; the others stay.
  void AsideGoes(Dir& dir) {
    std::multiset<int64_t> left;
    for (const auto& entry : stdfs::directory_iterator(dir.path))
      if (ParseMarkedDirName(entry.path().filename().string()) == "superseded") {
        const auto manifest = ReadManifest(fs_, entry.path());
        EXPECT_TRUE(!manifest.ok() || manifest->run != dir.owner) << entry.path();
        left.insert(*ParseStepDirName(entry.path().stem().string()));
      }
    for (const int64_t number : left) EXPECT_TRUE(dir.aside.contains(number)) << number;
    dir.aside = left;
  }

  // The step that the run means if its last step cannot be read: the newest of the others. But if `latest`
  // names a lower number, the training had gone back to before it.
  const Node* Newest(const Dir& dir) const {
    if (dir.tip != nullptr && dir.present.contains(dir.tip->number) && !dir.torn.contains(dir.tip->number))
      return dir.tip;
    const Node* newest = nullptr;
    const auto of_owner = [&](const Node* node) { return node->run == dir.owner; };
    bool owned = false;
    for (const auto& [number, node] : dir.present) owned |= of_owner(node) && !dir.torn.contains(number);
    for (const auto& [number, node] : dir.present) {
      if (dir.torn.contains(number) || (owned && !of_owner(node))) continue;
      if (newest == nullptr || newest->branch < node->branch ||
          (newest->branch == node->branch && newest->number < node->number))
        newest = node;
    }
    return newest;
  }

  std::set<const Node*> Current(const Dir& dir) const {
    std::set<const Node*> line = Line(Newest(dir));
    if (dir.tip != nullptr && dir.torn.contains(dir.tip->number))
      std::erase_if(line, [&](const Node* node) { return node->number >= dir.tip->number; });
    std::erase_if(line, [&](const Node* node) {
      const auto found = dir.present.find(node->number);
      return found == dir.present.end() || found->second != node || dir.torn.contains(node->number);
    });
    return line;
  }

  // The step that opens by the path of the run; null: none.
  const Node* Meant(const Dir& dir) const {
    const Node* meant = nullptr;
    for (const Node* node : Current(dir))
      if (meant == nullptr || node->number > meant->number) meant = node;
    return meant;
  }

  void Check(const Dir& dir) {
    SCOPED_TRACE(dir.path);
    std::vector<int64_t> expected;
    for (const auto& [number, node] : dir.present) expected.push_back(number);
    EXPECT_EQ(*ListSteps(fs_, dir.path), expected);
    std::multiset<int64_t> aside;
    std::error_code none;
    for (const auto& entry : stdfs::directory_iterator(dir.path, none))
      if (ParseMarkedDirName(entry.path().filename().string()) == "superseded")
        aside.insert(*ParseStepDirName(entry.path().stem().string()));
    EXPECT_EQ(aside, dir.aside);
    if (dir.tip == nullptr) return;
    EXPECT_EQ(LatestOf(fs_, dir.path), dir.tip->number);

    const auto run = ReadRunSteps(fs_, dir.path);
    ASSERT_TRUE(run.ok());
    EXPECT_EQ(run->unreadable.size(), dir.torn.size());
    const std::set<const Node*> current = Current(dir);
    for (const StepFacts& step : run->steps) {
      // A list of branches cannot name those of another directory, of which a step was loaded and put here,
      // too.
      if (dir.strangers.contains(step.step) && !step.current()) continue;
      EXPECT_EQ(step.current(), current.contains(dir.present.at(step.step))) << step.step;
      EXPECT_TRUE(step.lineage != Lineage::kOtherRun || dir.strangers.contains(step.step)) << step.step;
    }
    const auto opened = OpenNewestStep(fs_, dir.path, [](const Status&) {});
    const Node* meant = Meant(dir);
    ASSERT_EQ(opened.ok(), meant != nullptr) << opened.status().message();
    EXPECT_TRUE(meant == nullptr || (*opened)->manifest().step == meant->number);
    CheckOrigin(dir);
  }

  // Until two healthy steps of the newest branch exist, the step that it came from must.
  void CheckOrigin(const Dir& dir) {
    const Node* first = dir.tip;
    while (first->parent != nullptr && first->parent->branch == dir.tip->branch) first = first->parent;
    int64_t healthy = 0;
    for (const auto& [number, node] : dir.present)
      healthy += node->branch == dir.tip->branch && node->healthy && !dir.torn.contains(number) ? 1 : 0;
    if (first->parent == nullptr || healthy > 1) origin_.erase(dir.path);
    if (first->parent == nullptr || healthy > 1) return;
    const auto there = [&](const Node* node) {
      const auto found = dir.present.find(node->number);
      return dir.aside.contains(node->number) || (found != dir.present.end() && found->second == node);
    };
    auto& [branch, was_there] = origin_[dir.path];
    if (branch != dir.tip->branch) was_there = there(first->parent);
    branch = dir.tip->branch;
    EXPECT_TRUE(!was_there || there(first->parent)) << "the origin " << first->parent->number << " is gone";
  }

  FileSystem& fs_ = FileSystem::Posix();
  const TempDir temp_{TempDir::Place::kMemory};
  std::mt19937_64 random_;
  std::deque<Node> nodes_;
  std::deque<Dir> dirs_;
  Dir* here_ = nullptr;                                 // the directory of the training that runs
  const Node* state_ = nullptr;                         // that it has in memory
  bool known_ = true;                                   // whether it was loaded from a step by Cairn
  std::map<std::string, std::pair<int, bool>> origin_;  // by directory: whether it was in its newest branch
  int branches_ = 0;
  int saves_ = 0;
};

TEST(HistoryWalkTest, RandomHistoriesKeepTheAncestorsOfTheNewestStep) {
  const uint64_t walks = IsLongForm() ? 2000 : 50;
  for (uint64_t seed = 1; seed <= walks && !HasFailure(); ++seed) {
    Walk walk(seed);
    walk.Run();
    if (HasFailure()) ADD_FAILURE() << "walk " << seed << ":\n" << walk.story;
  }
}

}  // namespace
}  // namespace cairn
