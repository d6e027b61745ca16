"""A coverage-guided fuzzer of the gateway's extension module: ``make sanitize`` runs it, under the sanitizers.

An input is the bytes of an engine's stream. Inputs that reach new branches are kept and mutated further. The module may
read a line or leave it to Python: the chunks, or the error, must equal Python's, without a sanitizer report.

    HEADRACE_SANITIZED=build/sanitized/gateway.so HEADRACE_SANITIZED_MODULE=headrace.agents.gateway.native.speedups \\
        python -m tests.agents.gateway.native.fuzz --seconds 60 --seed 1
"""

import argparse
import ctypes
import os
import random
import re
import time
from array import array

import msgspec

import tests.streams.native.sanitized  # noqa: F401  # before anything imports the module
from headrace.agents.gateway.native.available import SPEEDUPS, decode_ids, read_plain, reads_nothing
from headrace.agents.gateway.rendered_ids import TokenId
from tests.agents.gateway.native.both_ways import compare, read_one_way
from tests.agents.gateway.native.test_plain_lines import END, NUMBERS, OTHERS, PROMPT, PROMPT_JSON, TEXTS, event, line

EDGES = (ctypes.c_uint8 * (1 << 16)).in_dll(ctypes.CDLL(os.environ["HEADRACE_SANITIZED"]), "headrace_edges")
WORDS = (
    *(word.encode() for word in (*NUMBERS.split(), *OTHERS.split("|"))),
    *(b'" \\ { } [ ] , : \\u0000 \\u00 \\ud83d \xc3\xa9 \xc3 \xe2\x82 \xed\xa0\x80 \xf0\x9f\x98 \xff'.split()),
    *(b"\n", b"\r\n", b"\0", b" ", b"data:", b"data: [DONE]\n", b"token_id:", b'"bytes":[226,130],', PROMPT_JSON),
)
NUMBER = re.compile(rb"-?\d+(\.\d+)?")


def seeds() -> list[bytes]:
    """Streams with each kind of line."""
    echo = {**event([7], "a"), "prompt_token_ids": PROMPT.tolist()}
    usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}}
    plain = [line(event([7, 8], text, named=named)) for text in TEXTS for named in (False, True)]
    return [*plain, line(echo) + END, line(event([7], "a")) + line(usage) + END, b"".join(plain[::2]) + END]


def mutated(corpus: list[bytes], chance: random.Random) -> bytes:
    """One of ``corpus`` with a few bytes changed, removed, doubled, or taken from another."""
    data = bytearray(chance.choice(corpus))
    for _ in range(chance.choice((1, 1, 1, 1, 2, 4))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(7):
            case 0:
                data[at:at] = chance.choice(WORDS)
            case 1:
                data[at : at + chance.randrange(1, 9)] = b""
            case 2:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 3:
                data[at:at] = data[at : at + chance.randrange(1, 40)]
            case 4:
                other = chance.choice(corpus)
                begin = chance.randrange(len(other) + 1)
                data[at:at] = other[begin : begin + chance.randrange(1, 80)]
            case 5:
                data[at:] = chance.choice((b"", b"\n", b"}\n"))
            case _:
                if numbers := list(NUMBER.finditer(data)):
                    begin, end = chance.choice(numbers).span()
                    data[begin:end] = chance.choice(WORDS)
    return bytes(data[:20_000])


def check(data: bytes, cut: int) -> None:
    """Raises ``AssertionError`` if the module reads something else than Python."""
    options = {"prompt": (PROMPT, PROMPT_JSON), "choices": 2}
    parts = (data[:cut], data[cut:])
    compare(read_one_way(parts, reads_nothing, **options), read_one_way(parts, read_plain, **options))
    for ids in re.findall(rb"\[[^\[\]]*\]?", data)[:4]:
        if (found := decode_ids(ids)) is not None:
            assert array("i", found).tolist() == msgspec.json.decode(ids, type=list[TokenId]), ids


def fuzz(seconds: float, seed: int) -> tuple[int, int, int]:
    """How many inputs were tried, how many kept, and how many edges ran."""
    chance, corpus = random.Random(seed), seeds()
    assert read_plain(corpus[0], 0, PROMPT_JSON, 1 << 20), "not plain as it is: what is changed would not be looked at"
    waiting, seen, tried = list(corpus), 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = waiting.pop() if waiting else mutated(corpus, chance)
        ctypes.memset(EDGES, 0, len(EDGES))
        check(data, chance.randrange(len(data) + 1))
        tried += 1
        ran = int.from_bytes(bytes(EDGES), "little")
        if ran & ~seen:
            seen |= ran
            corpus.append(data)
    return tried, len(corpus), sum(count > 0 for count in seen.to_bytes(len(EDGES), "little"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    assert SPEEDUPS is not None
    tried, kept, edges = fuzz(options.seconds, options.seed)
    print(f"{tried} inputs, {kept} kept, {edges} edges: nothing reported, and both ways agreed")
