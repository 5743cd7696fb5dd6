// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_LAYERS_PRODUCT_COUNT_FOR_TEST_H_
#define CAPSTAN_KERNELS_LAYERS_PRODUCT_COUNT_FOR_TEST_H_

#include <ATen/record_function.h>

#include <memory>
#include <string>

namespace capstan::kernels {

// How often products run during its lifetime.
class ProductCount {
 public:
  ProductCount() {
    count() = 0;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function)
                                       -> std::unique_ptr<at::ObserverContext> {
          const std::string name = function.name();
          if (name == "aten::mm" || name == "aten::addmm") ++count();
          return nullptr;
        }));
  }
  ~ProductCount() { at::removeCallback(handle_); }
  static int& count() {
    static int count = 0;
    return count;
  }

 private:
  at::CallbackHandle handle_;
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_PRODUCT_COUNT_FOR_TEST_H_
