#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes unicode_tables.cc: what the reference takes characters for.

    pip install tokenizers==0.23.3; python3 make_unicode_tables.py unicode_tables.cc

Hugging Face's tokenizers asks five libraries about characters, each with its own
version of Unicode. This asks it about each character and writes the answers, or where
only few differ, the differences from the PCRE2 and utf8proc of this system.
"""

import ctypes
import itertools
import sys

from tokenizers import Regex, normalizers, pre_tokenizers

CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = ("Ll Lu Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So "
              "Zs Zl Zp Cc Cf Co").split()
# In the order of utf8proc_category_t.
UTF8PROC_CATEGORIES = ("Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc "
                       "Sk So Zs Zl Zp Cc Cf Cs Co").split()
SCRIPTS = ("Arabic Armenian Bengali Cyrillic Devanagari Ethiopic Georgian Greek "
           "Gujarati Gurmukhi Han Hangul Hebrew Hiragana Kannada Katakana Khmer Lao "
           "Latin Malayalam Mongolian Myanmar Sinhala Tamil Telugu Thai "
           "Tibetan").split()


def ranges(codes):
    found = []
    for code in sorted(codes):
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def removed_by(normalizer):
    return {c for c in CODES if normalizer.normalize_str("x%sx" % chr(c)) == "xx"}


def split_by(pre_tokenizer, around="x"):
    return {c for c in CODES
            if len(pre_tokenizer.pre_tokenize_str(around + chr(c) + around)) > 1}


def word_characters():
    split = pre_tokenizers.Whitespace()
    return {c for c in CODES if len(split.pre_tokenize_str("x%sx" % chr(c))) == 1}


def bert(**options):
    off = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False,
               lowercase=False)
    return normalizers.BertNormalizer(**{**off, **options})


def onig(expression, codes):
    split = pre_tokenizers.Split(Regex(expression), "removed")
    return {c for c in codes if not split.pre_tokenize_str(chr(c))}


class Pcre2:
    def __init__(self):
        self._lib = ctypes.CDLL("libpcre2-8.so.0")
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._lib.pcre2_compile_8.restype = pointer
        self._lib.pcre2_compile_8.argtypes = [
            ctypes.c_char_p, size, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int),
            ctypes.POINTER(size), pointer]
        self._lib.pcre2_match_data_create_8.restype = pointer
        self._lib.pcre2_match_8.argtypes = [
            pointer, ctypes.c_char_p, size, size, ctypes.c_uint32, pointer, pointer]
        self._match = self._lib.pcre2_match_data_create_8(1, None)

    def matches(self, expression):
        text = expression.encode()
        # UTF and UCP.
        code = self._lib.pcre2_compile_8(text, len(text), 0x000A0000, ctypes.c_int(),
                                         ctypes.c_size_t(), None)
        assert code, expression
        return {c for c in CODES if self._match_one(code, chr(c).encode())}

    def _match_one(self, code, text):
        return self._lib.pcre2_match_8(code, text, len(text), 0, 0, self._match,
                                       None) >= 0


def added_properties():
    """What of PCRE2's unassigned characters has a property."""
    pcre2 = Pcre2()
    unassigned = pcre2.matches(r"\p{Cn}")
    properties = {name: onig(r"\p{%s}" % name, unassigned)
                  for name in (*CATEGORIES, *SCRIPTS)}
    # As regex.cc has it.
    assert onig(r"\w", unassigned) == set().union(
        *(added for name, added in properties.items()
          if len(name) == 2 and name[0] in "LM" or name == "Nd"))
    for name, added in properties.items():
        if added:
            yield name, ranges(added)


def utf8proc():
    lib = ctypes.CDLL("libutf8proc.so.2")
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        getattr(lib, "utf8proc_" + form).restype = ctypes.c_char_p
    return lib


def not_normalized(lib):
    """Characters that the reference, whose tables are older, leaves as they are."""
    forms = ("NFD", "NFKD")
    theirs = {form: getattr(normalizers, form)() for form in ("NFC", *forms)}

    def differs(text):
        return any(
            theirs[form].normalize_str(text)
            != getattr(lib, "utf8proc_" + form)(text.encode()).decode()
            for form in forms)

    # Marks trade places with those of a lower and of a higher class.
    around = ("%s", "a%s\u0334", "a\u0345%s", "a\u0308%s")
    found = {c for c in CODES if c and any(differs(a % chr(c)) for a in around)}
    # What composes only in later versions is itself newer, and starts a cluster.
    for c in sorted(found):
        parts = lib.utf8proc_NFD(chr(c).encode()).decode()
        if theirs["NFC"].normalize_str(parts) != lib.utf8proc_NFC(parts.encode()).decode():
            found |= {ord(part) for part in parts}
    return found


def lowercase_differences(lib):
    """(first, last, distance) of characters that utf8proc doesn't lower so."""
    runs = []
    lower = normalizers.Lowercase()
    for c in CODES:
        text = lower.normalize_str(chr(c))
        if len(text) != 1 or ord(text) == lib.utf8proc_tolower(c):
            continue
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == ord(text) - c:
            runs[-1][1] = c
        else:
            runs.append([c, c, ord(text) - c])
    return runs


def scripts():
    """(first, last, script) of characters that have one for UnicodeScripts."""
    split = pre_tokenizers.UnicodeScripts()

    def apart(a, b):
        return len(split.pre_tokenize_str(chr(a) + chr(b))) > 1

    leaders = [ord("a"), ord("\u044f")]
    runs = []
    last = 0
    for c in CODES:
        if not apart(leaders[0], c) and not apart(leaders[1], c):
            continue  # goes with any
        if apart(leaders[last], c):
            last = next((i for i, l in enumerate(leaders) if not apart(l, c)), None)
            if last is None:
                last = len(leaders)
                leaders.append(c)
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == last:
            runs[-1][1] = c
        else:
            runs.append([c, c, last])
    return [(a, b, script + 1) for a, b, script in runs]


def deltas(runs):
    """Gap before a range and its length, and what else there is."""
    end = 0
    for first, last, *more in runs:
        yield from (first - end, last - first + 1, *more)
        end = last + 1


def write(out, name, numbers):
    print("\nextern const int32_t %s[] = {" % name, file=out)
    line = "   "
    for number in itertools.chain(numbers, [-1]):
        word = " %d," % number
        if len(line) + len(word) > 80:
            print(line, file=out)
            line = "   "
        line += word
    print(line, file=out)
    print("};", file=out)


def main():
    lib = utf8proc()
    lib.utf8proc_unicode_version.restype = ctypes.c_char_p
    with open(sys.argv[1], "w") as out:
        print("""// SPDX-License-Identifier: Apache-2.0
//
// Made by make_unicode_tables.py with tokenizers 0.23.3. See unicode_tables.h.
// clang-format off
#include "text/tokenizer/unicode_tables.h"

namespace capstan::tokenizer {""", file=out)
        for name, categories, codes in (
                ("kWordDifferences", "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl Pc",
                 word_characters()),
                ("kNumberDifferences", "Nd Nl No", split_by(pre_tokenizers.Digits())),
                ("kPunctuationDifferences", "Pc Pd Ps Pe Pi Pf Po",
                 split_by(pre_tokenizers.Punctuation())),
                ("kCombiningDifferences", "Mn Mc Me",
                 removed_by(normalizers.StripAccents())),
                ("kNonspacingDifferences", "Mn", removed_by(bert(strip_accents=True))),
                ("kControlDifferences", "Cc Cf Co", removed_by(bert(clean_text=True))),
                ("kNotNormalized", "", not_normalized(lib))):
            known = {c for c in CODES
                     if c < 0xF0000 and UTF8PROC_CATEGORIES[lib.utf8proc_category(c)]
                     in categories.split()}
            write(out, name, deltas(ranges(codes ^ known)))
        write(out, "kLowercase", deltas(lowercase_differences(lib)))
        write(out, "kScripts", deltas(scripts()))
        print("\nextern const AddedProperty kAddedProperties[] = {", file=out)
        for name, runs in added_properties():
            line = '    {"%s", {' % name
            for number in itertools.chain(deltas(runs), [-1]):
                word = "%d%s" % (number, "," if number >= 0 else "}},")
                if len(line) + len(word) + 1 > 80:
                    print(line, file=out)
                    line = "     "
                line += word if line.endswith("{") else " " + word
            print(line, file=out)
        print('    {nullptr, {-1}},\n};\n\n}  // namespace capstan::tokenizer', file=out)


if __name__ == "__main__":
    main()
