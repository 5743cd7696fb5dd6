// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/ledger.h"

#include <stdlib.h>

#include <algorithm>
#include <cstring>

namespace capstan::sim {
namespace {

// A host that falls silent is noticed after 10 s by who sends it mirrors, and
// who waits for those by another 30 s at most.
constexpr Time kLearnLimit = 60 * kSecond;
// Ranks that were started again wait for others for two minutes at most.
constexpr Time kJoinLimit = 150 * kSecond;

Ledger* the_ledger = nullptr;

const Inode* Entry(const Inode* folder, const std::string& name) {
  if (folder == nullptr) return nullptr;
  const auto found = folder->entries.find(name);
  return found == folder->entries.end() ? nullptr : found->second.get();
}

bool StartsWith(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

}  // namespace

Ledger* TheLedger() { return the_ledger; }

float ValueAt(int64_t step, int64_t i) {
  int64_t value = i + 1;
  for (int64_t s = 1; s <= step; ++s) value = (value * 3 + s) % 8191;
  return static_cast<float>(value);
}

Ledger::Ledger(World* world) : world_(world) {
  the_ledger = this;
  world->on_end = [this](Process* process) { OnEnd(process); };
  world->on_disk_change = [this](const std::string& path) {
    OnDiskChange(path);
  };
}

void Ledger::Violate(const std::string& what) { world_->Violate(what); }

void Ledger::Begins(int job, int hosts) {
  int& fewest = fewest_hosts_.emplace(job, hosts).first->second;
  fewest = std::min(fewest, hosts);
}

void Ledger::Joined(Time begun, int job, int hosts) {
  // Who comes too late can't know that the others went on without it.
  if (hosts > fewest_hosts_[job]) return;
  const Time since = std::max(begun, disturbed_until);
  if (world_->now() - since <= kJoinLimit) return;
  Violate("meet: " + Mine()->name + " has waited for the others for " +
          TimeText(world_->now() - since) + " since the last fault");
}

void Ledger::Met(const std::string& group) { groups_[Mine()->pid] = group; }
void Ledger::LeftGroup() { groups_.erase(Mine()->pid); }

void Ledger::Holds() {
  for (const pid_t pid : holders_) {
    const Process* const other = world_->Find(pid);
    if (pid == Mine()->pid || other == nullptr || !other->alive()) continue;
    Violate("owner: " + Mine()->name + " holds the folder, and so does " +
            other->name);
  }
  holders_.insert(Mine()->pid);
}
void Ledger::LetGo() { holders_.erase(Mine()->pid); }

void Ledger::Loads(int64_t step, bool found) {
  world_->Tell(Mine(), found ? "goes on from step " + std::to_string(step)
                             : "begins at step 0");
  // Without its rank 0 a group hears late, and makes no step.
  const bool is_owners =
      std::any_of(holders_.begin(), holders_.end(), [&](pid_t holder) {
        const auto found = groups_.find(holder);
        return found != groups_.end() && found->second == groups_[Mine()->pid];
      });
  if (step < saved_ && is_owners) {
    Violate("lost: " + Mine()->name + " goes on from step " +
            std::to_string(step) + ", although step " + std::to_string(saved_) +
            " was saved");
  }
}

void Ledger::Saved(int64_t step) {
  world_->Tell(Mine(), "has saved step " + std::to_string(step));
  saved_ = std::max(saved_, step);
}

void Ledger::CheckState(const char* when, int64_t step, const float* values,
                        int64_t begin, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] == ValueAt(step, begin + i)) continue;
    return Violate("state: " + Mine()->name + " has, " + when +
                   ", something else than what " + std::to_string(step) +
                   " steps make");
  }
}

void Ledger::Finished(int64_t step) {
  if (world_->tells()) {
    world_->Tell(Mine(), "finishes step " + std::to_string(step));
  }
}

void Ledger::OnEnd(Process* process) {
  holders_.erase(process->pid);
  const auto found = groups_.find(process->pid);
  if (found == groups_.end()) return;
  const std::string group = found->second;
  groups_.erase(found);
  if (!process->host->up && !watches_hosts) return;
  for (const auto& [pid, other] : groups_) {
    if (other != group) continue;
    world_->After(kLearnLimit, [this, pid = pid, group, of = process->name] {
      CheckLearned(pid, group, of, 0);
    });
  }
}

void Ledger::CheckLearned(pid_t pid, const std::string& group,
                          const std::string& of, int tries) {
  const auto found = groups_.find(pid);
  if (found == groups_.end() || found->second != group) return;
  const Process& process = *world_->Find(pid);
  if (!process.alive()) return;
  // Whoever is stopped or can't be reached learns of it later.
  if (tries == 0 && patience > 0) {
    world_->After(patience,
                  [this, pid, group, of] { CheckLearned(pid, group, of, 1); });
    return;
  }
  Violate("learn: " + process.name + " (" + std::to_string(pid) +
          ") doesn't know that " + of + " has died");
}

void Ledger::OnDiskChange(const std::string& path) {
  if (!StartsWith(path, "/run/checkpoints")) return;
  const Inode* const root =
      Entry(Entry(world_->shared_root.get(), "run"), "checkpoints");
  if (root == nullptr) return;
  for (const auto& [name, folder] : root->entries) {
    if (StartsWith(name, "step-")) CheckFolder(name, *folder);
  }
}

void Ledger::CheckFolder(const std::string& name, const Inode& folder) {
  const Inode* const manifest = Entry(&folder, "manifest.json");
  if (manifest == nullptr) {
    return Violate("whole: checkpoint " + name + " has no manifest");
  }
  const std::string& text = manifest->bytes;
  if (text.find_last_of('}') == std::string::npos ||
      text.find('\0') != std::string::npos) {
    return Violate("whole: the manifest of checkpoint " + name + " is cut");
  }
  size_t files = 0;
  size_t wanted = 0;
  for (const auto& [file, inode] : folder.entries) {
    if (!StartsWith(file, "state-")) continue;
    ++files;
    const size_t of = file.find("-of-");
    if (of != std::string::npos) wanted = atoi(file.c_str() + of + 4);
  }
  if (files < wanted || files == 0) {
    Violate("whole: checkpoint " + name + " has " + std::to_string(files) +
            " files of " + std::to_string(wanted));
  }
}

}  // namespace capstan::sim
