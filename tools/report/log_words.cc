// All patterns are compiled into one database (word_database.h), and one scan of a block looks for all of
// them at once.

#include "tools/report/log_words.h"

#include <hs/hs_common.h>
#include <hs/hs_runtime.h>

#include <algorithm>

#include "tools/report/log_word_list.h"
#include "tools/report/word_database.h"

namespace cairn {
namespace {

int OnMatch(unsigned id, unsigned long long, unsigned long long to, unsigned, void* context) {
  static_cast<std::vector<WordHit>*>(context)->push_back({static_cast<size_t>(to), kLogWords[id].kinds});
  return 0;
}

}  // namespace

Result<std::unique_ptr<WordFinder>> WordFinder::Make() {
  std::unique_ptr<WordFinder> finder(new WordFinder);
  CAIRN_ASSIGN_OR_RETURN(finder->database_, OpenWordDatabase());
  if (hs_alloc_scratch(finder->database_, &finder->scratch_) != HS_SUCCESS)
    return NotSupported("the matcher of log lines does not run on this processor");
  return finder;
}

WordFinder::~WordFinder() {
  hs_free_scratch(scratch_);
  hs_free_database(database_);
}

std::span<const WordHit> WordFinder::Find(std::string_view block) {
  hits_.clear();
  hs_scan(database_, block.data(), static_cast<unsigned>(block.size()), 0, scratch_, OnMatch, &hits_);
  const auto by_end = [](const WordHit& a, const WordHit& b) { return a.end < b.end; };
  if (!std::ranges::is_sorted(hits_, by_end)) std::ranges::sort(hits_, by_end);
  return hits_;
}

}  // namespace cairn
