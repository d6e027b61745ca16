"""An engine that answers from a script, behind the HTTP interface of vLLM.

    async with ScriptedEngine([Reply("Let me look. <tool_call>…")], codec=ToyCodec()) as engine:
        Engine(engine.url)

Render, models and tokenize come from a real vLLM (``upstream``), or from a toy template. Only generate is scripted:
what the model "samples", in which chunks, and which fault occurs. ``test_engine_contract.py`` holds it to what vLLM
does.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import aiohttp
from aiohttp import web

RENDERED = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")


class Fault(StrEnum):
    """What goes wrong with a reply."""

    REFUSED = "refused"
    """400, with vLLM's error."""
    STATUS_500 = "status_500"
    STATUS_503 = "status_503"
    HANG_UP = "hang_up"
    """The connection is closed without an answer."""
    HANG = "hang"
    """Nothing is answered."""
    SILENCE = "silence"
    """Nothing follows the first chunk."""
    CUT = "cut"
    """The connection is closed after the first chunk."""
    NO_FINISH = "no_finish"
    """The stream ends in order, but without the last chunk."""
    ERROR_IN_STREAM = "error_in_stream"
    WRONG_ECHO = "wrong_echo"
    """The prompt that comes back ends with another token than the one that was sent."""
    WRONG_START = "wrong_start"
    """It begins with another token."""
    MISSING_LOGPROB = "missing_logprob"
    WRONG_USAGE = "wrong_usage"
    LOST_CHUNK = "lost_chunk"
    """The second chunk is missing."""


class Codec(Protocol):
    """Text ↔ token ids."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


class ToyCodec:
    """Words, numbered as they come; spaces belong to the word that follows."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        return [self._id(word) for word in re.findall(r"<\|?[\w/]+\|?>|\s*\w+|\s*[^\w\s<]|<|\s+", text)]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self._words[each] for each in token_ids)

    def _id(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = len(self._words)
            self._words.append(word)
        return self._ids[word]


class FileCodec:
    """The tokenizer of a model's folder."""

    def __init__(self, model_dir: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model samples for one request."""

    text: str = "fine"
    """The same for each choice."""
    ends_with: tuple[int, ...] = ()
    """Tokens after the text that are not shown, such as the model's end token."""
    finish_reason: str = "stop"
    stop_reason: int | str | None = None
    chunk_tokens: int = 4
    """Tokens per chunk."""
    chunk_delay_s: float = 0.0
    logprob: float = -0.5
    """Of every token; all of them must be exact in float32."""
    stamps: tuple[tuple[str, float], ...] = (("run/3", 1.0),)
    """Stamps of the versions, with the share of the tokens until which each one sampled."""
    names_ids: bool = False
    """Whether tokens are named by their ids (``--return-tokens-as-token-ids``)."""
    fault: Fault | None = None


class ScriptedEngine:
    """The server. Use it in an ``async with``."""

    def __init__(
        self, replies: Sequence[Reply] = (), *, codec: Codec | None = None, upstream: str | None = None
    ) -> None:
        """``replies``: one per request to generate; the last one repeats. ``upstream``: a real vLLM that renders."""
        self.replies = list(replies) or [Reply()]
        self.codec = codec or ToyCodec()
        self.requests: list[dict[str, Any]] = []
        """Bodies of the requests to generate."""
        self.sampled: list[list[int]] = []
        """Tokens that each of these requests was to be given, of every choice."""
        self.rendered: list[dict[str, Any]] = []
        """Bodies of the requests to render or tokenize by the toy template."""
        self.peers: set[object] = set()
        """Connections on which they came."""
        self.running = 0
        """Requests being generated."""
        self.completed = 0
        """Requests whose answer was sent to its end."""
        self.aborted = 0
        """Requests whose client went away."""
        self.url = ""
        self._upstream = upstream
        self._client: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_get("/metrics", self._metrics)
        passed = [("GET", "/v1/models"), ("POST", "/tokenize"), *(("POST", f"{path}/render") for path in RENDERED)]
        for method, path in passed:
            app.router.add_route(method, path, self._toy if self._upstream is None else self._pass_on)
        self._client = aiohttp.ClientSession()
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._client is not None
        assert self._runner is not None
        await self._client.close()
        await self._runner.cleanup()

    def reply_to(self, body: dict[str, Any]) -> Reply:
        """What the model samples for the request ``body`` to generate."""
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    async def _pass_on(self, request: web.Request) -> web.Response:
        assert self._client is not None
        url, body = f"{self._upstream}{request.path}", await request.read()
        async with self._client.request(
            request.method, url, data=body, headers={"Content-Type": "application/json"}
        ) as r:
            return web.Response(status=r.status, body=await r.read(), content_type="application/json")

    async def _toy(self, request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"object": "list", "data": [{"id": "policy", "max_model_len": 4096}]})
        try:
            body = await request.json()
        except RecursionError:
            return _error(400, "the body is nested too deeply", "BadRequestError", None)
        self.rendered.append(body)
        if request.path == "/tokenize":
            return web.json_response({"tokens": self.codec.encode(body["prompt"])})
        if body.get("model", "policy") != "policy":
            return _error(404, f"The model `{body['model']}` does not exist.", "NotFoundError", "model")
        prompts = toy_prompts(body)
        rendered = [self._toy_rendered(body, prompt) for prompt in prompts]
        return web.json_response(rendered if "prompt" in body else rendered[0])

    def _toy_rendered(self, body: dict[str, Any], prompt: str) -> dict[str, Any]:
        token_ids = self.codec.encode(prompt)
        names = ("n", "temperature", "top_p", "seed", "stop", "logit_bias")
        params = {name: body[name] for name in names if name in body}
        asked = next((body[name] for name in ("max_tokens", "max_output_tokens") if name in body), 4096)
        params["max_tokens"] = min(asked, 4096 - len(token_ids))
        if body.get("logprobs"):
            params["logprobs"] = body.get("top_logprobs", 0)
        return {"request_id": "toy", "token_ids": token_ids, "sampling_params": params, "model": "policy"}

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            text=f'vllm:num_requests_running{{engine="0"}} {float(self.running)}\n'
            f'vllm:request_success_total{{engine="0"}} {float(self.completed)}\n'
        )

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        assert request.transport is not None
        self.peers.add(request.transport.get_extra_info("peername"))
        # A probe comes when the gateway likes: it has no part in the script.
        reply = replace(self.replies[0], fault=None) if is_probe(body) else self.reply_to(body)
        self.sampled.append(token_ids_of(body, reply, self.codec))
        match reply.fault:
            case Fault.REFUSED:
                return _error(400, "the grammar is invalid", "BadRequestError", None)
            case Fault.STATUS_500:
                return _error(500, "CUDA error", "InternalServerError", None)
            case Fault.STATUS_503:
                return web.Response(status=503, text="loading", headers={"Retry-After": "7"})
            case Fault.HANG_UP:
                request.transport.abort()
                return web.Response()
        self.running += 1
        try:
            if reply.fault is Fault.HANG:
                await asyncio.Event().wait()
            response = await self._stream(request, body, reply)
            self.completed += 1
            return response
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise
        finally:
            self.running -= 1

    async def _stream(self, request: web.Request, body: dict[str, Any], reply: Reply) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number, event in enumerate(events(body, reply, self.codec)):
            if number == 1 and reply.fault in (Fault.SILENCE, Fault.CUT):
                if reply.fault is Fault.SILENCE:
                    await asyncio.Event().wait()
                if request.transport is not None:
                    request.transport.abort()
                return response
            await response.write(event)
            await asyncio.sleep(reply.chunk_delay_s)
        await response.write_eof()
        return response


def is_probe(body: dict[str, Any]) -> bool:
    """Whether a request to generate only asks which log-probabilities the engine reports."""
    params = body["sampling_params"]
    return params.get("max_tokens") == 1 and params.get("allowed_token_ids") is not None


def token_ids_of(body: dict[str, Any], reply: Reply, codec: Codec) -> list[int]:
    """What is sampled for the request ``body``."""
    return [*codec.encode(reply.text), *reply.ends_with][: body["sampling_params"].get("max_tokens")]


def events(body: dict[str, Any], reply: Reply, codec: Codec) -> Iterator[bytes]:
    """The stream of vLLM's generate endpoint for the request ``body``."""
    choices = body["sampling_params"].get("n") or 1
    token_ids = token_ids_of(body, reply, codec)
    shown = len(codec.encode(reply.text))
    prompt = body["token_ids"]
    echo = echoed(prompt, reply.fault)
    starts = list(range(0, len(token_ids), reply.chunk_tokens)) or [0]
    first: dict[str, Any] = {"prompt_token_ids": echo}
    for number, start in enumerate(starts):
        if reply.fault is Fault.LOST_CHUNK and number == 1:
            continue
        if reply.fault is Fault.ERROR_IN_STREAM and number == 1:
            error = {"message": "the engine died", "type": "InternalServerError", "param": None, "code": 500}
            yield _event({"error": error})
            break
        end = min(start + reply.chunk_tokens, len(token_ids))
        is_last = start == starts[-1]
        if is_last and reply.fault is Fault.NO_FINISH:
            continue
        before = _decoded(codec, token_ids[: min(start, shown)], is_whole=False)
        after = _decoded(codec, token_ids[: min(end, shown)], is_whole=is_last)
        ids = token_ids[start:end]
        named = ids[1:] if reply.fault is Fault.MISSING_LOGPROB else ids
        for index in range(choices):
            choice = {
                "index": index,
                "logprobs": {"content": [_entry(each, reply, codec) for each in named]},
                "finish_reason": reply.finish_reason if is_last else None,
                "stop_reason": reply.stop_reason if is_last else None,
                "token_ids": ids,
                "routed_experts": None,
                "sampling_mask": None,
                "weight_versions": weight_versions(reply.stamps, len(token_ids)) if is_last else None,
                "text": after[len(before) :],
            }
            yield _event({"request_id": "scripted", "usage": None, "output_mode": "text", "choices": [choice], **first})
            first = {}
    else:
        counted = len(token_ids) * choices + (reply.fault is Fault.WRONG_USAGE)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": counted, "total_tokens": len(prompt) + counted}
        yield _event({"request_id": "scripted", "usage": usage, "output_mode": "text", "choices": []})
    yield b"data: [DONE]\n\n"


def echoed(prompt: list[int], fault: Fault | None) -> list[int]:
    """The prompt that comes back."""
    match fault:
        case Fault.WRONG_ECHO:
            return [*prompt[:-1], prompt[-1] + 1]
        case Fault.WRONG_START:
            return [prompt[0] + 1, *prompt[1:]]
        case _:
            return prompt


def _decoded(codec: Codec, token_ids: Sequence[int], *, is_whole: bool) -> str:
    """Text of the tokens so far; like vLLM, without characters of which bytes are still missing."""
    text = codec.decode(token_ids)
    return text if is_whole else text.rstrip("\ufffd")


def weight_versions(stamps: Sequence[tuple[str, float]], length: int) -> list[dict[str, Any]]:
    """Spans over ``length`` tokens; versions without a token are left out."""
    spans, start = [], 0
    for stamp, share in stamps:
        end = round(share * length)
        if end > start:
            spans.append({"version": stamp, "start": start, "end": end})
        start = max(start, end)
    return spans


def toy_prompts(body: dict[str, Any]) -> list[str]:
    """Prompts by a template of the ChatML kind; of Completions, the prompts as they are."""
    if "prompt" in body:
        return [body["prompt"]] if isinstance(body["prompt"], str) else list(body["prompt"])
    messages = body.get("messages", body.get("input", []))
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    system = body.get("system") or body.get("instructions")
    lines = [f"<|im_start|>system\n{system}<|im_end|>\n"] if system else []
    lines += [f"<|im_start|>{_toy_role(each)}\n{_toy_text(each)}<|im_end|>\n" for each in messages]
    return ["".join(lines) + ("" if body.get("add_generation_prompt") is False else "<|im_start|>assistant\n")]


def _toy_role(message: dict[str, Any]) -> str:
    kind = str(message.get("role", message.get("type")))
    return {"function_call": "assistant", "function_call_output": "tool"}.get(kind, kind)


def _toy_text(message: dict[str, Any]) -> str:
    content = message.get("content", message.get("output", ""))
    if isinstance(content, list):
        content = "\n".join(each.get("text") or json.dumps(each) for each in content)
    calls = message.get("tool_calls") or ([message] if message.get("type") == "function_call" else [])
    return (content or "") + "".join(json.dumps(each.get("function", each)) for each in calls)


def _entry(token_id: int, reply: Reply, codec: Codec) -> dict[str, Any]:
    token = f"token_id:{token_id}" if reply.names_ids else codec.decode([token_id])
    sampled = {"token": token, "logprob": reply.logprob, "bytes": None if reply.names_ids else list(token.encode())}
    return {**sampled, "top_logprobs": [sampled]}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def _error(status: int, message: str, kind: str, parameter: str | None) -> web.Response:
    error = {"message": message, "type": kind, "param": parameter, "code": status}
    return web.json_response({"error": error}, status=status)


async def until(holds: Callable[[], bool]) -> None:
    """Wait until ``holds()``; raises ``TimeoutError`` if it does not come to hold."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - nothing tells when another process or the pool gets there
            await asyncio.sleep(0.01)


@asynccontextmanager
async def scripted(*replies: Reply) -> AsyncIterator[ScriptedEngine]:
    """A toy engine with ``replies``."""
    async with ScriptedEngine(replies) as engine:
        yield engine


@asynccontextmanager
async def answering(*replies: str | Reply) -> AsyncIterator[ScriptedEngine]:
    """A toy engine whose ``replies`` end with the template's end token, as far as they end by themselves."""
    codec = ToyCodec()
    end = tuple(codec.encode("<|im_end|>"))
    given = (Reply(each) if isinstance(each, str) else each for each in replies)
    ended = [replace(each, ends_with=end) if each.finish_reason == "stop" else each for each in given]
    async with ScriptedEngine(ended, codec=codec) as engine:
        yield engine
