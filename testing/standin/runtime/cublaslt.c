/* SPDX-License-Identifier: Apache-2.0
 *
 * What LibTorch calls of cuBLASLt, where its host code runs on paper: as
 * cublas.c. Any shape has an algorithm.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

extern int capstan_standin_library_launch(const char* function, void* stream);

/* cublasLtMatmulHeuristicResult_t */
typedef struct {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
} Heuristic;

size_t cublasLtGetVersion(void) { return 130000; }

/* Descriptions: anything that isn't null. */
#define DESCRIPTION(name)               \
  int cublasLt##name##Create(void** d) { \
    static int any;                     \
    *d = &any;                          \
    return 0;                           \
  }                                     \
  int cublasLt##name##Destroy(void* d) { \
    (void)d;                            \
    return 0;                           \
  }                                     \
  int cublasLt##name##SetAttribute(void) { return 0; }

DESCRIPTION(MatmulDesc)
DESCRIPTION(MatmulPreference)
DESCRIPTION(MatrixLayout)

int cublasLtMatmulAlgoGetHeuristic(void* handle, void* operation, void* a,
                                   void* b, void* c, void* d, void* preference,
                                   int requested, Heuristic* results,
                                   int* returned) {
  (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d;
  (void)preference;
  *returned = requested > 0 ? 1 : 0;
  if (requested > 0) memset(results, 0, sizeof(*results));
  return 0;
}

int cublasLtMatmul(void* handle, void* operation, const void* alpha,
                   const void* a, void* a_layout, const void* b, void* b_layout,
                   const void* beta, const void* c, void* c_layout, void* d,
                   void* d_layout, const void* algorithm, void* workspace,
                   size_t bytes, void* stream) {
  (void)handle, (void)operation, (void)alpha, (void)a, (void)a_layout, (void)b;
  (void)b_layout, (void)beta, (void)c, (void)c_layout, (void)d, (void)d_layout;
  (void)algorithm, (void)workspace, (void)bytes;
  return capstan_standin_library_launch("cublasLtMatmul", stream);
}
