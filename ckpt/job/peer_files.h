// Reads files of other ranks over TCP, to compute the parity of local steps, to load them, and to rebuild
// lost ones.
//
// A session is collective: each rank offers files and does its work, in which it reads files of the others.
// Connections begin with a secret that only the ranks of this job have; the bytes themselves are not
// encrypted, as those of the training are not.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/base/unique_fd.h"
#include "ckpt/io/file_system.h"
#include "ckpt/job/job_ranks.h"
#include "ckpt/step/parity_file.h"

namespace cairn {

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

  // Collective. Nobody else may use `ranks`, whose deadline is that of a rank's work in a session.
  // `timeout_seconds`: without a byte of an answer. `begin_thread`: called first in each thread that serves
  // others. Errors: IoError if a rank cannot listen; those of `ranks`.
  static Result<std::unique_ptr<PeerFiles>> Open(FileSystem& fs, std::unique_ptr<JobRanks> ranks,
                                                 double timeout_seconds, std::function<void()> begin_thread);
  ~PeerFiles();

  int rank() const { return ranks_->rank(); }
  int size() const { return ranks_->size(); }

  // Collective. Returns the status of `work`, or Aborted if a rank does not take part.
  Status Session(std::map<std::string, Offer> offers, const std::function<Status()>& work);
  // Does all reads, of different ranks at once. Safe from several threads; only within a session. Errors:
  // those of the other rank's disk, naming it; Aborted if it cannot be reached, or does not answer.
  Status ReadAll(std::span<const Read> reads);

 private:
  struct Served {
    UniqueFd socket;
    std::thread thread;
    bool ended = false;
  };

  PeerFiles(FileSystem& fs, std::unique_ptr<JobRanks> ranks, double timeout_seconds,
            std::function<void()> begin_thread);
  Status Listen();
  void Accept();
  void Serve(int socket);
  bool Answer(int socket, const std::string& name, uint64_t offset, uint64_t bytes);
  Status ReadOffer(const std::string& name, uint64_t offset, std::span<std::byte> out);
  Result<UniqueFd> ConnectionTo(int rank);
  Result<UniqueFd> Connect(int rank) const;
  Status Receive(int socket, const Read& read) const;

  FileSystem& fs_;
  const std::unique_ptr<JobRanks> ranks_;
  const double timeout_seconds_;
  const std::function<void()> begin_thread_;
  std::string secret_;
  UniqueFd listener_;
  std::vector<std::vector<sockaddr_in>> places_;  // of all ranks

  std::mutex offers_mutex_;                             // of both; held while a part is read
  std::map<std::string, Offer> offers_;                 // the session's
  std::map<std::string, std::unique_ptr<File>> files_;  // opened offers

  std::mutex mutex_;                   // of all below
  std::multimap<int, UniqueFd> idle_;  // connections by rank, which nobody uses
  std::list<Served> served_;           // connections of others
  bool stop_ = false;
  std::thread accepter_;
};

// The files of a group, read from the ranks that have them. `rank_of`: of each good file, by name. All must
// outlive it.
MemberFiles FilesOf(const ParityGroup& group, const std::map<std::string, int>& rank_of, PeerFiles& peers);

}  // namespace cairn
