# SPDX-License-Identifier: Apache-2.0
#
# Sourced by run: the parts that run if time is left of `budget` seconds. One
# that is left out, or cut off, is said in a line and counts as nothing.
budget=${CAPSTAN_CI_SECONDS:-0}

timed() {  # name least most command..: takes `least` seconds, `most` are given
  local name=$1 least=$2 most=$3 left=$((budget - SECONDS)) log status
  shift 3
  if [ "$left" -lt "$least" ]; then
    echo "NOT RUN: $name: $left seconds are left, it needs $least"
    return
  fi
  log=$(mktemp)
  # Bazel's client ends the build at SIGINT.
  timeout --signal=INT --kill-after=60 "$((most < left ? most : left))" "$@" \
    2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  if { [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; } &&
    ! grep -qE '^(FAIL: |FAILED )//|: (warning|error): |SUMMARY: ' "$log"; then
    echo "NOT FINISHED: $name: cut off, not counted"
  elif [ "$status" -eq 78 ]; then
    echo "NOT RUN: $name: it can't run here, see above"
  else
    count "$name" "$status"
  fi
  rm -f "$log"
}

# Whether `program` is there, or can be installed from `package`.
have() {  # program package
  command -v "$1" >/dev/null && return
  [ "$SECONDS" -lt "$budget" ] || return 1
  [ "$(id -u)" -eq 0 ] && DEBIAN_FRONTEND=noninteractive timeout 300 \
    apt-get install -y -qq --no-install-recommends "$2" >/dev/null 2>&1
  command -v "$1" >/dev/null
}

fuzz() {  # name least most target..
  timed "$1" "$2" "$3" tests/fuzz/run.sh 10s "${@:4}"
}

sanitize() {  # name least most "configs" target..
  local configs
  read -r -a configs <<<"$4"
  timed "$1" "$2" "$3" tests/sanitizers/run.sh --keep_going "${configs[@]}" -- "${@:5}"
}

timed_parts() {
  local cheap=() f=//tests/fuzz
  if have clang-tidy clang-tidy; then
    TIDY_SECONDS=240 timed "clang-tidy on the difference" 300 480 tools/tidy.sh
  else
    echo "NOT RUN: clang-tidy: it can't be installed"
  fi
  timed "a bare Debian builds the GPU parts" 1200 2400 tests/gpu/bare_root.sh
  sanitize "TSan: cluster/watch, cluster/comm" 400 900 --config=tsan \
    //cluster/watch/... //cluster/comm/...
  if have clang++ clang; then
    cheap=($f:json_fuzz $f:npy_fuzz $f:tokenizer_fuzz $f:regex_fuzz
      $f:chat_template_fuzz $f:token_file_fuzz)
    fuzz "fuzz targets of base and text" 300 600 "${cheap[@]}"
    fuzz "all fuzz targets" 600 1200
  else
    echo "NOT RUN: libFuzzer: clang can't be installed; its seeds have run"
  fi
  sanitize "ASan and UBSan: base, text" 300 900 \
    "--config=asan --config=ubsan" //base/... //text/...
  sanitize "ASan and UBSan: host, plugins/sdk" 600 1200 \
    "--config=asan --config=ubsan" //host/... //plugins/sdk/... \
    -//host/config:load_config_test
  # What schedules_test and campaign_test do in short.
  timed "18,000 more simulated schedules" 180 600 \
    tests/sim/run.sh 18000 --first=2001 --jobs=2
  timed "each fault of the campaign three times" 600 900 \
    tests/faults/campaign/campaign.py --times=3 --seed=2
}
