# SPDX-License-Identifier: Apache-2.0
# Speed by micro-batch, until memory ends.
. tests/gpu/common.sh
done_one=0
for batch in ${BATCHES:-1 2 4 8 16 32 64}; do
  if ! train_for "batch_$batch" "${STEPS:-12}" --set batch.micro_batch_size="$batch"; then
    echo "micro-batch $batch fails; see above"
    break
  fi
  done_one=1
  numbers=$(speed "batch_$batch")
  echo "$batch $numbers"
  result batches "{\"micro_batch\": $batch, \"measured\": $numbers}"
done
[ "$done_one" -eq 1 ]
