// Writes word_databases.cc to stdout: a database for processors with AVX-512, one for AVX2, one for all
// others.
#include <fmt/format.h>
#include <hs/hs.h>

#include <cstdio>
#include <cstdlib>
#include <span>

#include "tools/report/word_database.h"

namespace cairn {
namespace {

constexpr unsigned long long kFeatures[] = {HS_CPU_FEATURES_AVX2 | HS_CPU_FEATURES_AVX512,
                                            HS_CPU_FEATURES_AVX2, 0};

Status PrintDatabase(int number, unsigned long long features) {
  const hs_platform_info platform{.tune = HS_TUNE_FAMILY_GENERIC, .cpu_features = features};
  CAIRN_ASSIGN_OR_RETURN(hs_database* const database, CompileWordDatabase(&platform));
  char* bytes = nullptr;
  size_t size = 0;
  const hs_error_t error = hs_serialize_database(database, &bytes, &size);
  hs_free_database(database);
  if (error != HS_SUCCESS) return NotSupported("a database of words cannot be written: error {}", error);
  fmt::print("constexpr char kWords{}[] = {{", number);
  for (const char byte : std::span(bytes, size)) fmt::print("{},", static_cast<int>(byte));
  fmt::print("}};\n");
  std::free(bytes);
  return OkStatus();
}

Status PrintDatabases() {
  fmt::print("#include \"tools/report/portable/word_databases.h\"\nnamespace cairn {{\nnamespace {{\n");
  for (int i = 0; i < 3; ++i) CAIRN_RETURN_IF_ERROR(PrintDatabase(i, kFeatures[i]));
  fmt::print(
      "constexpr std::span<const char> kAll[] = {{kWords0, kWords1, kWords2}};\n}}  // namespace\n"
      "std::span<const std::span<const char>> WordDatabases() {{ return kAll; }}\n}}  // namespace cairn\n");
  return OkStatus();
}

}  // namespace
}  // namespace cairn

int main() {
  const cairn::Status done = cairn::PrintDatabases();
  if (done.ok()) return EXIT_SUCCESS;
  fmt::print(stderr, "make_word_databases: {}\n", done.message());
  return EXIT_FAILURE;
}
