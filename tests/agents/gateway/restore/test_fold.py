"""A killed gateway continues where its log ends: exact tokens, the next number, the same decisions."""

import copy
import random
from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agents.gateway.canonical import Api, BadRequest, to_chat
from headrace.agents.gateway.capture import Tenant
from headrace.agents.gateway.continuation import Outcome
from headrace.agents.gateway.nodes import NodeStore
from headrace.agents.gateway.record import ABORTED, TrajectoryEvent
from headrace.agents.gateway.restore.fold import SOURCES, Latest, Restored, RestoreFold
from headrace.agents.gateway.sealed import Sealer
from headrace.agents.gateway.session_identity import SessionIdentity, Source
from headrace.agents.gateway.sessions import SessionStore
from headrace.agents.gateway.terms import TenantPolicy
from headrace.schemas.events import (
    EndStatus,
    ModelCalled,
    Purpose,
    SubagentFinished,
    SubagentStarted,
    ToolCalled,
    TrajectoryStarted,
)
from tests.agents.gateway.harness import ChatClient, Gateway, Reply, render, task, tool
from tests.agents.gateway.restore.rebirth import SOURCE, fold_of, reborn, record_of, records_of

TEXT = "This text is long enough to be recognised when a later request of the session quotes it."


def agent(gateway: Gateway, url: str | None = "s1", **fields: Any) -> ChatClient:
    return ChatClient(gateway, url=url, **fields).say("You are an agent.", "system").say("Say hello.")


def restored_from(records: Any, latest: Latest = Latest.OF_ALL, **how: Any) -> tuple[Restored, NodeStore, SessionStore]:
    nodes, sessions = NodeStore(10**9), SessionStore(100)
    return fold_of(records, **how).restore(nodes, sessions, latest), nodes, sessions


def test_a_conversation_continues() -> None:
    first = agent(Gateway())
    first.turn("one", "1")
    gateway, found = reborn(first.gateway)
    assert (found.nodes, found.sessions, found.trajectories, found.left_out) == (1, 1, 1, 0)
    first.gateway = gateway
    reply = first.turn("two", "2")
    assert reply.outcome is Outcome.CONTINUATION
    assert [event.seq for event in reply.events] == [3, 4, 5]
    assert gateway.types()[3:] == ["tool.returned", "model.called", "tool.called"]
    assert gateway.assert_exact() == 1


def test_records_may_come_in_any_order_and_twice() -> None:
    client = agent(Gateway())
    for number in range(5):
        client.turn(f"t{number}", "out")
    records = records_of(client.gateway.log) * 2
    random.Random(1).shuffle(records)
    found, _, sessions = restored_from(records)
    assert (found.nodes, found.left_out, found.trajectories) == (5, 0, 1)
    session = sessions.get("acme", "s1")
    assert session is not None
    assert session.main is not None
    assert (session.main.seq, session.main.calls) == (len(client.gateway.log), 5)


def test_an_answer_without_its_prefix_is_left_out_and_the_next_turn_starts_a_segment() -> None:
    client = agent(Gateway())
    for number in range(3):
        client.turn(f"t{number}", "out")
    log = list(client.gateway.log)
    lost = [number for number, event in enumerate(log) if isinstance(event.fact, ModelCalled)][1]
    records = records_of(log)
    del records[lost]
    client.gateway = Gateway(log=log, ids="next", now_ms=client.gateway.now_ms)
    found = fold_of(records).restore(client.gateway.nodes, client.gateway.sessions, Latest.OF_ALL)
    assert (found.nodes, found.left_out) == (1, 1)
    reply = client.turn("on", "out")
    assert reply.outcome is Outcome.EDITED
    assert reply.plan.decision.base is not None
    assert client.gateway.assert_exact() == 2


def test_what_does_not_continue_an_answer_without_its_prefix_is_restored() -> None:
    client = agent(Gateway())
    client.turn("t0", "out")
    kept = copy.deepcopy(client.messages)
    client.turn("t1", "out")
    client.turn("t2", "out")
    client.messages[:] = kept
    client.turn("another", "out")
    records = records_of(client.gateway.log)
    del records[[at for at, event in enumerate(client.gateway.log) if isinstance(event.fact, ModelCalled)][1]]
    found, _, _ = restored_from(records)
    assert (found.nodes, found.left_out) == (2, 1)


def test_nothing_is_given_up_within_the_memory() -> None:
    gateway = Gateway()
    for name in range(5):
        agent(gateway, f"s{name}").turn("t", "out")
    records = records_of(gateway.log)
    size = fold_of(records)._size
    assert restored_from(records, max_bytes=size)[0].trajectories == 5
    assert restored_from(records, max_bytes=size - 1)[0].trajectories < 5


def test_a_changed_payload_is_not_believed() -> None:
    client = agent(Gateway())
    client.turn("one", "1")
    records = records_of(client.gateway.log)
    call = next(event for event in client.gateway.log if isinstance(event.fact, ModelCalled))
    forged = TrajectoryEvent(
        call.trajectory_id, call.seq, call.fact.model_copy(update={"sampled_ids": array("i", [7] * 3)}), call.note
    )
    place = client.gateway.log.index(call)
    records[place] = replace(records[place], value=record_of(forged, 0).value)
    found, nodes, sessions = restored_from(records)
    assert (found.nodes, len(nodes)) == (0, 0)
    session = sessions.get("acme", "s1")
    assert session is not None
    assert session.main is not None
    assert session.main.seq == 3, "its number is taken"


def test_a_record_that_is_nested_too_deeply_only_takes_its_number() -> None:
    """Other programs write to the topic, too, and one record must not keep a gateway from starting."""
    client = agent(Gateway())
    client.turn("one", "1")
    records = records_of(client.gateway.log)
    place = next(at for at, event in enumerate(client.gateway.log) if isinstance(event.fact, ToolCalled))
    nested = b'{"call_id":"c","tool":"t","more":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    records[place] = replace(records[place], value=nested)
    fold = fold_of(records)
    assert (fold.events, fold.refused) == (3, 1)
    assert fold.restore(NodeStore(10**9), SessionStore(100), Latest.OF_ALL).trajectories == 1


def test_a_note_is_worth_nothing_beside_another_event() -> None:
    client = agent(Gateway())
    client.turn("one", "1")
    moved = [TrajectoryEvent("elsewhere", event.seq, event.fact, event.note) for event in client.gateway.log]
    records = records_of(client.gateway.log)
    for record, other in zip(records, records_of(moved), strict=True):
        headers = dict(other.headers) | {name: value for name, value in record.headers if name == "headrace_gateway"}
        other.headers[:] = headers.items()
        found, _, _ = restored_from([other])
        assert (found.nodes, found.trajectories) == (0, 0)


def test_another_secret_restores_nothing() -> None:
    client = agent(Gateway())
    client.turn("one", "1")
    fold = RestoreFold(Sealer([b"another secret.."]), source=SOURCE, max_bytes=10**9)
    for record in records_of(client.gateway.log):
        fold.add(record.headers, record.value)
    found = fold.restore(NodeStore(10**9), SessionStore(10), Latest.OF_ALL)
    assert (found.nodes, found.sessions, fold.refused) == (0, 0, 2)


def test_records_of_others_are_passed_over() -> None:
    client = agent(Gateway())
    client.turn("one", "1")
    fold = fold_of(records_of(client.gateway.log, source="/agents/checkout"))
    fold.add([], b"{}")
    fold.add([("ce_source", SOURCES.encode())], b"{}")
    fold.add([("ce_source", SOURCES.encode())], None)
    assert (fold.events, fold.refused) == (0, 1)


def test_another_gateways_conversation_is_resumed_with_exact_tokens() -> None:
    client = agent(Gateway(), None)
    client.turn("one", "1")
    gateway, found = reborn(client.gateway, source=SOURCES + "two")
    assert (found.nodes, found.sessions) == (1, 0)
    client.gateway = gateway
    reply = client.turn("two", "2")
    assert reply.outcome is Outcome.RESUMED
    assert reply.plan.decision.base is not None
    assert reply.trajectory != gateway.log[0].trajectory_id
    gateway.assert_exact()
    third = client.turn("three", "3")
    assert third.outcome is Outcome.CONTINUATION
    _, found = reborn(gateway)
    assert found.left_out == 0


def test_a_trajectory_whose_end_or_beginning_is_on_the_log_or_missing_does_not_continue() -> None:
    client = agent(Gateway())
    client.turn("one", "1")
    open_log = list(client.gateway.log)
    client.gateway.log += client.gateway.core.end("acme", "s1")
    ended, begun = records_of(client.gateway.log), records_of(open_log)
    assert restored_from(ended)[0].trajectories == 0
    assert restored_from(begun)[0].trajectories == 1
    strange = record_of(client.gateway.log[-1], 0, SOURCES + "another")
    assert restored_from([*begun, strange])[0].trajectories == 1, "it cannot be ended by another gateway"
    found, nodes, _ = restored_from(begun[1:])
    assert (found.trajectories, len(nodes)) == (0, 1)
    assert fold_of(begun[1:]).unbegun() == {open_log[0].trajectory_id}
    assert fold_of(begun).unbegun() == fold_of(ended[1:]).unbegun() == frozenset()


@pytest.mark.parametrize(("latest", "spooled", "open_now"), [
    (Latest.OF_ALL, 0, 1), (Latest.OF_SPOOLED, 0, 0), (Latest.OF_SPOOLED, 1, 1), (Latest.OF_NONE, 1, 0),
])  # fmt: skip
def test_only_what_is_certain_of_its_latest_number_continues(latest: Latest, spooled: int, open_now: int) -> None:
    client = agent(Gateway())
    client.turn("one", "1")
    fold, nodes, sessions = fold_of([]), NodeStore(10**9), SessionStore(10)
    for number, record in enumerate(records_of(client.gateway.log)):
        fold.add(record.headers, record.value, is_spooled=number >= len(client.gateway.log) - spooled)
    found = fold.restore(nodes, sessions, latest)
    assert (found.trajectories, found.nodes) == (open_now, 1)


def test_the_trajectories_that_are_silent_longest_are_given_up_beyond_the_memory() -> None:
    gateway = Gateway()
    for name in range(20):
        agent(gateway, f"s{name}").turn("t", "out")
    records = records_of(gateway.log)
    found, _, sessions = restored_from(records, max_bytes=10_000)
    assert 0 < found.trajectories < 10
    assert sessions.get("acme", "s19") is not None
    # What was given up stays so, also if more of it follows.
    found, _, _ = restored_from([*records, *records], max_bytes=10_000)
    assert found.trajectories < 20
    fold = fold_of(records, max_bytes=10_000)
    late = TrajectoryEvent(gateway.log[0].trajectory_id, 9, gateway.log[2].fact)
    fold.add(record_of(late, 1_790_009_000_000).headers, record_of(late, 0).value)
    nodes, sessions = NodeStore(10**9), SessionStore(100)
    fold.restore(nodes, sessions, Latest.OF_ALL)
    assert sessions.get("acme", "s0") is None


def test_a_masked_session_continues_without_tokens() -> None:
    tenant = Tenant("acme", TenantPolicy(masked=True))
    client = agent(Gateway())
    reply = client.gateway.ask(
        Api.CHAT, client.body(), TEXT, url="s1", tenant=tenant, answer={"calls": [("bash", {"k": "v"})]}
    )
    client.keep(reply)
    client.result(reply, "secret")
    for note in (event.note for event in client.gateway.log):
        assert note is None or b"This text" not in note
    gateway, found = reborn(client.gateway)
    assert (found.nodes, found.trajectories) == (0, 1)
    after = gateway.ask(Api.CHAT, client.body(), "x", url="s1")
    assert after.outcome is Outcome.EDITED
    assert after.plan.session.terms.masked
    assert [event.seq for event in after.events] == [3, 4]
    assert gateway.types()[3:] == ["tool.returned", "model.called"]


def test_choices_are_told_apart_by_their_ids() -> None:
    client = agent(Gateway())
    first = client.ask("same", "same", n=2, calls=[("bash", {"a": 1})])
    client.keep(first, choice=1)
    client.result(first, "out", choice=1)
    gateway, found = reborn(client.gateway)
    assert found.nodes == 2
    client.gateway = gateway
    second = client.ask("done")
    assert second.outcome is Outcome.CONTINUATION
    assert second.plan.decision.base is not None
    assert second.plan.decision.base.choice == 1
    assert gateway.types()[3:] == ["tool.called", "tool.returned", "model.called"]
    client.keep(second)
    client.gateway, _ = reborn(gateway, ids="third")
    session = client.gateway.sessions.get("acme", "s1")
    assert session is not None
    assert session.main is not None
    assert session.main.calls == 2
    third = client.say("more").ask("x")
    assert third.outcome is Outcome.CONTINUATION
    client.gateway.assert_exact()


def test_what_continued_the_second_of_equal_choices_continues() -> None:
    client = agent(Gateway())
    client.keep(client.ask("same", "same", n=2), choice=1)
    client.say("more").turn("one", "1")
    client.gateway, _ = reborn(client.gateway)
    assert client.ask("x").outcome is Outcome.CONTINUATION
    client.gateway.assert_exact()


def test_both_branches_of_a_fork_continue() -> None:
    client = agent(Gateway())
    client.turn("one", "1")
    branches = [copy.copy(client), copy.copy(client)]
    for number, branch in enumerate(branches):
        branch.messages = [*client.messages, {"role": "user", "content": f"branch {number}"}]
        branch.turn(f"b{number}", "out")
    gateway, found = reborn(client.gateway)
    assert found.nodes == 3
    for branch in branches:
        branch.gateway = gateway
        assert branch.ask("x").outcome is Outcome.CONTINUATION
    client.gateway = gateway
    assert client.say("third").ask("y").outcome is Outcome.REWOUND
    assert gateway.assert_exact() == 3


def test_a_sub_agent_and_the_tool_call_that_started_it_continue() -> None:
    main = agent(Gateway(), tools=[tool("task")])
    main.turn("one", "1")
    spawn = main.ask(calls=[("task", {"prompt": "Find every greeting in the file."})])
    main.keep(spawn)
    sub = ChatClient(main.gateway, url="s1").say("Find every greeting in the file.")
    sub.turn("looking", "one greeting")
    gateway, found = reborn(main.gateway)
    assert (found.trajectories, found.sessions) == (2, 1)
    main.gateway = sub.gateway = gateway
    assert sub.ask("There is one.").outcome is Outcome.CONTINUATION
    main.result(spawn, "There is one.")
    assert main.ask("Done.").outcome is Outcome.CONTINUATION
    main_id = gateway.log[0].trajectory_id
    assert gateway.types(main_id)[-3:] == ["tool.returned", "subagent.finished", "model.called"]
    stages = [fact.stage for fact in gateway.facts() if isinstance(fact, SubagentStarted | SubagentFinished)]
    assert stages == [2, 2]
    gateway.assert_exact()


def test_a_sub_agent_is_known_by_a_tool_call_from_before_the_restart() -> None:
    main = agent(Gateway(), tools=[tool("task")])
    main.keep(main.ask(calls=[("task", {"prompt": "Find every greeting in the file."})]))
    gateway, _ = reborn(main.gateway)
    sub = ChatClient(gateway, url="s1").say("Find every greeting in the file.").ask("none")
    assert sub.outcome is Outcome.SUBAGENT
    started = next(event.fact for event in sub.events if isinstance(event.fact, TrajectoryStarted))
    assert started.parent_trajectory_id == gateway.log[0].trajectory_id


def test_a_compaction_is_known_by_a_summary_from_before_the_restart() -> None:
    client = agent(Gateway())
    client.turn("one", "1")
    client.say("Summarise.").keep(client.ask(TEXT))
    gateway, _ = reborn(client.gateway)
    after = ChatClient(gateway, url="s1").say("You are an agent.", "system").say(f"So far: {TEXT}").ask("on")
    assert after.outcome is Outcome.COMPACTION
    assert "context.summarized" in gateway.types()
    gateway.assert_exact()


@pytest.mark.parametrize("content", ["Find boots.", [{"type": "input_text", "text": "Find"},
                                                     {"type": "input_text", "text": ""},
                                                     {"type": "input_text", "text": "boots.\nNow"}]])  # fmt: skip
def test_a_response_is_continued_whose_history_only_the_log_has(content: Any) -> None:
    gateway = Gateway()
    body = {"model": "policy", "instructions": "Be brief.", "input": [{"role": "user", "content": content}]}
    first = gateway.ask(Api.RESPONSES, body, "", answer={"calls": [("bash", {"b": [1.0, "é"], "a": None})]})
    outputs = [
        {"type": "function_call_output", "call_id": first.message.calls[0].call_id, "output": "out"},
        {"type": "function_call_output", "call_id": "unknown", "output": "lost"},
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": '{"a":1}'},
    ]
    second = gateway.ask(Api.RESPONSES, body | {"input": outputs, "previous_response_id": first.ids[0]}, "found")
    after, _ = reborn(gateway)
    third = {"model": "policy", "instructions": "Be brief.", "input": "On.", "previous_response_id": second.ids[0]}
    expected = gateway.ask(Api.RESPONSES, third, "x")
    reply = after.ask(Api.RESPONSES, third, "x")
    restored, known = reply.plan.request.messages, expected.plan.request.messages
    assert [each.digest for each in restored] == [each.digest for each in known]
    assert [each.texts for each in restored] == [each.texts for each in known]
    assert to_chat(restored) == to_chat(known)
    assert reply.prompt == expected.prompt
    assert reply.outcome is expected.outcome
    after.assert_exact()


def test_a_history_that_the_log_does_not_have_is_an_error_of_the_client() -> None:
    client = agent(Gateway(), None)
    first = client.turn("one", "1")
    gateway, _ = reborn(client.gateway)
    with pytest.raises(BadRequest, match="send the whole input"):
        gateway.begin(Api.RESPONSES, {"model": "policy", "input": "x", "previous_response_id": first.ids[0]})


def test_a_session_that_was_opened_waits_for_its_first_request() -> None:
    gateway = Gateway()
    opened = gateway.core.open(
        Tenant("acme"), SessionIdentity("s1", Source.URL), task(group_id="g", group_size=2), now_ms=1
    )
    assert opened is not None
    gateway.log += opened[1]
    after, _ = reborn(gateway)
    reply = agent(after).turn("one", "1")
    assert (reply.outcome, reply.trajectory) == (Outcome.NEW_TRAJECTORY, opened[0])
    assert after.core.open(Tenant("acme"), SessionIdentity("s1", Source.URL), task(), now_ms=2) is None
    after.assert_exact()


@pytest.mark.parametrize(
    ("rate", "consent", "purpose"),
    [(0.999, True, Purpose.EVALUATE), (1.0, False, Purpose.TRAIN), (1.0, True, Purpose.TRAIN)],
)
def test_the_terms_of_a_session_outlive_a_kill(rate: float, consent: bool, purpose: Purpose) -> None:
    gateway = Gateway()
    opened = gateway.core.open(
        Tenant("acme", TenantPolicy(sample_rate=rate)),
        SessionIdentity("s1", Source.URL),
        task(purpose=purpose),
        now_ms=1,
        consent=consent,
    )
    assert opened is not None
    gateway.log += opened[1]
    before = gateway.sessions.get("acme", "s1")
    assert before is not None
    assert (before.terms.sample_rate, before.terms.consent, before.terms.purpose) == (rate, consent, purpose)
    after = reborn(gateway)[0].sessions.get("acme", "s1")
    assert after is not None
    assert after.terms == before.terms


def test_a_call_that_the_kill_interrupted_is_asked_again_in_its_trajectory() -> None:
    client = agent(Gateway())
    plan = client.gateway.begin(Api.CHAT, client.body(), url="s1")
    assert plan.state is not None
    client.gateway, _ = reborn(client.gateway)
    reply = client.turn("one", "1")
    assert (reply.outcome, reply.trajectory) == (Outcome.NEW_TRAJECTORY, plan.state.trajectory_id)
    client.gateway.assert_exact()


def test_a_side_conversation_that_the_kill_interrupted_is_asked_again_in_its_trajectory() -> None:
    client = agent(Gateway())
    client.turn("one", "1")
    side = ChatClient(client.gateway, url="s1").say("Is it safe?")
    plan = side.gateway.begin(Api.CHAT, side.body(), url="s1")
    side.gateway, _ = reborn(client.gateway)
    reply = side.ask("yes")
    assert plan.state is not None
    assert (plan.decision.outcome, reply.trajectory) == (Outcome.SIDE, plan.state.trajectory_id)


def test_codex_counts_its_windows_on() -> None:
    def headers(window: int) -> dict[str, str]:
        return {"session-id": "c1", "x-codex-window-id": f"c1:{window}"}

    client = agent(Gateway(), None, headers=headers(4))
    client.turn("one", "1")
    for window, outcome in ((4, Outcome.SIDE), (5, Outcome.COMPACTION)):
        gateway, _ = reborn(client.gateway)
        other = ChatClient(gateway, headers(window)).say("You are an agent.", "system").say("So far: much.")
        assert other.ask("x").outcome is outcome


def test_a_marked_retry_receives_the_answer_from_before_the_restart() -> None:
    client = agent(Gateway())
    first = client.ask("lost", calls=[("bash", {"a": 1.0})])
    gateway, _ = reborn(client.gateway)
    plan = gateway.begin(Api.CHAT, client.body(), {"x-stainless-retry-count": "1"}, url="s1")
    assert plan.decision.outcome is Outcome.REPLAY
    (node,) = gateway.core.replayed(plan)
    assert node.answer.message == first.message


def test_an_aborted_answer_is_continued_and_not_replayed() -> None:
    client = agent(Gateway())
    first = client.ask("partial", finish_reason=ABORTED, delivered=False)
    gateway, found = reborn(client.gateway)
    assert found.nodes == 1
    plan = gateway.begin(Api.CHAT, client.body(), {"x-stainless-retry-count": "1"}, url="s1")
    assert plan.decision.outcome is Outcome.SIBLING
    gateway.core.abandon(plan)
    client.gateway = gateway
    client.keep(first)
    assert client.say("more").ask("x").outcome is Outcome.CONTINUATION
    gateway.assert_exact()


def test_a_session_ends_after_the_restart_as_before_it() -> None:
    client = agent(Gateway())
    client.turn("one", "1")
    client.keep(client.ask("the answer"))
    gateway, _ = reborn(client.gateway)
    expected = client.gateway.core.end("acme", "s1", EndStatus.FAILED, 0.5)
    assert gateway.core.end("acme", "s1", EndStatus.FAILED, 0.5) == expected


STEPS = ("turn", "turn", "turn", "answer", "edit", "rewind", "choices", "side", "retry", "compact", "spawn", "end")


class World:
    """Clients of two tenants and three sessions."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.tenants = [Tenant(name) for name in ("acme", "other")]
        self.clients = [agent(gateway, url) for url in ("s1", "s1", None)]
        self.owner = [0, 1, 0]

    def do(self, who: int, step: str, number: int) -> list[Reply]:
        client, tenant = self.clients[who], self.tenants[self.owner[who]]
        client.gateway = self.gateway
        n, texts, calls = 1, [f"a{number}"], [("bash", {"command": f"c{number}"})]
        match step:
            case "answer" | "compact" | "choices":
                calls = []
                client.say(f"u{number}")
            case "edit":
                for each in client.messages:
                    if each["role"] == "assistant":
                        each["content"] = f"edited {number}"
                        break
            case "rewind" if len(client.messages) > 4:
                del client.messages[4:]
                client.say(f"u{number}")
            case "spawn":
                calls = [("task", {"prompt": f"Find greeting number {number} in the file."})]
            case "end" if client.url is not None:
                self.gateway.log += self.gateway.core.end(tenant.name, client.url)
        if step == "compact":
            texts = [f"{TEXT} {number}"]
        if step == "choices":
            n, texts = 2, ["left", "right"]
        replies = []
        if step == "side":
            side = ChatClient(self.gateway, url=client.url, tools=[]).say(f"title {number}")
            replies.append(self.gateway.ask(Api.CHAT, side.body(), "t", url=client.url, tenant=tenant))
        body = client.body() | ({"n": n} if n > 1 else {})
        if step == "retry":
            replies.append(self._ask(client, tenant, body, ["lost"], [], delivered=False))
        reply = self._ask(client, tenant, body, texts, calls)
        replies.append(reply)
        client.keep(reply, choice=n - 1)
        for position in range(len(reply.message.calls)):
            if step == "spawn":
                prompt = f"Find greeting number {number} in the file."
                sub = ChatClient(self.gateway, url=client.url).say(prompt)
                replies.append(self._ask(sub, tenant, sub.body(), ["done"], []))
            client.result(reply, f"r{number}", position)
        if step == "compact":
            client.messages = [client.messages[0], {"role": "user", "content": f"So far: {texts[0]}"}]
        return replies

    def _ask(
        self, client: ChatClient, tenant: Tenant, body: Any, texts: Any, calls: Any, delivered: bool | None = None
    ) -> Reply:
        answer = {"calls": calls, "delivered": delivered}
        return self.gateway.ask(Api.CHAT, body, *texts, url=client.url, tenant=tenant, answer=answer)

    def transcripts(self) -> list[Any]:
        return copy.deepcopy([client.messages for client in self.clients])


stories = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(STEPS)), min_size=1, max_size=12)


def told(replies: list[Reply]) -> list[Any]:
    """What a client and the log can see of replies, without ids."""
    return [
        (reply.outcome, reply.prompt, [(event.fact.TYPE, event.seq) for event in reply.events]) for reply in replies
    ]


def known_to(gateway: Gateway) -> list[Any]:
    """All of a node that what follows depends on."""
    return sorted(
        (
            [
                *(
                    node.place,
                    node.key,
                    node.slot,
                    node.tenant,
                    node.scope,
                    node.trajectory_id,
                    node.delivered,
                    node.length,
                ),
                *(node.prefix_sha256, list(node.token_ids()), node.answer.message, node.answer.finish_reason),
                node.answer.ends_with_stop_token,
            ]
            for node in gateway.nodes
        ),
        key=lambda each: each[0],
    )


@given(stories, stories)
@settings(deadline=None, max_examples=150)
def test_a_restart_between_two_calls_changes_nothing(before: Any, after: Any) -> None:
    undisturbed, killed = World(Gateway()), World(Gateway())
    for number, (who, step) in enumerate(before):
        undisturbed.do(who, step, number)
        killed.do(who, step, number)
    killed.gateway, found = reborn(killed.gateway)
    assert found.left_out == 0
    assert known_to(killed.gateway) == known_to(undisturbed.gateway)
    for number, (who, step) in enumerate(after, 100):
        assert told(killed.do(who, step, number)) == told(undisturbed.do(who, step, number)), (who, step)
    assert killed.gateway.assert_exact() == undisturbed.gateway.assert_exact()


@given(stories, stories, st.data())
@settings(deadline=None, max_examples=150)
def test_whenever_it_is_killed_prompts_and_numbers_stay_exact(before: Any, after: Any, data: Any) -> None:
    """The log may end within the events of a call, whose client was then told nothing and asks again."""
    world = World(Gateway())
    moments = [(0, world.transcripts())]
    for number, (who, step) in enumerate(before):
        world.do(who, step, number)
        moments.append((len(world.gateway.log), world.transcripts()))
    end = data.draw(st.integers(0, len(world.gateway.log)))
    transcripts = [each for length, each in moments if length <= end][-1]
    world.gateway, found = reborn(world.gateway, world.gateway.log[:end])
    assert found.left_out == 0
    for client, messages in zip(world.clients, transcripts, strict=True):
        client.messages = messages
    for number, (who, step) in enumerate(after, 100):
        for reply in world.do(who, step, number):
            exact = array("i", (each - 2_000_000 + 1_000 if each >= 2_000_000 else each for each in reply.prompt))
            assert exact == render(reply.plan.request.messages)
            owner = world.tenants[world.owner[who]].name
            base = reply.plan.decision.base
            assert base is None or base.tenant == owner
            assert reply.plan.session.tenant == owner
    world.gateway.assert_exact()
    tenants = {
        event.trajectory_id: event.fact.tenant
        for event in world.gateway.log
        if isinstance(event.fact, TrajectoryStarted)
    }
    assert {event.trajectory_id for event in world.gateway.log} == tenants.keys()
