// A checkpoint as the commands read it: tensors under canonical names, whichever files hold their bytes.
//
// A native step is one (step_reader.h); every foreign format gives another (convert/formats). One thread at a
// time reads; the catalog and the manifest may be read by any number of threads meanwhile.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "ckpt/model/catalog.h"
#include "ckpt/model/manifest.h"

namespace cairn {

class StepReader;

struct TensorBox {
  uint32_t tensor = 0;  // into the catalog
  Box box;
};
// Boxes one after the other; nullopt at the end.
using BoxSequence = std::function<std::optional<TensorBox>()>;

class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;

  // A foreign checkpoint has a run (derived from what identifies it), step, topology, model and state as far
  // as its files state them, the relaxations that were allowed in `history`, and no files.
  virtual const Manifest& manifest() const = 0;
  virtual const TensorTable& catalog() const = 0;
  // Where each element of its tensors is stored, each once. Files are those of the catalog.
  virtual const Regions& regions() const = 0;
  virtual const std::string& directory() const = 0;  // the base of the catalog's file names
  // Its name in messages: the directory, or the file if it is a single one.
  virtual const std::string& name() const { return directory(); }
  // The native step that it is; null if another system wrote it.
  virtual const StepReader* native_step() const { return nullptr; }

  // Fills `out` with `box` of tensor `tensor` (index into the catalog), in row-major order.
  // Requires out.size() == bytes of the box. Errors: Corrupt naming file, tensor and offset; those of the
  // disk.
  virtual Status ReadBox(uint32_t tensor, const Box& box, std::span<std::byte> out) = 0;

  // Announces the boxes that ReadBox() will read next, in this order: contiguous in their tensors, each
  // element once. Called by the thread that reads, which may then find them in memory. Only a hint: other
  // boxes may be read. `next` is called until the next call of ReadAhead(), which may pass an empty one.
  virtual void ReadAhead(BoxSequence /*next*/) {}

  // Verifies checksums that cover more than the boxes read. To be called before a result is used.
  // Errors: Corrupt naming the file; those of reading the rest of the bytes that such a checksum covers.
  virtual Status CheckRead() { return OkStatus(); }

  // The memory for bytes that one ReadBox() reads beyond its box and a later one may use.
  virtual void SetCacheBytes(uint64_t bytes) = 0;
  // Bytes read so far from the files that hold tensors.
  virtual uint64_t bytes_read() const = 0;
  // The bytes of a tensor in the files, which may hold it in another type.
  virtual uint64_t StoredBytes(uint32_t tensor) const { return catalog().tensors[tensor].bytes(); }

  // Bytes that are read are compared with the checksums that another system's files bring along, and
  // CheckRead() reports. Stops checking. Returns whether there were any checksums.
  virtual bool SkipSums() { return false; }
};

}  // namespace cairn
