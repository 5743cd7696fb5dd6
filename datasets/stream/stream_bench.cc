// SPDX-License-Identifier: Apache-2.0
//
// How soon a stream is ready, and how fast it is then:
//   stream_bench --path='data/*.parquet' --tokenizer=FOLDER [--from=0]
//     [--seconds=20] [--length=1024] [--batch=32] [--workers=2] [--keep]
//     [--cache=FOLDER] [--seed=1] [--lanes=32]
// prints one JSON object: seconds to open the shards ("open"), to the first
// batch from then on ("batch"), tokens a second behind that ("tokens"), the
// peak of this process's memory and of its children's, in MB ("peak",
// "children"), and a hash of the first batch ("hash").
#include <sys/resource.h>

#include <iostream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/machine.h"
#include "datasets/stream/stream.h"

namespace capstan::stream {
namespace {

using Flags = std::map<std::string, std::string>;

int64_t Number(const Flags& flags, const std::string& name, int64_t other) {
  int64_t number = other;
  const auto it = flags.find(name);
  if (it != flags.end() && !absl::SimpleAtoi(it->second, &number)) {
    std::cerr << "--" << name << " isn't a number\n";
  }
  return number;
}

absl::Status Run(const Flags& flags) {
  Config config;
  config.set_path(flags.at("path"));
  config.set_tokenizer(flags.at("tokenizer"));
  config.set_sequence_length(Number(flags, "length", 1024));
  config.set_shuffle(true);
  config.set_seed(static_cast<uint64_t>(Number(flags, "seed", 1)));
  config.set_lanes(Number(flags, "lanes", 0));
  config.set_workers(Number(flags, "workers", 2));
  config.set_tokens(flags.count("keep") > 0 ? KEEP : ON_THE_FLY);
  if (flags.count("cache") > 0) config.set_cache_folder(flags.at("cache"));
  const double began = MonotonicSeconds();
  auto stream = Stream::Create(config);
  if (!stream.ok()) return stream.status();
  const double opened = MonotonicSeconds();
  const int64_t batch = Number(flags, "batch", 32);
  std::vector<int64_t> samples(static_cast<size_t>(batch));
  std::iota(samples.begin(), samples.end(), Number(flags, "from", 0));
  Batch tensors;
  absl::Status status = (*stream)->Read(samples, &tensors);
  if (!status.ok()) return status;
  const double first = MonotonicSeconds();
  const at::Tensor ids = tensors.at(kInputIds);
  const uint32_t hash = Crc32c(
      {reinterpret_cast<const char*>(ids.const_data_ptr()), ids.nbytes()});
  const auto seconds = static_cast<double>(Number(flags, "seconds", 20));
  int64_t batches = 0;
  while (MonotonicSeconds() - first < seconds) {
    for (int64_t& sample : samples) sample += batch;
    status = (*stream)->Read(samples, &tensors);
    if (!status.ok()) return status;
    ++batches;
  }
  const double tokens =
      static_cast<double>(batches * batch * config.sequence_length()) /
      (MonotonicSeconds() - first);
  const double peak = static_cast<double>(ReadProcessMemory().peak) / 1e6;
  stream->reset();  // and its children
  rusage children;
  getrusage(RUSAGE_CHILDREN, &children);
  std::cout << absl::StrFormat(
      "{\"open\": %.3f, \"batch\": %.3f, \"tokens\": %.0f, \"peak\": %.0f, "
      "\"children\": %.0f, \"hash\": \"%08x\"}\n",
      opened - began, first - opened, tokens, peak,
      static_cast<double>(children.ru_maxrss) * 1024 / 1e6, hash);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const size_t equals = std::min(flag.find('='), flag.size());
    if (flag.substr(0, 2) != "--") continue;
    flags[flag.substr(2, equals - 2)] =
        flag.substr(std::min(equals + 1, flag.size()));
  }
  if (flags.count("path") == 0 || flags.count("tokenizer") == 0) {
    std::cerr << "--path and --tokenizer are needed\n";
    return 2;
  }
  const absl::Status status = Run(flags);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace capstan::stream

int main(int argc, char** argv) { return capstan::stream::Main(argc, argv); }
