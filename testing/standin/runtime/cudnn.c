/* SPDX-License-Identifier: Apache-2.0
 *
 * What LibTorch calls of cuDNN for attention, where its host code runs on paper:
 * any graph has one engine without workspace, and what is executed is one
 * launch. (cuDNN itself launches three kernels in a backward.) Numbers are those
 * of cudnn_backend.h. The rest is generated (stubs.sh).
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

extern int capstan_standin_library_launch(const char* function, void* stream);

enum { kSuccess = 0, kAllocFailed = 2000 };
/* cudnnBackendAttributeName_t */
enum {
  kHeuristicsResults = 202,
  kConfigWorkspaceSize = 303,
  kConfigSharedMemory = 304, /* int32; others are int64 */
  kPlanWorkspaceSize = 402
};

typedef struct {
  void* stream;
} Handle;

int cudnnCreate(Handle** handle) {
  *handle = calloc(1, sizeof(Handle));
  return *handle == NULL ? kAllocFailed : kSuccess;
}

int cudnnSetStream(Handle* handle, void* stream) {
  handle->stream = stream;
  return kSuccess;
}

int cudnnGetStream(Handle* handle, void** stream) {
  *stream = handle->stream;
  return kSuccess;
}

int cudnnBackendCreateDescriptor(int type, void** descriptor) {
  (void)type;
  *descriptor = malloc(1);
  return *descriptor == NULL ? kAllocFailed : kSuccess;
}

int cudnnBackendDestroyDescriptor(void* descriptor) {
  free(descriptor);
  return kSuccess;
}

int cudnnBackendSetAttribute(void* descriptor, int name, int type,
                             int64_t count, const void* elements) {
  (void)descriptor, (void)name, (void)type, (void)count, (void)elements;
  return kSuccess;
}

int cudnnBackendGetAttribute(void* descriptor, int name, int type,
                             int64_t requested, int64_t* count,
                             void* elements) {
  (void)descriptor, (void)type;
  const int is_size = name == kConfigWorkspaceSize ||
                      name == kConfigSharedMemory || name == kPlanWorkspaceSize;
  if (count != NULL) *count = is_size || name == kHeuristicsResults;
  if (requested == 0 || elements == NULL || !is_size) return kSuccess;
  if (name == kConfigSharedMemory) {
    *(int32_t*)elements = 0;
  } else {
    *(int64_t*)elements = 0;
  }
  return kSuccess;
}

int cudnnBackendFinalize(void* descriptor) {
  (void)descriptor;
  return kSuccess;
}

int cudnnBackendExecute(Handle* handle, void* plan, void* variants) {
  (void)plan, (void)variants;
  return capstan_standin_library_launch("cudnnBackendExecute", handle->stream);
}

const char* cudnnGetErrorString(int status) {
  (void)status;
  return "an error of the stand-in's cuDNN";
}

void cudnnGetLastErrorString(char* message, size_t size) {
  if (size > 0) message[0] = 0;
}
