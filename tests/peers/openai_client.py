#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""OpenAI's own Python client against `trainer serve`.

    python3 tests/peers/openai_client.py http://127.0.0.1:8000 [KEY]

asks a running server for what programs ask it: whole and streamed chats and
completions, several at once, stop strings, seeds, logprobs, echo, errors. Says
"skipped" where the client (the package openai) isn't installed.
"""

import concurrent.futures
import sys

try:
    import openai
except ImportError:
    print("skipped: the package openai isn't installed")
    sys.exit(0)

HELLO = [{"role": "user", "content": "Hello!"}]


def check(condition, what):
    if not condition:
        sys.exit("wrong: %s" % what)


def chats(client, model):
    whole = client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=12, seed=7, n=2)
    check(len(whole.choices) == 2, "n")
    check(whole.usage.completion_tokens > 0, "usage")
    again = client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=12, seed=7)
    check(again.choices[0].message.content == whole.choices[0].message.content,
          "equal seeds have equal texts")
    stream = client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=12, seed=7, stream=True,
        stream_options={"include_usage": True})
    text, usage, reasons = "", None, []
    for event in stream:
        usage = event.usage or usage
        for choice in event.choices:
            text += choice.delta.content or ""
            reasons.append(choice.finish_reason)
    check(text == whole.choices[0].message.content, "a stream is the whole")
    check(usage.completion_tokens == again.usage.completion_tokens,
          "a stream's usage")
    check(reasons[-1] == whole.choices[0].finish_reason, "a stream's end")
    probable = client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=5, temperature=0,
        logprobs=True, top_logprobs=3)
    for token in probable.choices[0].logprobs.content:
        check(len(token.top_logprobs) == 3, "top_logprobs")
        check(token.logprob == token.top_logprobs[0].logprob,
              "a greedy token is the likeliest")
        check(bytes(token.bytes) is not None, "bytes")


def completions(client, model):
    whole = client.completions.create(
        model=model, prompt=["Once", "Tell me more"], max_tokens=20,
        temperature=0, extra_body={"ignore_eos": True})
    check([c.index for c in whole.choices] == [0, 1], "two prompts")
    text = whole.choices[1].text
    stop = text[len(text) // 2:][:3]
    stopped = client.completions.create(
        model=model, prompt="Tell me more", max_tokens=20, temperature=0,
        stop=[stop], extra_body={"ignore_eos": True})
    check(stopped.choices[0].text == text.split(stop)[0], "stop")
    check(stopped.choices[0].finish_reason == "stop", "finish_reason")
    echo = client.completions.create(
        model=model, prompt="Tell me more", max_tokens=1, temperature=0,
        logprobs=2, echo=True).choices[0]
    check(echo.text.startswith("Tell me more"), "echo")
    check(echo.logprobs.token_logprobs[0] is None, "the first token's logprob")
    check(len(echo.logprobs.tokens) == len(echo.logprobs.top_logprobs),
          "logprobs")
    streamed = "".join(
        event.choices[0].text for event in client.completions.create(
            model=model, prompt="Tell me more", max_tokens=20, temperature=0,
            stream=True, extra_body={"ignore_eos": True}))
    check(streamed == text, "a stream of text")


def many(client, model):
    """Texts of one are those of 32 at once."""
    def ask(i):
        return client.completions.create(
            model=model, prompt="Number %d" % i, max_tokens=16, seed=i,
            temperature=0.9).choices[0].text
    alone = [ask(i) for i in range(32)]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        check(list(pool.map(ask, range(32))) == alone, "32 at once")


def errors(client, model):
    for expected, words in (
            (openai.BadRequestError, {"temperature": -1}),
            (openai.BadRequestError, {"frequency_penalty": 1}),
            (openai.NotFoundError, {"model": "none-of-it"})):
        try:
            client.chat.completions.create(
                **{"model": model, "messages": HELLO, **words})
        except expected as error:
            check(error.message, "an error's message")
        else:
            sys.exit("wrong: %s is answered" % words)


def main():
    client = openai.OpenAI(
        base_url=sys.argv[1].rstrip("/") + "/v1",
        api_key=sys.argv[2] if len(sys.argv) > 2 else "none", max_retries=0)
    model = client.models.list().data[0].id
    check(client.models.retrieve(model).id == model, "a model by name")
    for part in (chats, completions, many, errors):
        part(client, model)
        print(part.__name__, "passed")


if __name__ == "__main__":
    main()
