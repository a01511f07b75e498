#include "runtime/text/document_encoder.h"

#include <algorithm>

namespace cairn {
namespace {

constexpr uint64_t kTailBytes = 32 << 10;  // that the windows have in common: half of it before the cut
constexpr size_t kSameTokens = 32;         // on both sides of a cut

// The token that begins where `at` is a border: the one before ends there and stands for some bytes. Else the
// number of tokens.
size_t BorderAt(const std::vector<Token>& tokens, uint64_t at) {
  auto token = std::ranges::lower_bound(tokens, at, {}, &Token::end);  // the first that ends there or later
  while (token != tokens.end() && token->end == at && token->begin == at) ++token;
  const bool ends = token != tokens.end() && token->end == at;
  return ends ? static_cast<size_t>(token - tokens.begin()) + 1 : tokens.size();
}

bool SameAround(const std::vector<Token>& a, size_t i, const std::vector<Token>& b, size_t j) {
  if (i < kSameTokens || j < kSameTokens || i + kSameTokens > a.size() || j + kSameTokens > b.size())
    return false;
  return std::equal(a.begin() + static_cast<ptrdiff_t>(i - kSameTokens),
                    a.begin() + static_cast<ptrdiff_t>(i + kSameTokens),
                    b.begin() + static_cast<ptrdiff_t>(j - kSameTokens),
                    [](const Token& x, const Token& y) { return x.id == y.id; });
}

void AppendIds(const std::vector<Token>& from, size_t begin, size_t end, std::vector<int32_t>* to) {
  for (size_t i = begin; i < end; ++i) to->push_back(from[i].id);
}

}  // namespace

Status DocumentEncoder::Add(std::string_view part, bool ends, std::vector<int32_t>* tokens) {
  tokens->clear();
  text_ += part;
  if (!ends && !tokenizer_.cuts_anywhere())
    return text_.size() - done_ < wanted_ + kTailBytes ? OkStatus() : TakeCertainTokens(tokens);
  std::vector<Token> window;
  CAIRN_RETURN_IF_ERROR(Encode(&window));
  AppendIds(window, 0, window.size(), tokens);
  text_.clear();
  done_ = 0;
  wanted_ = kEncoderWindowBytes;
  return OkStatus();
}

// Encodes the text that has no tokens yet. A run of one character over the whole tail may have other borders
// as it grows; then it is encoded as a separate text.
Status DocumentEncoder::Encode(std::vector<Token>* tokens) const {
  CAIRN_RETURN_IF_ERROR(tokenizer_.Encode(text_, tokens));
  if (done_ == 0) return OkStatus();
  const size_t first = BorderAt(*tokens, done_);
  if (first == tokens->size() && done_ < text_.size()) {
    CAIRN_RETURN_IF_ERROR(tokenizer_.Encode(std::string_view(text_).substr(done_), tokens));
    for (Token& token : *tokens) token = {token.id, token.begin + done_, token.end + done_};
    return OkStatus();
  }
  tokens->erase(tokens->begin(), tokens->begin() + static_cast<ptrdiff_t>(first));
  return OkStatus();
}

// Looks for a border in the middle of a tail that a window from the tail's start has, too. A text without one
// is kept until there is twice as much.
Status DocumentEncoder::TakeCertainTokens(std::vector<int32_t>* tokens) {
  std::vector<Token> window, next;
  CAIRN_RETURN_IF_ERROR(Encode(&window));
  const uint64_t tail = text_.size() - kTailBytes, middle = text_.size() - kTailBytes / 2;
  const auto start = std::ranges::find_if(
      window, [&](const Token& token) { return token.begin >= tail && token.end > token.begin; });
  wanted_ *= 2;
  if (start == window.end()) return OkStatus();
  const uint64_t from = start->begin;
  CAIRN_RETURN_IF_ERROR(tokenizer_.Encode(std::string_view(text_).substr(from), &next));
  for (size_t i = static_cast<size_t>(start - window.begin()); i < window.size(); ++i) {
    const uint64_t at = window[i].begin;
    if (at < middle || BorderAt(window, at) != i) continue;
    if (!SameAround(window, i, next, BorderAt(next, at - from))) continue;
    AppendIds(window, 0, i, tokens);
    text_.erase(0, from);
    done_ = at - from;
    wanted_ = kEncoderWindowBytes;
    return OkStatus();
  }
  return OkStatus();
}

}  // namespace cairn
