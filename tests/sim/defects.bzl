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
    # 27357bd5
    ("removed_looks_whole", "//trainer/checkpoint:checkpoint_folders.cc", [
        "s/may_be_whole = absl::EndsWith.*/may_be_whole = true;/",
    ]),
    # f56bc598
    ("silent_host", "//trainer/checkpoint:mirror_link.cc", [
        "s/if \\(silence_.count\\(\\) > 0\\) NoticeSilence.*/;/",
        "s/silent \\? silent_tries_ >= kSilentTries \\&\\& since >= silence_/silent ? false/",
    ]),
    # 65a21f7c
    ("gone_process", "//trainer/checkpoint:mirror_link.cc", [
        "s/: since >= kGone;/: false;/",
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
    # Ranks that meet, and that die.
    ("lost_rank_keeps_its_place", "//cluster/meet:server.cc", [
        "s/admission_.Leave\\(c.hello.rank\\);/;/",
    ]),
    ("waits_for_the_dead", "//cluster/meet:server.cc", [
        "s/keys_.EndWaits\\(text\\);/;/",
    ]),
    ("death_on_a_host", "//cluster/comm:shm/shm_meeting.cc", [
        "s/if \\(left == 0 .. poll\\(.process, 1, 0\\) <= 0\\)/if (left == 0)/",
    ]),
    ("death_on_another_host", "//cluster/comm:hosts/host_links.cc", [
        "s/EnsureWatch\\(message.host\\);/;/",
    ]),
    ("failures_not_told", "//cluster/comm:hosts/host_failures.cc", [
        "s/if \\(!store_->check\\(\\{Key\\(\\)\\}\\)\\) return false;/return false;/",
    ]),
    # Restarts.
    ("ranks_survive_a_restart", "//cluster/launch:launcher.cc", [
        "s/^  KillAll\\(\\);$/  ;/",
    ]),
    ("wrong_number_of_host", "//cluster/launch:restarts.cc", [
        "s/if \\(host < place.info.node_rank\\) --left.info.node_rank;/;/",
    ]),
    ("gives_up_twice", "//cluster/launch:launcher.cc", [
        "s/progress_->page\\(\\).gone.Set\\(\"\"\\);/;/",
    ]),
]
