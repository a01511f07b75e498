// The policy of an archive, one TOML file: what to keep, and how.
//
//   store = "/tape/me/store"
//   runs = ["/scratch/me/runs/*"]        # a relative path begins at the policy's own directory
//   [[class]]                            # a step is kept in the forms that any class asks for
//   keep = "full"
//   every = 5000
//
// PolicyKeys() lists all keys with their meanings and defaults, and is the parser's own table; `cairn archive
// plan --help` prints it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"
#include "tools/archive/bundle/bundle_plan.h"
#include "tools/archive/tar/recall.h"
#include "tools/archive/tar/record.h"

namespace cairn {

struct KeepClass {
  Form keep = Form::kFull;  // or kWeights
  int64_t every = 0;
  int64_t last = 0;
  int64_t tokens = 0;
  std::vector<int64_t> steps = {};
  std::vector<std::string> tags = {};  // globs
  int64_t daily = 0, weekly = 0, monthly = 0;
};

struct Policy {
  std::string path;  // of its file, absolute and without links; empty: it has none
  std::string tag;   // its name in the store; empty: its path is
  std::string store;
  std::vector<std::string> runs;
  std::vector<std::string> trees;
  int64_t purge_days = 30;
  bool purge_by_mtime = false;  // the site checks the last write of a file, not the last read
  double margin_days = 5;
  double bandwidth = 0;  // bytes a second; 0: not given
  bool pack = false;
  double parity = 0;  // fraction
  BundleSizes bundle;
  std::string status, metrics, on_failure;
  std::vector<KeepClass> classes;
  uint64_t quota_bytes = 0;   // 0: none
  uint64_t quota_inodes = 0;  // 0: none
  bool delete_source = false;
  bool weights_suffice = false;
  bool delete_stored = false;
  double verify_sample = 0;       // fraction of the store; 0: no limit
  uint64_t verify_per_night = 0;  // bytes; 0: no limit
  RecallCommands recall;

  // Its claims on members of the store (claims.h): first the current one, then the one from before it had a
  // tag.
  std::vector<std::string> labels() const;
  bool Claims(std::string_view claim) const;
};

struct PolicyKey {
  std::string_view table;  // empty: the file's own
  std::string_view name;
  std::string_view value;  // an example, or the choices
  std::string_view meaning;
};
const std::vector<PolicyKey>& PolicyKeys();
// A table of them, for people.
std::string PolicyKeysText();

// `origin` is the file's name, for messages. Relative paths begin at `directory`; "~/" at $HOME. Errors:
// InvalidArgument "FILE:LINE: ...".
Result<Policy> ParsePolicy(std::string_view text, const std::string& origin,
                           const std::string& directory = "");
Result<Policy> ReadPolicy(const std::string& path);

// "400MB", "2.5 GiB", "100000", "1TB/s". nullopt if it is not a size.
std::optional<double> ParseSize(std::string_view text);
// "3%" -> 0.03
std::optional<double> ParsePercent(std::string_view text);

}  // namespace cairn
