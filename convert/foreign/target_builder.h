// Builds a StoredTarget: files, the pickles in them as they are being emitted, and tensors with their
// storages.
#pragma once

#include <deque>

#include "convert/foreign/stored_target.h"
#include "convert/torch/pickle_emitter.h"

namespace cairn {

class TargetBuilder {
 public:
  // A zip that is being made. `pickle` is emitted by the caller, tensors through Tensor() below.
  struct Draft {
    uint32_t file = 0;
    std::string archive;
    PickleEmitter pickle;
    std::vector<uint64_t> storages;  // bytes of each
    bool plain = false;              // no zip: one storage, and nothing around it
  };

  uint32_t AddFile(const std::string& name);
  void AddText(const std::string& name, std::string text);
  // A zip in a file; its number. Zips of a file lie in this order.
  uint32_t BeginZip(uint32_t file, const std::string& archive);
  // Raw bytes in place of a zip, as an array; returns their number among the zips.
  uint32_t AddBytes(uint32_t file, uint64_t bytes);
  // A file with one zip, whose archive is named as torch names it.
  uint32_t BeginTorchFile(const std::string& name);
  PickleEmitter& pickle(uint32_t zip) { return drafts_[zip].pickle; }

  // Emits a contiguous tensor that is all of its storage; the number of that in the target.
  uint32_t EmitTensor(uint32_t zip, Dtype dtype, const Dims& shape);
  // The same, and an array of it.
  uint32_t EmitArray(uint32_t zip, Dtype dtype, const Dims& shape);
  // A tensor of one known value, in fp32 as torch's optimizers count their steps.
  void EmitScalar(uint32_t zip, float value, const Dims& shape = {});
  uint32_t AddArray(StoredArray array);

  // Lays the zips out in their files. Nothing may be emitted after it, text files may be added.
  void Place();
  // Removes files that got no zip. To be called after Place(), before the text files.
  void DropEmptyFiles();

  StoredTarget target;

 private:
  std::deque<Draft> drafts_;
};

}  // namespace cairn
