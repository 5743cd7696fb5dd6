// SPDX-License-Identifier: Apache-2.0
//
// The stand-in CUDA device, as seen by the libraries that do its work: ATen's
// operators, Capstan's kernels, NCCL. The stand-in libcudart.so.13 defines what
// is declared here; README.md says how it is started.
//
// A stream is a queue of works. The device's thread of the process runs them,
// late and in an order that only streams and events restrict. Device memory is
// mapped twice: at the address that programs see, where any access faults, and
// at HostView's, where works read and write it.
#ifndef CAPSTAN_TESTING_STANDIN_DEVICE_H_
#define CAPSTAN_TESTING_STANDIN_DEVICE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace capstan::standin {

// Memory of a device, or pinned memory of the host: addresses as programs see
// them.
struct Span {
  const void* begin = nullptr;
  int64_t bytes = 0;
};

// What unit of a real device does the arithmetic.
enum class Unit : int {
  kVector = 0,  // float32 and wider, outside of tensor cores
  kTf32,        // float32 products on tensor cores
  kHalf,        // bfloat16 and float16 products on tensor cores
  kFp8,         // products of 8-bit floats there
};

// What a work would cost a real device.
struct Cost {
  Unit unit = Unit::kVector;
  double flops = 0;  // a multiplication and an addition are two
  // To and from the device's memory, each operand once.
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  // Kernels that a real device would launch; 0 for copies and collectives.
  int launches = 1;
  // What a collective moves: bytes that this rank sends over its links with a
  // ring, and how many ranks take part. 0 for other works.
  int64_t bytes_sent = 0;
  int ranks = 0;
  // Of a matrix product: how many, each [m, k] by [k, n]. 0 for other works.
  int64_t products = 0, m = 0, n = 0, k = 0;
};

enum class Progress { kDone, kNotYet };

struct Work {
  std::string name;  // "aten::mm", "capstan::rms_norm", "nccl::all_reduce"
  // Of a launch by LibTorch's own host code (RunsHostCode): which kernel, and
  // on what grid. "" for others.
  std::string kernel;
  // All that it touches. Two works that touch the same bytes, one of them
  // writing, must be ordered by streams and events: else the device reports a
  // race.
  std::vector<Span> reads;
  std::vector<Span> writes;
  Cost cost;
  // Called by the device's thread, again after kNotYet (a collective whose
  // peers aren't there; other streams go on meanwhile), and anew each time a
  // graph that has captured it is launched. An exception is a failed launch:
  // the device is lost, as after a device-side assertion. Not called on paper.
  std::function<Progress()> run;
};

// Appends to a stream (a cudaStream_t of the calling thread's device; null: the
// legacy default stream). Returns a cudaError_t: that of a lost device, or of a
// fault that was asked for. Any thread.
int Enqueue(void* stream, Work work);

// Completes what was enqueued on the stream so far. Counts as a wait of the
// host for the device, under the name `why`. Returns a cudaError_t.
int WaitFor(void* stream, const char* why);

// Whether p is an address of device memory.
bool OnDevice(const void* p);

// Where works find what programs see at p, in device memory or in pinned memory
// (which may be protected from the host meanwhile); else p itself.
void* HostView(const void* p);

// Whether works are only noted and never run: what the host reads is zeros.
bool OnPaper();

// Whether ATen's operators keep LibTorch's host code, on paper: each launch and
// each call of cuBLAS is noted as a work of its own.
bool RunsHostCode();

// The operator that the calling thread is in, under which RunsHostCode notes
// launches; null: none. The text must stay.
void NameOperator(const char* name);
bool OperatorIsNamed();

// A line of the report: {"finding": kind, "text": text, ..}. For what a library
// of the device finds wrong itself.
void ReportFinding(const std::string& kind, const std::string& text);

// Counts a call of this kind, and says whether it is the one that the setting
// `fault` ("malloc:17") wants to fail. Any thread.
bool IsFault(const std::string& kind);

// A line of the report: {"fault": kind, ..}. That call has failed now.
void ReportFault(const std::string& kind);

// A setting of the variable CAPSTAN_STANDIN ("gpus=2,order=late"); `absent` if
// it isn't there.
std::string Setting(const std::string& name, const std::string& absent);

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_DEVICE_H_
