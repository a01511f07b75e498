// A CPU that does not multiply bf16 (any CPU while oneDNN is off), and a count of the products there.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <string_view>

namespace cairn {

class WithoutOneDnn {
 public:
  WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(false); }
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(true); }
  WithoutOneDnn(const WithoutOneDnn&) = delete;
  WithoutOneDnn& operator=(const WithoutOneDnn&) = delete;
};

// Counts matrix products and attentions by their factors, on all threads, while one lives.
class CountedProducts {
 public:
  CountedProducts() {
    bf16_ = all_ = 0;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&CountedProducts::Note)
                                        .needsInputs(true)
                                        .scopes({at::RecordScope::FUNCTION}));
  }
  ~CountedProducts() { at::removeCallback(handle_); }
  CountedProducts(const CountedProducts&) = delete;
  CountedProducts& operator=(const CountedProducts&) = delete;

  int bf16() const { return bf16_; }
  int all() const { return all_; }

 private:
  static std::unique_ptr<at::ObserverContext> Note(const at::RecordFunction& function) {
    const std::string_view name = function.name();
    const bool product = name == "aten::mm" || name == "aten::addmm" || name == "aten::addmm_" ||
                         name == "aten::bmm" || name.starts_with("mkldnn::_linear") ||
                         name.starts_with("aten::_scaled_dot_product_flash_attention_for_cpu");
    all_ += product;
    bf16_ += product && std::ranges::any_of(function.inputs(), [](const c10::IValue& input) {
               return input.isTensor() && input.toTensor().defined() &&
                      input.toTensor().scalar_type() == at::kBFloat16;
             });
    return nullptr;
  }

  static inline std::atomic<int> bf16_, all_;
  at::CallbackHandle handle_;
};

}  // namespace cairn
