// Removes an archived source. It requires a proof.
#pragma once

#include <string>

#include "ckpt/run/deletion.h"
#include "tools/archive/store/store_member.h"

namespace cairn {

// Removes the step or tree at `path` that `copy` is a copy of, if `stays`, the proof that it may go
// (removal_proof.h), holds. `newest_too`: a step of Cairn goes without one. Errors: the refusals of
// DeleteStep() and DeleteTree(); InvalidArgument if the store lies within the source.
Status DeleteSource(const Store& store, const std::string& path, const ProvenCopy& copy,
                    bool newest_too = false, const DeletionProof* stays = nullptr);

}  // namespace cairn
