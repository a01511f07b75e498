// A machine for pickles that executes nothing in them: a closed list of opcodes, and of callables whose
// result is known without a call. Every other class or function becomes an object that can be shown.
//
// Opcodes are those of protocols 2 to 5 that torch, NumPy, Megatron and DeepSpeed write. There is no
// recursion. Memory is linear in the pickle's length, at most some 150 bytes per byte: nothing is copied that
// an opcode could ask for repeatedly. Source: Python's pickletools.py.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/base/status.h"
#include "convert/torch/pickle_value.h"

namespace cairn {

inline constexpr uint64_t kMaxPickleBytes = 1 << 30;  // .metadata of thousands of ranks has some hundred MB

// A global that no checkpoint needs and that would run code in an ordinary unpickler: os.system and the like.
struct SuspiciousGlobal {
  std::string name;
  uint64_t offset = 0;  // of its opcode in the pickle
};

struct Pickle {
  std::shared_ptr<const std::string> bytes;
  std::deque<PyValue> values;
  std::deque<StorageRef> storages;  // one a persistent id; several may have the same key
  std::deque<TensorRef> tensors;
  std::vector<SuspiciousGlobal> suspicious;
  const PyValue* root = nullptr;
  uint64_t end = 0;  // behind its STOP

  PyValue* New(PyKind kind) {
    PyValue& value = values.emplace_back();
    value.kind = kind;
    return &value;
  }
};

// The pickle that begins at `begin`. `ran_out`, if given, says whether more bytes might have completed it.
// Errors: Corrupt and NotSupported naming the opcode or global and the offset of it.
Result<std::unique_ptr<Pickle>> Unpickle(std::shared_ptr<const std::string> bytes, uint64_t begin = 0,
                                         bool* ran_out = nullptr);

}  // namespace cairn
