// Byte pair encoding of one word, as the `tokenizers` library merges.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

// A token of a word: its last byte is the one before `end`, and its first the end of the one before it.
struct WordToken {
  int32_t id = 0;
  uint32_t end = 0;
};

// From tokenizer.json's model, or from vocab.json and merges.txt. The words of both are in byte characters
// (byte_characters.h).
struct BpeModel {
  std::unordered_map<std::string, int32_t> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;  // the earlier, the sooner
  std::optional<std::string> unknown;                       // for a byte without a token
  bool fuse_unknown = false;                                // one for a row of them
  bool byte_fallback = false;                               // first try <0xNN>
  bool ignore_merges = false;                               // a word that is a token is that token
};

class ByteBpe {
 public:
  // Errors: Corrupt (a merge without its tokens; ids out of range).
  static Result<ByteBpe> Create(const BpeModel& model);

  // Appends the tokens of `word`, of any bytes. Bytes that the vocabulary does not know are left out, as in
  // `tokenizers`, if the model has no token for unknown bytes.
  void Encode(std::string_view word, std::vector<WordToken>* tokens) const;

  // Bytes that are left out.
  int lost_bytes() const { return lost_bytes_; }

 private:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };
  // The tokens that a byte begins with.
  struct Start {
    std::vector<int32_t> ids;  // several of byte_fallback
    bool unknown = false;
  };
  struct Symbol {
    int32_t id;
    int32_t previous, next;  // positions; -1: none
    uint32_t bytes;          // of the word
  };

  std::vector<Symbol> SymbolsOf(std::string_view word) const;
  void MergeAll(std::vector<Symbol>& symbols) const;
  const Merge* Find(int32_t left, int32_t right) const;

  std::unordered_map<uint64_t, Merge> merges_;            // by the ids of a pair
  std::vector<Start> starts_;                             // of 256
  std::unordered_map<std::string, int32_t> whole_words_;  // by their bytes; only with ignore_merges
  int32_t unknown_ = -1;
  bool fuse_unknown_ = false;
  int lost_bytes_ = 0;
};

}  // namespace cairn
