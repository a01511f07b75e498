// The runs that are compiled in: the tables in this folder, unchanged.
#pragma once

#include <span>
#include <string_view>

namespace cairn {

struct BuiltInTable {
  std::string_view cluster;  // where they were measured: Cluster::measured
  std::string_view csv;
};

std::span<const BuiltInTable> BuiltInTables();

}  // namespace cairn
