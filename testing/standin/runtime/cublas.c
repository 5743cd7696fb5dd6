/* SPDX-License-Identifier: Apache-2.0
 *
 * What LibTorch calls of cuBLAS, where its host code runs on paper: handles keep
 * their stream and modes, and each product is one launch. (cuBLAS itself may
 * launch more, to sum the parts of a product that it splits along k.) The rest is
 * generated (stubs.sh).
 */
#include <stddef.h>
#include <stdlib.h>

extern int capstan_standin_library_launch(const char* function, void* stream);

typedef struct {
  void* stream;
  int math_mode;
  int pointer_mode;
} Handle;

enum { kSuccess = 0, kAllocFailed = 3 };

int cublasCreate_v2(Handle** handle) {
  *handle = calloc(1, sizeof(Handle));
  return *handle == NULL ? kAllocFailed : kSuccess;
}

int cublasDestroy_v2(Handle* handle) {
  free(handle);
  return kSuccess;
}

int cublasSetStream_v2(Handle* handle, void* stream) {
  handle->stream = stream;
  return kSuccess;
}

int cublasSetWorkspace_v2(Handle* handle, void* workspace, size_t bytes) {
  (void)handle, (void)workspace, (void)bytes;
  return kSuccess;
}

int cublasSetMathMode(Handle* handle, int mode) {
  handle->math_mode = mode;
  return kSuccess;
}

int cublasGetMathMode(Handle* handle, int* mode) {
  *mode = handle->math_mode;
  return kSuccess;
}

int cublasSetPointerMode_v2(Handle* handle, int mode) {
  handle->pointer_mode = mode;
  return kSuccess;
}

int cublasGetPointerMode_v2(Handle* handle, int* mode) {
  *mode = handle->pointer_mode;
  return kSuccess;
}

#define LAUNCH(function)                                              \
  int function(Handle* handle) {                                      \
    return capstan_standin_library_launch(#function, handle->stream); \
  }

/* Whether partial sums of a product that is split along k may have 16 bits is
 * part of the name. */
enum { kNoReducedSums = 16 }; /* CUBLAS_MATH_DISALLOW_REDUCED_.. */
#define LAUNCH_OF_16_BITS(function)                                \
  int function(Handle* handle) {                                   \
    return capstan_standin_library_launch(                         \
        handle->math_mode & kNoReducedSums ? #function             \
                                           : #function " reduced", \
        handle->stream);                                           \
  }

LAUNCH_OF_16_BITS(cublasGemmEx)
LAUNCH_OF_16_BITS(cublasGemmStridedBatchedEx)
LAUNCH(cublasSgemmEx)
LAUNCH(cublasSgemm_v2)
LAUNCH(cublasSgemmStridedBatched)
LAUNCH(cublasSgemv_v2)
LAUNCH(cublasDgemm_v2)
LAUNCH(cublasDgemmStridedBatched)
LAUNCH(cublasDotEx)
LAUNCH(cublasSdot_v2)
