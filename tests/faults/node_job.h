// A job whose ranks save on their nodes through helpers, as cairn.torch does: each helper is a thread of this
// process, with a disk of its own, and the caller drives all trainers in turn.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ckpt/base/mapping.h"
#include "tests/support/served_helper.h"

namespace cairn {

class NodeJob {
 public:
  static constexpr int kDeadlineSeconds = 10;

  // The run is ROOT/run, and the directories of the nodes are ROOT/node-RANK. `disks`: of each rank.
  NodeJob(std::vector<FileSystem*> disks, std::string root, std::string redundancy, int64_t keep_local = 1);

  static std::string RunDir(const std::string& root) { return JoinPath(root, "run"); }
  static std::string NodeDir(const std::string& root, int rank) {
    return JoinPath(root, "node-" + std::to_string(rank));
  }

  // Makes the helpers known to each other, and opens the local level. If that cannot be used, saves go to the
  // run.
  Status Open();
  // Loads the newest step that is whole on all ranks, and checks every bit. -1: the job has no step.
  Result<int64_t> Resume();

  struct Save {
    std::string nonce;
    std::vector<int64_t> requests;  // by rank; -1: its tensors were not handed over
    Status failure;                 // why
  };
  // Opens again after a failure. Fills memory that no step has, or new memory.
  Save Begin(int64_t step, bool durable);
  void AwaitWritten(const Save& save) { Follow(save, true); }
  // `reported`: some rank's trainer got the reply that the step is saved.
  Status Await(const Save& save, bool& reported);
  // The three of them.
  Status Write(int64_t step, bool durable, bool& reported);
  // The trainers end.
  void End();

  int world() const { return static_cast<int>(ranks_.size()); }

 private:
  struct Segment {
    int64_t plan;
    Mapping memory;
    std::vector<uint64_t> offsets;  // of this rank's rows
  };
  struct Rank {
    std::unique_ptr<ServedHelper> helper;
    std::vector<Segment> segments;
  };

  std::string Run() const { return RunDir(root_); }
  Result<const Segment*> Stage(int rank, int64_t step);
  std::vector<std::optional<nlohmann::json>> Follow(const Save& save, bool only_written);
  Status AskAll(const std::function<nlohmann::json(int rank)>& request);

  const std::vector<FileSystem*> disks_;
  const std::string root_;
  const std::string redundancy_;
  const int64_t keep_local_;
  std::vector<Rank> ranks_;
  bool opened_ = false;
  bool local_ = false;  // the level can be used
  bool started_ = false;
  int64_t plans_ = 0;
};

}  // namespace cairn
