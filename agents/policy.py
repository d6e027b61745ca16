"""A policy, as an agent samples from it: exact token ids in, exact token ids, log-probabilities and versions out.

    policy = PolicyClient("http://127.0.0.1:8000")
    completion = await policy.generate([1, 5, 9], Sampling(max_tokens=32), stop_token_ids=[2])

Text never stands in between: tokens that were decoded and encoded again are not always the tokens that were sampled.
"""

import asyncio
import json
import logging
import math
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from headrace.schemas.arrays import MAX_LOGPROB, FloatArray, IntArray
from headrace.schemas.events import LogprobsOf, Sampling, VersionSpan, tile
from headrace.schemas.redaction import redacted, redacted_address
from headrace.schemas.stamp import read_stamp

_log = logging.getLogger(__name__)

GENERATE = "/inference/v1/generate"
"""vLLM's token-in-token-out endpoint (``--enable-scale-out``)."""

CONNECT_TIMEOUT_S = 10.0
"""Longest wait for a connection."""

NOT_NOW = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
"""Answers below 500 that another attempt may change."""


class PolicyError(RuntimeError):
    """The policy did not give a usable answer; the message says what it said instead."""


class _Unavailable(PolicyError):
    """Not now: nobody listens, a timeout, a server error. Worth another attempt."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled; axis legend: S sampled tokens."""

    token_ids: IntArray
    """(S,) int32, a stop token included."""
    logprobs: FloatArray
    """(S,) float32, natural logarithms, as the engine reports them. ``headrace up`` starts vLLM with
    ``--logprobs-mode processed_logprobs``: those of the distribution that was sampled from, temperature and truncation
    included. An engine with vLLM's own default (``raw_logprobs``) agrees with that only at temperature 1 without
    truncation; ``sampling.logprobs`` says which of the two it is."""
    version_spans: tuple[VersionSpan, ...]
    """Which version of which run's policy sampled which tokens; they tile ``[0, S)``. What the engine's stamp
    (:mod:`headrace.schemas.stamp`) does not say is ``None``."""
    finish_reason: str
    """``stop``, ``length`` or ``abort``."""
    latency_s: float
    """Seconds from the request that was answered to its answer; earlier attempts left out."""
    sampling: Sampling | None = None
    """The parameters in force; ``None`` where the policy does not say."""


class PolicyClient:
    """An asynchronous client of one vLLM server. Use it in an ``async with``, or ``await .close()``.

    On aiohttp: with 64 requests in flight httpx takes seven times the processor time for each (1.9 ms against 0.28 ms,
    ``tests/benchmarks/bench_policy.py``), because its pool looks at every connection for every request.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str = "policy",
        timeout_s: float = 120.0,
        retry_for_s: float = 60.0,
        max_connections: int = 256,
    ) -> None:
        """``url``: address of the server. ``model``: name that it serves. ``timeout_s``: longest wait for one answer.
        ``retry_for_s``: how long an engine may be away (restarting, say) before :class:`PolicyError` is raised.
        ``max_connections``: requests in flight; further ones wait.
        """
        self.url = url.rstrip("/")
        self._shown = redacted_address(self.url)
        self.model = model
        """Name of the model in requests and events."""
        self._retry_for_s = retry_for_s
        # Waiting for a free connection is the caller's doing and has no limit.
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=timeout_s)
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None
        self._logprobs: LogprobsOf | None = None
        self._asking = asyncio.Lock()

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        """Sample a continuation of ``token_ids``.

        It ends with one of ``stop_token_ids``, with the model's own end token, or after ``sampling.max_tokens``.

        The completion says which parameters were in force: a temperature that ``sampling`` leaves out is 1. Every
        parameter is sent, so that no default of the server or of the model's ``generation_config.json`` takes its
        place. Whose log-probabilities the engine reports, where that matters, it is asked once.

        Connection errors, timeouts and server errors are retried for ``retry_for_s`` seconds. Raises
        :class:`PolicyError` when they do not cease, when the request is refused (a context that is too long, an unknown
        model) and when the answer lacks what training needs; ``ValueError`` for ``altered_by`` and for parameters that
        ``Sampling`` does not have, which this client cannot ask for.
        """
        if beyond := [*sampling.altered_by, *sampling.unknown_fields]:
            raise ValueError(f"sampling names {', '.join(beyond)}: this client cannot ask for any of that")
        resolved = sampling.model_copy(
            update={
                "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
                "top_k": max(sampling.top_k, 0),
            }
        )
        if resolved.temperature == 1 and not (resolved.truncates or resolved.is_altered):
            mode: LogprobsOf | None = LogprobsOf.PROCESSED  # the same as raw
        elif resolved.is_greedy:
            mode = resolved.logprobs  # nothing was sampled
        else:
            mode = await self.logprobs_mode(token_ids)
        completion = await self._ask(token_ids, _sampling_params(resolved, stop_token_ids))
        return replace(completion, sampling=resolved.model_copy(update={"logprobs": mode}))

    async def logprobs_mode(self, token_ids: Sequence[int]) -> LogprobsOf:
        """Whose log-probabilities the engine reports; asked once, by sampling after ``token_ids``.

        Where one token alone is allowed, its log-probability is 0 in the distribution that is sampled from; in the
        model's own it is whatever it is, and of the prompt's first token, said again, not 0.
        """
        async with self._asking:
            if self._logprobs is None:
                only = _sampling_params(Sampling(temperature=1.0, max_tokens=1), ()) | {
                    "allowed_token_ids": [int(token_ids[0])],
                    "ignore_eos": True,
                }
                found = (await self._ask(token_ids, only)).logprobs
                processed = len(found) > 0 and all(each > -1e-6 for each in found)
                self._logprobs = LogprobsOf.PROCESSED if processed else LogprobsOf.RAW
                if not processed:
                    _log.warning(
                        "the engine at %s reports log-probabilities of the model and not of what it samples from: "
                        "tokens at a temperature other than 1 are not trained; start vLLM with --logprobs-mode "
                        "processed_logprobs",
                        self._shown,
                    )
            return self._logprobs

    async def _ask(self, token_ids: Sequence[int], sampling_params: dict[str, Any]) -> Completion:
        request = {"model": self.model, "token_ids": list(token_ids), "sampling_params": sampling_params}
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_Unavailable),
            wait=wait_exponential_jitter(multiplier=0.1, max=2.0, jitter=0.1),
            stop=stop_after_delay(self._retry_for_s),
            reraise=True,
        )
        return await retrying(self._attempt, request)

    async def _attempt(self, request: dict[str, Any]) -> Completion:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._max_connections)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        start = time.perf_counter()
        try:
            async with self._session.post(self.url + GENERATE, json=request) as response:
                status, body = response.status, await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _Unavailable(f"no answer from the policy at {self._shown}: {redacted(repr(error))}") from error
        latency_s = time.perf_counter() - start
        if status == HTTPStatus.OK:
            return parse_completion(body, latency_s)
        said = body[:300].decode("utf-8", "replace")
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in NOT_NOW:
            raise _Unavailable(f"the policy at {self._shown} answered {status}: {said}")
        if status == HTTPStatus.NOT_FOUND:
            raise PolicyError(
                f"the policy at {self._shown} has no {GENERATE} or does not serve model {self.model!r}: start "
                f"vLLM with --enable-scale-out. It says: {said}"
            )
        raise PolicyError(f"the policy at {self._shown} refused ({status}): {said}")

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def parse_completion(body: bytes, latency_s: float) -> Completion:
    """The completion in an answer of vLLM's ``/inference/v1/generate``, taken in ``latency_s`` seconds.

    Raises :class:`PolicyError` where token ids or log-probabilities are missing or do not belong together (people have
    paired log-probabilities off by one), where a log-probability cannot be one (it is above 0 or not a number), or
    where versions do not cover the tokens.
    """
    try:
        choice = json.loads(body)["choices"][0]
        token_ids = array("i", choice["token_ids"] or ())
        content = (choice["logprobs"] or {}).get("content") or ()
        of_tokens = [int(entry["token_id"]) for entry in content]
        logprobs = array("f", [entry["logprob"] for entry in content])
        spans = tuple(
            VersionSpan(version=stamp.version, start=span["start"], end=span["end"], run=stamp.run)
            for span in choice.get("weight_versions") or ()
            for stamp in (read_stamp(span["version"]),)
        )
        finish_reason = str(choice["finish_reason"])
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise PolicyError(f"an answer of the policy cannot be read ({error!r}): {body[:300]!r}") from error
    if of_tokens != list(token_ids):
        raise PolicyError(f"{len(logprobs)} log-probabilities do not belong to the {len(token_ids)} tokens sampled")
    if not all(-math.inf < each <= MAX_LOGPROB for each in logprobs):
        wrong = next(each for each in logprobs if not -math.inf < each <= MAX_LOGPROB)
        raise PolicyError(
            f"the policy reports {wrong:g} as the log-probability of a token: start vLLM with --logprobs-mode "
            "processed_logprobs"
        )
    if spans and not tile(spans, len(token_ids)):
        raise PolicyError(f"weight_versions do not cover the {len(token_ids)} tokens sampled, one after the other")
    if not spans and token_ids:
        spans = (VersionSpan(version=None, start=0, end=len(token_ids)),)
    return Completion(token_ids, logprobs, spans, finish_reason, latency_s)


def _sampling_params(sampling: Sampling, stop_token_ids: Sequence[int]) -> dict[str, Any]:
    """vLLM's parameters, all of them said: none is left to a default of the server or of the model."""
    params = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": max(sampling.top_k, 0),
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "min_tokens": sampling.min_tokens,
        "seed": sampling.seed,
        "stop_token_ids": list(stop_token_ids),
        "logprobs": 0,  # of the sampled token and no other
        "detokenize": False,
    }
    return params if sampling.max_tokens is None else params | {"max_tokens": sampling.max_tokens}
