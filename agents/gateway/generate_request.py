"""From an answer of vLLM's render endpoints to a request of its generate endpoint.

Render turns a client's request into token ids and parameters. The gateway keeps the parameters, replaces the token ids
by the exact continuation (:mod:`headrace.agents.gateway.splice`), and asks for a stream with everything that
:mod:`headrace.agents.gateway.generate_stream` reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import msgspec

from headrace.agents.gateway.canonical import MAX_CHOICES
from headrace.agents.gateway.rendered_ids import RenderedIds
from headrace.agents.gateway.resolved_sampling import resolved_sampling
from headrace.schemas.arrays import IntArray
from headrace.schemas.events import Sampling

MAX_RENDERED_BYTES = 64 * 1024 * 1024
"""Largest answer of a render endpoint; a million token ids take seven."""

DEFAULT_MAX_TOKENS = 16
"""vLLM's default of ``max_tokens``, which render leaves out as it leaves out all defaults. It is what the Completions
API gives to a request without a limit."""

NOT_PASSED_ON = frozenset({"request_id", "token_ids", "token_offsets", "sampling_params", "stream_options"})
"""Fields of an answer of render that a request to generate gets anew, or does not need."""


class _Parameters(msgspec.Struct):
    """The types of those sampling parameters that the gateway itself reads."""

    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    logprobs: int | None = None


class _ReasoningArguments(msgspec.Struct):
    chat_template_kwargs: dict[str, Any] | None = None


class _Fields(msgspec.Struct):
    """The types of those other fields that the gateway itself reads."""

    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: _ReasoningArguments | None = None


_decode = msgspec.json.Decoder().decode
_decode_parts = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[dict[str, msgspec.Raw]]).decode
_encode = msgspec.json.Encoder().encode


class NotRendered(ValueError):
    """An answer of a render endpoint has another form than vLLM's, or something that the gateway cannot capture."""


@dataclass(frozen=True)
class RenderedRequest:
    """A client's request as the engine understands it."""

    prompt: RenderedIds
    """The prompt by the model's template."""
    sampling_params: Mapping[str, Any]
    """vLLM's parameters by its names, without those that have vLLM's default."""
    fields: Mapping[str, Any]
    """All other fields of a request to generate: ``model``, ``cache_salt``, ``priority`` …"""

    @property
    def token_ids(self) -> IntArray:
        """int32: the prompt as numbers. Raises ``EngineAnswerInvalid`` if one of them is no token id."""
        return self.prompt.token_ids

    @cached_property
    def sampling(self) -> Sampling:
        """What the parameters do to the distribution."""
        return resolved_sampling(self.sampling_params)

    @property
    def choices(self) -> int:
        """Number of answers (``n``)."""
        return int(self.sampling_params.get("n") or 1)

    @property
    def max_tokens(self) -> int | None:
        """Largest number of tokens of an answer; render limits it to the room that the prompt leaves, and to the
        engine's own limit (``max_new_tokens`` of its generation config)."""
        limit = self.sampling_params.get("max_tokens", DEFAULT_MAX_TOKENS)
        return None if limit is None else int(limit)

    @property
    def stop(self) -> tuple[str, ...]:
        """Stop strings."""
        stop = self.sampling_params.get("stop") or ()
        return (stop,) if isinstance(stop, str) else tuple(stop)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer, besides the model's own."""
        return tuple(self.sampling_params.get("stop_token_ids") or ())

    @property
    def top_logprobs(self) -> int | None:
        """Number of alternatives per token that the client asked for; ``None``: it asked for no log-probabilities."""
        asked = self.sampling_params.get("logprobs")
        return None if asked is None else int(asked)

    @property
    def reasoning_ended(self) -> bool | None:
        """Whether the prompt closes the reasoning; ``None``: render has no reasoning parser."""
        ended = self.fields.get("reasoning_ended")
        return None if ended is None else bool(ended)

    @property
    def reasoning_parser_kwargs(self) -> Mapping[str, Any] | None:
        """Arguments of the engine's reasoning parser: ``{"chat_template_kwargs": {…}}``."""
        return self.fields.get("reasoning_parser_kwargs")

    @property
    def chat_template_kwargs(self) -> Mapping[str, Any]:
        """Arguments with which the template was rendered, as far as a reasoning parser needs them."""
        return (self.reasoning_parser_kwargs or {}).get("chat_template_kwargs") or {}


def parse_rendered(body: bytes) -> tuple[RenderedRequest, ...]:
    """Parse an answer of a render endpoint: one request, or of Completions one per prompt.

    Raises:
        NotRendered: If it has another form, or contains images, sound or video.
    """
    try:
        answer = _decode_parts(body)
        return tuple(_rendered(each) for each in (answer if isinstance(answer, list) else [answer]))
    except (msgspec.MsgspecError, RecursionError, KeyError, ValueError) as error:
        raise NotRendered(f"an answer of the render endpoint cannot be read ({error!r}): {body[:200]!r}") from error


def _rendered(answer: Mapping[str, msgspec.Raw]) -> RenderedRequest:
    prompt, sampling_params = RenderedIds(bytes(answer["token_ids"])), _decode(answer["sampling_params"])
    msgspec.convert(sampling_params, _Parameters)
    fields = {name: _decode(value) for name, value in answer.items() if name not in NOT_PASSED_ON}
    if fields.get("features") is not None or fields.get("content_parts") is not None:
        raise NotRendered("the prompt contains images, sound or video, which the gateway cannot record")
    msgspec.convert(fields, _Fields)
    return RenderedRequest(prompt, sampling_params, fields)


def max_tokens_for(rendered: RenderedRequest, prompt_length: int, context: int, asked: int | None = None) -> int:
    """Return the limit of an answer after a prompt of another length than the rendered one; below 1: there is no room.

    Args:
        rendered: The request as rendered.
        prompt_length: Tokens of the exact prompt.
        context: Largest number of tokens of prompt and answer (``max_model_len``).
        asked: The client's own limit. It counts where render's is only the room that its prompt left.
    """
    room = context - prompt_length
    limit = rendered.max_tokens
    if limit is None or limit >= context - len(rendered.prompt):
        limit = room if asked is None else asked
    return min(limit, room)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A request to generate, and what its answer must satisfy."""

    body: bytes
    """JSON."""
    prompt_ids: IntArray
    """int32."""
    prompt_json: bytes
    """``prompt_ids`` as in ``body``: an engine that echoes the prompt sends the same bytes."""
    choices: int
    """Number of answers (``n``)."""
    max_tokens: int | None
    """Largest number of tokens of each."""
    with_alternatives: bool
    """Whether the client asked for log-probabilities."""


def generate_request(
    rendered: RenderedRequest,
    prompt_ids: IntArray,
    *,
    max_tokens: int | None = None,
    model: str | None = None,
    cache_salt: str | None = None,
    request_id: str | None = None,
) -> GenerateRequest:
    """Return the request that continues ``prompt_ids`` (int32) with the parameters of ``rendered``.

    Args:
        rendered: The client's request.
        prompt_ids: The exact prompt.
        max_tokens: The limit, see :func:`max_tokens_for`; by default the rendered one.
        model: Name of the model for the engine; by default the rendered one.
        cache_salt: Keeps the prefix cache of one tenant from others; by default the rendered one.
        request_id: Id of the request in the engine's log; by default the engine makes one.
    """
    limit = rendered.max_tokens if max_tokens is None else max_tokens
    top = rendered.top_logprobs
    sampling_params = {**rendered.sampling_params, "logprobs": top or 0, "detokenize": True}
    if limit is not None:
        sampling_params["max_tokens"] = limit
    given = {"model": model, "cache_salt": cache_salt, "request_id": request_id}
    prompt_json = rendered.prompt.json_of(prompt_ids)
    body = {
        **rendered.fields,
        **{name: value for name, value in given.items() if value is not None},
        "token_ids": msgspec.Raw(prompt_json),
        "sampling_params": sampling_params,
        "output_mode": "text",
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return GenerateRequest(_encode(body), prompt_ids, prompt_json, rendered.choices, limit, top is not None)
