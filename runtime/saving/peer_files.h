// Reads files of other nodes by messages, to load local checkpoints and to rebuild them from parity.
//
// A session is collective: each rank offers files and does its work. Meanwhile a thread serves the requests
// of other ranks; only this thread uses the mailbox. The session begins when all ranks offer their files, and
// ends when the work of all ranks has ended.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/step/parity_file.h"
#include "runtime/control/control_plane.h"

namespace cairn {

class Mailbox;

// The name of a shard's parity file.
std::string ParityNameOf(const std::string& shard);

class PeerFiles {
 public:
  // A file that this rank offers by name: bytes in memory or a path.
  struct Offer {
    std::span<const std::byte> memory;
    std::string path;  // if `memory` is empty
  };
  struct Read {
    int rank;
    std::string name;  // of its offers
    uint64_t offset;
    std::span<std::byte> out;
  };

  // Collective. Nobody else may use `mailbox`. `timeout_seconds`: without an answer. Throws std::system_error
  // if its thread cannot be started; sessions start no others.
  PeerFiles(FileSystem& fs, std::shared_ptr<Mailbox> mailbox, double timeout_seconds);
  ~PeerFiles();

  int rank() const;
  int size() const;

  // Collective. Returns the status of `work`, or Aborted if a rank does not answer.
  Status Session(std::map<std::string, Offer> offers, const std::function<Status()>& work);
  // Does all reads. Safe from several threads; only within a session. Errors: those of the other rank's disk.
  Status ReadAll(std::span<const Read> reads);

 private:
  struct Waiting {  // for a reply
    std::span<std::byte> out;
    std::optional<Status> outcome;
  };

  void ServeSessions();
  void Serve();
  void GiveUp();  // on answers that have not come
  bool Turn();    // sends requests, takes messages; false: nothing to do
  void Take(int from, const std::string& message);
  void Answer(int from, uint64_t id, const std::string& name, uint64_t offset, uint64_t bytes);
  void Resolve(uint64_t id, const Status& status, std::string_view bytes);
  Status ReadOffer(const std::string& name, uint64_t offset, std::span<std::byte> out);
  void Post(int to, std::string message);

  FileSystem& fs_;
  const std::shared_ptr<Mailbox> mailbox_;
  ControlPlane control_;
  const double timeout_seconds_;
  std::map<std::string, Offer> offers_;                 // the session's
  std::map<std::string, std::unique_ptr<File>> files_;  // opened offers

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int, std::string>> requests_;  // to send
  std::map<uint64_t, Waiting> waiting_;               // by id
  uint64_t next_id_ = 0;                              // of no other request, in this session or another
  Status failure_;                                    // a rank did not answer
  bool serving_ = false;                              // a session is in progress
  bool idle_ = true;                                  // the thread serves none
  bool stop_ = false;
  std::thread server_;  // last: it uses the others
};

// The files of a group, read from the ranks that have them. `rank_of`: of each good file, by name. All must
// outlive it.
MemberFiles FilesOf(const ParityGroup& group, const std::map<std::string, int>& rank_of, PeerFiles& peers);

}  // namespace cairn
