// How far weights that were quantized are from those of the source (quantized_source.h).
#pragma once

#include <cmath>
#include <cstddef>
#include <string>

#include "convert/stream/fingerprint.h"

namespace cairn {

struct QuantizationError {
  double squares = 0, squares_of_difference = 0;
  double of_largest = 0;  // the largest difference, as a part of the largest magnitude in its block
  // |W - Q| / |W|, L2.
  double relative_norm() const { return squares > 0 ? std::sqrt(squares_of_difference / squares) : 0; }
};

struct Quantization {
  size_t weights = 0;
  QuantizationError error;  // of all of them
  QuantizationError worst;  // of the worst one
  std::string worst_name;
  Fingerprints source;  // of the tensors that were read
};

}  // namespace cairn
