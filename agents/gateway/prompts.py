"""The prompt of a call: rendered by the engine, and where it continues a known answer, spliced to its exact tokens.

    prompts = Prompts(pool)
    model = await prompts.model("policy")                      length and template, as the engines have them
    prompt = await prompts.compose(capture, plan, conversation, model)

Two renders are needed for a continuation, of the whole conversation and of its part up to the answer; they run
concurrently. What the template writes after an answer, and in front of the next one, is found out once per template.
"""

import asyncio
import logging
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headrace.agents.gateway.canonical import Api, CanonicalRequest, digest_of
from headrace.agents.gateway.capture import Capture, Plan
from headrace.agents.gateway.engine_errors import EngineError, EngineRefused
from headrace.agents.gateway.engine_pool import EnginePool
from headrace.agents.gateway.generate_request import RenderedRequest
from headrace.agents.gateway.render_bodies import PATHS, Conversation
from headrace.agents.gateway.requests.read import read
from headrace.agents.gateway.splice import History, Refusal, Rendered, Spliced, closing_ids, dummy_turn, splice
from headrace.schemas.arrays import IntArray

log = logging.getLogger(__name__)

REMEMBERED: Final = 1_024
"""Largest number of conversations' generation prompts that are kept."""

REFRESH_S: Final = 30.0
"""How long the engines' models and templates count as known, in seconds."""

_ANSWERS: Final = ("7", "ok")
"""Answers of dummy conversations: their tokens differ, and do not merge with what follows."""

_encode = msgspec.json.Encoder().encode


class UnknownModel(ValueError):
    """No engine serves the model that a client asks for."""

    def __init__(self, name: str, served: Sequence[str], stands_for: str | None = None) -> None:
        """``served``: names that clients may use. ``stands_for``: what an alias makes of ``name``, if there is one."""
        problem, names = f"the model {name[:80]!r} is not served", ", ".join(served)
        if stands_for is None:
            example = f"""--set 'gateway.model_aliases={{"*": "{served[0]}"}}'""" if served else "gateway.model_aliases"
            super().__init__(f"{problem}: use one of {names}, or set an alias ({example})")
        else:
            super().__init__(
                f"{problem}: gateway.model_aliases makes it {stands_for[:80]!r}, which no engine serves. Use {names}"
            )


@dataclass(frozen=True, slots=True)
class Model:
    """A model as the engines serve it."""

    name: str
    max_tokens: int
    """Longest sequence of prompt and answer, in tokens."""
    template: str
    """Identity of its chat template and tokenizer: equal for equal renders."""
    closing: IntArray
    """int32: what the template writes after an answer."""
    since_s: int
    """Unix time in seconds since which the gateway knows it."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a call."""

    rendered: RenderedRequest
    """The client's request with its parameters."""
    token_ids: IntArray
    """int32: what the engine is to continue."""
    refusal: Refusal | None = None
    """Why known tokens are not continued; ``None`` if they are, or if there are none."""


class Prompts:
    """Composes prompts by the engines of a pool."""

    def __init__(
        self,
        pool: EnginePool,
        *,
        aliases: Mapping[str, str] | None = None,
        history: History = History.EXACT,
        parses_tools: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``aliases``: names that clients may use → names of served models; ``*`` stands for all other names.
        ``parses_tools``: whether calls of tools in answers are parsed, see :class:`Conversation`."""
        self._pool = pool
        self._aliases = dict(aliases or {})
        self._history = history
        self._parses_tools = parses_tools
        self._clock = clock
        self._models: dict[str, Model] = {}
        self._until = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._generation_prompts: OrderedDict[bytes, IntArray | None] = OrderedDict()

    async def models(self) -> tuple[Model, ...]:
        """Return the served models. Raises :class:`EngineError` if they were never known and no engine answers."""
        self._refresh()
        if not self._models:
            await self._looked()
        return tuple(self._models.values())

    async def close(self) -> None:
        """Stop asking the engines."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def model(self, name: str) -> Model:
        """Return the model that a client asks for by ``name``.

        Raises :class:`UnknownModel`, and :class:`EngineError` if no engine answers.
        """
        self._refresh()
        found = self._known_as(name)
        if found is None and self._looking is not None:  # it may be new
            await self._looked()
            found = self._known_as(name)
        if found is None:
            usable = [alias for alias, stands_for in self._aliases.items() if stands_for in self._models]
            raise UnknownModel(name, [*self._models, *usable], self._aliases.get(name, self._aliases.get("*")))
        return found

    async def count(self, api: Api, body: dict[str, Any]) -> int:
        """Return the length of a request's prompt in tokens.

        Raises ``BadRequest``, :class:`UnknownModel` and :class:`EngineError`.
        """
        request = read(api, body)
        model = await self.model(request.model)
        whole = self.conversation(api, {**body, "max_tokens": 1}, request, model).whole()
        (rendered,) = await self._pool.render(b"", PATHS[api], _encode(whole))
        return len(rendered.prompt)

    def conversation(self, api: Api, body: Mapping[str, Any], request: CanonicalRequest, model: Model) -> Conversation:
        """Return a client's request in the form of its API, for :meth:`compose`."""
        return Conversation(api, body, request, model.name, parses_tools=self._parses_tools)

    async def compose(self, capture: Capture, plan: Plan, conversation: Conversation, model: Model) -> Prompt:
        """Return the prompt of ``plan``; if known tokens cannot be continued, the plan becomes a new segment.

        Raises :class:`EngineError`.
        """
        key = plan.match.opening_key
        if plan.known_ids is None:
            (rendered,) = await self._pool.render(key, conversation.path, _encode(conversation.whole()))
            return Prompt(rendered, rendered.token_ids)
        answers = sum(1 for each in plan.request.messages[: plan.match.matched] if each.role == "assistant")
        whole, before = await asyncio.gather(
            self._render(key, conversation, conversation.whole()),
            self._render_part(key, conversation, conversation.until(answers)),
        )
        result = await self._spliced(plan, conversation, model, answers, whole, before)
        token_ids = capture.composed(plan, result)
        if token_ids is None:
            return Prompt(whole, whole.token_ids, result if isinstance(result, Refusal) else None)
        return Prompt(whole, token_ids)

    async def _spliced(
        self,
        plan: Plan,
        conversation: Conversation,
        model: Model,
        answers: int,
        whole: RenderedRequest,
        before: RenderedRequest | None,
    ) -> Spliced | Refusal:
        base = plan.decision.base
        assert base is not None
        assert plan.known_ids is not None
        key = plan.match.opening_key
        generation_prompt = await self._generation_prompt(plan, conversation, model)
        if generation_prompt is None:
            return Refusal.NO_DIFFERENCE
        difference_of = _difference_of if self._history is History.EXACT else _whole_difference_of
        real = difference_of(before, whole, generation_prompt)
        differences = [] if real is None else [real]
        if real is None or real[1].ids[: len(real[0].ids)] != real[0].ids:
            calls = [(call.call_id, call.tool) for call in plan.request.messages[plan.match.matched - 1].calls]
            first, second = await asyncio.gather(
                *(self._render_part(key, conversation, body) for body in conversation.dummy(answers, calls))
            )
            dummy = None if second is None else difference_of(first, second, generation_prompt)
            differences += [] if dummy is None else [dummy]
        last = plan.known_ids[-1]
        return splice(
            plan.known_ids,
            model.closing,
            differences,
            stop_ids=[last] if base.answer.ends_with_stop_token else [],
            history=self._history,
            max_tokens=model.max_tokens - 1,
        )

    async def _render(self, key: bytes, conversation: Conversation, body: Mapping[str, Any]) -> RenderedRequest:
        (rendered,) = await self._pool.render(key, conversation.path, _encode(body))
        return rendered

    async def _render_part(
        self, key: bytes, conversation: Conversation, body: Mapping[str, Any]
    ) -> RenderedRequest | None:
        """Render a part of a conversation; ``None`` if the template refuses it."""
        try:
            return await self._render(key, conversation, body)
        except EngineRefused:
            return None

    async def _generation_prompt(self, plan: Plan, conversation: Conversation, model: Model) -> IntArray | None:
        """Return what the template writes in front of an answer to requests like this one.

        It is the common end of two conversations with different answers, without what closes an answer; ``None`` if the
        template has no such end.
        """
        key = digest_of(plan.root, conversation.api.encode(), model.template.encode())
        if key in self._generation_prompts:
            self._generation_prompts.move_to_end(key)
            return self._generation_prompts[key]
        rendered = await asyncio.gather(
            *(
                self._render_part(
                    plan.match.opening_key, conversation, conversation.instead(_dummy(conversation.api, text))
                )
                for text in _ANSWERS
            )
        )
        found: IntArray | None = None
        if (first := rendered[0]) is not None and (second := rendered[1]) is not None:
            end = closing_ids(first.token_ids, second.token_ids)
            if end[: len(model.closing)] == model.closing:
                found = end[len(model.closing) :]
        self._generation_prompts[key] = found
        if len(self._generation_prompts) > REMEMBERED:
            self._generation_prompts.popitem(last=False)
        return found

    def _known_as(self, name: str) -> Model | None:
        names = (name, self._aliases.get(name), self._aliases.get("*"))
        return next((found for each in names if each is not None and (found := self._models.get(each))), None)

    def _refresh(self) -> None:
        """Ask the engines if that was long ago. Nobody waits who can use what is known: an engine may hang."""
        if self._looking is None and self._clock() >= self._until:
            self._looking = asyncio.create_task(self._look())

    async def _looked(self) -> None:
        """Wait for the engines' answer. Raises :class:`EngineError`."""
        if self._looking is not None:
            await asyncio.shield(self._looking)

    async def _look(self) -> None:
        try:
            served = await self._pool.models()
            self._models = {each.id: await self._probed(each.id, each.max_model_len) for each in served}
            self._until = self._clock() + REFRESH_S
        except EngineError as error:
            if not self._models:
                raise
            log.warning("the engines' models cannot be refreshed: %s", error)
            self._until = self._clock() + REFRESH_S
        finally:
            self._looking = None

    async def _probed(self, name: str, max_tokens: int | None) -> Model:
        """Find out what the template of a model writes. Its Chat API can leave out the generation prompt."""
        renders = []
        for text in _ANSWERS:
            body = {"model": name, "messages": _dummy(Api.CHAT, text), "add_generation_prompt": False, "max_tokens": 1}
            try:
                (rendered,) = await self._pool.render(b"", PATHS[Api.CHAT], _encode(body))
            except EngineRefused:  # a model without a chat template serves completions only
                return self._known(Model(name, max_tokens or _MAX_TOKENS, "", array("i"), int(time.time())))
            renders.append(rendered.token_ids)
        template = digest_of(*(each.tobytes() for each in renders)).hex()
        return self._known(Model(name, max_tokens or _MAX_TOKENS, template, closing_ids(*renders), int(time.time())))

    def _known(self, found: Model) -> Model:
        """Return the model as it is known already, if nothing has changed."""
        old = self._models.get(found.name)
        same = old is not None and (old.template, old.max_tokens) == (found.template, found.max_tokens)
        return old if old is not None and same else found


_MAX_TOKENS = 2**31 - 1
"""Longest sequence of a model whose engine does not report it."""


def _dummy(api: Api, text: str) -> list[dict[str, Any]]:
    """Return a conversation that ends with the answer ``text``."""
    *start, answer = dummy_turn(api, ())
    return [*start, {**answer, "content": text}]


def _difference_of(
    before: RenderedRequest | None, after: RenderedRequest, generation_prompt: IntArray
) -> tuple[Rendered, Rendered] | None:
    """Return a pair for :func:`splice` if ``after`` begins with ``before`` without its generation prompt: both without
    this beginning, which nobody needs."""
    suffix = None if before is None else after.prompt.after(before.prompt, generation_prompt)
    return None if suffix is None else (Rendered(array("i")), Rendered(suffix))


def _whole_difference_of(
    before: RenderedRequest | None, after: RenderedRequest, generation_prompt: IntArray
) -> tuple[Rendered, Rendered] | None:
    """Return a pair for :func:`splice`: ``before`` without its generation prompt."""
    if before is None:
        return None
    ids, length = before.token_ids, len(generation_prompt)
    if ids[len(ids) - length :] != generation_prompt:
        return None
    return Rendered(ids[: len(ids) - length]), Rendered(after.token_ids)
