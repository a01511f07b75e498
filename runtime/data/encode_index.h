// The index of an indexed dataset, for checks and tests. `cairn data` writes the datasets that people keep.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/data/indexed_format.h"

namespace cairn {

// PREFIX.idx of documents with these numbers of tokens, one sequence a document.
std::string EncodeIndex(TokenType type, std::span<const int32_t> lengths);

}  // namespace cairn
