// Files of which every rank or parameter has one: if some exist, all must.
//
// A pattern names such files: "zero_pp_rank_#_mp_rank_#_optim_states.pt". A # is a rank's number: all from 0
// to the highest one found; a * is a text without a slash: all found. Every combination must exist.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

// True if `name` fits the pattern; then `values` has what its marks stand for.
bool FitsPattern(std::string_view pattern, std::string_view name, std::vector<std::string>& values);

// `files`: paths below `directory`; each of its folders has sets of its own. Errors: NotFound naming the
// first missing file.
Status CheckFileSets(std::string_view pattern, const std::string& directory,
                     const std::vector<std::string>& files);

}  // namespace cairn
