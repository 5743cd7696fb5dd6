#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# use_folder.sh FOLDER HISTORIES: what a user does with an unpacked //:dist, in
# the current folder, with nothing but a shell and the core utilities; loads each
# library at least once. HISTORIES is an HDF5 file of a darkroom's. Prints what
# failed.
set -eu
trainer=$1/bin/trainer
histories=$2
export OMP_NUM_THREADS=1

# try NAME ARGUMENT..: the trainer must end well.
try() {
  name=$1
  shift
  if ! "$trainer" "$@" >"$name.txt" 2>&1; then
    cat "$name.txt"
    echo "FAILED: trainer $*"
    exit 1
  fi
}

short="--set train.eval_batches=1 --set train.eval_every=0"
# Each plugin with all of its symbols; the core, LibTorch and all below likewise.
try plugins plugins
LD_BIND_NOW=1 try env env
try check check --config=run_distributed.pbtxt
try plan plan --config=run_distributed.pbtxt
try run --config=run_distributed.pbtxt --set output_dir=run \
  --set train.max_steps=3 $short
try generate generate --model=run --prompt="class Tensor {" \
  --max_new_tokens=4
try eval eval --model=run --max_batches=2
# Chats, from a compressed file: pcre2, utf8proc, simdjson, zlib, isal.
gzip -c "$1/datasets/samples/chats.jsonl" >chats.jsonl.gz
try data data --config=sft_quickstart.pbtxt \
  --set train_data.path=chats.jsonl.gz
# A Hugging Face folder, LoRA on top of it, and both in one.
try base --config=sft_quickstart.pbtxt --set output_dir=base \
  --set train_data.path=chats.jsonl.gz --set strategy=capstan.fsdp \
  --set model.hidden_size=32 --set model.num_hidden_layers=1 \
  --set train.max_steps=2 $short
try lora --config=sft_smollm2.pbtxt --set output_dir=lora \
  --set train_data.path=chats.jsonl.gz --set train_data.tokenizer=base/final \
  --set train_data.max_length=256 --set model.pretrained=base/final \
  --set adapter.lora.rank=2 \
  --set train.max_steps=2 $short
try merge merge --model=base/final --adapter=lora --output=merged
try tokenize tokenize --tokenizer=base/final --input=chats.jsonl.gz \
  --output=tokens
try histories check --config=ad_darkroom_quickstart.pbtxt \
  --set train_data.path="$histories" --set train_data.steps=160 \
  --set train_data.streams=3 --set collect=
# Errors are C++ exceptions in LibTorch and below.
if "$trainer" check --config=none.pbtxt >none.txt 2>&1 ||
  ! grep -q "no such file" none.txt; then
  cat none.txt
  echo "FAILED: an error of the trainer"
  exit 1
fi
cat run/final/model.safetensors | sha256sum
