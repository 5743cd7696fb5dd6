"""What planted_test puts back: (name, source, edits by sed).

The first were real, and were mended in this repository's history (the commit is
named); the others are made up, of the same kind.
"""

DEFECTS = [
    # Found by these schedules.
    ("removal_not_synced", "//trainer/checkpoint:checkpoint_folders.cc", [
        "s/const absl::Status synced = SyncPath.*/const absl::Status synced;/",
    ]),
    ("checkpoints_not_synced", "//trainer/checkpoint:save.cc", [
        "s/CAPSTAN_RETURN_IF_ERROR\\(SyncPath\\(request.output_dir\\)\\);/;/",
    ]),
    ("output_dir_not_synced", "//trainer/session:output_folder.cc", [
        "s/^    CAPSTAN_RETURN_IF_ERROR\\(SyncEntry\\(at, folder\\)\\);/;/",
    ]),
    ("given_up_for_others", "//trainer/checkpoint:save.cc", [
        "s/if \\(status.ok\\(\\) .. rank == 0 .. PathExists.*/return status;/",
    ]),
    # 27357bd5
    ("removed_looks_whole", "//trainer/checkpoint:checkpoint_folders.cc", [
        "s/may_be_whole = absl::EndsWith.*/may_be_whole = true;/",
    ]),
    # f56bc598
    ("silent_host", "//trainer/checkpoint:mirror_link.cc", [
        "s/if \\(silence_.count\\(\\) > 0\\) NoticeSilence.*/;/",
        "s/silent \\? silent_tries_ >= kSilentTries \\&\\& since >= silence_/silent ? false/",
    ]),
    # Checkpoints.
    ("names_not_synced", "//trainer/checkpoint:save.cc", [
        "s/CAPSTAN_RETURN_IF_ERROR\\(SyncPath\\(temporary\\)\\);/;/",
    ]),
    ("manifest_not_synced", "//base:files.cc", [
        "s/if \\(fsync\\(file.get\\(\\)\\) != 0\\) return .*/;/",
    ]),
    ("state_not_synced", "//base:files.cc", [
        "s/if \\(status_.ok\\(\\) .. fsync\\(fd_\\) != 0\\) status_ = .*/;/",
    ]),
    ("publication_not_synced", "//base:files.cc", [
        "s/return sync_parent\\(\\);/return absl::OkStatus();/",
    ]),
    ("prunes_the_newest", "//trainer/checkpoint:checkpoint_folders.cc", [
        "s/others.erase\\(saved_step\\);/;/",
    ]),
    ("removes_in_place", "//trainer/checkpoint:checkpoint_folders.cc", [
        "s/if \\(rename\\(path.c_str\\(\\), trash.c_str\\(\\)\\) != 0\\)/RemoveQuietly(path); if (false)/",
    ]),
    ("lock_that_is_none", "//trainer/session:held_folder.cc", [
        "s/(errno == EWOULDBLOCK \\|\\| errno == EINTR\\)) return LockOutcome::kHeld/\\1 return LockOutcome::kTaken/",
    ]),
    ("lock_that_is_let_go", "//trainer/session:held_folder.cc", [
        "s/held.lock = fd;/held.lock = fd; close(fd);/",
    ]),
    ("oldest_first", "//trainer/checkpoint:checkpoint_folders.cc", [
        "s/newest_first.insert\\(newest_first.begin\\(\\), (.*)\\);/newest_first.push_back(\\1);/",
    ]),
    ("commit_that_failed", "//trainer/checkpoint:checkpoint.cc", [
        "s/status = CommitSave\\(/CommitSave(/",
    ]),
    ("retries_that_end_well", "//trainer/checkpoint:save.cc", [
        "s/if \\(status.ok\\(\\) .. i == kTries .*/if (true) return absl::OkStatus();/",
    ]),
    ("full_disk_unnoticed", "//base:files.cc", [
        "s/if \\(n < 0\\) return WriteError\\(path, errno\\);/if (n < 0) return absl::OkStatus();/",
    ]),
    # Ranks that meet, and that die.
    ("waits_for_the_dead", "//cluster/meet:server.cc", [
        "s/keys_.EndWaits\\(text\\);/;/",
    ]),
    ("agreement_of_one", "//cluster/comm:agree.cc", [
        "s/if \\(.failed < 0\\) return absl::OkStatus\\(\\);/return absl::OkStatus();/",
    ]),
]
