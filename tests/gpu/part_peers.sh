# SPDX-License-Identifier: Apache-2.0
# PyTorch and Transformers side by side, at the same shapes.
. tests/gpu/common.sh
python3 -c 'import torch, transformers, matplotlib' 2>/dev/null ||
  skip "python3 lacks torch, transformers or matplotlib"
python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
  skip "python3's torch sees no GPU"
bash bench/gpu.sh --shapes smollm2-135m --repeats 1 \
  --output "$FOLDER/peers" 2>&1 | tee "$FOLDER/peers.log" ||
  wrong "bench/gpu.sh fails"
! grep -q '^no GPU: skipped' "$FOLDER/peers.log" ||
  skip "bench/gpu.sh sees no GPU in /proc/driver/nvidia"
! grep 'not the same model' "$FOLDER/peers.log" || exit 1
unjudged "speeds, to be read in $FOLDER/peers"
