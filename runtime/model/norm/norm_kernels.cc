// A block of the GPU's threads adds up the gradients of weights of a whole group of rows. The groups' sums
// are added afterwards, in an order that depends on the shape alone.
#include "runtime/model/norm/norm_kernels.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <algorithm>

#include "ckpt/base/module_path.h"
#include "runtime/model/norm/norm_module.h"

namespace cairn {
namespace {

using at::Tensor;

constexpr int64_t kRowsPerGroup = 32;  // at least: a group's sums are passed over once more
constexpr int64_t kMostGroups = 512;   // a block of threads each

// The module stays loaded, as the CUDA driver does.
const NormModule* LoadNormModule() {
  const std::string path = ModulePath("libcairn_norm.so");
  void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) return nullptr;
  const auto function = reinterpret_cast<NormModuleFunction>(::dlsym(module, kNormModuleFunction));
  TORCH_CHECK(function, path, " belongs to another build; build again");
  return function();
}

// Null if the module is not built or does not load; it is looked for once.
const NormModule* GpuNormModule() {
  static const NormModule* const module = LoadNormModule();
  return module;
}

// libtorch's current cudaStream_t.
void* CurrentStreamOf(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

// Rows and groups of them.
struct NormRowGroups {
  explicit NormRowGroups(const Tensor& x)
      : rows(x.size(-1) == 0 ? 0 : x.numel() / x.size(-1)),
        rows_per_group(std::max(kRowsPerGroup, (rows + kMostGroups - 1) / kMostGroups)),
        count((rows + rows_per_group - 1) / rows_per_group) {}
  int64_t rows, rows_per_group, count;
};

template <typename T>
T* NormDataOf(const Tensor& t) {
  return t.defined() ? static_cast<T*>(t.data_ptr()) : nullptr;
}

// The kernels read one element behind the other.
Tensor InNormRows(const Tensor& t) { return t.defined() ? t.contiguous() : t; }

template <typename T>
NormForward<T> NormArgumentsOf(const Tensor& x, const Tensor& residual, const KeepMask& mask,
                               const NormSettings& settings, const Normed& normed) {
  return {.width = x.size(-1),
          .epsilon = static_cast<float>(settings.epsilon),
          .x = NormDataOf<const T>(x),
          .residual = NormDataOf<const T>(residual),
          .keep = NormDataOf<const uint8_t>(mask.keep),
          .keep_scale = static_cast<float>(mask.scale),
          .weight = NormDataOf<const T>(settings.weight),
          .bias = NormDataOf<const T>(settings.bias),
          .y = residual.defined() ? NormDataOf<T>(normed.y) : nullptr,
          .n = NormDataOf<T>(normed.n),
          .mean = NormDataOf<float>(normed.mean),
          .rstd = NormDataOf<float>(normed.rstd)};
}

template <typename T>
NormBackward<T> NormArgumentsOf(const Tensor& dn, const Tensor& dy, const Normed& normed,
                                const KeepMask& mask, const NormSettings& settings, const NormGrads& grads) {
  return {.width = dn.size(-1),
          .dn = NormDataOf<const T>(dn),
          .dy_of_others = NormDataOf<const T>(dy),
          .y = NormDataOf<const T>(normed.y),
          .mean = NormDataOf<const float>(normed.mean),
          .rstd = NormDataOf<const float>(normed.rstd),
          .weight = NormDataOf<const T>(settings.weight),
          .keep = NormDataOf<const uint8_t>(mask.keep),
          .keep_scale = static_cast<float>(mask.scale),
          .dy = NormDataOf<T>(grads.dy),
          .dx = mask.keep.defined() ? NormDataOf<T>(grads.dx) : nullptr};
}

// The sums of the first group in `sums` [groups, 1 or 2, h].
NormWeightGrads FirstGroupIn(const Tensor& sums) {
  if (!sums.defined()) return {};
  float* at = sums.data_ptr<float>();
  return {at, sums.size(1) == 2 ? at + sums.stride(1) : nullptr};
}

// Calls visit(T()) for the kernels' type of `type`.
template <typename Visit>
void WithNormTypeOf(at::ScalarType type, Visit&& visit) {
  if (type == at::kFloat) return visit(float());
  if (type == at::kBFloat16) return visit(Bf16());
  visit(Fp16());
}

template <typename T>
const NormLaunches<T>& NormLaunchesFor() {
  return std::get<NormLaunches<T>>(*GpuNormModule());
}

void CheckNormLaunch(const char* error) { TORCH_CHECK(error == nullptr, "norm on the GPU: ", error); }

// By libtorch's operations otherwise.
bool HasNormKernel(const Tensor& x, const NormSettings& settings) {
  const at::ScalarType type = x.scalar_type();
  if (type != at::kFloat && type != at::kBFloat16 && type != at::kHalf) return false;
  return x.is_cuda() && (!settings.weight.defined() || settings.weight.scalar_type() == type) &&
         GpuNormModule() != nullptr;
}

}  // namespace

Normed NormForwardOf(const Tensor& x_in, const Tensor& residual_in, const KeepMask& mask,
                     const NormSettings& settings) {
  RECORD_FUNCTION("cairn::norm", std::vector<c10::IValue>());
  if (!HasNormKernel(x_in, settings)) return NormForwardByOperations(x_in, residual_in, mask, settings);
  const Tensor x = InNormRows(x_in), residual = InNormRows(residual_in);
  const auto statistics = x.options().dtype(at::kFloat);
  const int64_t rows = NormRowGroups(x).rows;
  Normed normed;
  normed.y = residual.defined() ? at::empty_like(x) : x;
  normed.n = at::empty_like(x);
  if (settings.centres) normed.mean = at::empty({rows}, statistics);
  normed.rstd = at::empty({rows}, statistics);
  WithNormTypeOf(x.scalar_type(), [&]<typename T>(T) {
    CheckNormLaunch(NormLaunchesFor<T>().forward(NormArgumentsOf<T>(x, residual, mask, settings, normed),
                                                 rows, x.get_device(), CurrentStreamOf(x.device())));
  });
  return normed;
}

NormGrads NormBackwardOf(const Tensor& dn_in, const Tensor& dy_in, const Normed& normed, const KeepMask& mask,
                         const NormSettings& settings) {
  RECORD_FUNCTION("cairn::norm_backward", std::vector<c10::IValue>());
  if (!HasNormKernel(dn_in, settings)) return NormBackwardByOperations(dn_in, dy_in, normed, mask, settings);
  const Tensor dn = InNormRows(dn_in), dy = InNormRows(dy_in);
  const NormRowGroups groups(dn);
  Tensor sums;
  if (settings.weight.defined())
    sums = at::empty({groups.count, settings.bias.defined() ? 2 : 1, dn.size(-1)},
                     dn.options().dtype(at::kFloat));
  NormGrads grads;
  grads.dy = at::empty_like(dn);
  grads.dx = mask.keep.defined() ? at::empty_like(dn) : grads.dy;
  WithNormTypeOf(dn.scalar_type(), [&]<typename T>(T) {
    CheckNormLaunch(NormLaunchesFor<T>().backward(NormArgumentsOf<T>(dn, dy, normed, mask, settings, grads),
                                                  groups.rows, groups.rows_per_group, FirstGroupIn(sums),
                                                  dn.get_device(), CurrentStreamOf(dn.device())));
  });
  if (sums.defined()) grads.weights = sums.sum(0);
  return grads;
}

}  // namespace cairn
