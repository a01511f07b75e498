// The local level of a training of PyTorch, as the helper of one rank has it: the directory on its node
// (ckpt/job/local_place.h), the other ranks' helpers, and the steps from which the job resumes.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ckpt/job/local_place.h"
#include "ckpt/job/local_save.h"
#include "ckpt/job/peer_file_system.h"
#include "ckpt/job/peer_ranks.h"
#include "ckpt/job/resume_steps.h"
#include "tools/serve/held_runs.h"
#include "tools/serve/shared_memory.h"

namespace cairn {

class LocalLevel {
 public:
  struct Request {
    std::string run_dir;
    LocalOptions options;
    std::string nonce;            // hex digits, the same on all ranks, different for each one
    PeerRanks::Seconds patience;  // with another rank

    // Without the patience: {"run", "local", "redundancy", "keep_local", "nonce"}. Errors: Corrupt.
    static Result<Request> Parse(const nlohmann::json& said);
  };

  // Collective. Rank 0 holds the run. Errors: those of HeldRuns::Hold and OpenLocalPlace, the same on all
  // ranks.
  static Result<std::shared_ptr<LocalLevel>> Open(FileSystem& fs, HeldRuns& runs,
                                                  std::shared_ptr<PeerFiles> peers, Request request);

  const LocalPlace& place() const { return place_; }
  const std::string& run() const { return run_; }
  PeerFiles& peers() const { return *peers_; }
  const PeerRanks::Seconds& patience() const { return request_.patience; }

  // Memory for copies of a rank's state. In a directory in memory, if it has room: a file there. Then the
  // copies become the step's file as they are, and the pages of steps that were removed are used again.
  Result<SharedMemory> NewMemory(uint64_t bytes);
  // A file of this size for parity, likewise. Empty: a new file is better.
  std::string SpareFile(uint64_t bytes);
  bool Has(const SharedMemory& memory) const {
    return memory.IsAtItsPath() && memory.path().starts_with(place_.run_dir + "/");
  }
  // OK if the directory has room for a shard of each rank that shares it, and their parity, in `partial`.
  // Errors: NoSpace with the figures. `exists`: the shard is in memory there.
  Status CheckRoom(const std::string& partial, uint64_t shard_bytes, bool exists) const;
  // Removes old steps but those that are in use. `left` is called for what could not be deleted.
  Status Retire(const std::string& nonce, const Complain& left);
  // A step that is copied to the run is in use meanwhile.
  void Use(int64_t step);
  void Release(int64_t step);

  // Loads a step into the trainer's memory. Files in `elsewhere` are read from other ranks.
  using LoadStep = std::function<Status(const std::string& directory,
                                        const std::map<std::string, PeerFileSystem::Place>& elsewhere)>;
  // Collective. Loads the newest step that is whole for all ranks, of the nodes or the run, and sets newer
  // local ones aside. nullopt if no step exists yet. Errors: those of `load` that are not damage, the same on
  // all ranks; Corrupt if none of the steps can be loaded. `verify`: as LocalSteps::Load() has it.
  Result<std::optional<ResumeStep>> Resume(const LoadStep& load, bool verify);

  std::mutex sealing;  // held while a seal is made: two saves may use one plan

 private:
  LocalLevel(FileSystem& fs, HeldRuns& runs, std::shared_ptr<PeerFiles> peers, Request request)
      : fs_(fs), runs_(runs), peers_(std::move(peers)), request_(std::move(request)) {}

  uint64_t ParityOf(uint64_t shard_bytes) const;  // of one rank, if all have as many
  Status NoteNewest();
  Result<ResumeSteps> Steps(const LocalSteps& local) const;
  Status GiveUpAfter(const BranchedStep& commit);

  FileSystem& fs_;
  HeldRuns& runs_;
  const std::shared_ptr<PeerFiles> peers_;
  const Request request_;
  PeerRanks ranks_{*peers_, request_.nonce, request_.patience};  // of the thread that opens and resumes
  std::string run_;                                              // its identity
  LocalPlace place_;
  std::vector<SharedMemory> spare_;  // of the thread that saves
  std::mutex mutex_;
  std::multiset<int64_t> in_use_;
};

}  // namespace cairn
