#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What `trainer new-plugin` writes, in a Bazel workspace of its own with Capstan
# as an external repository: built, tested, and taken by the trainer. Run from
# Capstan's workspace, with //trainer:all built. The core that the plugins link is
# the one built here; with --whole it is compiled once more, as an external
# repository's (ten minutes on two cores, and the disk cache keeps it).
set -euo pipefail

capstan=$PWD
trainer=$capstan/bazel-bin/trainer/trainer
outer=$(bazel info output_base)
folder=$(mktemp -d)
cleanup() {
  (cd "$folder/plugins" && bazel --output_user_root="$folder/root" shutdown) ||
    true
  chmod -R u+w "$folder"
  rm -rf "$folder"
}
trap cleanup EXIT

for category in collector command dataset_reader model objective optimizer \
  part precision strategy; do
  "$trainer" new-plugin --category="$category" --name="acme.my_$category" \
    --capstan="$capstan" "$folder/plugins" >/dev/null
done

cd "$folder/plugins"
options=("--override_repository=libtorch=$outer/external/libtorch")
if [ "${1:-}" != --whole ]; then
  cp "$capstan/bazel-bin/trainer/libcapstan_core.so" .
  echo 'exports_files(["libcapstan_core.so"])' >BUILD
  options+=("--@capstan//trainer:core_library=//:libcapstan_core.so")
fi
bazel --output_user_root="$folder/root" test "${options[@]}" //...

# The trainer takes each, with the config that came with it: 20 steps on two ranks
# (//tests/outside:new_plugin_test goes through the strategies).
for own in acme/*; do
  name=${own#acme/}
  if [ "$name" = command_my_command ]; then
    "$trainer" --plugin_path="bazel-bin/$own" my-command \
      --text="$own/testdata/lines.txt" --most=1 | grep -q '^[0-9]\+ '
    continue
  fi
  run=run_distributed
  [ "$name" != my_part ] || run=ad_darkroom_quickstart
  strategy=capstan.fsdp
  [ "$name" != my_strategy ] || strategy=acme.my_strategy
  OMP_NUM_THREADS=1 "$trainer" --config="$capstan/configs/$run.pbtxt" \
    --config="$own/$name.pbtxt" --plugin_path="bazel-bin/$own" \
    --set output_dir="$folder/runs/$name" --set train.max_steps=20 \
    --set train.eval_every=0 --set strategy="$strategy" \
    --set launch.processes=2 >"$folder/log" 2>&1 || {
    cat "$folder/log"
    echo "FAILED: $own under $strategy"
    exit 1
  }
done
echo "$(ls acme | wc -l) plugins of an outside workspace train"
