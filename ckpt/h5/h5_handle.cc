#include "ckpt/h5/h5_handle.h"

#include <string>

namespace cairn {
namespace {

herr_t TakeFirst(unsigned, const H5E_error2_t* error, void* text) {
  auto* message = static_cast<std::string*>(text);
  if (message->empty() && error->desc != nullptr) *message = error->desc;
  return 0;
}

// A float of `size` bytes with these bit positions; sign on top, no padding.
H5Handle FloatType(size_t size, size_t exponent_bits, size_t mantissa_bits, size_t bias) {
  H5Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  H5Tset_fields(type.get(), exponent_bits + mantissa_bits, mantissa_bits, exponent_bits, 0, mantissa_bits);
  H5Tset_precision(type.get(), 8 * size);
  H5Tset_size(type.get(), size);
  H5Tset_ebias(type.get(), bias);
  return type;
}

H5Handle BoolType() {
  H5Handle type(H5Tenum_create(H5T_STD_I8LE), H5Tclose);
  const int8_t no = 0, yes = 1;
  H5Tenum_insert(type.get(), "FALSE", &no);
  H5Tenum_insert(type.get(), "TRUE", &yes);
  return type;
}

}  // namespace

Status H5Error(std::string_view what) {
  std::string message;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, TakeFirst, &message);
  H5Eclear2(H5E_DEFAULT);
  return IoError("HDF5: {}: {}", what, message.empty() ? "unknown error" : message);
}

H5Handle H5TypeOf(Dtype dtype) {
  const auto copy = [](hid_t type) { return H5Handle(H5Tcopy(type), H5Tclose); };
  switch (dtype) {
    case Dtype::kF64:
      return copy(H5T_IEEE_F64LE);
    case Dtype::kF32:
      return copy(H5T_IEEE_F32LE);
    case Dtype::kF16:
      return FloatType(2, 5, 10, 15);
    case Dtype::kBF16:
      return FloatType(2, 8, 7, 127);
    case Dtype::kF8E4M3:
      return FloatType(1, 4, 3, 7);
    case Dtype::kF8E5M2:
      return FloatType(1, 5, 2, 15);
    case Dtype::kI64:
      return copy(H5T_STD_I64LE);
    case Dtype::kI32:
      return copy(H5T_STD_I32LE);
    case Dtype::kI16:
      return copy(H5T_STD_I16LE);
    case Dtype::kI8:
      return copy(H5T_STD_I8LE);
    case Dtype::kU8:
    case Dtype::kF8E8M0:
    case Dtype::kF4x2:
      return copy(H5T_STD_U8LE);
    case Dtype::kBool:
      return BoolType();
  }
  return {};
}

}  // namespace cairn
