#include "tools/report/word_database.h"

#include <hs/hs_compile.h>

#include <string>
#include <vector>

#include "tools/report/log_word_list.h"

namespace cairn {

Result<hs_database*> OpenWordDatabase() { return CompileWordDatabase(nullptr); }

Result<hs_database*> CompileWordDatabase(const hs_platform_info* platform) {
  std::vector<const char*> patterns;
  std::vector<unsigned> flags, ids;
  for (const LogWord& word : kLogWords) {
    patterns.push_back(word.pattern);
    flags.push_back(word.flags);
    ids.push_back(static_cast<unsigned>(ids.size()));
  }
  hs_database* database = nullptr;
  hs_compile_error_t* error = nullptr;
  if (hs_compile_multi(patterns.data(), flags.data(), ids.data(), static_cast<unsigned>(ids.size()),
                       HS_MODE_BLOCK, platform, &database, &error) != HS_SUCCESS) {
    const std::string message = error ? error->message : "unknown";
    hs_free_compile_error(error);
    return NotSupported("the matcher of log lines does not start here: {}", message);
  }
  return database;
}

}  // namespace cairn
