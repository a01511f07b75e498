// The databases that a portable program has inside, the one for the newest processors first.
// make_word_databases writes them at build time.
#pragma once

#include <cstddef>
#include <span>

namespace cairn {

// As hs_serialize_database has them.
std::span<const std::span<const char>> WordDatabases();

}  // namespace cairn
