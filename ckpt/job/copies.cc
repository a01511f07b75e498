#include "ckpt/job/copies.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "ckpt/base/short_list.h"
#include "ckpt/io/strict_json.h"

namespace cairn {
namespace {

using Hosts = std::map<int, std::string>;
using Ranks = std::vector<int>;
// Ranks by their sum of one part; "" if they lack it.
using Sides = std::map<std::string, Ranks>;

std::string NameOf(const std::string& part) { return part.substr(0, part.find(',')); }
bool IsVector(const std::string& part) { return std::ranges::count(part, ',') < 2; }

// "ranks 0, 1 and 2", with hosts or without.
std::string TextOf(const Ranks& ranks, const Hosts* hosts) {
  const auto name = [&](size_t i) {
    return hosts == nullptr ? std::to_string(ranks[i])
                            : fmt::format("{} (host {})", ranks[i], hosts->at(ranks[i]));
  };
  if (ranks.size() == 1) return "rank " + name(0);
  if (ranks.size() > 4) return "ranks " + ShortList(ranks.size(), name);
  return "ranks " + ShortList(ranks.size() - 1, name) + " and " + name(ranks.size() - 1);
}

// Names those that differ from most, if there are three or more.
std::string Alarm(const std::string& part, const Sides& sides, const Hosts& hosts) {
  Ranks all;
  const Ranks* most = nullptr;
  for (const auto& [sum, ranks] : sides) {
    all.insert(all.end(), ranks.begin(), ranks.end());
    if (most == nullptr || ranks.size() > most->size()) most = &ranks;
  }
  std::ranges::sort(all);
  if (2 * most->size() <= all.size())
    return fmt::format("{} of {} is not the same", NameOf(part), TextOf(all, &hosts));
  Ranks odd;
  std::ranges::set_difference(all, *most, std::back_inserter(odd));
  return fmt::format("{} of {} is not that of {}", NameOf(part), TextOf(odd, &hosts), TextOf(*most, nullptr));
}

// The first two ranks that differ.
std::string Difference(const std::string& part, const Sides& sides) {
  Ranks first;
  for (const auto& [sum, ranks] : sides) first.push_back(ranks.front());
  std::ranges::sort(first);
  return fmt::format("ranks {} and {} differ in {}", first[0], first[1], NameOf(part));
}

std::string Counted(const std::vector<std::string>& sentences) {
  const size_t more = sentences.size() - 1;
  return sentences[0] + (more == 0 ? "" : fmt::format(" and {} more tensors", more));
}

// The parts of a group, with the sides of each.
Result<std::map<std::string, Sides>> PartsOf(const std::map<std::string, Ranks>& files,
                                             const Copies::ReadFile& read) {
  Ranks all;
  std::map<std::string, Sides> parts;
  for (const auto& [file, ranks] : files) {
    all.insert(all.end(), ranks.begin(), ranks.end());
    CAIRN_ASSIGN_OR_RETURN(const std::string text, read(ranks.front(), file));
    CAIRN_ASSIGN_OR_RETURN(const nlohmann::json sums, ParseStrictJson(text));
    if (!sums.is_object()) return Corrupt("the sums of a rank are not an object");
    for (const auto& [part, sum] : sums.items()) {
      Ranks& side = parts[part][sum.is_string() ? sum.get<std::string>() : sum.dump()];
      side.insert(side.end(), ranks.begin(), ranks.end());
    }
  }
  std::ranges::sort(all);
  for (auto& [part, sides] : parts) {
    Ranks have, lack;
    for (const auto& [sum, ranks] : sides) have.insert(have.end(), ranks.begin(), ranks.end());
    std::ranges::sort(have);
    std::ranges::set_difference(all, have, std::back_inserter(lack));
    if (!lack.empty()) sides[""] = lack;
  }
  return parts;
}

}  // namespace

bool EqualCopies::Has(const std::string& group, const std::string& part) {
  if (all_) return true;
  const std::lock_guard lock(mutex_);
  ParseSums(group);
  const auto found = parts_.find(group);
  return found != parts_.end() && found->second.contains(part);
}

void EqualCopies::Add(const std::string& group, std::set<std::string> parts) {
  if (all_) return;
  const std::lock_guard lock(mutex_);
  parts_[group].merge(parts);
}

void EqualCopies::AddSums(const std::string& group, std::string sums) {
  if (all_) return;
  const std::lock_guard lock(mutex_);
  if (sums_[group].size() != sums.size()) ParseSums(group);
  sums_[group] = std::move(sums);
}

void EqualCopies::ParseSums(const std::string& group) {
  const auto sums = sums_.extract(group);
  const auto parts = sums ? ParseStrictJson(sums.mapped()) : Result<nlohmann::json>(nlohmann::json());
  if (!parts.ok() || !parts->is_object()) return;
  for (const auto& [part, sum] : parts->items()) parts_[group].insert(part);
}

bool EqualCopies::IsNew(const std::string& note) {
  const std::lock_guard lock(mutex_);
  return notes_.insert(note).second;
}

void Copies::Add(int rank, std::string host, const nlohmann::json& files) {
  hosts_[rank] = std::move(host);
  for (const auto& [group, file] : files.items()) groups_[group][file.get<std::string>()].push_back(rank);
}

Result<Copies::Verdict> Copies::Compare(EqualCopies& equal, const ReadFile& read) const {
  Verdict verdict;
  std::vector<std::string> alarms, lost;
  for (const auto& [group, files] : groups_) {
    if (files.size() == 1) {
      const auto& [file, ranks] = *files.begin();
      CAIRN_ASSIGN_OR_RETURN(std::string sums, read(ranks.front(), file));
      equal.AddSums(group, std::move(sums));
      continue;
    }
    CAIRN_ASSIGN_OR_RETURN(const auto parts, PartsOf(files, read));
    std::set<std::string> same;
    std::vector<std::string> noted;
    for (const auto& [part, sides] : parts) {
      if (sides.size() == 1)
        same.insert(part);
      else if (equal.Has(group, part))
        alarms.push_back(Alarm(part, sides, hosts_));
      else if (group.starts_with(kGivenGroup) || IsVector(part))
        noted.push_back(Difference(part, sides));
      else
        lost.push_back(Difference(part, sides));
    }
    equal.Add(group, std::move(same));
    if (!noted.empty()) verdict.notes.push_back(Counted(noted) + "; one rank's were kept");
  }
  if (!alarms.empty())
    verdict.alarm = fmt::format("{}{}; bits have changed in the memory or by a processor of one of them",
                                kCopiesDiffer, Counted(alarms));
  if (!lost.empty())
    verdict.lost = fmt::format(
        "{}, and only one rank's would be saved; for different experts, make them DTensors or name their "
        "mesh by experts=; else replicas= names the ranks that hold the same",
        Counted(lost));
  return verdict;
}

}  // namespace cairn
