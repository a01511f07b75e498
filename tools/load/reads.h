// Checkpoints that a process reads: lists their contents, and reads boxes of their tensors into its memory.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ckpt/job/peer_file_system.h"
#include "tools/serve/origins.h"
#include "tools/serve/state_names.h"
#include "tools/source/open_ckpt.h"

namespace cairn {

// The boxes of cairn_load_read() (cairn_load.h).
struct WantedBoxes {
  uint64_t count = 0;
  const uint64_t* tensors = nullptr;
  const uint64_t* offsets = nullptr;
  const uint64_t* extents = nullptr;
  void* const* places = nullptr;
};

// The tensors of cairn_load_match().
struct WantedTensors {
  uint64_t count = 0;
  const char* names = nullptr;
  const uint8_t* dtypes = nullptr;
  const uint8_t* ranks = nullptr;
  const uint64_t* shapes = nullptr;
};

// Safe from several threads.
class Reads {
 public:
  explicit Reads(FileSystem& fs) : fs_(fs) {}

  struct Contents {
    std::string json;     // the description
    std::string pickles;  // that it points into
  };
  // A step, a run (its newest step that opens), or any format of another system; options as in
  // ParseSourceOptions. With "local" it is a local step, some of whose files are read from other ranks:
  // {"secret", "places", "names", "elsewhere": {file: [rank, bytes]}}. Errors: those of OpenAnyCkpt.
  Result<Contents> Open(const std::string& path, const nlohmann::json& options, int64_t& handle);
  // The columns of cairn_load_tensors().
  Result<std::string> Tensors(int64_t handle);
  // As cairn_load_match().
  Status Match(int64_t handle, const WantedTensors& wanted, int64_t* numbers);
  // Reads all of them, verified: the boxes of a step with all cores that the process may use. Errors:
  // InvalidArgument if a box is not one of the checkpoint's; those of reading.
  Status Read(int64_t handle, const WantedBoxes& wanted);
  // Verifies checksums that cover more than the boxes read. Call before the data is used. Errors: Corrupt
  // naming the file.
  Status Check(int64_t handle);
  // The step, with the tensors that were read; nullopt for another system's checkpoint, and one that is not
  // open. It gives the last kMostClosed that were read and closed, each once.
  std::optional<nlohmann::json> Origin(int64_t handle);
  void Close(int64_t handle);

 private:
  static constexpr size_t kMostClosed = 64;
  struct Opened {
    Opened(OpenedSource from, StateNames of, std::unique_ptr<PeerFiles> others);
    bool is_step() const { return source.step.reader && !source.foreign; }

    const std::unique_ptr<PeerFiles> peers;  // of a local step; null of others
    OpenedSource source;
    const StateNames names;
    std::vector<std::string> fqns;                // of all tensors
    const bool parallel;                          // several threads may read it at once
    std::mutex mutex;                             // of a read, if they may not, of a check, and of `more`
    std::function<Result<OpenedSource>()> again;  // opens the same once more
    std::vector<OpenedSource> more;               // each for a thread
    std::mutex marks;                             // of what follows; held shortly
    std::vector<bool> read;                       // of each tensor, whether it was
    std::unordered_map<std::string_view, uint32_t> numbers;  // by FQN; empty until needed
  };
  Result<std::shared_ptr<Opened>> At(int64_t handle);
  // Reads boxes of a source that one thread at a time reads: with several sources of the same checkpoint.
  static Status ReadByShares(Opened& opened, std::vector<ReadRequest> requests);

  FileSystem& fs_;
  std::mutex mutex_;                                   // of all below
  std::map<int64_t, std::shared_ptr<Opened>> opened_;  // by handle; a read that runs holds what it uses
  std::map<int64_t, Origins::Known> closed_;           // that were read
};

}  // namespace cairn
