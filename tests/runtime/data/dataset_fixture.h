// Small indexed datasets and whole-file reads for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "runtime/data/encode_index.h"
#include "runtime/data/indexed_dataset.h"
#include "tests/support/temp_dir.h"

namespace cairn {

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline void WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// Overwrites the little-endian number at `offset`.
template <typename T>
void Patch(std::string& bytes, size_t offset, T value) {
  ASSERT_LE(offset + sizeof(T), bytes.size());
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

inline void WriteDataset(const std::string& prefix, TokenType type,
                         const std::vector<std::vector<int32_t>>& documents) {
  std::string tokens;
  std::vector<int32_t> lengths;
  for (const auto& document : documents) {
    WithTokenOf(type, [&]<typename T>(T value) {
      for (const int32_t token : document) {
        value = static_cast<T>(token);
        tokens.append(reinterpret_cast<const char*>(&value), sizeof(T));
      }
    });
    lengths.push_back(static_cast<int32_t>(document.size()));
  }
  WriteFile(TokensPath(prefix), tokens);
  WriteFile(IndexPath(prefix), EncodeIndex(type, lengths));
}

// Documents of the given lengths whose tokens count up from 0 through all of them.
inline std::vector<std::vector<int32_t>> CountingDocuments(const std::vector<int32_t>& lengths) {
  std::vector<std::vector<int32_t>> documents;
  int32_t next = 0;
  for (const int32_t length : lengths) {
    auto& document = documents.emplace_back();
    for (int32_t i = 0; i < length; ++i) document.push_back(next++);
  }
  return documents;
}

inline std::vector<int64_t> Tokens(const IndexedDataset& dataset, uint64_t sequence) {
  std::vector<int64_t> tokens(dataset.SequenceLengths({sequence, sequence + 1}).value()[0]);
  EXPECT_EQ(dataset.CopyTokens(sequence, 0, tokens).value(), tokens.size());
  return tokens;
}

}  // namespace cairn
