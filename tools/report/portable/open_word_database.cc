// A portable program leaves out Vectorscan's compiler, which is half of it: its databases were made at build
// time, one for each kind of processor.
#include <hs/hs_common.h>

#include "tools/report/portable/word_databases.h"
#include "tools/report/word_database.h"

namespace cairn {

Result<hs_database*> OpenWordDatabase() {
  for (const std::span<const char> made : WordDatabases()) {
    hs_database* database = nullptr;  // refused where the processor cannot run it
    if (hs_deserialize_database(made.data(), made.size(), &database) == HS_SUCCESS) return database;
  }
  return NotSupported("the matcher of log lines does not start on this processor");
}

}  // namespace cairn
