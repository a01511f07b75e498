// The datasets of a training, opened: for training, for each validation, for each test.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "runtime/data/blended_dataset.h"

namespace cairn {

struct DataRequest {
  // Either these two, as --data-path and --split,
  std::vector<std::string> data_path;
  std::string split;
  // or groups, as --train-weighted-split-paths and its like ("NAME: WEIGHT START:END PREFIX, ...").
  std::vector<std::string> train_groups, valid_groups, test_groups;
  uint64_t train_samples = 0;  // of the whole training; 0: none
  uint64_t valid_samples = 0;  // of all its evaluations; 0: none
  uint64_t test_samples = 0;
  uint64_t seq_length = 0;
  uint32_t seed = kDefaultDataSeed;
};

struct NamedDataset {
  std::string name;  // of its group; empty: that of --split
  std::shared_ptr<const BlendedDataset> samples;
};

struct DataSets {
  std::shared_ptr<const BlendedDataset> train;  // null: none
  std::vector<NamedDataset> valid;
  std::vector<NamedDataset> test;  // none if --split leaves no sequence for it
};

// A file that several of them name is opened once. Errors: those of the parsers and datasets;
// InvalidArgument if there are fewer samples than the training takes.
Result<DataSets> OpenDataSets(const DataRequest& request);

// The groups that a flag names: its own, or those of a file (blend_spec.h). Errors: NotFound, IoError;
// InvalidArgument (naming the file, or if both are given).
Result<std::vector<std::string>> SplitGroupsOf(FileSystem& fs, const std::vector<std::string>& groups,
                                               const std::string& file);

}  // namespace cairn
