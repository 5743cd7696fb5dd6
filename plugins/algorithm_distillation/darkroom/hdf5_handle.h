// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_HDF5_HANDLE_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_HDF5_HANDLE_H_

#include <hdf5/serial/hdf5.h>

namespace capstan::darkroom {

// An HDF5 identifier with the function that closes it; below 0: none.
class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Hdf5Handle(hid_t id, Close close) : id_(id), close_(close) {}
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;

  operator hid_t() const { return id_; }

 private:
  const hid_t id_;
  const Close close_;
};

// Suppresses HDF5's error messages on this thread during its lifetime.
class QuietHdf5 {
 public:
  QuietHdf5() {
    H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~QuietHdf5() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }
  QuietHdf5(const QuietHdf5&) = delete;
  QuietHdf5& operator=(const QuietHdf5&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace capstan::darkroom

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_HDF5_HANDLE_H_
