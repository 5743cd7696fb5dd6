#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`trainer serve` beside transformers' own server: tokens/s, first token.

    python3 bench/serve.py [--clients 1,8,32] [--dtype float32]
        [--sides capstan,transformers,transformers-cb] [--repeats 1]

Each client at once streams one chat of --prompt_words words and --tokens new
tokens over /v1/chat/completions, from a model of SmolLM2-135M's shape with
random weights (or --model FOLDER, with its tokenizer), in which no token ends a
text. A server is started for each side, answers two chats that don't count,
and is ended before the next side's: transformers-cb is `transformers serve`
with its continuous batching. All cores. --url NAME=http://.. measures another
server that runs already (llama.cpp's, say), as a side of its own.

Prints a table: new tokens/s of all clients together, from the first request to
the last token; seconds from a request to its first token, median and greatest
over the clients. transformers comes from bench/.venv, made the first time, or
--python.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

import compare
import contestants
import generate
import processes
import report

OURS, PEER, PEER_BATCHING = "capstan", "transformers", "transformers-cb"
REQUIREMENTS = contestants.BENCH / "peers/requirements_serve.txt"
PACKAGES = ("torch", "transformers", "fastapi", "uvicorn", "openai", "rich")
START_SECONDS, LIMIT_SECONDS = 300, 600
WORDS = "the quick brown fox jumps over the lazy dog and".split()


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=compare.listed,
                        default=["1", "8", "32"])
    parser.add_argument("--sides", type=compare.listed,
                        default=[OURS, PEER, PEER_BATCHING])
    parser.add_argument("--dtype", default="float32",
                        choices=("float32", "bfloat16"))
    parser.add_argument("--prompt_words", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=1, help="rounds")
    parser.add_argument("--url", action="append", default=[],
                        help="NAME=http://HOST:PORT")
    generate.add_options(parser)
    args = parser.parse_args()
    for side in args.sides:
        if side not in (OURS, PEER, PEER_BATCHING):
            parser.error("--sides: %s isn't known" % side)
    return args


def connect(url):
    place = urllib.parse.urlparse(url)
    return http.client.HTTPConnection(place.hostname, place.port,
                                      timeout=LIMIT_SECONDS)


def model_name(url):
    connection = connect(url)
    connection.request("GET", "/v1/models")
    return json.loads(connection.getresponse().read())["data"][0]["id"]


def chat(url, model, client, args):
    """Seconds to the first token."""
    # No two prompts begin alike.
    words = [str(client)] + [WORDS[(client + i) % len(WORDS)]
                             for i in range(args.prompt_words)]
    connection = connect(url)
    begin = time.perf_counter()
    connection.request(
        "POST", "/v1/chat/completions",
        json.dumps({"model": model, "stream": True, "temperature": 0,
                    "max_tokens": args.tokens,
                    "messages": [{"role": "user",
                                  "content": " ".join(words)}]}),
        {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise processes.RunError("%s: %s" % (url, response.read()[:500]))
    first = None
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        choices = json.loads(line[6:]).get("choices")
        if choices and (choices[0].get("delta") or {}).get("content"):
            first = first or time.perf_counter() - begin
    if first is None:
        raise processes.RunError("%s: a text without a token" % url)
    return first


def measure(url, model, clients, args):
    """All clients at once."""
    firsts, errors = [None] * clients, []

    def run(client):
        try:
            firsts[client] = chat(url, model, client, args)
        except (processes.RunError, OSError, ValueError) as error:
            errors.append(error)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(clients)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise processes.RunError(str(errors[0]))
    seconds = time.perf_counter() - begin
    return {"clients": clients, "rate": clients * args.tokens / seconds,
            "first": statistics.median(firsts), "latest": max(firsts)}


@contextlib.contextmanager
def server(side, model, args, python):
    """Runs one; gives its address and what it calls the model."""
    port = contestants.free_port()
    if side == OURS:
        command = [str((args.trainer or contestants.TRAINER).resolve()),
                   "serve", "--model=%s" % model, "--name=%s" % model,
                   "--port=%d" % port]
    else:
        command = [str(pathlib.Path(python).parent / "transformers"), "serve",
                   str(model), "--port=%d" % port, "--device=cpu"]
        if side == PEER_BATCHING:
            command.append("--continuous-batching")
    env = dict(os.environ, CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1")
    url = "http://127.0.0.1:%d" % port
    with tempfile.TemporaryFile("w+") as out, processes.nothing_left_behind():
        process = subprocess.Popen(command, stdout=out, stderr=out, env=env)
        end = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = connect(url)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    break
            if process.poll() is not None or time.monotonic() > end:
                out.seek(0)
                raise processes.RunError("%s didn't start:\n%s" % (
                    " ".join(command), out.read()[-2000:]))
            time.sleep(0.2)
        yield url, str(model)


def without_end(folder):
    """Lets no token end a text."""
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        if path.exists():
            config = json.loads(path.read_text())
            config["eos_token_id"] = None
            path.write_text(json.dumps(config))
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("eos_token", None)
    path.write_text(json.dumps(config))


def table(runs):
    """As Markdown; runs: measurements by side and number of clients."""
    def text(values):
        return "%.3g" % statistics.median(values)
    lines = []
    for (side, clients), measured in runs.items():
        lines.append([side, str(clients)] + [
            text([m[key] for m in measured])
            for key in ("rate", "first", "latest")])
    return report.markdown_table(
        ["server", "clients", "tokens/s", "first token, s", "latest, s"],
        lines)


def main():
    args = parse()
    if args.trainer is None and OURS in args.sides:
        contestants.ensure_trainer()
    python = args.python or contestants.ensure_peer(REQUIREMENTS, PACKAGES)
    runs = {}

    def note(side, url, name):
        for _ in range(2):
            measure(url, name, 1, args)
        for clients in map(int, args.clients):
            measured = measure(url, name, clients, args)
            runs.setdefault((side, clients), []).append(measured)
            print(side, json.dumps(measured), file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="capstan_bench_") as made:
        model = args.model
        if model is None:
            model = generate.make_model(python, pathlib.Path(made, "model"),
                                        args.dtype)
            without_end(model)
        for _ in range(args.repeats):
            for side in args.sides:
                with server(side, model, args, python) as (url, name):
                    note(side, url, name)
            for named in args.url:
                side, url = named.split("=", 1)
                note(side, url, model_name(url))
    print("%d words, %d new tokens, %s, %d cores, load %.1f\n\n%s" % (
        args.prompt_words, args.tokens, args.dtype, os.cpu_count(),
        os.getloadavg()[0], table(runs)), end="")


if __name__ == "__main__":
    try:
        main()
    except processes.RunError as error:
        sys.exit(str(error))
