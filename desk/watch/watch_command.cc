// SPDX-License-Identifier: Apache-2.0
//
// watch: runs on a page, in the terminal or in a file.
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/files.h"
#include "base/heap.h"
#include "base/status.h"
#include "cluster/launch/rank_info.h"
#include "desk/http/server.h"
#include "desk/init/raw_terminal.h"
#include "desk/init/undo.h"
#include "desk/run_folder/run_record.h"
#include "desk/run_folder/step_aside.h"
#include "desk/watch/live_runs.h"
#include "desk/watch/report.h"
#include "desk/watch/terminal_picture.h"
#include "desk/watch/watch_page.h"
#include "host/storage/storage.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

// A run that begins has no config for as long as it loads its plugins.
constexpr std::chrono::seconds kPatience{20};

struct WatchOptions {
  std::vector<std::string> runs;
  int port = 0;
  bool terminal = false;
  std::string html;
};

// The lines of the terminal at standard output; 24 if unknown.
int TerminalLines() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) {
    return 24;
  }
  return size.ws_row;
}

// Until `q`, Ctrl-C, or what is shown can't be written, on the alternate
// screen: what was there before comes back. One picture if standard output is
// no terminal, or the runs aren't to be followed.
absl::StatusOr<int> WatchInTerminal(LiveRuns* runs, bool follow) {
  const Console console(STDOUT_FILENO);
  if (!console.terminal() || !follow) {
    runs->ReadAll();
    // Standard error often is the terminal that a pager will show it in.
    std::cout << TerminalPicture(*runs, Console(STDERR_FILENO).Columns(),
                                 std::numeric_limits<int>::max(),
                                 /*colors=*/false);
    return 0;
  }
  const bool keys = isatty(STDIN_FILENO) == 1;
  absl::optional<init::RawTerminal> raw;
  if (keys) raw.emplace(STDIN_FILENO);
  const init::Undo leave_screen(
      [&console] { console.Write("\x1b[?25h\x1b[?1049l"); });
  console.Write("\x1b[?1049h\x1b[?25l");
  while (std::cout) {
    runs->ReadAll();
    std::cout << "\x1b[H\x1b[J"
              << TerminalPicture(*runs, console.Columns(), TerminalLines() - 1,
                                 /*colors=*/true)
              << (keys ? "q ends this" : "") << std::flush;
    pollfd key = {keys ? STDIN_FILENO : -1, POLLIN, 0};
    char byte = 0;
    if (poll(&key, 1, /*milliseconds=*/1000) > 0 &&
        (read(STDIN_FILENO, &byte, 1) <= 0 || byte == 'q')) {
      break;
    }
  }
  return 0;
}

absl::StatusOr<int> RunWatch(const WatchOptions& options) {
  if (options.runs.empty()) {
    return absl::InvalidArgumentError(
        "name the runs to watch: runs/NAME/latest, or runs/NAME for all of "
        "them");
  }
  const bool copies =
      std::any_of(options.runs.begin(), options.runs.end(),
                  [](const auto& run) { return IsAddress(run); });
  if (copies && !options.terminal && options.html.empty()) {
    return absl::InvalidArgumentError(
        "runs at an address are shown as they are now, and not followed: add "
        "--html=FILE or --terminal");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> folders,
                           FoldersOfRuns(options.runs));
  CAPSTAN_ASSIGN_OR_RETURN(const auto found, FindRuns(folders, kPatience));
  StepAside();
  LiveRuns runs(found, folders);
  if (options.terminal) return WatchInTerminal(&runs, /*follow=*/!copies);
  if (!options.html.empty()) {
    runs.ReadAll();
    CAPSTAN_RETURN_IF_ERROR(
        ReplaceFile(FromCaller(options.html), ReportPage(runs)));
    return 0;
  }
  // Each answer's buffers go back when it is sent, on whatever thread.
  SetHeapThresholds(/*mmap=*/256 << 10, /*trim=*/1 << 20);
  ServerOptions server_options;
  server_options.port = options.port;
  server_options.key = RandomToken();
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> server,
                           HttpServer::Listen(server_options));
  StepRows rows;
  AddWatchRoutes(&runs, &rows, server.get());
  runs.Follow();
  std::cout << "Open " << server->Url() << "\n"
            << "From another machine: ssh -L " << server->port()
            << ":127.0.0.1:" << server->port()
            << " HOST, then the same address. Ctrl-C ends this, and no run."
            << std::endl;
  CAPSTAN_RETURN_IF_ERROR(server->Run());
  return 0;
}

void AddFlags(Flags& flags, WatchOptions* options) {
  flags
      .Add("run,--run", &options->runs,
           "A run's folder (runs/NAME/latest), or a folder of runs; of an "
           "address, as it is now")
      .Type("FOLDER");
  flags
      .Add("--port", &options->port,
           "Port of the page, on this machine alone; 0: any that is free")
      .ShowDefault();
  flags.Add("--terminal", &options->terminal,
            "Draw it here, with characters; once, if standard output is no "
            "terminal");
  flags
      .Add("--html", &options->html,
           "Write the page into this file, as it is now, and end")
      .Type("FILE");
}

const RegisterFunction<WatchOptions> watch("watch", AddFlags, RunWatch);

}  // namespace
}  // namespace capstan
