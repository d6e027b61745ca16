"""An engine that costs almost nothing, so that a gateway in front of it is what is measured.

    python -m tests.benchmarks.gateway_engine PORT ANSWER_S [CHUNKS]

It serves ``/v1/models``, ``/v1/chat/completions`` (streamed), its ``/render`` and ``/inference/v1/generate`` with
answers that are prepared: 512 sampled tokens in CHUNKS chunks (32) over ANSWER_S seconds. A message's tokens depend on
its text alone, so that a conversation renders as a prefix of the next one.
"""

import asyncio
import json
import sys
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

SAMPLED, CHUNKS = 512, 32
VERSION = "bench/7"
START, END, NEWLINE, ASSISTANT = 1, 2, 3, 4
FIRST_WORD = 1_000
ANSWER = "".join(f" w{number % 97}" for number in range(SAMPLED - 1))
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def words(text: str) -> list[int]:
    """A token per word."""
    return [FIRST_WORD + zlib.crc32(word.encode()) % 100_000 for word in text.split()]


@lru_cache(maxsize=4_096)
def written(role: str, text: str) -> str:
    """A message's tokens, as JSON without brackets."""
    return ",".join(map(str, [START, 10 + len(role), *words(text), END, NEWLINE]))


def rendered(body: dict[str, Any]) -> bytes:
    """What vLLM's render would answer."""
    parts = [written(message["role"], message.get("content") or "") for message in body["messages"]]
    if body.get("add_generation_prompt", True):
        parts.append(f"{START},{ASSISTANT},{NEWLINE}")
    params = '{"temperature":1.0,"max_tokens":1024}'
    return f'{{"token_ids":[{",".join(parts)}],"sampling_params":{params},"model":"policy"}}'.encode()


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Answers:
    """The prepared answers, in chunks."""

    generate: list[tuple[bytes, bytes]]
    """Before and after the first one's echo."""
    traced: list[bytes]
    """Of chat, with token ids."""
    plain: list[bytes]
    """Of chat."""


def answers_in(chunks: int) -> Answers:
    """Return the answers in ``chunks`` equal parts."""
    sampled = [*words(ANSWER), END]
    texts = [f" w{number % 97}" for number in range(SAMPLED - 1)] + [""]
    generate: list[tuple[bytes, bytes]] = []
    traced: list[bytes] = []
    plain: list[bytes] = []
    size = SAMPLED // chunks
    for start in range(0, SAMPLED, size):
        ids, text = sampled[start : start + size], "".join(texts[start : start + size])
        is_last = start + size == SAMPLED
        entries = [{"token": f"token_id:{each}", "logprob": -0.5, "bytes": None, "top_logprobs": []} for each in ids]
        choice = {
            "index": 0,
            "text": text,
            "token_ids": ids,
            "logprobs": {"content": entries},
            "finish_reason": "stop" if is_last else None,
            "weight_versions": [{"version": VERSION, "start": 0, "end": SAMPLED}] if is_last else None,
        }
        line = _compact({"request_id": "r", "choices": [choice]})
        generate.append((b"data: " + line[:-1], b"}\n\n"))
        delta = {"index": 0, "delta": {"content": text}, "finish_reason": "stop" if is_last else None}
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "policy"}
        for found, extra in ((plain, {}), (traced, {"token_ids": ids, "logprobs": {"content": entries}})):
            found.append(b"data: " + _compact({**head, "choices": [{**delta, **extra}]}) + b"\n\n")
    return Answers(generate, traced, plain)


class Server(asyncio.Protocol):
    """One connection."""

    def __init__(self, answer_s: float, answers: Answers) -> None:
        self._answer_s = answer_s
        self._answers = answers
        self._data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._data[:end])
            at = head.lower().find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r", 1)[0]) if at >= 0 else 0
            if len(self._data) < end + 4 + length:
                return
            body = bytes(self._data[end + 4 : end + 4 + length])
            del self._data[: end + 4 + length]
            self._answer(head.split(b" ", 2)[1], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        if path == b"/v1/chat/completions/render":
            self._whole(rendered(json.loads(body)))
        elif path == b"/inference/v1/generate":
            start = body.index(b'"token_ids":[') + 12
            prompt = body[start : body.index(b"]", start) + 1]
            count = prompt.count(b",") + 1
            usage = b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n' % (count, SAMPLED)
            echo = b',"prompt_token_ids":' + prompt
            events = [
                head + (echo if number == 0 else b"") + tail
                for number, (head, tail) in enumerate(self._answers.generate)
            ]
            self._stream([*events, usage + b"data: [DONE]\n\n"])
        elif path == b"/v1/chat/completions":
            is_traced = b'"return_token_ids":true' in body.replace(b" ", b"")
            self._stream([*(self._answers.traced if is_traced else self._answers.plain), b"data: [DONE]\n\n"])
        else:
            self._whole(b'{"object":"list","data":[{"id":"policy","object":"model","max_model_len":32768}]}')

    def _whole(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)

    def _stream(self, events: list[bytes]) -> None:
        """Write the events over the answer's time; the last two together."""
        loop, step = asyncio.get_running_loop(), self._answer_s / len(events)
        *parts, last, done = events
        self._transport.write(HEAD)
        for number, part in enumerate(parts):
            loop.call_later(step * number, self._transport.write, b"%x\r\n%b\r\n" % (len(part), part))
        end = last + done
        loop.call_later(step * len(parts), self._transport.write, b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))


async def main(port: int, answer_s: float, chunks: int = CHUNKS) -> None:
    answers = answers_in(chunks)
    server = await asyncio.get_running_loop().create_server(
        lambda: Server(answer_s, answers), "127.0.0.1", port, backlog=512
    )
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:])))
