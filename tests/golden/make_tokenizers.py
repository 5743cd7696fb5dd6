#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes testdata/tokenizers/golden.json: what Hugging Face's tokenizers make of texts.

    pip install tokenizers==0.23.3 transformers==5.23.0; python3 make_tokenizers.py

For each part that a tokenizer.json may have, a small tokenizer of our own with it: its
files, and for each text its ids and what they add to a text that goes on ("decoded").
Tokenizers of bytes show what a normalizer makes of a text; with a mark before each
piece, how a pre-tokenizer cuts it.
"""

import base64
import json
import pathlib
import struct
import tempfile

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
import transformers

OUT = pathlib.Path(__file__).resolve().parent / "testdata/tokenizers/golden.json"
TEXTS = [
    "", " ", "Hello, world!", "  leading and  trailing  ", "don't we'll I'VE",
    "tabs\tand\nnew\r\nlines\n\n  x", "1234 3.14 \u00bd \u00b2 \u2167 \u0663 \u2460",
    "na\u00efve caf\u00e9 \u00c5ngstr\u00f6m e\u0301",
    "\u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8 \u3068 \u6f22\u5b57\u30fc\u3072 x\u4e00",
    "\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7 ok",
    "\u05e2\u05d1\u05e8\u05d9\u05ea \u0939\u093f\u0928\u094d\u0926\u0940 \u0e25\u0e33",
    "\u00a0nbsp\u2003em\u1680\u180e\u2028", "a\u0000b\u0001\u0085\u200b\ufeff\ufffdc",
    "__init__ foo_bar-baz\u2014\u2026\u00bf\u00ab\u00bb", "\ufb01 \uff26\uff35 \uff76\uff9e",
    "\u0130stanbul \u01c5 \u00df \u1e9e \u017f \u212a", "\u1112\u1161\u11ab \ud55c",
    # Assigned since Unicode 9, 13, 15 or 16: libraries differ.
    "\U00031350 \U00010d50 \U00011f10 \u1c89 \ua7da a\U0001e4ef\u0334 a\u0897",
    "\U00011935\U00011930 \ua7f2 \U00010781 \u32ff \u2e4f \u2e52",
    "\u2581a\u2581b \u2581\u2581c", "unaffable unknown xyz un\u00e9", "aaab</w> ##b <s>x",
]


def byte_vocab():
    return {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def bpe(vocab, merges=(), **more):
    return {"type": "BPE", "vocab": vocab, "merges": [list(m) for m in merges], **more}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
              "use_regex": False}
MARK = {"type": "Metaspace", "replacement": "|", "prepend_scheme": "always",
        "split": False}
LETTERS = "<unk> <s> </s> a b c e l n o u x w h d r \u2581 \u2581a un able aff ab xx".split()
WORDS = ("[UNK] [CLS] [SEP] hello world un ##aff ##able ##a ##b a b , ! ' don t x "
         "##yz and the").split()


def tokenizer(model, **parts):
    made = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": None, "pre_tokenizer": None, "post_processor": None,
            "decoder": {"type": "Fuse"}, "model": model}
    made.update(parts)
    return made


def of_bytes(**parts):
    steps = [s for s in (parts.pop("first", None),) if s]
    marks = [MARK] if steps else []
    return tokenizer(bpe(byte_vocab()), decoder=BYTE_LEVEL, pre_tokenizer={
        "type": "Sequence", "pretokenizers": steps + marks + [BYTE_LEVEL]}, **parts)


def of_letters(**parts):
    vocab = {t: i for i, t in enumerate(LETTERS)}
    merges = [("u", "n"), ("a", "b"), ("x", "x"), ("\u2581", "a")]
    more = parts.pop("model", {})
    for token in more.pop("tokens", ()):
        vocab[token] = len(vocab)
    return tokenizer(bpe(vocab, more.pop("merges", merges), unk_token="<unk>", **more),
                     **parts)


def words(model, **parts):
    parts.setdefault("pre_tokenizer", {"type": "BertPreTokenizer"})
    return tokenizer(model, **parts)


def word_piece(**parts):
    return words({"type": "WordPiece", "unk_token": "[UNK]",
                  "continuing_subword_prefix": "##", "max_input_chars_per_word": 9,
                  "vocab": {t: i for i, t in enumerate(WORDS)}}, **parts)


def unigram(**parts):
    pieces = [[t, -2.0 - i / 7 - (len(t) == 1)] for i, t in enumerate(LETTERS[3:])]
    special = [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0]]
    more = [["<0x%02X>" % b, -20.0] for b in range(256)] if parts.get("bytes") else []
    fallback = parts.pop("bytes", False)
    return tokenizer({"type": "Unigram", "unk_id": 0, "byte_fallback": fallback,
                      "vocab": special + more + pieces}, **parts)


def charsmap(rules):
    """SentencePiece's precompiled_charsmap, a Darts double array."""
    texts, trie = b"", {}
    for key, value in rules.items():
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[-1] = len(texts)
        texts += value.encode() + b"\0"
    units, used = [0] * 8192, {0}

    def place(node, at):
        labels = [0 if label == -1 else label for label in node]
        base = next(b for b in range(256, len(units) - 256)
                    if not any(b ^ label in used for label in labels))
        used.update(base ^ label for label in labels)
        units[at] |= (at ^ base) << 10
        for label, below in node.items():
            if label == -1:
                units[at] |= 1 << 8
                units[base] = below | 1 << 31
            else:
                units[base ^ label] |= label
        for label, below in node.items():
            if label != -1:
                place(below, base ^ label)

    place(trie, 0)
    units = units[:max(used) + 257]
    return base64.b64encode(struct.pack("<%dI" % (len(units) + 1), 4 * len(units),
                                        *units) + texts).decode()


def normalizers():
    for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt",
                 "ByteLevel"):
        yield name, {"type": name}
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
            "strip_accents": None, "lowercase": True}
    yield "Bert", bert
    yield "Bert, cased", {**bert, "lowercase": False, "clean_text": False}
    yield "Strip", {"type": "Strip", "strip_left": True, "strip_right": False}
    yield "Prepend", {"type": "Prepend", "prepend": "\u2581"}
    yield "Replace", {"type": "Replace", "pattern": {"Regex": r"\w"}, "content": "w"}
    yield "Sequence", {"type": "Sequence", "normalizers": [
        {"type": "NFKD"}, {"type": "StripAccents"},
        {"type": "Strip", "strip_left": True, "strip_right": True}]}
    yield "Precompiled", {"type": "Precompiled", "precompiled_charsmap": charsmap({
        "\n": " ", "\r": " ", "\u00a0": " ", "\ufb01": "fi", "e\u0301": "\u00e9",
        "\u0001": "", "\u00bd": "1/2", "\uff26": "F", "I": "i"})}


def pre_tokenizers_():
    for name in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts"):
        yield name, {"type": name}
    yield "CharDelimiterSplit", {"type": "CharDelimiterSplit", "delimiter": "a"}
    yield "FixedLength", {"type": "FixedLength", "length": 3}
    yield "Digits", {"type": "Digits", "individual_digits": True}
    yield "ByteLevel", {**BYTE_LEVEL, "use_regex": True, "add_prefix_space": True}
    yield "Metaspace", {"type": "Metaspace", "replacement": "\u2581",
                        "prepend_scheme": "first", "split": True}
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                     "Contiguous"):
        yield "Punctuation " + behavior, {"type": "Punctuation", "behavior": behavior}
    for regex in (r"\p{L}+|\p{N}", r"\w+|\d|\D", r"\p{Han}|\P{Ll}", r"[^\s\p{L}]+",
                  r"\p{C}|\P{C}\p{M}"):
        yield "Split " + regex, {"type": "Split", "pattern": {"Regex": regex},
                                 "behavior": "Isolated", "invert": False}


def parts():
    for name, part in normalizers():
        yield "normalizer " + name, of_bytes(normalizer=part)
    for name, part in pre_tokenizers_():
        yield "pre_tokenizer " + name, of_bytes(first=part)
    metaspace = {"type": "Metaspace", "replacement": "\u2581",
                 "prepend_scheme": "always", "split": False}
    for name, ends in (("BertProcessing", {}),
                       ("RobertaProcessing", {"trim_offsets": True,
                                              "add_prefix_space": True})):
        yield "post_processor " + name, of_letters(
            pre_tokenizer=metaspace, decoder=metaspace,
            post_processor={"type": name, "sep": ["</s>", 2], "cls": ["<s>", 1], **ends})
    for part in (
            {"type": "WordPiece", "prefix": "u", "cleanup": True},
            {"type": "BPEDecoder", "suffix": "e"}, metaspace,
            {"type": "Replace", "pattern": {"Regex": r"[ab]|\s"}, "content": "_"},
            {"type": "Strip", "content": "a", "start": 1, "stop": 0}, None):
        yield "decoder %s" % (part and part["type"]), of_letters(
            pre_tokenizer=metaspace, decoder=part)
    suffix = {"end_of_word_suffix": "</w>", "tokens": ["b</w>", "ab</w>", "x</w>", "a</w>"],
              "merges": [("a", "b</w>"), ("u", "n")]}
    prefix = {"continuing_subword_prefix": "##", "tokens": ["##b", "##a", "##ab", "a##b"],
              "merges": [("##a", "##b"), ("a", "##b")]}
    split = {"type": "WhitespaceSplit"}
    yield "model BPE with a suffix", of_letters(
        pre_tokenizer=split, decoder={"type": "BPEDecoder", "suffix": "</w>"},
        model=suffix)
    yield "model BPE with a prefix", of_letters(
        pre_tokenizer=split, decoder={"type": "WordPiece", "prefix": "##",
                                      "cleanup": False}, model=prefix)
    yield "model BPE with some bytes", of_letters(
        model={"byte_fallback": True, "fuse_unk": True,
               "tokens": ["<0x%02X>" % b for b in range(0x80, 0xe8)]})
    yield "model WordPiece", word_piece(
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        normalizer={"type": "Lowercase"})
    yield "model WordLevel", words({"type": "WordLevel", "unk_token": "[UNK]",
                                    "vocab": {t: i for i, t in enumerate(WORDS)}})
    yield "model Unigram", unigram(pre_tokenizer={**metaspace, "split": True},
                                   decoder=metaspace)
    yield "model Unigram of whole texts", unigram(pre_tokenizer=metaspace)
    yield "model Unigram with bytes", unigram(bytes=True, pre_tokenizer=metaspace)
    yield "added tokens", of_letters(normalizer={"type": "Lowercase"}, added_tokens=[
        token(23, "<MASK>", lstrip=True, rstrip=True), token(24, "  "),
        token(18, "un", single_word=True), token(25, "WORLD", normalized=True),
        token(2, "</s>", special=True), token(26, "\u00c9", normalized=True)])


def token(number, content, **flags):
    return {"id": number, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": False, **flags}


def besides():
    """Files beside a tokenizer.json, and how transformers reads them."""
    plain = of_letters(added_tokens=[token(1, "<s>", special=True),
                                     token(23, "<own>", lstrip=True)])

    def folder(config=None, special=None, added=None, of=plain):
        files = {"tokenizer.json": of}
        for name, content in (("tokenizer_config.json", config),
                              ("special_tokens_map.json", special),
                              ("added_tokens.json", added)):
            if content is not None:
                files[name] = content
        return files

    def written(content, **flags):
        made = {"__type": "AddedToken", **token(0, content, **flags)}
        made.pop("id")
        return made

    def decoder(*tokens):
        return {"added_tokens_decoder": {
            str(t.pop("id")): t for t in [dict(t) for t in tokens]}}

    yield "named tokens", folder({"bos_token": "<s>", "eos_token": "<eos>",
                                  "mask_token": written("<m>", lstrip=True),
                                  "image_token": "<image>", "pad_token": None})
    yield "a token of the model is found first", folder({"mask_token": "ab"})
    yield "additional_special_tokens", folder({"additional_special_tokens": [
        "<x1>", written("<x2>", rstrip=True, normalized=True)]})
    yield "extra_special_tokens win", folder({
        "additional_special_tokens": ["<x1>"], "extra_special_tokens": ["<y1>"]})
    yield "extra_special_tokens by name", folder({
        "extra_special_tokens": {"image_token": "<image>", "boi_token": "<boi>"}})
    yield "added_tokens_decoder changes flags", folder(decoder(
        token(23, "<own>", special=True), token(30, "<d1>", single_word=True),
        token(27, "<d2>", normalized=True)))
    yield "added_tokens_decoder and split_special_tokens", folder({
        "split_special_tokens": True, "eos_token": "<d1>",
        **decoder(token(1, "<s>", special=True), token(24, "<d1>"))})
    yield "special_tokens_map", folder(
        {"bos_token": "<own>", "eos_token": "<s>"},
        {"bos_token": {k: v for k, v in token(0, "<b>", rstrip=True).items()
                       if k not in ("id", "special")}, "mask_token": "<m>",
         "additional_special_tokens": ["<x1>", "<x2>"]})
    yield "special_tokens_map beside added_tokens_decoder", folder(
        decoder(token(24, "<d1>")), {"bos_token": "<b>"})
    yield "added_tokens.json", folder(
        {"eos_token": "<e>"}, None, {"<later>": 40, "<e>": 24, "<first>": 25})
    yield "padding names a token", folder(
        {"eos_token": "<s>"}, of={**plain, "padding": {
            "strategy": "BatchLongest", "direction": "Right", "pad_id": 2,
            "pad_to_multiple_of": None, "pad_type_id": 0, "pad_token": "</s>"}})
    yield "add_bos_token has no effect", folder(
        {"bos_token": "<s>", "add_bos_token": True})


def vocab_files():
    vocab = byte_vocab()
    merges = [("a", "b"), ("u", "n"), ("\u0120", "a")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    text = "#version: 0.2\n" + "".join("%s %s\n" % m for m in merges)
    for name, config in (("GPT2Tokenizer", {"add_prefix_space": True}),
                         ("GPT2TokenizerFast", {"eos_token": "ab", "bos_token": "un",
                                                "add_bos_token": True,
                                                "unk_token": None}),
                         ("Qwen2Tokenizer", {"additional_special_tokens": ["<x1>"]})):
        yield "vocab.json of " + name, {
            "vocab.json": vocab, "merges.txt": text,
            "tokenizer_config.json": {"tokenizer_class": name, **config}}


EXTRA = " <own> <s><eos>x <m>y<image>  <x1> <x2> z <y1><boi> <d1> <d2>d1 <b>  <later><e>"


def write(folder, files):
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (pathlib.Path(folder) / name).write_text(text)


def rows(encode, decode, texts, known):
    head = decode([known])
    twice = decode([known, known])
    tail = twice[len(head):]
    for text in texts:
        ids = encode(text)
        whole = decode([known] + ids + [known])
        assert whole.startswith(head) and whole.endswith(tail), (head, whole)
        yield [text, ids, whole[len(head):len(whole) - len(tail)]]


def of_tokenizers(name, made):
    backend = Tokenizer.from_str(json.dumps(made))
    known = backend.token_to_id("b") or backend.token_to_id("a")
    return {"name": name, "files": {"tokenizer.json": made}, "ends": backend.encode(
        "", add_special_tokens=True).ids, "cases": list(rows(
            lambda text: backend.encode(text, add_special_tokens=False).ids,
            lambda ids: backend.decode(ids, skip_special_tokens=False), TEXTS, known))}


def of_transformers(name, files):
    with tempfile.TemporaryDirectory() as folder:
        write(folder, files)
        kind = transformers.PreTrainedTokenizerFast
        if "vocab.json" in files:
            config = files["tokenizer_config.json"]
            kind = getattr(transformers, config["tokenizer_class"].replace("Fast", ""))
        fast = kind.from_pretrained(folder)
    known = fast.convert_tokens_to_ids("b")
    return {
        "name": name, "files": files, "ends": fast("").input_ids,
        "special": [-1 if i is None else i for i in (
            fast.bos_token_id, fast.eos_token_id, fast.pad_token_id)],
        "cases": list(rows(
            lambda text: fast.encode(text, add_special_tokens=False),
            lambda ids: fast.decode(ids, skip_special_tokens=False,
                                    clean_up_tokenization_spaces=False),
            [EXTRA, "unab <s> ab", "a abun don't"], known))}


def main():
    made = [of_tokenizers(name, part) for name, part in parts()]
    for name, files in (*besides(), *vocab_files()):
        made.append(of_transformers(name, files))
    OUT.parent.mkdir(exist_ok=True)
    with open(OUT, "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(m, separators=(",", ":"))
                                     for m in made) + "\n]\n")


if __name__ == "__main__":
    main()
