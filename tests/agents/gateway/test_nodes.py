"""Nodes: the deepest known answer is found, by tenant, session and minted id, within a bounded memory."""

import tracemalloc
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agents.gateway.canonical import Api, CanonicalRequest, Message, MessageRole, assistant, call_of
from headrace.agents.gateway.nodes import Answer, Match, Node, NodeStore, references_of, root_key
from headrace.agents.gateway.sealed import Reference, call_hash
from headrace.schemas.events import Purpose
from headrace.schemas.tokens import prefix_hash

ROOT = b"r" * 32


def user(text: str) -> Message:
    return Message.of(MessageRole.USER, (text,))


class Tree:
    """A store, and answers of a few tokens."""

    def __init__(self, max_bytes: int = 10**9) -> None:
        self.store = NodeStore(max_bytes)
        self.calls = 0

    def match(self, *messages: Message, tenant: str = "acme", root: bytes = ROOT, **how: Any) -> Match:
        return self.store.match(tenant, root, messages, **how)

    def sample(
        self, *messages: Message, answer: Message, scope: str = "s", tenant: str = "acme", call_id: str = ""
    ) -> Node:
        """Sample ``answer`` to ``messages``: two context tokens a message, and three sampled ones."""
        self.calls += 1
        match = self.match(*messages, scope=scope, tenant=tenant)
        base = match.node
        known = array("i") if base is None else base.token_ids()
        new = messages[match.matched :]
        return self.store.add(
            match,
            base,
            tenant=tenant,
            scope=scope,
            trajectory_id=f"t-{scope}",
            call_id=call_id or f"c{self.calls}",
            choice=0,
            prompt_ids=known + array("i", [self.calls, 7] * len(new)),
            context=tuple(new),
            has_instructions=False,
            answer=Answer(answer, array("i", [self.calls, 8, 9]), array("f", [-1.0] * 3)),
            consent=True,
            purpose=Purpose.TRAIN,
        )


def test_the_deepest_answer_is_found() -> None:
    tree = Tree()
    a, b = assistant("a"), assistant("b")
    first = tree.sample(user("1"), answer=a)
    second = tree.sample(user("1"), a, user("2"), answer=b)
    assert tree.match(user("1"), a).node is first
    match = tree.match(user("1"), a, user("2"), b, user("3"))
    assert (match.node, match.matched, match.edited) == (second, 4, False)
    assert second.parent is first


def test_tokens_are_those_of_all_answers_up_to_the_node() -> None:
    tree = Tree()
    a = assistant("a")
    first = tree.sample(user("1"), answer=a)
    second = tree.sample(user("1"), a, user("2"), answer=assistant("b"))
    assert first.token_ids() == array("i", [1, 7, 1, 8, 9])
    assert second.token_ids() == first.token_ids() + array("i", [2, 7, 2, 8, 9])
    assert second.context_ids == array("i", [2, 7])
    assert second.prefix_sha256 == prefix_hash(second.token_ids())
    assert second.length == len(second.token_ids())


def test_no_tenant_loses_answers_because_another_has_many() -> None:
    tree = Tree(max_bytes=20_000)
    small = tree.sample(user("1"), answer=assistant("a"), tenant="small")
    large = [tree.sample(user(str(n)), answer=assistant("b"), tenant="large") for n in range(100)]
    assert tree.match(user("1"), assistant("a"), tenant="small").node is small
    kept = [tree.match(user(str(n)), assistant("b"), tenant="large").node is node for n, node in enumerate(large)]
    assert kept == sorted(kept)  # of these the latest
    assert any(kept)
    assert not all(kept)
    assert tree.store.bytes == sum(node.bytes for node in tree.store) <= 20_000


def test_an_unknown_answer_below_a_known_one_is_an_edit() -> None:
    tree = Tree()
    a = assistant("a")
    first = tree.sample(user("1"), answer=a)
    match = tree.match(user("1"), a, user("2"), assistant("x"), user("3"))
    assert (match.node, match.matched, match.edited) == (first, 2, True)


def test_examples_of_the_developer_are_context() -> None:
    tree = Tree()
    shots = (user("1+1"), assistant("2"), user("2+2"))
    node = tree.sample(*shots, answer=assistant("4"))
    assert node.parent is None
    match = tree.match(*shots, assistant("4"), user("more"))
    assert (match.node, match.edited) == (node, False)
    assert match.opening_key == tree.match(*shots).opening_key


def test_a_different_opening_has_a_different_key() -> None:
    tree = Tree()
    keys = {tree.match(user(text), assistant("a"), user("x")).opening_key for text in "123"}
    assert len(keys) == 3


@pytest.mark.parametrize("field", ["tenant", "root"])
def test_another_tenant_or_root_finds_nothing(field: str) -> None:
    tree = Tree()
    tree.sample(user("1"), answer=assistant("a"))
    other: dict[str, Any] = {"tenant": "other"} if field == "tenant" else {"root": b"q" * 32}
    assert tree.match(user("1"), assistant("a"), **other).node is None


def test_another_tenant_finds_nothing_even_under_the_same_root() -> None:
    # Keys contain the tenant; should one ever not, the node is still not returned.
    tree = Tree()
    node = tree.sample(user("1"), answer=assistant("a"), call_id="c")
    assert tree.match(user("1"), assistant("a"), tenant="other", root=ROOT).node is None
    reference = Reference(call_hash("c"))
    assert tree.store.find("acme", reference) is node
    assert tree.store.find("other", reference) is None


def test_a_node_is_found_by_the_id_of_its_call_and_its_choice() -> None:
    tree = Tree()
    tree.sample(user("1"), answer=assistant("a"), call_id="c")
    assert tree.store.find("acme", Reference(call_hash("c"), choice=1)) is None
    assert tree.store.find("acme", Reference(call_hash("d"))) is None


def test_of_equal_answers_the_session_s_own_is_preferred_then_the_newest() -> None:
    tree = Tree()
    nodes = [tree.sample(user("1"), answer=assistant("a"), scope=scope) for scope in ("s1", "s2", "s3")]
    assert len({node.key for node in nodes}) == 3
    found = [tree.match(user("1"), assistant("a"), scope=scope).node for scope in ("s1", "s2", "s4", None)]
    assert found == [nodes[0], nodes[1], nodes[2], nodes[2]]


def test_of_equal_answers_the_one_that_a_minted_id_names_is_preferred_above_all() -> None:
    tree = Tree()
    nodes = [tree.sample(user("1"), answer=assistant("a"), scope=scope) for scope in ("s1", "s2")]
    reference = Reference(call_hash(nodes[1].call_id))
    assert tree.match(user("1"), assistant("a"), scope="s1", named=lambda _: reference).node is nodes[1]


def test_what_follows_equal_answers_stays_apart() -> None:
    tree = Tree()
    a = assistant("a")
    below = []
    for scope in ("s1", "s2"):
        tree.sample(user("1"), answer=a, scope=scope)
        below.append(tree.sample(user("1"), a, user("2"), answer=assistant("b"), scope=scope))
    conversation = (user("1"), a, user("2"), assistant("b"))
    assert [tree.match(*conversation, scope=scope).node for scope in ("s1", "s2")] == below


def test_reasoning_that_was_sent_back_chooses_among_equal_answers() -> None:
    tree = Tree()
    nodes = [tree.sample(user("1"), answer=assistant("a", reasoning=text)) for text in ("x", "y")]
    assert tree.match(user("1"), assistant("a", reasoning="x")).node is nodes[0]
    assert tree.match(user("1"), assistant("a", reasoning="z")).node is None
    assert tree.match(user("1"), assistant("a")).node is nodes[1]


def test_the_history_of_a_node_is_its_conversation() -> None:
    tree = Tree()
    a, b = assistant("a"), assistant("b")
    tree.sample(user("1"), answer=a)
    node = tree.sample(user("1"), a, user("2"), answer=b)
    assert node.history() == (user("1"), a, user("2"), b)


def test_memory_is_bounded_and_a_node_is_never_forgotten_before_its_descendants() -> None:
    tree = Tree(max_bytes=30_000)
    history: tuple[Message, ...] = (user("0"),)
    for number in range(30):
        answer = assistant(f"a{number}")
        node = tree.sample(*history, answer=answer)
        history = (*history, answer, user(f"u{number}"))
        assert tree.store.bytes <= 30_000
        if node.parent is not None:
            assert node.token_ids() == node.parent.token_ids() + node.context_ids + node.answer.sampled_ids
    assert 0 < len(tree.store) < 30


branches = st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["touch", "sample"])), max_size=40)


@given(branches)
@settings(deadline=None)
def test_in_any_order_of_use_parents_outlive_their_children(steps: list[tuple[int, str]]) -> None:
    tree = Tree(max_bytes=20_000)
    known: list[tuple[Node, tuple[Message, ...]]] = [
        (tree.sample(user("0"), answer=assistant("a")), (user("0"), assistant("a")))
    ]
    for number, (which, step) in enumerate(steps):
        node, conversation = known[which % len(known)]
        if step == "touch":
            tree.store.touch(node)
        else:
            question, answer = user(f"u{number}"), assistant(f"a{number}")
            known.append((tree.sample(*conversation, question, answer=answer), (*conversation, question, answer)))
        kept = {id(each) for each, messages in known if tree.match(*messages).node is each}
        for each, _ in known:
            if id(each) in kept and each.parent is not None:
                assert id(each.parent) in kept
        assert tree.store.bytes == sum(each.bytes for each, _ in known if id(each) in kept)


def test_a_forgotten_node_is_found_in_no_way() -> None:
    tree = Tree(max_bytes=5_000)
    nodes = [tree.sample(user(str(number)), answer=assistant("a"), call_id=str(number)) for number in range(10)]
    assert tree.match(user("0"), assistant("a")).node is None
    assert tree.store.find("acme", Reference(call_hash("0"))) is None
    assert tree.match(user("9"), assistant("a")).node is nodes[9]


def test_the_counted_memory_covers_arrays_and_texts() -> None:
    tree = Tree()
    small = tree.sample(user("1"), answer=assistant("a")).bytes
    large = tree.sample(user("x" * 1000), answer=assistant("y" * 1000)).bytes
    assert large - small == 2 * 1998


@pytest.mark.parametrize("messages", [1, 4])
@pytest.mark.parametrize("calls", [0, 3])
def test_the_counted_memory_is_at_least_what_a_node_takes_and_less_than_twice_that(messages: int, calls: int) -> None:
    tree, number = Tree(), 500
    tracemalloc.start()
    try:
        for each in range(number):
            made = tuple(call_of(f"call-{each}-{at}", f"tool {at}", f'{{"k": "{each}"}}', "x") for at in range(calls))
            asked = [user(f"question {each} {at} " + "x" * 50) for at in range(messages)]
            tree.sample(*asked, answer=assistant(f"answer {each} " + "y" * 50, made))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken <= tree.store.bytes < 2 * taken


def test_the_root_depends_on_all_that_shapes_a_prompt() -> None:
    request = CanonicalRequest(Api.CHAT, "m", (user("x"),))
    roots = {
        root_key(b"salt", "acme", "t", request),
        root_key(b"pepper", "acme", "t", request),
        root_key(b"salt", "other", "t", request),
        root_key(b"salt", "acme", "u", request),
        root_key(b"salt", "acme", "t", CanonicalRequest(Api.CHAT, "n", ())),
        root_key(b"salt", "acme", "t", CanonicalRequest(Api.CHAT, "m", (), tools=b"x")),
        root_key(b"salt", "acme", "t", CanonicalRequest(Api.CHAT, "m", (), template_kwargs='{"a":1}')),
    }
    assert len(roots) == 7
    assert root_key(b"salt", "acme", "t", CanonicalRequest(Api.MESSAGES, "m", ())) in roots


def test_ids_are_looked_for_from_the_end() -> None:
    calls = (call_of("c1", "t", {}, "x"), call_of("c2", "t", {}, "x"))
    messages = (assistant("", calls, echoed=("sig",)), Message.of(MessageRole.TOOL, ("r",), answers="orphan"))
    assert list(references_of(messages)) == ["orphan", "sig", "c1", "c2"]
