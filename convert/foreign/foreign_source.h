// A checkpoint of another system that is open.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "ckpt/model/source.h"

namespace cairn {

struct StoredCatalog;

class ForeignSource : public CheckpointSource {
 public:
  const Manifest& manifest() const final { return manifest_; }
  const std::string& name() const final { return name_.empty() ? directory() : name_; }
  // The name for messages, if it is not the directory.
  void SetName(std::string name) { name_ = std::move(name); }
  // For formats that do not store it.
  void SetStep(int64_t step) { manifest_.step = step; }
  void AddHistory(std::string entry) { manifest_.history.push_back(std::move(entry)); }
  // For the user who reads it; may be empty.
  const std::string& note() const { return note_; }
  void SetNote(std::string note) { note_ = std::move(note); }
  // Where everything lies (stored_source.h); null if values are computed from several files.
  virtual const StoredCatalog* stored() const { return nullptr; }

 protected:
  explicit ForeignSource(Manifest manifest) : manifest_(std::move(manifest)) {}

  Manifest manifest_;

 private:
  std::string name_, note_;
};

// One that shows the tensors of another source, whose files they lie in, in another way.
class SourceOverAnother : public ForeignSource {
 public:
  const std::string& directory() const final { return source_->directory(); }
  Status CheckRead() final { return source_->CheckRead(); }
  void SetCacheBytes(uint64_t bytes) final { source_->SetCacheBytes(bytes); }
  uint64_t bytes_read() const final { return source_->bytes_read(); }
  bool SkipSums() final { return source_->SkipSums(); }

 protected:
  explicit SourceOverAnother(std::shared_ptr<CheckpointSource> source)
      : ForeignSource(source->manifest()), source_(std::move(source)) {
    SetName(source_->name());
  }

  // ReadAhead() of the other source. `add` appends the boxes of it that are read for one of this source.
  void ReadAheadBy(BoxSequence next, std::function<void(const TensorBox&, std::deque<TensorBox>&)> add) {
    if (!next) return source_->ReadAhead({});
    source_->ReadAhead(
        [next = std::move(next), add = std::move(add), boxes = std::deque<TensorBox>()]() mutable {
          while (boxes.empty()) {
            const std::optional<TensorBox> wanted = next();
            if (!wanted) return std::optional<TensorBox>();
            add(*wanted, boxes);
          }
          const TensorBox first = boxes.front();
          boxes.pop_front();
          return std::optional(first);
        });
  }

  const std::shared_ptr<CheckpointSource> source_;
};

}  // namespace cairn
