// An HDF5 identifier that closes itself. For the h5_*.cc files only.
#pragma once

#include <hdf5.h>

#include <utility>

#include "ckpt/base/dtype.h"
#include "ckpt/base/status.h"

namespace cairn {

class H5Handle {
 public:
  using Closer = herr_t (*)(hid_t);
  H5Handle() = default;
  H5Handle(hid_t id, Closer closer) : id_(id), closer_(closer) {}
  H5Handle(H5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), closer_(other.closer_) {}
  H5Handle& operator=(H5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(closer_, other.closer_);
    return *this;
  }
  ~H5Handle() {
    if (id_ >= 0) closer_(id_);
  }
  hid_t get() const { return id_; }
  bool ok() const { return id_ >= 0; }

 private:
  hid_t id_ = -1;
  Closer closer_ = nullptr;
};

// The innermost message of HDF5's error stack as a Status; clears the stack. The caller names the file.
Status H5Error(std::string_view what);

// The HDF5 type that stands for `dtype`: a float of its own bit fields if HDF5 1.10 predefines none,
// h5py's enum for bool. FORMAT.md, "Element types".
H5Handle H5TypeOf(Dtype dtype);

}  // namespace cairn
