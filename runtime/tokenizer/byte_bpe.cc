// The pair of the lowest rank merges first, of several the leftmost, until no pair has a merge. Pairs wait in
// a heap; one that has changed meanwhile is dropped when its turn comes, unless its symbols now make the same
// token, as in the library (merge_all of word.rs).

#include "runtime/tokenizer/byte_bpe.h"

#include <algorithm>
#include <queue>

#include "runtime/tokenizer/byte_characters.h"

namespace cairn {
namespace {

struct WaitingMerge {
  uint32_t rank;
  int32_t position;
  int32_t id;
  bool operator<(const WaitingMerge& other) const {  // the top of a heap is its largest
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// The bytes that byte characters stand for; nullopt if there are other characters.
std::optional<std::string> BytesOf(std::string_view word,
                                   const std::unordered_map<std::string, char>& bytes) {
  std::string result;
  for (size_t i = 0; i < word.size();) {
    const size_t size = static_cast<uint8_t>(word[i]) < 0x80 ? 1 : 2;
    const auto found = bytes.find(std::string(word.substr(i, size)));
    if (found == bytes.end()) return std::nullopt;
    result += found->second;
    i += size;
  }
  return result;
}

}  // namespace

Result<ByteBpe> ByteBpe::Create(const BpeModel& model) {
  ByteBpe bpe;
  bpe.fuse_unknown_ = model.fuse_unknown;
  const auto id_of = [&](const std::string& word) {
    const auto found = model.vocabulary.find(word);
    return found == model.vocabulary.end() ? -1 : found->second;
  };
  if (model.unknown && (bpe.unknown_ = id_of(*model.unknown)) < 0)
    return Corrupt("its unk_token {} is not in the vocabulary", *model.unknown);
  for (size_t rank = 0; rank < model.merges.size(); ++rank) {
    const auto& [left, right] = model.merges[rank];
    const int32_t a = id_of(left), b = id_of(right), merged = id_of(left + right);
    if (a < 0 || b < 0 || merged < 0)
      return Corrupt("merge {} joins \"{}\" and \"{}\": both and their merge must be in the vocabulary", rank,
                     left, right);
    bpe.merges_[PairKey(a, b)] = {static_cast<uint32_t>(rank), merged};
  }
  std::unordered_map<std::string, char> bytes;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string character = ByteCharacter(byte);
    bytes[character] = static_cast<char>(byte);
    Start start;
    if (const int32_t id = id_of(character); id >= 0) {
      start.ids = {id};
    } else {
      if (model.byte_fallback)
        for (const char c : character)
          start.ids.push_back(id_of(fmt::format("<0x{:02X}>", static_cast<uint8_t>(c))));
      if (std::ranges::count(start.ids, -1) > 0) start.ids.clear();
      start.unknown = start.ids.empty() && bpe.unknown_ >= 0;
      bpe.lost_bytes_ += start.ids.empty() && !start.unknown;
    }
    bpe.starts_.push_back(std::move(start));
  }
  if (!model.ignore_merges) return bpe;
  for (const auto& [word, id] : model.vocabulary)
    if (const auto plain = BytesOf(word, bytes)) bpe.whole_words_.emplace(*plain, id);
  return bpe;
}

const ByteBpe::Merge* ByteBpe::Find(int32_t left, int32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<ByteBpe::Symbol> ByteBpe::SymbolsOf(std::string_view word) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  bool after_unknown = false;
  uint32_t lost = 0;  // before the first symbol
  for (const char c : word) {
    const Start& start = starts_[static_cast<uint8_t>(c)];
    if (start.unknown && after_unknown && fuse_unknown_) {
      ++symbols.back().bytes;
      continue;
    }
    after_unknown = start.unknown;
    if (start.unknown) symbols.push_back({unknown_, 0, 0, 1});
    if (start.ids.empty() && !start.unknown) ++(symbols.empty() ? lost : symbols.back().bytes);
    // The first of several ids for a byte is used.
    for (size_t i = 0; i < start.ids.size(); ++i) symbols.push_back({start.ids[i], 0, 0, i == 0 ? 1u : 0u});
  }
  if (!symbols.empty()) symbols.front().bytes += lost;
  for (size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].previous = static_cast<int32_t>(i) - 1;
    symbols[i].next = i + 1 < symbols.size() ? static_cast<int32_t>(i) + 1 : -1;
  }
  return symbols;
}

void ByteBpe::MergeAll(std::vector<Symbol>& symbols) const {
  std::vector<WaitingMerge> first;
  const auto at = [&](int32_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i)
    if (const Merge* merge = Find(at(i).id, at(i + 1).id)) first.push_back({merge->rank, i, merge->id});
  std::priority_queue<WaitingMerge> queue(std::less<WaitingMerge>(), std::move(first));
  while (!queue.empty()) {
    const WaitingMerge top = queue.top();
    queue.pop();
    Symbol& left = at(top.position);
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = at(left.next);
    const Merge* merge = Find(left.id, right.id);
    if (!merge || merge->id != top.id) continue;
    left = {top.id, left.previous, right.next, left.bytes + right.bytes};
    right.id = -1;
    if (left.next >= 0) at(left.next).previous = top.position;
    if (left.previous >= 0)
      if (const Merge* before = Find(at(left.previous).id, left.id))
        queue.push({before->rank, left.previous, before->id});
    if (left.next >= 0)
      if (const Merge* after = Find(left.id, at(left.next).id))
        queue.push({after->rank, top.position, after->id});
  }
}

void ByteBpe::Encode(std::string_view word, std::vector<WordToken>* tokens) const {
  if (!whole_words_.empty())
    if (const auto whole = whole_words_.find(std::string(word)); whole != whole_words_.end()) {
      tokens->push_back({whole->second, static_cast<uint32_t>(word.size())});
      return;
    }
  std::vector<Symbol> symbols = SymbolsOf(word);
  MergeAll(symbols);
  uint32_t end = 0;
  for (const Symbol& symbol : symbols) {
    if (symbol.id < 0) continue;
    end += symbol.bytes;
    tokens->push_back({symbol.id, end});
  }
}

}  // namespace cairn
