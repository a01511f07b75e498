#include "runtime/data/data_sets.h"

#include <cmath>
#include <map>

#include "runtime/data/blend_spec.h"
#include "runtime/data/data_split.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxGroupsBytes = 16 << 20;

class DataOpener {
 public:
  explicit DataOpener(const DataRequest& request) : request_(request) {}

  Result<DataSets> OpenSplit();
  Result<DataSets> OpenGroups();

 private:
  Result<std::shared_ptr<const IndexedDataset>> Open(const std::string& prefix);
  Result<std::shared_ptr<const BlendedDataset>> Blend(BlendRule rule, std::vector<BlendMember> members,
                                                      uint64_t samples);
  Result<NamedDataset> OpenGroup(const std::string& text, uint64_t samples);

  const DataRequest& request_;
  std::map<std::string, std::shared_ptr<const IndexedDataset>> opened_;  // by prefix
};

Result<std::shared_ptr<const IndexedDataset>> DataOpener::Open(const std::string& prefix) {
  auto& indexed = opened_[prefix];
  if (!indexed) {
    CAIRN_ASSIGN_OR_RETURN(IndexedDataset opened, IndexedDataset::Open(prefix));
    indexed = std::make_shared<const IndexedDataset>(std::move(opened));
  }
  return indexed;
}

Result<std::shared_ptr<const BlendedDataset>> DataOpener::Blend(BlendRule rule,
                                                                std::vector<BlendMember> members,
                                                                uint64_t samples) {
  CAIRN_ASSIGN_OR_RETURN(BlendedDataset blend, BlendedDataset::Create(rule, std::move(members), samples,
                                                                      request_.seq_length, request_.seed));
  if (blend.size() < samples)
    return InvalidArgument(
        "{} samples are needed, but without weights each dataset is read once, {} samples; give each a "
        "weight",
        samples, blend.size());
  return std::make_shared<const BlendedDataset>(std::move(blend));
}

Result<DataSets> DataOpener::OpenSplit() {
  CAIRN_ASSIGN_OR_RETURN(const DataPath path, ParseDataPath(request_.data_path));
  std::array<std::vector<BlendMember>, 3> members;
  std::array<uint64_t, 3> sequences{};
  for (size_t i = 0; i < path.prefixes.size(); ++i) {
    CAIRN_ASSIGN_OR_RETURN(const auto indexed, Open(path.prefixes[i]));
    CAIRN_ASSIGN_OR_RETURN(const auto ranges, SplitSequences(request_.split, indexed->sequence_count()));
    for (size_t part = 0; part < ranges.size(); ++part) {
      members[part].push_back({indexed, ranges[part], path.weights ? (*path.weights)[i] : 1});
      sequences[part] += ranges[part].size();
    }
  }
  const BlendRule rule = path.weights ? BlendRule::kWeighted : BlendRule::kByLength;
  DataSets sets;
  if (request_.train_samples > 0) {
    CAIRN_ASSIGN_OR_RETURN(sets.train, Blend(rule, members[0], request_.train_samples));
  }
  if (request_.valid_samples > 0) {
    CAIRN_ASSIGN_OR_RETURN(auto valid, Blend(rule, members[1], request_.valid_samples));
    sets.valid.push_back({"", std::move(valid)});
  }
  if (request_.test_samples > 0 && sequences[2] > 0) {
    CAIRN_ASSIGN_OR_RETURN(auto test, Blend(rule, members[2], request_.test_samples));
    sets.test.push_back({"", std::move(test)});
  }
  return sets;
}

Result<NamedDataset> DataOpener::OpenGroup(const std::string& text, uint64_t samples) {
  CAIRN_ASSIGN_OR_RETURN(const SplitGroup group, ParseSplitGroup(text));
  std::vector<BlendMember> members;
  for (const SplitPart& part : group.parts) {
    CAIRN_ASSIGN_OR_RETURN(const auto indexed, Open(part.prefix));
    const auto count = static_cast<double>(indexed->sequence_count());
    // rint rounds half to even, as Python's round does.
    members.push_back({indexed,
                       {static_cast<uint64_t>(std::rint(part.begin * count)),
                        static_cast<uint64_t>(std::rint(part.end * count))},
                       part.weight});
  }
  auto blend = Blend(BlendRule::kBigScience, std::move(members), samples);
  if (!blend.ok()) return blend.status().WithContext(group.name);
  return NamedDataset{group.name, *std::move(blend)};
}

Result<DataSets> DataOpener::OpenGroups() {
  if (request_.train_groups.size() != 1)
    return InvalidArgument("--train-weighted-split-paths takes one group, but {} were given",
                           request_.train_groups.size());
  DataSets sets;
  if (request_.train_samples > 0) {
    CAIRN_ASSIGN_OR_RETURN(NamedDataset train, OpenGroup(request_.train_groups[0], request_.train_samples));
    sets.train = std::move(train.samples);
  }
  const auto open = [&](const std::vector<std::string>& groups, uint64_t samples,
                        std::vector<NamedDataset>& to) -> Status {
    for (const std::string& group : groups) {
      if (samples == 0) break;
      CAIRN_ASSIGN_OR_RETURN(NamedDataset set, OpenGroup(group, samples));
      to.push_back(std::move(set));
    }
    return OkStatus();
  };
  CAIRN_RETURN_IF_ERROR(open(request_.valid_groups, request_.valid_samples, sets.valid));
  CAIRN_RETURN_IF_ERROR(open(request_.test_groups, request_.test_samples, sets.test));
  return sets;
}

}  // namespace

Result<std::vector<std::string>> SplitGroupsOf(FileSystem& fs, const std::vector<std::string>& groups,
                                               const std::string& file) {
  if (file.empty()) return groups;
  if (!groups.empty())
    return InvalidArgument("{}: groups come from a file or from the command line, not both", file);
  CAIRN_ASSIGN_OR_RETURN(const std::string content, ReadSmallFile(fs, file, kMaxGroupsBytes));
  auto found = SplitGroupsIn(content);
  if (!found.ok()) return found.status().WithContext(file);
  return found;
}

Result<DataSets> OpenDataSets(const DataRequest& request) {
  DataOpener opener(request);
  return request.data_path.empty() ? opener.OpenGroups() : opener.OpenSplit();
}

}  // namespace cairn
