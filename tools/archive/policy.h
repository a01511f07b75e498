// What an archive keeps, as one TOML file says it.
//
//   store = "/tape/me/store"
//   runs = ["/scratch/me/runs/*"]        # run directories; globs
//   trees = ["/scratch/me/tokenizer"]    # any directories, stored as they are
//   purge_days = 30                      # scratch deletes what was not accessed for so long
//   margin_days = 5                      # and this much earlier it must be proven
//   bandwidth = "400MB/s"                # of archiving, proof included; left out: as the last run measured
//   pack = true                          # shards in fewer bytes
//   parity = "3%"                        # blocks that repair so much damage
//   bundle = "100GB"                     # members below that are put together once they make so much
//   bundle_min = "512MB"                 # (default) a smaller bundle is filled up again when more comes
//   bundle_max = "500GB"                 # (default with bundle) no file is larger: more goes into another
//   status = "/home/me/archive.json"     # what happened, for monitoring (default STORE/status.json)
//   metrics = "/var/lib/node_exporter/cairn.prom"
//   on_failure = "mail -s cairn me@site < \"$CAIRN_STATUS\""
//
//   [[class]]                            # a step is kept in the forms that any class asks for
//   keep = "full"                        # or "weights-fp16"
//   every = 5000                         # steps that it divides; or one of:
//   last = 2                             # the newest so many
//   tokens = 100000000000                # the first step at or after each multiple of consumed tokens
//   steps = [143000]                     # by number
//   daily = 7                            # the newest of each of the last 7 days that have one;
//   weekly = 4                           # weeks, months alike
//   monthly = 12
//
//   [quota]
//   bytes = "200TB"
//   inodes = 100000
//
//   [delete]                             # nothing is deleted unless it says so
//   source = true                        # a step, once every form that is asked for was proven anew
//   weights_suffice = true               # also where only its weights are asked for
//   stored = true                        # prune: members that no class asks for
//   rewrite = "50%"                      # prune: a bundle of which no class asks for so much is written anew
//                                        # without that, once it was brought back from tape (default: never)
//
//   [verify]
//   sample = "2%"                        # of the store a night, those first that were looked at longest ago
//   per_night = "200GB"
//
//   [recall]
//   stat = "hsm_pos {path}"              # prints what sorts files into the order of the tape
//   recall = "dmget {paths}"
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/status.h"
#include "tools/archive/record.h"

namespace cairn {

struct KeepClass {
  Form keep = Form::kFull;  // or kWeights
  int64_t every = 0;
  int64_t last = 0;
  int64_t tokens = 0;
  std::vector<int64_t> steps;
  int64_t daily = 0, weekly = 0, monthly = 0;
};

struct Policy {
  std::string store;
  std::vector<std::string> runs;
  std::vector<std::string> trees;
  int64_t purge_days = 30;
  double margin_days = 5;
  double bandwidth = 0;  // bytes a second; 0: not said
  bool pack = false;
  double parity = 0;                                    // fraction
  uint64_t bundle = 0, bundle_min = 0, bundle_max = 0;  // bytes; 0: no bundles, no limit
  std::string status, metrics, on_failure;
  std::vector<KeepClass> classes;
  uint64_t quota_bytes = 0;   // 0: none
  uint64_t quota_inodes = 0;  // 0: none
  bool delete_source = false;
  bool weights_suffice = false;
  bool delete_stored = false;
  double rewrite = 0;               // fraction of a bundle; 0: never
  double verify_sample = 0;         // fraction of the store; 0: no limit
  uint64_t verify_per_night = 0;    // bytes; 0: no limit
  std::string recall_stat, recall;  // commands
};

// `origin` is the file's name, for messages. Errors: InvalidArgument "FILE:LINE: ...".
Result<Policy> ParsePolicy(std::string_view text, const std::string& origin);
Result<Policy> ReadPolicy(const std::string& path);

// "400MB", "2.5 GiB", "100000", "1TB/s". Nothing where it is no size.
std::optional<double> ParseSize(std::string_view text);
// "3%" -> 0.03
std::optional<double> ParsePercent(std::string_view text);

}  // namespace cairn
