# SPDX-License-Identifier: Apache-2.0
"""Writes shards of texts, for bench/stream.py: Parquet or JSON lines.

Rows are pieces of a text (--text), 40 to 460 bytes long, with a number of their
own. Shards are the same in each run.

    python make_shards.py --text=shakespeare.txt --output=/data/shards \
        --shards=1000 --rows=10000
"""

import argparse
import json
import os
import random


def rows_of(text, shard, rows):
    """`rows` texts, by the shard's number."""
    rng = random.Random(shard)
    made = []
    for row in range(rows):
        size = 40 + int(rng.random() * 420)
        begin = int(rng.random() * (len(text) - size))
        made.append(f"{shard * rows + row}: {text[begin:begin + size]}")
    return made


def write(path, texts, first):
    """A shard, in the format that its name says."""
    if path.endswith(".parquet"):
        # pylint: disable=import-outside-toplevel
        import pyarrow
        import pyarrow.parquet

        ids = list(range(first, first + len(texts)))
        table = pyarrow.table({"id": ids, "text": texts})
        pyarrow.parquet.write_table(
            table, path, compression="zstd", row_group_size=1000
        )
        return
    with open(path, "w", encoding="utf-8") as file:
        for i, text in enumerate(texts):
            file.write(json.dumps({"id": first + i, "text": text}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=10000)
    parser.add_argument("--ending", default="parquet")
    args = parser.parse_args()
    with open(args.text, encoding="utf-8") as file:
        text = file.read()
    os.makedirs(args.output, exist_ok=True)
    for shard in range(args.shards):
        path = os.path.join(args.output, f"{shard:05d}.{args.ending}")
        write(path, rows_of(text, shard, args.rows), shard * args.rows)


if __name__ == "__main__":
    main()
