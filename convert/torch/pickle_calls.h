// The callables of a pickle whose result is known without calling them: containers, tensors, NumPy scalars.
#pragma once

#include "convert/torch/pickle_machine.h"

namespace cairn {

// The value of callable(*args). If it is not known, or takes other arguments, an object that is
// named after it. `copies` is what may still be copied out of the arguments, in items.
// Errors: Corrupt if `copies` is used up.
Result<PyValue*> CallKnown(Pickle& pickle, const PyValue& callable, const PyValue& args, uint64_t& copies);

// The storage that a persistent id of torch.save stands for. Errors: NotSupported if it is not a storage.
Result<PyValue*> StorageOf(Pickle& pickle, const PyValue& id);

// True if an ordinary unpickler would do harm with it.
bool IsSuspicious(std::string_view module, std::string_view name);

}  // namespace cairn
