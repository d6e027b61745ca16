"""Calls judges over HTTP at any OpenAI-compatible endpoint: the I/O layer of questions and verdicts.

Every question gets an answer: a text, or ``judge_timeout`` or ``judge_error``. Calls to busy and failing endpoints are
retried with exponential backoff and jitter. If a server refuses structured output, later calls omit it.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from headrace.schemas.redaction import redacted, redacted_address
from headrace.streams.rewards.judge import Endpoint
from headrace.streams.rewards.judge_question import Question, request_body
from headrace.streams.rewards.judge_verdict import ERROR, TIMEOUT, UNREADABLE, Answer

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
"""Longest wait for a connection."""
MAX_RESPONSE_BYTES = 1024 * 1024
"""A longer response is not read."""
NOT_STRUCTURED = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Statuses of servers that do not support ``response_format``, or not this one."""


class _Failed(Exception):
    """The call gave no answer; ``label`` is the label of the question's answer."""

    def __init__(self, label: str, message: str) -> None:
        super().__init__(message)
        self.label = label


class _NotNow(_Failed):
    """A retry may succeed."""


class _Refused(_Failed):
    """The server refused this request with ``status``."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(ERROR, message)
        self.status = status


class JudgeClient:
    """A client of one endpoint. Use it in an ``async with``, or ``await .close()``."""

    def __init__(self, url: str, *, key: str | None = None, concurrency: int = 16, pause_s: float = 0.5) -> None:
        """``url``: what stands before ``/v1``. ``key``: sent as bearer token, and shown nowhere. ``concurrency``: calls
        in flight; further ones wait. ``pause_s``: before the second call of a question; it doubles each time."""
        self._url = url.rstrip("/").removesuffix("/v1")
        self._key = key
        self._concurrency = concurrency
        self._pause_s = pause_s
        self._calls = asyncio.Semaphore(concurrency)
        self._unstructured: set[tuple[str, Endpoint]] = set()
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, questions: Sequence[Question], *, within_s: float) -> list[Answer]:
        """An answer to each question, in order; what has none after ``within_s`` seconds is ``judge_timeout``."""
        failures: list[_Failed] = []
        tasks = [asyncio.ensure_future(self._answer(question, failures)) for question in questions]
        if not tasks:
            return []
        try:
            done, late = await asyncio.wait(tasks, timeout=within_s)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        _report(failures, len(tasks), len(late), within_s)
        return [
            task.result() if task in done else Answer(question.rubric.name, None, TIMEOUT)
            for task, question in zip(tasks, questions, strict=True)
        ]

    async def _answer(self, question: Question, failures: list[_Failed]) -> Answer:
        """Returns the answer to ``question``, with retries; appends a failure to ``failures``."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_NotNow),
            wait=wait_exponential_jitter(multiplier=self._pause_s, max=10.0, jitter=self._pause_s),
            stop=stop_after_attempt(question.judge.attempts),
            reraise=True,
        )
        try:
            return Answer(question.rubric.name, await retrying(self._attempt, question))
        except _Failed as failed:
            failures.append(failed)
            return Answer(question.rubric.name, None, failed.label)

    async def _attempt(self, question: Question) -> str:
        kind = (question.judge.model, question.judge.endpoint)
        async with self._calls:
            if kind in self._unstructured:
                return await self._call(question, structured=False)
            try:
                return await self._call(question, structured=True)
            except _Refused as refused:
                if refused.status not in NOT_STRUCTURED:
                    raise
                text = await self._call(question, structured=False)
                self._unstructured.add(kind)
                logger.warning("judge %s is asked without response_format: %s", question.judge.name, refused)
                return text

    async def _call(self, question: Question, *, structured: bool) -> str:
        if self._session is None:
            headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._concurrency), headers=headers
            )
        timeout = aiohttp.ClientTimeout(total=question.judge.timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        url = self._url + question.judge.endpoint.value
        body = request_body(question, structured=structured)
        try:
            # A redirect would send question and key to another server.
            async with self._session.post(url, json=body, timeout=timeout, allow_redirects=False) as response:
                status, content = response.status, await _bounded(response)
        except TimeoutError as error:
            raise _NotNow(TIMEOUT, f"no answer within {question.judge.timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _NotNow(ERROR, f"no answer from {redacted_address(url)}: {redacted(repr(error))}") from error
        if status == HTTPStatus.OK:
            return _text_of(content, question.judge.endpoint)
        excerpt = self._without_key(content[:300].decode("utf-8", "replace"))
        problem = f"{redacted_address(url)} answered {status}: {excerpt}"
        if status == HTTPStatus.TOO_MANY_REQUESTS or (status >= 500 and status != HTTPStatus.NOT_IMPLEMENTED):
            raise _NotNow(ERROR, problem)
        raise _Refused(status, problem)

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "…") if self._key else text

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


def _report(failures: Sequence[_Failed], asked: int, late: int, within_s: float) -> None:
    """Log one line per kind of failure: an unavailable endpoint fails hundreds of questions in the same way."""
    for label, count in Counter(failed.label for failed in failures).items():
        example = next(failed for failed in failures if failed.label == label)
        logger.warning("%d of %d questions to judges are %s; the first: %s", count, asked, label, example)
    if late:
        logger.warning(
            "%d of %d questions to judges had no answer within %g s and are %s: raise workers.judge_wait_s or "
            "workers.judge_concurrency, or lower workers.judge_batch",
            *(late, asked, within_s, TIMEOUT),
        )


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    """Returns the body, truncated to ``MAX_RESPONSE_BYTES``."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            break
    return bytes(body[:MAX_RESPONSE_BYTES])


def _text_of(body: bytes, endpoint: Endpoint) -> str:
    """Returns the model's text. Raises :class:`_Failed` (``judge_unreadable``) if it was truncated or missing."""
    try:
        choice: dict[str, Any] = json.loads(body)["choices"][0]
        text = choice["message"]["content"] if endpoint is Endpoint.CHAT else choice["text"]
        finished = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _Failed(UNREADABLE, f"the response is not a completion ({error!r}): {body[:200]!r}") from error
    if not isinstance(text, str):
        raise _Failed(UNREADABLE, f"the completion holds no text (finish_reason {finished!r})")
    if finished == "length":
        raise _Failed(UNREADABLE, "the answer was cut off: raise the judge's max_tokens")
    return text
