// A checkpoint of another system that is open.
#pragma once

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
  void AddHistory(std::string entry) { manifest_.history.push_back(std::move(entry)); }
  // For the user who reads it; may be empty.
  const std::string& note() const { return note_; }
  void SetNote(std::string note) { note_ = std::move(note); }
  // Bytes that are read are compared with the checksums that the files bring along, and CheckRead() reports.
  // Stops checking. Returns whether there were any checksums.
  virtual bool SkipSums() { return false; }
  // The bytes of a tensor in the files.
  virtual uint64_t StoredBytes(uint32_t tensor) const { return catalog().tensors[tensor].bytes(); }
  // Where everything lies (stored_source.h); null if values are computed from several files.
  virtual const StoredCatalog* stored() const { return nullptr; }

 protected:
  explicit ForeignSource(Manifest manifest) : manifest_(std::move(manifest)) {}

  Manifest manifest_;

 private:
  std::string name_, note_;
};

}  // namespace cairn
