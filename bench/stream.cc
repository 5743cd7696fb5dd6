// SPDX-License-Identifier: Apache-2.0
//
// What memory gives, as STREAM measures it (McCalpin, "Memory Bandwidth and
// Machine Balance in Current High Performance Computers", 1995), and a read of
// one array, which is what making a token does with a model's weights:
//
//   stream [--threads=1] [--mb=512] [--rounds=5]
//
// prints GB/s (1e9 bytes), the best of the rounds as STREAM has it:
// {"threads": 1, "read": 12.3, "copy": .., "triad": ..}.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

#ifdef __x86_64__
#define FOR_EACH_SET             \
  __attribute__((optimize("O3"), \
                 target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define FOR_EACH_SET __attribute__((optimize("O3")))
#endif

struct Arrays {
  float *a = nullptr, *b = nullptr, *c = nullptr;
};

volatile float sink;

FOR_EACH_SET void Read(const Arrays& x, int64_t begin, int64_t end) {
  float sums[128] = {};
  for (int64_t i = begin; i + 128 <= end; i += 128) {
    for (int64_t j = 0; j < 128; ++j) sums[j] += x.a[i + j];
  }
  float sum = 0.0f;
  for (const float part : sums) sum += part;
  sink = sum;
}

FOR_EACH_SET void Copy(const Arrays& x, int64_t begin, int64_t end) {
  float* __restrict c = x.c;
  const float* a = x.a;
  // Not memcpy, which writes past the caches where STREAM's loop doesn't.
  for (int64_t i = begin; i < end; ++i) c[i] = 1.0f * a[i] + 0.0f;
}

FOR_EACH_SET void Triad(const Arrays& x, int64_t begin, int64_t end) {
  float* __restrict a = x.a;
  const float *b = x.b, *c = x.c;
  for (int64_t i = begin; i < end; ++i) a[i] = b[i] + 3.0f * c[i];
}

void Fill(const Arrays& x, int64_t begin, int64_t end) {
  std::fill(x.a + begin, x.a + end, 1.0f);
  std::fill(x.b + begin, x.b + end, 2.0f);
  std::fill(x.c + begin, x.c + end, 0.0f);
}

float* Allocate(int64_t floats) {
  const size_t bytes = floats * sizeof(float);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "stream: no memory for %zu bytes\n", bytes);
    std::exit(1);
  }
  madvise(memory, bytes, MADV_HUGEPAGE);
  return static_cast<float*>(memory);
}

using Loop = void (*)(const Arrays& x, int64_t begin, int64_t end);

// Seconds that `loop` takes on [0, n), divided among threads.
double Seconds(Loop loop, const Arrays& x, int64_t n, int threads) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> others;
  const int64_t part = n / threads;
  for (int i = 1; i < threads; ++i) {
    others.emplace_back(loop, std::cref(x), part * i, part * (i + 1));
  }
  loop(x, 0, part);
  for (std::thread& other : others) other.join();
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - start;
  return taken.count();
}

// The value of --NAME=VALUE, or `missing`.
int64_t Flag(int argc, char** argv, const std::string& name, int64_t missing) {
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i], start = "--" + name + "=";
    if (arg.rfind(start, 0) == 0) {
      return std::atoll(arg.c_str() + start.size());
    }
  }
  return missing;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = static_cast<int>(Flag(argc, argv, "threads", 1));
  const int64_t bytes = Flag(argc, argv, "mb", 512) * 1000000;
  const int64_t rounds = Flag(argc, argv, "rounds", 5);
  const int64_t n = bytes / static_cast<int64_t>(sizeof(float));
  Arrays x;
  x.a = Allocate(n);
  x.b = Allocate(n);
  x.c = Allocate(n);
  Seconds(Fill, x, n, threads);
  double read = 1e9, copy = 1e9, triad = 1e9;
  for (int64_t i = 0; i < rounds; ++i) {
    read = std::min(read, Seconds(Read, x, n, threads));
    copy = std::min(copy, Seconds(Copy, x, n, threads));
    triad = std::min(triad, Seconds(Triad, x, n, threads));
  }
  const double gb = 1e-9 * static_cast<double>(bytes);
  std::printf(
      "{\"threads\": %d, \"read\": %.2f, \"copy\": %.2f, \"triad\": %.2f}\n",
      threads, gb / read, 2 * gb / copy, 3 * gb / triad);
  return 0;
}
