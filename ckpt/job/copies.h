// Compares the copies that several ranks hold of one tensor: replicas under data parallelism, and what tensor
// or expert parallelism leaves whole. Only one rank writes each tensor, and a copy with another bit (of
// faulty memory, of a processor that computes wrongly) would continue to train unnoticed.
//
// At each save a rank sends sums of all its values (ckpt/base/value_sum.h) as JSON: {group: {part of a
// tensor: sum}}. A group is one set of ranks; a part is the tensor's name and its offsets, with commas
// between. The content of a group is a file whose name has its digest, so equal ranks share one.
//
// A part that was equal before in this training and is no longer is an alarm. One that never was may not be a
// copy at all: experts that ranks have under one name are lost if only one rank's are saved; vectors, and
// ranks that the training named itself (`given`), are noted.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

// Every message of an alarm begins with it; cairn.torch recognises it by that.
inline constexpr std::string_view kCopiesDiffer = "ALARM: copies differ: ";
inline constexpr std::string_view kGivenGroup = "given-";  // begins the name of one

// The parts that were equal on all their ranks once, by group. Safe from several threads.
class EqualCopies {
 public:
  // all: every part was, from the beginning.
  explicit EqualCopies(bool all = false) : all_(all) {}
  bool Has(const std::string& group, const std::string& part);
  void Add(const std::string& group, std::set<std::string> parts);
  // The parts of sums that all ranks of the group have. They are parsed only if copies differ later, but for
  // sums of another length: then the tensors have changed.
  void AddSums(const std::string& group, std::string sums);
  // True the first time: notes come again at every save.
  bool IsNew(const std::string& note);

 private:
  void ParseSums(const std::string& group);

  const bool all_;
  std::mutex mutex_;
  std::map<std::string, std::string> sums_;  // not parsed yet
  std::map<std::string, std::set<std::string>> parts_;
  std::set<std::string> notes_;
};

class Copies {
 public:
  using ReadFile = std::function<Result<std::string>(int rank, const std::string& name)>;

  struct Verdict {
    std::string alarm;  // a sentence, with tensor, ranks and hosts; empty: none
    std::string lost;   // why a save would lose values; empty: it would not
    std::vector<std::string> notes;
  };

  // Adds rank `rank`, on `host`: {group: name of the file}. Call in order of ranks.
  void Add(int rank, std::string host, const nlohmann::json& files);
  // Compares all ranks that were added. Adds to `equal` what is equal. Errors: Corrupt, and those of `read`.
  Result<Verdict> Compare(EqualCopies& equal, const ReadFile& read) const;

 private:
  std::map<std::string, std::map<std::string, std::vector<int>>> groups_;  // ranks by file
  std::map<int, std::string> hosts_;
};

}  // namespace cairn
