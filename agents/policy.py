"""Client of a policy: exact token ids in; exact token ids, log-probabilities and versions out.

    policy = PolicyClient("http://127.0.0.1:8000")
    completion = await policy.generate([1, 5, 9], Sampling(max_tokens=32), stop_token_ids=[2])

Tokens are never converted to text: decoding and encoding again may give other tokens than those that were sampled.
"""

import json
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from headrace.agents.logprobs_mode import LogprobsProbe, Sample
from headrace.agents.sampled_tokens import GENERATE, check_logprobs, version_spans
from headrace.schemas.arrays import FloatArray, IntArray
from headrace.schemas.events import LogprobsOf, Sampling, VersionSpan
from headrace.schemas.redaction import redacted, redacted_address

CONNECT_TIMEOUT_S = 10.0
"""Longest wait for a connection."""

RETRIED = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
"""Status codes below 500 that are retried."""


class PolicyError(RuntimeError):
    """The policy returned no usable answer; the message contains what it returned."""


class _Unavailable(PolicyError):
    """A temporary error that is retried: no connection, a timeout, a server error."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Sampled tokens; axis legend: S sampled tokens."""

    token_ids: IntArray
    """(S,) int32, including a stop token."""
    logprobs: FloatArray
    """(S,) float32, natural logarithms, as reported by the engine. ``headrace up`` starts vLLM with
    ``--logprobs-mode processed_logprobs``: these are of the distribution that was sampled from, after temperature and
    truncation. With vLLM's own default (``raw_logprobs``) they are the same only at temperature 1 without truncation;
    ``sampling.logprobs`` states which of the two they are."""
    version_spans: tuple[VersionSpan, ...]
    """Run and version of the policy that sampled each range of tokens; they tile ``[0, S)``. Parts that the engine's
    stamp (:mod:`headrace.schemas.stamp`) lacks are ``None``."""
    finish_reason: str
    """``stop``, ``length`` or ``abort``."""
    latency_s: float
    """Seconds from the successful request to its answer, without earlier attempts."""
    sampling: Sampling | None = None
    """The parameters in effect; ``None`` if the policy does not report them."""


class PolicyClient:
    """An asynchronous client of one vLLM server. Use it in an ``async with``, or ``await .close()``.

    It uses aiohttp: with 64 requests in flight, httpx takes seven times the processor time per request (1.9 ms versus
    0.28 ms, ``tests/benchmarks/bench_policy.py``), because its pool checks every connection for every request.
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
        """``url``: address of the server. ``model``: name of the served model. ``timeout_s``: longest wait for one
        answer. ``retry_for_s``: how long an engine may be unavailable (during a restart, for example) before
        :class:`PolicyError` is raised. ``max_connections``: largest number of requests in flight; further ones wait.
        """
        self.url = url.rstrip("/")
        self._shown = redacted_address(self.url)
        self.model = model
        """Name of the model in requests and events."""
        self._retry_for_s = retry_for_s
        # The wait for a free connection depends on the caller only and has no limit.
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=timeout_s)
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None
        self._probe = LogprobsProbe(self._shown)

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        """Sample a continuation of ``token_ids``.

        It ends with one of ``stop_token_ids``, with the model's own end token, or after ``sampling.max_tokens``.

        The completion contains the parameters in effect; the default temperature is 1. The request contains every
        parameter, so that no default of the server or of the model's ``generation_config.json`` applies. If it matters
        which log-probabilities the engine reports, an extra request a minute determines it (:meth:`logprobs_mode`).

        Connection errors, timeouts and server errors are retried for ``retry_for_s`` seconds. Raises
        :class:`PolicyError` if they persist, if the request is refused (a context that is too long, an unknown model)
        or if the answer lacks data that training needs, and ``ValueError`` for ``altered_by`` and for parameters that
        are not fields of ``Sampling``, which this client cannot request.
        """
        if unsupported := [*sampling.altered_by, *sampling.unknown_fields]:
            raise ValueError(f"this client does not support the sampling parameters {', '.join(unsupported)}")
        resolved = sampling.model_copy(
            update={
                "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
                "top_k": max(sampling.top_k, 0),
            }
        )
        mode = await self._probe.mode_for(resolved, token_ids, self._sampler(token_ids))
        completion = await self._request(token_ids, _sampling_params(resolved, stop_token_ids))
        # It costs nothing unless the engine could not be reached meanwhile.
        mode = await self._probe.mode_for(resolved, token_ids, self._sampler(token_ids))
        return replace(completion, sampling=resolved.model_copy(update={"logprobs": mode}))

    async def logprobs_mode(self, token_ids: Sequence[int]) -> LogprobsOf:
        """Return which log-probabilities the engine reports; determined by sampling a token after ``token_ids``
        (:mod:`headrace.agents.logprobs_mode`)."""
        return await self._probe.mode(token_ids, self._sampler(token_ids))

    def _sampler(self, token_ids: Sequence[int]) -> Sample:
        async def sample(sampling_params: dict[str, Any]) -> FloatArray:
            return (await self._request(token_ids, sampling_params)).logprobs

        return sample

    async def _request(self, token_ids: Sequence[int], sampling_params: dict[str, Any]) -> Completion:
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
            self._probe.forget()
            raise _Unavailable(f"no answer from the policy at {self._shown}: {redacted(repr(error))}") from error
        latency_s = time.perf_counter() - start
        if status == HTTPStatus.OK:
            return parse_completion(body, latency_s)
        answer = body[:300].decode("utf-8", "replace")
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in RETRIED:
            self._probe.forget()
            raise _Unavailable(f"the policy at {self._shown} answered {status}: {answer}")
        if status == HTTPStatus.NOT_FOUND:
            raise PolicyError(
                f"the policy at {self._shown} has no {GENERATE} or does not serve model {self.model!r}: start "
                f"vLLM with --enable-scale-out. Its answer: {answer}"
            )
        raise PolicyError(f"the policy at {self._shown} refused the request ({status}): {answer}")

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
    """Parse an answer of vLLM's ``/inference/v1/generate`` that took ``latency_s`` seconds.

    Raises :class:`PolicyError` if token ids or log-probabilities are missing or do not match (pairing them off by one
    is a common error), if a log-probability is invalid (above 0 or not a number), or if the versions do not cover the
    tokens.
    """
    try:
        choice = json.loads(body)["choices"][0]
        token_ids = array("i", choice["token_ids"] or ())
        content = (choice["logprobs"] or {}).get("content") or ()
        of_tokens = [int(entry["token_id"]) for entry in content]
        logprobs = array("f", [entry["logprob"] for entry in content])
        reported = [(span["version"], span["start"], span["end"]) for span in choice.get("weight_versions") or ()]
        finish_reason = str(choice["finish_reason"])
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise PolicyError(f"an answer of the policy cannot be read ({error!r}): {body[:300]!r}") from error
    if of_tokens != list(token_ids):
        raise PolicyError(f"{len(logprobs)} log-probabilities do not match the {len(token_ids)} sampled tokens")
    try:
        check_logprobs(logprobs)
        spans = version_spans(reported, len(token_ids))
    except (TypeError, ValueError) as error:
        raise PolicyError(f"an answer of the policy cannot be used: {error}") from error
    return Completion(token_ids, logprobs, spans, finish_reason, latency_s)


def _sampling_params(sampling: Sampling, stop_token_ids: Sequence[int]) -> dict[str, Any]:
    """Return vLLM's parameters, all explicit: none is left to a default of the server or of the model."""
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
        "logprobs": 0,  # of the sampled token only
        "detokenize": False,
    }
    return params if sampling.max_tokens is None else params | {"max_tokens": sampling.max_tokens}
