"""Carries out a client's call: from the request to the last byte of its answer.

    read → begin ─▶ render, splice ─▶ generate ─▶ parse, frame ─▶ the client, as it streams
                         │                │             └─▶ finish ─▶ journal ─▶ the last bytes
                         │                └─ journal: what was due before the answer ─▶ the first bytes
                         └─ refused: a session that the call has opened never was

The terminal event waits until the call is durable; the text before it does not. A client that leaves ends the engine's
work, and what was sampled so far is recorded as undelivered. A marked retry receives the answer that exists.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.agents.gateway.answer import AnswerMeta, AnswerUsage
from headrace.agents.gateway.answer_parser import AnswerParser
from headrace.agents.gateway.answer_parsers import AnswerParsers
from headrace.agents.gateway.answers import AnswerInProgress, framer_of, options_of, replayed
from headrace.agents.gateway.call_metrics import CallMetrics, Echo
from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.capture import Capture, Plan, Tenant
from headrace.agents.gateway.client_errors import EXPECTED, error_of, refused
from headrace.agents.gateway.continuation import Outcome
from headrace.agents.gateway.engine_errors import EngineError
from headrace.agents.gateway.engine_pool import EnginePool
from headrace.agents.gateway.engines import Engine
from headrace.agents.gateway.framing.errors import ApiError, ErrorKind
from headrace.agents.gateway.framing.framer import Framer
from headrace.agents.gateway.generate_request import generate_request, max_tokens_for
from headrace.agents.gateway.generate_stream import Chunk
from headrace.agents.gateway.prompts import Model, Prompt, Prompts
from headrace.agents.gateway.record import TaskInfo
from headrace.agents.gateway.recorder import Recorder
from headrace.agents.gateway.requests.read import read
from headrace.agents.gateway.sealed import Kind
from headrace.agents.gateway.session_identity import Arrival
from headrace.schemas.events import Sampling


class Outlet(Protocol):
    """The connection to a client. Its methods raise ``ConnectionError`` once the client has left."""

    async def start(self, headers: Mapping[str, str], data: bytes) -> None:
        """Send status, headers and the first bytes of a stream."""

    def push(self, data: bytes) -> bool:
        """Send the next bytes of a stream, which are not empty; return whether the client takes more at once."""

    async def drained(self) -> None:
        """Wait until the client has read most of what was sent."""

    async def end(self, data: bytes) -> None:
        """Send the last bytes of a stream."""

    async def send(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a whole answer."""


@dataclass(frozen=True, slots=True)
class ClientCall:
    """A request for an answer."""

    api: Api
    body: dict[str, Any]
    """Decoded JSON; may be anything that is JSON."""
    arrival: Arrival
    tenant: Tenant
    request_id: str
    task: TaskInfo = field(default_factory=TaskInfo)
    consent: bool | None = None
    """What the session says about training."""
    is_compaction: bool = False
    """Whether it is a request of ``/v1/responses/compact``."""

    @property
    def streams(self) -> bool:
        """Whether the client wants a stream."""
        return self.body.get("stream") is True and not self.is_compaction


@dataclass(frozen=True, slots=True)
class Completed:
    """An answer that the client has received."""

    plan: Plan
    framer: Framer
    usage: AnswerUsage
    whole: Callable[[], bytes]
    """Returns the answer in one piece."""
    parser: AnswerParser | None = None
    """What parsed it; ``None`` for an answer that was delivered again."""

    @property
    def answer_id(self) -> str:
        """Its id in the client's API."""
        return self.framer.meta.id


class Calls:
    """Carries out calls."""

    def __init__(
        self,
        capture: Capture,
        prompts: Prompts,
        pool: EnginePool,
        parsers: AnswerParsers,
        recorder: Recorder,
        metrics: CallMetrics,
        *,
        isolates_tenants: bool,
        now_ms: Callable[[], int],
        charge: Callable[[str, int], None],
    ) -> None:
        """``isolates_tenants``: whether the engines' prefix caches are kept apart. ``now_ms``: Unix milliseconds.
        ``charge``: takes the tokens of a call from the limits of its tenant."""
        self._capture = capture
        self._prompts = prompts
        self._pool = pool
        self._parsers = parsers
        self._recorder = recorder
        self._metrics = metrics
        self._isolates_tenants = isolates_tenants
        self._now_ms = now_ms
        self._charge = charge
        self._in_flight: dict[str, asyncio.Event] = {}

    @property
    def in_flight(self) -> int:
        """Number of calls without an answer."""
        return len(self._in_flight)

    async def answer(self, call: ClientCall, outlet: Outlet) -> Completed | None:
        """Answer ``call``. Returns ``None`` if the answer failed after its stream had begun, which then says so.

        Raises one of :data:`~headrace.agents.gateway.client_errors.EXPECTED` if nothing was sent, and
        ``ConnectionError`` or ``asyncio.CancelledError`` if the client left.
        """
        request = read(call.api, call.body, is_compaction=call.is_compaction)
        model = await self._prompts.model(request.model)
        while True:
            plan = self._capture.begin(
                call.tenant,
                call.arrival,
                request,
                call.body,
                template=model.template,
                now_ms=self._now_ms(),
                task=call.task,
                consent=call.consent,
            )
            if plan.events and self._capture.opening(plan) is None:
                # Not held: some may be events of other trajectories, which do not wait for this call.
                self._recorder.record(_session(plan), plan.events)
            else:
                self._recorder.hold(_session(plan), plan.events)
            if plan.decision.outcome is not Outcome.REPLAY:
                break
            if (replayed := await self._replay(call, plan, outlet)) is not None:
                return replayed
            # The call that this one repeats has failed meanwhile: it is sampled.
        self._metrics.began(call.api, plan.decision.outcome)
        ended = self._in_flight[plan.call_id] = asyncio.Event()
        turn = _Turn(self, call, plan, model, outlet)
        try:
            return await turn.run()
        except BaseException:
            turn.gave_up()
            raise
        finally:
            del self._in_flight[plan.call_id]
            ended.set()

    async def _replay(self, call: ClientCall, plan: Plan, outlet: Outlet) -> Completed | None:
        """Deliver the answer that a retry asks for again; ``None`` if its call was in flight, and has failed."""
        repeated = plan.decision.replay
        assert repeated is not None
        nodes, running = self._capture.replayed(plan), self._in_flight.get(repeated)
        if (
            not nodes and running is not None
        ):  # else it has its answer, and may only wait for a client that reads nothing
            await running.wait()
            nodes = self._capture.replayed(plan)
            if not nodes:
                return None
        if not nodes:
            raise refused(ErrorKind.UNAVAILABLE, "the answer is not known any more: send it again", retry_after_s=1.0)
        self._metrics.began(call.api, plan.decision.outcome)
        await self._recorder.record(_session(plan), ())
        framer = self._framer(call, plan, len(nodes), nodes[0].length - len(nodes[0].answer.sampled_ids))
        data, ends, usage = replayed(framer, nodes, streams=call.streams)
        headers = _headers(call, plan)
        if call.streams:
            await outlet.start(headers, b"")
            await outlet.end(data)
        elif not call.is_compaction:
            await outlet.send(data, headers)
        self._capture.delivered(plan, whole=True)
        return Completed(plan, framer, AnswerUsage(0, 0), lambda: framer.whole(ends, usage))

    def _framer(self, call: ClientCall, plan: Plan, choices: int, prompt_tokens: int) -> Framer:
        now_ms = self._now_ms()

        def mint(kind: Kind) -> str:
            return self._capture.mint(plan, kind, now_ms)

        plain = plan.answer_id.replace("-", "")
        answer_id, signature, encrypted = "", "", None
        match call.api:
            case Api.CHAT:
                answer_id = f"chatcmpl-{plain}"
            case Api.COMPLETIONS:
                answer_id = f"cmpl-{plain}"
            case Api.MESSAGES:
                answer_id, signature = mint(Kind.MESSAGE), mint(Kind.SIGNATURE)
            case Api.RESPONSES:
                answer_id = mint(Kind.RESPONSE)
                included = call.body.get("include")
                if isinstance(included, list) and "reasoning.encrypted_content" in included:
                    encrypted = mint(Kind.ENCRYPTED)
        meta = AnswerMeta(answer_id, now_ms // 1000, plan.request.model, prompt_tokens, signature, encrypted)
        try:
            return framer_of(call.api, meta, options_of(call.api, call.body, choices), call.body)
        except ValueError as error:
            raise refused(ErrorKind.INVALID_REQUEST, str(error)) from error


class _Turn:
    """A call that is being sampled."""

    def __init__(self, calls: Calls, call: ClientCall, plan: Plan, model: Model, outlet: Outlet) -> None:
        self._calls = calls
        self._call = call
        self._plan = plan
        self._model = model
        self._outlet = outlet
        self._began = time.perf_counter()
        self._prompt: Prompt | None = None
        self._answer: AnswerInProgress | None = None
        self._is_finished = False

    async def run(self) -> Completed | None:
        """See :meth:`Calls.answer`."""
        calls, call, plan, model = self._calls, self._call, self._plan, self._model
        prompt = await self._composed()
        limit = self._limit(prompt)
        request = generate_request(
            prompt.rendered,
            prompt.token_ids,
            max_tokens=limit,
            model=model.name,
            cache_salt=_salt(plan.tenant.name) if calls._isolates_tenants else None,
            request_id=plan.call_id,
        )
        framer = calls._framer(call, plan, request.choices, len(prompt.token_ids))
        parser = self._parser(prompt, request.choices)
        answer = self._answer = AnswerInProgress(framer, parser, streams=call.streams)
        due = calls._recorder.record(_session(plan), ())  # what precedes the answer
        if calls._recorder.waiting:
            await due  # the journal refuses events: nothing is sampled in vain
        headers, has_begun = _headers(call, plan), False
        try:
            async with calls._pool.generate(plan.match.opening_key, request) as (engine, generated):
                chunks = generated.first()
                await due
                data = (framer.begin() if call.streams else b"") + answer.feed(chunks)
                has_begun = True
                calls._metrics.first(time.perf_counter() - self._began)
                if call.streams:
                    await self._outlet.start(headers, data)
                usage = parser.usage(await generated.pour(self._passed_on, self._outlet.drained))
            sampling = await self._sampling(engine, prompt)
            last = answer.last(usage)  # before it is recorded: it may fail
            await self._record(sampling)
        except EXPECTED as error:
            if not (has_begun and call.streams):
                raise
            calls._metrics.failed(call.api, error_of(error).kind)
            self.gave_up()
            await self._outlet.end(framer.failed(_with_id(error_of(error), call.request_id)))
            return None
        if call.streams:
            await self._outlet.end(last)
        elif not call.is_compaction:
            await self._outlet.send(last, headers)
        calls._capture.delivered(plan, whole=True)
        calls._metrics.ended(call.api, time.perf_counter() - self._began, usage)
        calls._metrics.withheld(framer.answer.withheld_calls + framer.answer.withheld_arguments)
        return Completed(plan, framer, usage, lambda: answer.whole(usage), parser)

    def _passed_on(self, chunks: Sequence[Chunk]) -> bool:
        """Pass on what the engine has sent; return whether the client takes more at once. Raises ``NotParsed``, and
        ``ConnectionError`` if the client has left."""
        assert self._answer is not None
        data = self._answer.feed(chunks)
        return self._outlet.push(data) if data else True

    def gave_up(self) -> None:
        """Close the call after a failure, or after the client has left."""
        capture, recorder = self._calls._capture, self._calls._recorder
        plan, answer = self._plan, self._answer
        if self._is_finished:
            capture.delivered(plan, whole=False)
        elif answer is not None and answer.has_tokens and self._prompt is not None:
            self._record(self._prompt.rendered.sampling, aborted=True)
        elif (opening := capture.opening(plan)) is not None and recorder.withdraw(_session(plan), opening):
            capture.retract(plan)
        else:
            capture.abandon(plan)
        recorder.record(_session(plan), ())  # results of tools and ends of sessions, whatever becomes of the call
        self._is_finished = True

    async def _composed(self) -> Prompt:
        calls = self._calls
        conversation = calls._prompts.conversation(self._call.api, self._call.body, self._plan.request, self._model)
        prompt = self._prompt = await calls._prompts.compose(calls._capture, self._plan, conversation, self._model)
        if prompt.refusal is not None:
            calls._metrics.unspliced(prompt.refusal)
        return prompt

    def _limit(self, prompt: Prompt) -> int:
        limit = max_tokens_for(
            prompt.rendered, len(prompt.token_ids), self._model.max_tokens, _asked(self._call.api, self._call.body)
        )
        if limit < 1:
            raise refused(
                ErrorKind.INVALID_REQUEST,
                f"the prompt has {len(prompt.token_ids):,} tokens, and the model's context is "
                f"{self._model.max_tokens:,} tokens: this model's maximum context length leaves no room for an answer",
            )
        return limit

    def _parser(self, prompt: Prompt, choices: int) -> AnswerParser:
        call, plan, capture = self._call, self._plan, self._calls._capture
        kind = Kind.TOOL_USE if call.api is Api.MESSAGES else Kind.CALL

        def mint(choice: int, position: int, name: str) -> str:
            return capture.mint(plan, kind, self._calls._now_ms(), choice=choice, position=position)

        rendered = prompt.rendered
        return self._calls._parsers.start(
            call.api,
            call.body,
            prompt.token_ids,
            mint=mint,
            choices=choices,
            top_logprobs=rendered.top_logprobs,
            chat_template_kwargs=rendered.chat_template_kwargs if rendered.reasoning_parser_kwargs else None,
        )

    async def _sampling(self, engine: Engine, prompt: Prompt) -> Sampling:
        """Return the parameters in effect, with the distribution whose log-probabilities the engine reports."""
        sampling = prompt.rendered.sampling
        try:
            mode = await engine.logprobs_mode(sampling, prompt.token_ids, self._model.name)
        except EngineError:
            mode = None  # unknown, which the log says
        return sampling.model_copy(update={"logprobs": mode})

    def _record(self, sampling: Sampling, *, aborted: bool = False) -> "asyncio.Future[None]":
        """Store the answer, and record the call."""
        answer, prompt = self._answer, self._prompt
        assert answer is not None
        assert prompt is not None
        self._calls._metrics.echoed(Echo.of(prompt.token_ids, answer.prompt_ids))
        prompt_ids = prompt.token_ids if answer.prompt_ids is None else answer.prompt_ids
        answers = answer.answers(aborted=aborted)
        # Also those of a client that has left: the engine has computed them.
        self._calls._charge(self._plan.tenant.name, len(prompt_ids) + sum(len(each.sampled_ids) for each in answers))
        events = self._calls._capture.finish(
            self._plan,
            prompt_ids,
            answers,
            sampling=sampling,
            latency_s=time.perf_counter() - self._began,
            now_ms=self._calls._now_ms(),
        )
        self._is_finished = True
        return self._calls._recorder.record(_session(self._plan), events)


def _session(plan: Plan) -> tuple[str, str]:
    return plan.session.tenant, plan.session.scope


def _headers(call: ClientCall, plan: Plan) -> dict[str, str]:
    headers = {
        "request-id" if call.api is Api.MESSAGES else "x-request-id": call.request_id,
        "x-headrace-session": plan.session.session_id,
        "x-headrace-outcome": plan.decision.outcome,
    }
    if plan.state is not None:
        headers["x-headrace-trajectory"] = plan.state.trajectory_id
    return headers


def _with_id(error: ApiError, request_id: str) -> ApiError:
    return ApiError(error.kind, error.message, error.parameter, error.retry_after_s, request_id)


def _asked(api: Api, body: Mapping[str, Any]) -> int | None:
    """Return the client's limit of an answer's tokens."""
    names = ("max_output_tokens",) if api is Api.RESPONSES else ("max_completion_tokens", "max_tokens")
    return next((value for name in names if isinstance(value := body.get(name), int)), None)


def _salt(tenant: str) -> str:
    """Return what keeps a tenant's prefixes apart in an engine's cache."""
    return hashlib.sha256(b"headrace cache\x00" + tenant.encode()).hexdigest()[:32]
