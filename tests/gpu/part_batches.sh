# SPDX-License-Identifier: Apache-2.0
# Speed by micro-batch, until memory ends, of which the run must say so.
. tests/gpu/common.sh
done_one=0
for batch in ${BATCHES:-1 2 4 8 16 32 64}; do
  log=$FOLDER/batch_$batch.txt
  if ! train_for "batch_$batch" "${STEPS:-12}" \
    --set batch.micro_batch_size="$batch" >"$log" 2>&1; then
    cat "$log"
    [ "$done_one" -eq 1 ] || wrong "micro-batch $batch, the smallest, fails"
    grep -qi 'out of memory' "$log" ||
      wrong "micro-batch $batch fails, and not for want of memory"
    echo "micro-batch $batch is out of memory, and says so"
    exit 0
  fi
  done_one=1
  numbers=$(speed "batch_$batch") || wrong "metrics of $batch can't be read"
  echo "$batch $numbers"
  result batches "{\"micro_batch\": $batch, \"measured\": $numbers}"
done
echo "all micro-batches fit"
