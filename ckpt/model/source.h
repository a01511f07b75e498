// A checkpoint as the verbs read it: tensors under canonical names, whatever files hold their bytes.
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

struct TensorBox {
  uint32_t tensor = 0;  // into the catalog
  Box box;
};
// Boxes one after the other; nothing once they are through.
using BoxSequence = std::function<std::optional<TensorBox>()>;

class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;

  // Of a foreign checkpoint: run (made up from what identifies it), step, topology, model and state as far as
  // its files tell, relaxations that were allowed in `history`, and no files.
  virtual const Manifest& manifest() const = 0;
  virtual const TensorTable& catalog() const = 0;
  // Which elements of its tensors lie where: each once. Files are those of the catalog.
  virtual const Regions& regions() const = 0;
  virtual const std::string& directory() const = 0;  // what the catalog's files are relative to
  // What messages call it: the directory, or the one file that it is.
  virtual const std::string& name() const { return directory(); }

  // Fills `out` with `box` of tensor `tensor` (index into the catalog), in row-major order.
  // Requires out.size() == bytes of the box. Errors: Corrupt naming file, tensor and offset; those of the
  // disk.
  virtual Status ReadBox(uint32_t tensor, const Box& box, std::span<std::byte> out) = 0;

  // What ReadBox() will be asked for next, in this order: boxes that are contiguous in their tensors, each
  // element once. Called by the thread that reads, which may then find them in memory. A hint that costs
  // nothing to break; `next` is called until the next call of ReadAhead(), which may pass an empty one.
  virtual void ReadAhead(BoxSequence /*next*/) {}

  // Whether sums over more than was asked for hold of what was read. To be called before a result counts.
  // Errors: Corrupt naming the file; those of reading the rest of what such sums are over.
  virtual Status CheckRead() { return OkStatus(); }

  // The memory for what one ReadBox() read beyond its box and the next may go on with.
  virtual void SetCacheBytes(uint64_t bytes) = 0;
  // Read from the files that hold tensors, so far.
  virtual uint64_t bytes_read() const = 0;
};

}  // namespace cairn
