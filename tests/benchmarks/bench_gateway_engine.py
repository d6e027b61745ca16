"""Processor time of the gateway's engine side per call of 3,000 prompt and 512 sampled tokens, by tokens per chunk.

    python -m tests.benchmarks.bench_gateway_engine [--calls 40] [--rounds 5]

Four parts, each alone, without HTTP: reading the prompt that render made and writing the request; the stream → checked
chunks; chunks → text, reasoning and tool calls by vLLM's parsers (``qwen3`` and ``hermes``; ``--without-vllm`` leaves
them out); and comparing with whole-text parsing, after the answer. Beside it, ``json.loads`` of the same lines.
Medians of rounds, with the smallest and the largest.
"""

import argparse
import json
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path

from headrace.agents.gateway.answer_parsers import AnswerParsers, ParserSettings
from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.generate_request import generate_request, parse_rendered
from headrace.agents.gateway.generate_stream import Chunk, GenerateStream
from tests.agents.gateway.scripted_engine import Codec, FileCodec, Reply, ToyCodec, events

PROMPT = 3_000
CHUNK_TOKENS = (1, 16, 512)
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
BODY = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL] * 10}
CALL = '\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls -l"}}\n</tool_call>'

Figures = dict[str, list[float]]
"""Milliseconds of processor time per call, by part, one figure per round."""


def answer_text(codec: Codec, tokens: int) -> str:
    """Reasoning, text and a tool call of about ``tokens`` tokens."""
    words = "the user wants to look at the file so let me run the command "
    repeats = max(1, (tokens - len(codec.encode(CALL)) - 4) // (2 * len(codec.encode(words))))
    return f"<think>\n{words * repeats}</think>\n{words * repeats}{CALL}"


def cpu_ms(work: Callable[[], object], calls: int) -> float:
    """Processor milliseconds of ``work``, on average of ``calls``."""
    begun = time.process_time()
    for _ in range(calls):
        work()
    return (time.process_time() - begun) / calls * 1e3


def run(calls: int, rounds: int, *, tokens: int = 512, with_vllm: bool = True) -> Figures:
    """Measure; a first round of each part is discarded."""
    with tempfile.TemporaryDirectory() as folder:
        codec: Codec = ToyCodec()
        parsers = AnswerParsers(ParserSettings(folder))
        if with_vllm:
            from tests.agents.gateway.tiny_chat_model import make_chat_tokenizer

            codec = FileCodec(make_chat_tokenizer(Path(folder)))
            parsers = AnswerParsers(ParserSettings(folder, tool_parser="hermes", reasoning_parser="qwen3"))
        works = _works(codec, parsers, tokens)
        found: Figures = {part: [] for part in works}
        for number in range(rounds + 1):
            for part, work in works.items():
                took = cpu_ms(work, calls)
                if number:
                    found[part].append(took)
        return found


def _works(codec: Codec, parsers: AnswerParsers, tokens: int) -> dict[str, Callable[[], object]]:
    prompt = array("i", [1 + number % 200 for number in range(PROMPT)])
    rendered = json.dumps({"token_ids": prompt.tolist(), "sampling_params": {"max_tokens": 4 * tokens}}).encode()
    text = answer_text(codec, tokens)

    def request() -> object:
        (found,) = parse_rendered(rendered)
        return found.sampling, generate_request(found, prompt)

    (parsed,) = parse_rendered(rendered)
    asked = generate_request(parsed, prompt)

    def read(lines: list[bytes]) -> list[Chunk]:
        stream = GenerateStream("http://engine", prompt=(asked.prompt_ids, asked.prompt_json))
        chunks = [chunk for line in lines for chunk in stream.feed(line)]
        stream.end()
        return chunks

    def parse(chunks: list[Chunk], *, compare: bool) -> object:
        answer = parsers.start(Api.CHAT, BODY, prompt, mint=lambda *_: "call_1")
        for chunk in chunks:
            answer.feed(chunk)
        return answer.disagreements() if compare else None

    works: dict[str, Callable[[], object]] = {"render → request": request}
    for size in CHUNK_TOKENS:
        body = {"token_ids": prompt.tolist(), "sampling_params": {}}
        lines = list(events(body, Reply(text, chunk_tokens=size, names_ids=True), codec))
        chunks = read(lines)
        values = [line.removeprefix(b"data: ") for line in lines[:-1]]
        works[f"stream → chunks, {size}"] = lambda lines=lines: read(lines)  # type: ignore[misc]
        works[f"json.loads of it, {size}"] = lambda values=values: [json.loads(each) for each in values]  # type: ignore[misc]
        works[f"chunks → deltas, {size}"] = lambda chunks=chunks: parse(chunks, compare=False)  # type: ignore[misc]
    works["with the comparison, 512"] = lambda: parse(chunks, compare=True)
    return works


def table(found: Figures) -> str:
    """One line per part."""
    return "\n".join(
        f"{part:<26} {statistics.median(each):7.3f} ms a call ({min(each):.3f}–{max(each):.3f})"
        for part, each in found.items()
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-vllm", action="store_true")
    options = parser.parse_args()
    print(table(run(options.calls, options.rounds, with_vllm=not options.without_vllm)))


if __name__ == "__main__":
    main()
