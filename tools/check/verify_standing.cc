// Settles decides whether a pass answers a failure; all else follows from it. AddCheck drops the failures
// that are answered and bounds the rest. Failed samples beyond the bound are joined into one that only a
// check of the bytes of all of them answers, so that forgetting never makes a damaged step look sound.
// In StandingOf the first open failure decides; without one, the newest pass over every byte, unless a file
// has changed.

#include "tools/check/verify_standing.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/base/enum_names.h"
#include "tools/cli/human.h"

namespace cairn {
namespace {

constexpr size_t kPassesKept = 3;         // of a kind
constexpr size_t kFailedSamplesKept = 8;  // older ones become one
constexpr int64_t kNanoseconds = 1'000'000'000;

bool Covers(const std::vector<CheckedRange>& all, const CheckedRange& part) {
  return std::ranges::any_of(all, [&](const CheckedRange& range) {
    return range.file == part.file && range.begin <= part.begin && part.end <= range.end;
  });
}

bool IsSettled(const std::vector<Check>& checks, size_t failure) {
  return std::any_of(checks.begin() + static_cast<std::ptrdiff_t>(failure) + 1, checks.end(),
                     [&](const Check& later) { return Settles(later, checks[failure]); });
}

// One failure that is settled only by what settles both.
Check Joined(const Check& a, const Check& b) {
  Check both = b;
  both.problems += a.problems;
  if (a.ranges.empty() || b.ranges.empty())
    both.ranges.clear();
  else
    both.ranges.insert(both.ranges.begin(), a.ranges.begin(), a.ranges.end());
  both.first_problems = a.first_problems;
  return both;
}

// Failures of one kind, all open. Each failed sample has bytes of its own; of other kinds the newest is
// enough.
void JoinFailures(std::vector<Check>& checks, CheckKind kind) {
  const size_t kept = kind == CheckKind::kSample ? kFailedSamplesKept : 1;
  std::vector<size_t> failures;
  for (size_t i = 0; i < checks.size(); ++i)
    if (checks[i].kind == kind && checks[i].problems > 0) failures.push_back(i);
  for (size_t over = failures.size() > kept ? failures.size() - kept : 0; over > 0; --over) {
    const size_t oldest = failures[0], next = failures[1];
    if (kind == CheckKind::kSample) checks[next] = Joined(checks[oldest], checks[next]);
    checks.erase(checks.begin() + static_cast<std::ptrdiff_t>(oldest));
    failures.erase(failures.begin());
    for (size_t& at : failures) --at;
  }
}

void ForgetOldPasses(std::vector<Check>& checks, CheckKind kind) {
  const auto is_pass = [kind](const Check& check) { return check.kind == kind && check.problems == 0; };
  for (auto passes = static_cast<size_t>(std::ranges::count_if(checks, is_pass)); passes > kPassesKept;
       --passes)
    checks.erase(std::ranges::find_if(checks, is_pass));
}

// The first file that looks different from when it was checked; empty if none does.
std::string ChangedFile(const Check& check, const std::vector<CheckedFile>& now) {
  for (const CheckedFile& file : now) {
    if (check.files.empty()) {  // an old record has only its time
      if (file.modified_unix_nanoseconds / kNanoseconds > check.unix_seconds) return file.name;
      continue;
    }
    const auto then = std::ranges::find(check.files, file.name, &CheckedFile::name);
    if (then == check.files.end() || !(*then == file)) return file.name;
  }
  for (const CheckedFile& file : check.files)
    if (std::ranges::find(now, file.name, &CheckedFile::name) == now.end()) return file.name;
  return "";
}

std::string FailureText(const Check& failure) {
  std::string text = fmt::format("cairn verify ({}) found {} on {}", Name(failure.kind),
                                 Counted(failure.problems, "problem"), DateText(failure.unix_seconds));
  if (!failure.first_problems.empty()) text += ": " + failure.first_problems.front();
  return text;
}

}  // namespace

std::string_view Name(CheckKind kind) {
  return NameIn<CheckKind::kEveryByte>({"structure", "sample", "values", "every byte"}, kind);
}

std::string_view Name(Trust trust) {
  return NameIn<Trust::kDamaged>(
      {"unverified", "partly verified", "verified", "changed since verified", "damaged"}, trust);
}

bool Settles(const Check& check, const Check& failure) {
  if (check.problems > 0) return false;
  switch (failure.kind) {
    case CheckKind::kStructure:
      return check.kind == CheckKind::kStructure || check.kind == CheckKind::kEveryByte;
    case CheckKind::kValues:
      return check.kind == CheckKind::kValues;
    case CheckKind::kEveryByte:
      return check.kind == CheckKind::kEveryByte;
    case CheckKind::kSample:
      if (check.kind == CheckKind::kEveryByte) return true;
      return check.kind == CheckKind::kSample && !failure.ranges.empty() &&
             std::ranges::all_of(failure.ranges,
                                 [&](const CheckedRange& range) { return Covers(check.ranges, range); });
  }
  return false;
}

void AddCheck(std::vector<Check>& checks, Check check) {
  checks.push_back(std::move(check));
  for (size_t i = checks.size(); i-- > 0;)
    if (checks[i].problems > 0 && IsSettled(checks, i))
      checks.erase(checks.begin() + static_cast<std::ptrdiff_t>(i));
  for (const CheckKind kind : kAllCheckKinds) {
    JoinFailures(checks, kind);
    ForgetOldPasses(checks, kind);
  }
}

Standing StandingOf(const std::vector<Check>& checks, const std::vector<CheckedFile>& now) {
  Standing standing;
  const Check* whole = nullptr;  // the newest pass over every byte
  for (size_t i = 0; i < checks.size(); ++i) {
    const Check& check = checks[i];
    if (check.problems > 0) {
      if (!IsSettled(checks, i)) return {Trust::kDamaged, 0, FailureText(check)};
    } else if (check.kind == CheckKind::kEveryByte) {
      whole = &check;
    } else if (check.kind == CheckKind::kSample && check.of_bytes > 0 && ChangedFile(check, now).empty()) {
      const double share = static_cast<double>(check.bytes) / static_cast<double>(check.of_bytes);
      standing.trust = Trust::kPartlyVerified;
      standing.share = std::max(standing.share, std::min(1.0, share));
    }
  }
  if (whole == nullptr) return standing;
  const std::string changed = ChangedFile(*whole, now);
  if (changed.empty()) return {Trust::kVerified, 1, ""};
  return {Trust::kChanged, standing.share,
          fmt::format("{} has changed since every byte was verified on {}; run cairn verify again", changed,
                      DateText(whole->unix_seconds))};
}

}  // namespace cairn
