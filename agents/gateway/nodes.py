"""Sampled answers, by the conversation that leads to them: where a request continues, its exact tokens are known.

    root                H(salt, tenant, model, template, tools, template arguments)
     └ system, user     H(previous key, message): only a key, nothing is stored
        └ answer        a node: context ids, sampled ids, log-probabilities, versions, the delivered message
           └ tool …

A request is matched by hashing its messages one after the other; the deepest node on the way is where it continues.
Answers with the same text under the same key (several choices, or two sessions with the same beginning) are *variants*
of one another. An id that the gateway minted chooses among them, then the session, then the newest.

Nodes are kept up to a number of bytes (:mod:`headrace.agents.gateway.tenant_cache`), and none is forgotten before its
descendants. A node that is forgotten costs a new segment, never a wrong token.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.agents.gateway.canonical import CanonicalRequest, Message, MessageRole, digest_of
from headrace.agents.gateway.sealed import Reference, call_hash
from headrace.agents.gateway.tenant_cache import TenantCache
from headrace.schemas.arrays import FloatArray, IntArray
from headrace.schemas.events import Purpose, VersionSpan
from headrace.schemas.tokens import token_bytes

NODE_BYTES, MESSAGE_BYTES, CALL_BYTES = 1_500, 350, 500
"""Memory of a node, of a message and of a tool call, without arrays and texts; a test compares the sum with what a
process allocates."""

CHARACTER_BYTES = 2
"""Memory counted per character of a text: one byte for ASCII, up to four for others."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine sampled for one choice, and what the client was given; axis legend: S sampled tokens."""

    message: Message
    """The delivered message, with the ids that the gateway minted."""
    sampled_ids: IntArray
    """(S,) int32, as sampled: also tokens that the delivered message lacks (stop strings, a second tool call)."""
    logprobs: FloatArray | None
    """(S,) float32 natural logarithms; ``None`` if the engine did not report them."""
    version_spans: tuple[VersionSpan, ...] = ()
    """Policy versions over ``[0, S)``; empty if unknown."""
    finish_reason: str = "stop"
    """Why sampling stopped."""
    ends_with_stop_token: bool = True
    """Whether the last sampled token ended the answer, and not a stop string or a limit."""
    delivered: bool | None = None
    """Whether the client received all of it; ``None`` if unknown."""


@dataclass(slots=True, eq=False)
class Node:
    """A sampled answer in its conversation; axis legend: C context tokens since the parent's end."""

    key: bytes
    """32 bytes; the keys of what follows derive from it."""
    slot: bytes
    """Key that all variants share."""
    parent: "Node | None"
    """Node whose tokens come before ``context_ids``; ``None`` if ``context_ids`` start the prompt."""
    tenant: str
    scope: str
    """Scope of the session (:mod:`session_identity`) in which it was sampled."""
    trajectory_id: str
    call_id: str
    choice: int
    place: tuple[bytes, int]
    """Hash of the call's id, and the choice: what references name."""
    context_ids: IntArray
    """(C,) int32, between the parent's last token and the first sampled one."""
    context: tuple[Message, ...] | None
    """Messages between the parent's answer and this one; ``None`` if they are not known, after a restart."""
    has_instructions: bool
    """Whether ``context[0]`` is the ``instructions`` of the Responses API."""
    answer: Answer
    length: int
    """Tokens of the conversation up to and including the sampled ones."""
    prefix_sha256: str
    """``schemas.tokens.prefix_hash`` of those tokens."""
    hash: Any
    """The running SHA-256 behind ``prefix_sha256``, from which children continue."""
    consent: bool = True
    """Whether its session may be trained on: what continues it may not be if it may not."""
    purpose: Purpose = Purpose.TRAIN
    """Purpose of its session."""
    children: int = 0
    """Number of nodes whose parent this is."""
    delivered: bool | None = None
    """As in ``answer``, as far as it is known now."""

    @property
    def path(self) -> "list[Node]":
        """This node and its ancestors, from the root."""
        found: list[Node] = []
        node: Node | None = self
        while node is not None:
            found.append(node)
            node = node.parent
        found.reverse()
        return found

    def token_ids(self) -> IntArray:
        """Return the (``length``,) int32 tokens of the conversation up to and including this answer."""
        tokens: IntArray = array("i")
        for node in self.path:
            tokens.extend(node.context_ids)
            tokens.extend(node.answer.sampled_ids)
        return tokens

    def history(self) -> tuple[Message, ...] | None:
        """Return the messages up to and including this answer, without ``instructions``; ``None`` if some of them are
        not known."""
        found: list[Message] = []
        for node in self.path:
            if node.context is None:
                return None
            found += node.context[1:] if node.has_instructions else node.context
            found.append(node.answer.message)
        return tuple(found)

    @property
    def has_reasoning(self) -> bool:
        """Whether any answer up to this one has reasoning, which a template may drop from later prompts."""
        return any(node.answer.message.reasoning for node in self.path)

    @property
    def bytes(self) -> int:
        """Memory of the node, in bytes."""
        answer = self.answer
        numbers = len(self.context_ids) + len(answer.sampled_ids) + len(answer.logprobs or ())
        messages = (*(self.context or ()), answer.message)
        characters = sum(message.characters for message in messages)
        calls = sum(len(message.calls) for message in messages)
        parts = MESSAGE_BYTES * len(messages) + CALL_BYTES * calls
        return NODE_BYTES + parts + 4 * numbers + CHARACTER_BYTES * characters


@dataclass(frozen=True, slots=True)
class Match:
    """How a request relates to the known nodes."""

    node: Node | None
    """The deepest node that the request contains; ``None`` if it contains none."""
    matched: int
    """Number of messages up to and including that node's answer."""
    edited: bool
    """Whether answers follow that no node explains: the history was edited, or is not known any more."""
    context_key: bytes
    """Key of the whole request: two requests with the same key have the same prompt."""
    opening_key: bytes
    """Key of the messages before the first answer."""


def root_key(salt: bytes, tenant: str, template: str, request: CanonicalRequest) -> bytes:
    """Return the key under which conversations of ``tenant`` start.

    ``salt``: a secret, without which a key on the log tells nothing, also not whether a guess of its messages is right.
    ``template``: identity of the chat template.
    """
    named = (tenant.encode(), request.model.encode(), template.encode())
    return digest_of(salt, *named, request.tools, request.template_kwargs.encode())


def _below(key: bytes, digest: bytes) -> bytes:
    return hashlib.sha256(key + digest).digest()  # both have 32 bytes


class NodeStore:
    """The nodes of all tenants, bounded by memory."""

    def __init__(self, max_bytes: int) -> None:
        """``max_bytes``: memory of all nodes, as :attr:`Node.bytes` counts it."""
        self._slots: dict[bytes, list[Node]] = {}
        self._by_place: TenantCache[tuple[bytes, int], Node] = TenantCache(max_bytes)

    def __len__(self) -> int:
        return len(self._by_place)

    def __iter__(self) -> Iterator[Node]:
        """Yield all nodes, each tenant's least recently used first."""
        return iter(self._by_place)

    def match(
        self,
        tenant: str,
        root: bytes,
        messages: Sequence[Message],
        *,
        scope: str | None = None,
        named: Callable[[Message], Reference | None] = lambda _: None,
    ) -> Match:
        """Return the deepest node that ``messages`` contain.

        ``root``: :func:`root_key`. ``scope``: the request's scope, which is preferred among variants. ``named``:
        returns what an id in a message refers to that the gateway minted, preferred above all.
        """
        key, opening, deepest, matched, edited = root, None, None, 0, False
        for index, message in enumerate(messages):
            above, key = key, _below(key, message.digest)
            if message.role is not MessageRole.ASSISTANT:
                continue
            if opening is None:
                opening = above
            node = self._variant(tenant, key, message, scope, named)
            if node is None:
                edited = True
            else:
                key, deepest, matched, edited = node.key, node, index + 1, False
        return Match(deepest, matched, edited, key, key if opening is None else opening)

    def find(self, tenant: str, reference: Reference) -> Node | None:
        """Return the node that ``reference`` names, if it is still known and belongs to ``tenant``."""
        return self._by_place.get(tenant, (reference.call, reference.choice))

    def add(
        self,
        match: Match,
        base: Node | None,
        *,
        tenant: str,
        scope: str,
        trajectory_id: str,
        call_id: str,
        choice: int,
        prompt_ids: IntArray,
        context: tuple[Message, ...],
        has_instructions: bool,
        answer: Answer,
        consent: bool,
        purpose: Purpose,
    ) -> Node:
        """Store an answer to the request of ``match``.

        ``base``: the node whose tokens begin ``prompt_ids``; ``None`` if the prompt does not continue one exactly.
        ``context``: the request's messages after ``base``, all of them without one.
        """
        slot = _below(match.context_key, answer.message.digest)
        return self.put(
            base,
            key=digest_of(slot, call_id.encode(), b"%d" % choice) if slot in self._slots else slot,
            slot=slot,
            tenant=tenant,
            scope=scope,
            trajectory_id=trajectory_id,
            call_id=call_id,
            choice=choice,
            context_ids=prompt_ids[0 if base is None else base.length :],  # a copy: the caller's array may change
            context=context,
            has_instructions=has_instructions,
            answer=answer,
            consent=consent,
            purpose=purpose,
        )

    def put(
        self,
        base: Node | None,
        *,
        key: bytes,
        slot: bytes,
        tenant: str,
        scope: str,
        trajectory_id: str,
        call_id: str,
        choice: int,
        context_ids: IntArray,
        context: tuple[Message, ...] | None,
        has_instructions: bool,
        answer: Answer,
        consent: bool,
        purpose: Purpose,
    ) -> Node:
        """Store a node whose keys are known. Gateways that share a log may have given one key to several nodes."""
        running = hashlib.sha256() if base is None else base.hash.copy()
        running.update(token_bytes(context_ids))
        running.update(token_bytes(answer.sampled_ids))
        node = Node(
            key=key,
            slot=slot,
            parent=base,
            tenant=tenant,
            scope=scope,
            trajectory_id=trajectory_id,
            call_id=call_id,
            choice=choice,
            place=(call_hash(call_id), choice),
            context_ids=context_ids,
            context=context,
            has_instructions=has_instructions,
            answer=answer,
            length=(0 if base is None else base.length) + len(context_ids) + len(answer.sampled_ids),
            prefix_sha256=running.hexdigest(),
            hash=running,
            consent=consent,
            purpose=purpose,
            delivered=answer.delivered,
        )
        self._slots.setdefault(slot, []).append(node)
        if base is not None:
            base.children += 1
        if (former := self._by_place.put(tenant, node.place, node, node.bytes)) is not None:
            self._unlink(former)
        self.touch(node)
        for forgotten in self._by_place.make_room():
            self._unlink(forgotten)
        return node

    def touch(self, node: Node) -> None:
        """Mark ``node`` as used, and its ancestors after it: none of them is forgotten before it."""
        current: Node | None = node
        while current is not None:
            if self._by_place.get(current.tenant, current.place) is current:
                self._by_place.touch(current.tenant, current.place)
            current = current.parent

    def _variant(
        self,
        tenant: str,
        slot: bytes,
        message: Message,
        scope: str | None,
        named: Callable[[Message], Reference | None],
    ) -> Node | None:
        # A key contains the tenant; it is checked again because everything depends on it.
        variants = [
            node
            for node in self._slots.get(slot, ())
            if node.tenant == tenant and (not message.reasoning or message.reasoning == node.answer.message.reasoning)
        ]
        if len(variants) < 2:
            return variants[0] if variants else None
        reference = named(message)
        chosen = None if reference is None else self.find(tenant, reference)
        if chosen in variants:
            return chosen
        return next((node for node in reversed(variants) if node.scope == scope), variants[-1])

    def _unlink(self, node: Node) -> None:
        variants = self._slots[node.slot]
        variants.remove(node)
        if not variants:
            del self._slots[node.slot]
        if node.parent is not None:
            node.parent.children -= 1

    @property
    def bytes(self) -> int:
        """Memory of all nodes now."""
        return self._by_place.bytes


def references_of(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the texts in ``messages`` that may be ids that the gateway minted, the latest first."""
    for message in reversed(messages):
        yield from message.echoed
        for call in message.calls:
            yield call.call_id
        if isinstance(message.answers, str):
            yield message.answers
