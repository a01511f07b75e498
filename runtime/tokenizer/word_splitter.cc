#include "runtime/tokenizer/word_splitter.h"

#include <oniguruma.h>

#include <mutex>

#include "ckpt/base/utf8.h"

namespace cairn {
namespace {

const OnigUChar* Start(std::string_view text) { return reinterpret_cast<const OnigUChar*>(text.data()); }

std::string OnigMessage(int code, OnigErrorInfo* info) {
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int size = info ? onig_error_code_to_str(text, code, info) : onig_error_code_to_str(text, code);
  return {reinterpret_cast<const char*>(text), static_cast<size_t>(std::max(size, 0))};
}

struct FreeRegion {
  void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
};

void StartOniguruma() {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
  });
}

}  // namespace

void WordPattern::Free::operator()(re_pattern_buffer* pattern) const { onig_free(pattern); }

Result<WordPattern> WordPattern::Compile(const std::string& expression) {
  StartOniguruma();
  regex_t* compiled = nullptr;
  OnigErrorInfo info;
  const OnigUChar* begin = Start(expression);
  const int code = onig_new(&compiled, begin, begin + expression.size(), ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                            ONIG_SYNTAX_ONIGURUMA, &info);
  if (code != ONIG_NORMAL)
    return InvalidArgument("the regular expression {}: {}", expression, OnigMessage(code, &info));
  WordPattern pattern;
  pattern.pattern_.reset(compiled);
  return pattern;
}

Result<WordPattern> WordPattern::Literal(std::string_view text) {
  std::string expression;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}-&~#/ ").find(c) != std::string_view::npos) expression += '\\';
    expression += c;
  }
  return Compile(expression);
}

// As the iterator of the `onig` crate: an empty match right after a match does not count.
Status WordPattern::ForEach(std::string_view text,
                            const std::function<void(std::string_view piece, bool matches)>& piece) const {
  const std::unique_ptr<OnigRegion, FreeRegion> region(onig_region_new());
  const OnigUChar *begin = Start(text), *end = begin + text.size();
  size_t done = 0, search = 0;
  bool matched = false;  // up to `done`, and something
  while (search <= text.size()) {
    const int found =
        onig_search(pattern_.get(), begin, end, begin + search, end, region.get(), ONIG_OPTION_NONE);
    if (found == ONIG_MISMATCH) break;
    if (found < 0) return Corrupt("Oniguruma: {}", OnigMessage(found, nullptr));
    const auto first = static_cast<size_t>(region->beg[0]), last = static_cast<size_t>(region->end[0]);
    if (first == last && matched && last == done) {
      search += search < text.size() ? Utf8Length(text.substr(search)) : 1;
      continue;
    }
    if (first > done) piece(text.substr(done, first - done), false);
    if (last > first) piece(text.substr(first, last - first), true);
    done = search = last;
    matched = true;
  }
  if (done < text.size()) piece(text.substr(done), false);
  return OkStatus();
}

Status WordSplitter::Walk(size_t step, std::string_view text, uint64_t at, bool added,
                          const WordFunction& word) const {
  if (step == space_before_ && !added && !text.starts_with(' ')) {
    const std::string spaced = " " + std::string(text);
    return Walk(step, spaced, at, true, word);
  }
  if (step == steps_.size()) {
    word(text, at, added);
    return OkStatus();
  }
  Status status;
  const SplitStep::Keep keep = steps_[step].keep;
  const Status split = steps_[step].pattern.ForEach(text, [&](std::string_view piece, bool matches) {
    if (!status.ok() || keep == (matches ? SplitStep::Keep::kGaps : SplitStep::Keep::kMatches)) return;
    const auto offset = static_cast<uint64_t>(piece.data() - text.data());
    const bool first = added && offset == 0;
    status = Walk(step + 1, piece, at + offset - (added && !first ? 1 : 0), first, word);
  });
  return split.ok() ? status : split;
}

}  // namespace cairn
