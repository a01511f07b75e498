// Reads files of other ranks over TCP, to compute the parity of local steps, to load them, and to rebuild
// lost ones; and takes messages from them, for ranks without another way to exchange them (peer_ranks.h).
//
// A session is collective: each rank offers files and does its work, in which it reads files of the others.
// Connections begin with a secret that only the ranks of this job have; the bytes themselves are not
// encrypted, as those of the training are not.
#pragma once

#include <netinet/in.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
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
// The number in the name of a shard or its parity file, which is the rank's; -1 if the name is of neither.
int WriterOf(const std::string& name);

// Ends the message of a failure if a rank is gone: nothing that needs a part of it can succeed.
inline constexpr std::string_view kHasEnded = " has ended";

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

  // What the ranks of a job must know to reach each other.
  struct Job {
    int rank = 0;  // -1: not one of them, it only reads from them
    std::string secret;
    std::vector<std::string> places;  // by rank
    std::vector<std::string> names;   // by rank, for messages
  };
  static std::string NewSecret();

  // `timeout_seconds`: without a byte of an answer. `begin_thread`: called first in each thread that serves
  // others.
  PeerFiles(FileSystem& fs, double timeout_seconds, std::function<void()> begin_thread);
  // Waits a few seconds until others have taken the messages for them.
  ~PeerFiles();
  // Listens: where other ranks reach this one. It answers them once it has joined. Errors: IoError.
  Result<std::string> Listen();
  // Once, before all below. `ranks`: for sessions, with the deadline of a rank's work in one; nobody else may
  // use it.
  void Join(Job job, std::unique_ptr<JobRanks> ranks);
  // Listens and joins; collective. `ranks` exchanges what a Job is made of. Errors: IoError if a rank cannot
  // listen; those of `ranks`.
  static Result<std::unique_ptr<PeerFiles>> Open(FileSystem& fs, std::unique_ptr<JobRanks> ranks,
                                                 double timeout_seconds, std::function<void()> begin_thread);

  int rank() const { return job_.rank; }
  int size() const { return static_cast<int>(job_.places.size()); }
  const Job& job() const { return job_; }

  // Collective. Returns the status of `work`, or Aborted if a rank does not take part.
  Status Session(std::map<std::string, Offer> offers, const std::function<Status()>& work);
  // Does all reads, of different ranks at once. Safe from several threads; only within a session. Errors:
  // those of the other rank's disk, naming it; Aborted if it cannot be reached, or does not answer.
  Status ReadAll(std::span<const Read> reads);

  // Leaves a message, which `readers` other ranks will take. Names of messages are used once.
  void Post(std::string name, std::string message, int readers);
  // The messages of this name from all of `ranks`, in their order. Errors: Aborted naming a rank that is
  // gone, or leaves none within `seconds`, which is asked again and again.
  Result<std::vector<std::string>> Take(std::span<const int> ranks, const std::string& name,
                                        const std::function<double()>& seconds);

 private:
  struct Posted {
    std::string name;
    std::shared_ptr<const std::string> message;
    int readers;
  };
  struct Served {
    UniqueFd socket;
    std::thread thread;
    bool ended = false;
  };

  void Accept();
  void Serve(int socket);
  bool Answer(int socket, const std::string& name, uint64_t offset, uint64_t bytes);
  bool AnswerMessage(int socket, const std::string& name);
  std::string SecretOnceJoined();
  Result<File*> OpenedOffer(const std::string& name, const std::string& path);
  Status ReadOffer(const std::string& name, uint64_t offset, std::span<std::byte> out);
  Result<UniqueFd> ConnectionTo(int rank);
  Result<UniqueFd> Connect(int rank) const;
  Result<UniqueFd> Request(int rank, std::string request);
  Status Receive(int socket, const Read& read) const;

  FileSystem& fs_;
  const double timeout_seconds_;
  const std::function<void()> begin_thread_;
  UniqueFd listener_;
  Job job_;                          // since Join
  std::unique_ptr<JobRanks> ranks_;  // likewise

  std::shared_mutex offers_mutex_;       // shared while a part is read
  std::map<std::string, Offer> offers_;  // the session's
  std::mutex files_mutex_;
  std::map<std::string, std::unique_ptr<File>> files_;  // opened offers

  std::mutex mutex_;                 // of all below
  std::condition_variable changed_;  // joined_, posted_ or stop_
  bool joined_ = false;
  std::list<Posted> posted_;           // oldest first
  std::multimap<int, UniqueFd> idle_;  // connections by rank, which nobody uses
  std::list<Served> served_;           // connections of others
  bool stop_ = false;
  std::thread accepter_;
};

// The files of a group, read from the ranks that have them. `rank_of`: of each good file, by name. All must
// outlive it.
MemberFiles FilesOf(const ParityGroup& group, const std::map<std::string, int>& rank_of, PeerFiles& peers);

}  // namespace cairn
