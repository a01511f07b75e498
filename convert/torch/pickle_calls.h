// The callables of a pickle whose result is known without calling them: containers, tensors, NumPy scalars.
#pragma once

#include "convert/torch/pickle_machine.h"

namespace cairn {

// What callable(*args) is. Where it is not known, or the arguments are not what it takes, an object that is
// named after it. `copies` is what may still be copied out of the arguments, in items.
// Errors: Corrupt where `copies` is used up.
Result<PyValue*> CallKnown(Pickle& pickle, const PyValue& callable, const PyValue& args, uint64_t& copies);

// What torch.save's persistent id stands for. Errors: NotSupported where it is not a storage.
Result<PyValue*> StorageOf(Pickle& pickle, const PyValue& id);

// Whether an ordinary unpickler would do harm with it.
bool IsSuspicious(std::string_view module, std::string_view name);

}  // namespace cairn
