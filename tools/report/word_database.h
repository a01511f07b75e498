// The words of log_word_list.h as a database of Vectorscan.
#pragma once

#include "ckpt/base/status.h"

struct hs_database;
struct hs_platform_info;

namespace cairn {

// A database for this processor; the caller frees it with hs_free_database. Compiled in milliseconds, or, in
// a portable program, one of those that were made at build time (portable/open_word_database.cc). Errors:
// NotSupported (this processor lacks what Vectorscan needs).
Result<hs_database*> OpenWordDatabase();

// A database for processors like `platform`; null: like this one. Not in a portable program.
Result<hs_database*> CompileWordDatabase(const hs_platform_info* platform);

}  // namespace cairn
