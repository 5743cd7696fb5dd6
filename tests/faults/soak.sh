#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# soak.sh [STEPS [RANKS]]   trains a tiny run for STEPS (20,000) on RANKS (2) with
# many evaluations, samples and checkpoints, and watches what grows: the memory,
# descriptors and threads of all its processes, and the files in its folder. Fails
# if the last third of the run needs more of anything than the third before it.
# soak.sh --judge TABLE     judges a table of "STEP KIB DESCRIPTORS THREADS FILES".
# From the repository's root, after `bazel build //trainer:all`; TRAINER=PATH is
# another trainer, CORPUS=PATH the text that is learnt.
set -euo pipefail

# The least of each column in the middle third and in the last one: what is held
# for a moment, while a checkpoint is written, say, isn't held for good.
judge() {
  awk -v mib_allowed="${SOAK_MIB:-6}" '
    { step[NR] = $1; for (k = 2; k <= 5; ++k) value[NR, k] = $k }
    END {
      split("- memory_KiB descriptors threads files", name, " ")
      allowed[2] = mib_allowed * 1024; allowed[3] = allowed[4] = 0
      # Whether there is one checkpoint more depends on the best one, and
      # whether one is being written on the moment.
      allowed[5] = 2
      last = step[NR]
      for (i = 1; i <= NR; ++i) {
        third = step[i] * 3 <= last ? 1 : step[i] * 3 <= 2 * last ? 2 : 3
        ++seen[third]
        for (k = 2; k <= 5; ++k)
          if (!((third, k) in least) || value[i, k] < least[third, k])
            least[third, k] = value[i, k]
      }
      if (seen[2] < 8 || seen[3] < 8) {
        print "too few measurements: " seen[2] + 0 " and " seen[3] + 0
        exit 1
      }
      bad = 0
      for (k = 2; k <= 5; ++k) {
        grown = least[3, k] - least[2, k]
        verdict = grown > allowed[k] ? "GROWS" : "flat"
        bad += grown > allowed[k]
        printf "%-12s %9d in the middle third of %d steps, %9d in the last: %s\n",
               name[k], least[2, k], last, least[3, k], verdict
      }
      exit bad > 0
    }' "$1"
}

if [ "${1:-}" = --judge ]; then
  judge "$2"
  exit
fi

steps=${1:-20000}
ranks=${2:-2}
trainer=${TRAINER:-bazel-bin/trainer/trainer}
corpus=$(realpath "${CORPUS:-tests/testdata/corpus.txt}")
folder=$(mktemp -d "${TEST_TMPDIR:-/tmp}/soak.XXXXXX")
trap 'kill "$pid" 2>/dev/null || true; rm -rf "$folder"' EXIT
pid=
every=50
cat >"$folder/run.pbtxt" <<CONFIG
output_dir: "$folder/out"
model { [plugin/capstan.llama.Config] {
  vocab_size: 256 hidden_size: 16 intermediate_size: 32 num_hidden_layers: 1
  num_attention_heads: 2 max_position_embeddings: 32
} }
objective { [plugin/capstan.causal_lm.Config] {} }
optimizer { [plugin/capstan.adamw.Config] { learning_rate: 1e-3 } }
train_data { [plugin/capstan.text.Config] {
  path: "$corpus" tokenizer { bytes {} } sequence_length: 16
  validation_fraction: 0.05
} }
strategy { [plugin/capstan.ddp.Config] {} }
precision { [plugin/capstan.fp32.Config] {} }
batch { micro_batch_size: 1 global_batch_size: $ranks }
launch { processes: $ranks }
train {
  max_steps: $steps seed: 1 log_every: 1000
  eval_every: $every eval_batches: 4 save_every: $every keep_best: true
  sample_prompts { prompt: "the" } sample_max_new_tokens: 4
  skip_bad_samples: 1 loss_spikes { z_score: 20 }
}
complete: true
CONFIG

OMP_NUM_THREADS=1 nice "$trainer" --config="$folder/run.pbtxt" \
  >"$folder/log" 2>&1 &
pid=$!
metrics=$folder/out/metrics.jsonl
seconds=$SECONDS
pause=${SOAK_SECONDS:-0.1} before=
while kill -0 "$pid" 2>/dev/null; do
  sleep "$pause"
  step=$(tail -n 1 "$metrics" 2>/dev/null |
    sed -n 's/^{"step": \([0-9]*\),.*/\1/p') || true
  [ -n "$step" ] || continue
  # A run that is fast is measured as often as can be, or there were too few of them.
  [ $((step - ${before:-$step})) -le $((steps / 45)) ] || pause=0
  before=$step
  kib=0 descriptors=0 threads=0 processes=0
  for process in $pid $(pgrep -P "$pid" || true); do
    held=$(awk '/^RssAnon|^RssShmem/ { kib += $2 } /^Threads/ { n = $2 }
                END { print kib + 0, n + 0 }' "/proc/$process/status" \
           2>/dev/null) || continue
    read -r more_kib more_threads <<<"$held"
    open=$(find "/proc/$process/fd" -mindepth 1 2>/dev/null | wc -l) || true
    kib=$((kib + more_kib)) threads=$((threads + more_threads))
    descriptors=$((descriptors + open)) processes=$((processes + 1))
  done
  # Not while it starts or ends.
  [ "$processes" -gt "$ranks" ] || continue
  # A checkpoint counts once, whatever is in it. Folders vanish while it looks.
  files=$(find "$folder/out" -path '*/checkpoints/*/*' -prune -o -print \
    2>/dev/null | wc -l) || continue
  echo "$step $kib $descriptors $threads $files" >>"$folder/table"
done
wait "$pid" || {
  tail -n 5 "$folder/log"
  exit 1
}
echo "$steps steps on $ranks ranks in $((SECONDS - seconds)) s," \
  "$(wc -l <"$folder/table") measurements"
if [ -n "${SOAK_TABLE:-}" ]; then cp "$folder/table" "$SOAK_TABLE"; fi
judge "$folder/table"
