// SPDX-License-Identifier: Apache-2.0
//
// gpus: what NVIDIA's management library tells of each GPU.
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/gpus.h"
#include "base/status.h"
#include "desk/gpus/health.h"
#include "desk/init/raw_terminal.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

struct GpusOptions {
  bool watch = false;
  bool json = false;
};

// A number with its unit; "-" if it isn't known.
std::string Number(const Json& gpu, const char* key, const char* unit) {
  return gpu.contains(key)
             ? absl::StrFormat("%.0f%s", gpu[key].get<double>(), unit)
             : "-";
}

std::string Bytes(const Json& gpu, const char* key) {
  return gpu.contains(key) ? ShortBytes(gpu[key].get<int64_t>()) : "-";
}

std::string Links(const Json& gpu) {
  const int links = gpu.value("nvlinks", 0);
  if (links > 0) {
    return absl::StrCat("NVL ", gpu["nvlinks_active"].get<int>(), "/", links);
  }
  return gpu.contains("pcie_width") ? Number(gpu, "pcie_width", "x PCIe") : "-";
}

// Of up to 80 columns, and no escape sequence.
std::string TableOf(const Json& gpus) {
  std::string text =
      absl::StrFormat("%3s %-22s %9s %9s %4s %5s %-10s %s\n", "gpu", "name",
                      "memory", "free", "use", "heat", "power", "links");
  for (const Json& gpu : gpus) {
    absl::StrAppend(
        &text,
        absl::StrFormat(
            "%3d %-22.22s %9s %9s %4s %5s %-10s %s\n", gpu["index"].get<int>(),
            PrintableText(gpu["name"].get<std::string>()),
            Bytes(gpu, "memory_bytes"), Bytes(gpu, "free_bytes"),
            Number(gpu, "utilisation", "%"), Number(gpu, "celsius", " C"),
            gpu.contains("watts")
                ? absl::StrCat(Number(gpu, "watts", "/"),
                               Number(gpu, "watts_limit", "W"))
                : "-",
            Links(gpu)));
    if (!gpu["visible"].get<bool>()) {
      absl::StrAppend(&text, "    not for runs: CUDA doesn't show it here\n");
    }
    for (const Json& process : gpu.value("processes", Json::array())) {
      const auto bytes = process["bytes"].get<int64_t>();
      absl::StrAppend(&text, "    process ", process["pid"].get<int>(), " (",
                      PrintableText(process["name"].get<std::string>()), ") ",
                      bytes < 0 ? "?" : ShortBytes(bytes), "\n");
    }
  }
  return text;
}

std::string NoGpus() {
  const std::string& note = Gpus().note;
  return note.empty()
             ? "no NVIDIA GPU here: does nvidia-smi list one? (In a container: "
               "was it started with --gpus=all or --nv?)\n"
             : absl::StrCat(note, "\n");
}

// Until `q`, Ctrl-C, or what is shown can't be written.
absl::Status Watch(bool json) {
  const bool redraws = Console(STDOUT_FILENO).terminal() && !json;
  const bool keys = redraws && isatty(STDIN_FILENO) == 1;
  absl::optional<init::RawTerminal> raw;
  if (keys) {
    raw.emplace(STDIN_FILENO);
    // Ctrl-Z would leave the shell such a terminal.
    termios settings;
    if (tcgetattr(STDIN_FILENO, &settings) == 0) {
      settings.c_cc[VSUSP] = _POSIX_VDISABLE;
      tcsetattr(STDIN_FILENO, TCSADRAIN, &settings);
    }
  }
  while (std::cout) {  // main() says that it can't be written
    CAPSTAN_ASSIGN_OR_RETURN(const Json gpus, ReadGpuHealth());
    if (gpus.empty()) {
      std::cout << (json ? "[]\n" : NoGpus());
      return absl::OkStatus();
    }
    std::cout << (redraws ? "\x1b[H\x1b[J" : "")
              << (json ? gpus.dump() + "\n" : TableOf(gpus))
              << (keys ? "q ends this\n" : "") << std::flush;
    pollfd key = {keys ? STDIN_FILENO : -1, POLLIN, 0};
    char byte = 0;
    if (poll(&key, 1, /*milliseconds=*/1000) > 0 &&
        (read(STDIN_FILENO, &byte, 1) <= 0 || byte == 'q')) {
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int> ShowGpus(const GpusOptions& options) {
  if (options.watch) {
    CAPSTAN_RETURN_IF_ERROR(Watch(options.json));
    return 0;
  }
  CAPSTAN_ASSIGN_OR_RETURN(const Json gpus, ReadGpuHealth());
  if (options.json) {
    std::cout << gpus.dump(2) << "\n";
  } else {
    std::cout << (gpus.empty() ? NoGpus() : TableOf(gpus));
  }
  return 0;
}

const RegisterFunction<GpusOptions> gpus(
    "gpus",
    [](Flags& flags, GpusOptions* options) {
      flags.Add("--watch", &options->watch, "Show them anew each second");
      flags.Add("--json", &options->json,
                "Print JSON, for programs (--watch: a line each second)");
    },
    ShowGpus);

}  // namespace
}  // namespace capstan
