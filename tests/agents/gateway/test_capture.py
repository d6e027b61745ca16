"""The core as a whole: state, numbers and events of sessions that end, are masked, sampled out, or many."""

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agents.gateway.canonical import Api, BadRequest
from headrace.agents.gateway.capture import Tenant
from headrace.agents.gateway.continuation import Outcome
from headrace.agents.gateway.record import TrajectoryEvent
from headrace.agents.gateway.sealed import Kind
from headrace.agents.gateway.session_identity import Source
from headrace.agents.gateway.sessions import MAX_TRAJECTORIES
from headrace.agents.gateway.terms import TenantPolicy
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import (
    ContextSummarized,
    EndStatus,
    ModelCalled,
    ToolCalled,
    ToolReturned,
    TrajectoryEnded,
    TrajectoryStarted,
)
from headrace.schemas.wire import encode
from headrace.streams.assembly.segments import SegmentFold
from tests.agents.gateway.harness import SAMPLED, ChatClient, Gateway, render, task, tool

TEXT = "This text is long enough to be recognised when a later request of the session quotes it."


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def ended_idle(gateway: Gateway, before_ms: int) -> list[TrajectoryEvent]:
    return [event for _, events in gateway.core.end_idle(before_ms) for event in events]


def agent(gateway: Gateway, url: str | None = "s1", **fields: Any) -> ChatClient:
    return ChatClient(gateway, url=url, **fields).say("You are an agent.", "system").say("Say hello.")


def test_a_response_continues_the_one_that_it_names(gateway: Gateway) -> None:
    body = {"model": "policy", "instructions": "Be brief.", "input": "Find boots."}
    first = gateway.ask(Api.RESPONSES, body, "found")
    second = gateway.ask(Api.RESPONSES, body | {"input": "More.", "previous_response_id": first.ids[0]}, "more")
    third = gateway.ask(Api.RESPONSES, body | {"input": "Most.", "previous_response_id": second.ids[0]}, "most")
    assert [reply.outcome for reply in (second, third)] == [Outcome.CONTINUATION] * 2
    assert [message.text for message in third.plan.request.messages] == [
        *("Be brief.", "Find boots.", "found", "More.", "more", "Most."),
    ]
    assert first.plan.identity.source is Source.INFERRED
    assert second.plan.identity.source is Source.HISTORY
    assert gateway.assert_exact() == 1


def test_a_result_names_its_call_also_where_the_call_is_in_the_prefix(gateway: Gateway) -> None:
    client = agent(gateway)
    first = client.turn("Let me run it.", "hello")
    client.ask("Done.")
    _, second = gateway.calls()
    assert second.prefix_length
    assert second.messages is not None
    result = dict(second.messages[0])
    assert (result["role"], result["tool_call_id"]) == ("tool", first.message.calls[0].call_id)


def test_other_instructions_replace_those_of_the_named_response(gateway: Gateway) -> None:
    body = {"model": "policy", "instructions": "Be brief.", "input": "Find boots."}
    first = gateway.ask(Api.RESPONSES, body, "found", url="s1")
    changed = {"model": "policy", "instructions": "Be long.", "input": "More.", "previous_response_id": first.ids[0]}
    reply = gateway.ask(Api.RESPONSES, changed, "more", url="s1")
    assert [message.text for message in reply.plan.request.messages][:2] == ["Be long.", "Find boots."]
    assert reply.plan.decision.base is None


def test_a_response_may_name_an_earlier_one_twice(gateway: Gateway) -> None:
    first = gateway.ask(Api.RESPONSES, {"model": "policy", "input": "x"}, "found")
    replies = [
        gateway.ask(Api.RESPONSES, {"model": "policy", "input": text, "previous_response_id": first.ids[0]}, "more")
        for text in ("a", "b")
    ]
    assert [reply.outcome for reply in replies] == [Outcome.CONTINUATION, Outcome.REWOUND]


@pytest.mark.parametrize("name", ["resp_unknown", "", "resp_" + "A" * 35])
def test_a_response_that_is_not_known_is_an_error_of_the_client(gateway: Gateway, name: str) -> None:
    body = {"model": "policy", "input": "x", "previous_response_id": name}
    with pytest.raises(BadRequest, match="previous_response_id"):
        gateway.begin(Api.RESPONSES, body)


def test_a_response_of_another_tenant_is_not_known(gateway: Gateway) -> None:
    first = gateway.ask(Api.RESPONSES, {"model": "policy", "input": "x"}, "found")
    body = {"model": "policy", "input": "y", "previous_response_id": first.ids[0]}
    with pytest.raises(BadRequest, match="previous_response_id"):
        gateway.begin(Api.RESPONSES, body, tenant=Tenant("other"))


def test_a_summary_that_is_not_known_is_an_error_of_the_client(gateway: Gateway) -> None:
    body = {"model": "policy", "input": [{"type": "compaction", "encrypted_content": "enc_x"}]}
    with pytest.raises(BadRequest, match=r"input\[0\].encrypted_content"):
        gateway.begin(Api.RESPONSES, body)


def test_without_any_name_a_conversation_is_known_by_its_history(gateway: Gateway) -> None:
    client = agent(gateway, None)
    first = client.turn("one", "1")
    second = client.ask("two")
    assert [first.plan.identity.source, second.plan.identity.source] == [Source.INFERRED, Source.HISTORY]
    assert first.trajectory == second.trajectory


def test_without_any_name_equal_requests_are_sessions_of_their_own(gateway: Gateway) -> None:
    clients = [agent(gateway, None) for _ in range(3)]
    firsts = [client.turn("same", "out") for client in clients]
    seconds = [client.ask("x") for client in clients]
    assert len({reply.trajectory for reply in firsts}) == 3
    assert [reply.trajectory for reply in seconds] == [reply.trajectory for reply in firsts]


def test_a_hint_loses_against_a_known_history(gateway: Gateway) -> None:
    client = agent(gateway, None, headers={"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"})
    first = client.turn("one", "1")
    client.headers = {"traceparent": "00-" + "c" * 32 + "-" + "b" * 16 + "-01"}
    second = client.ask("two")
    assert (second.outcome, second.trajectory) == (Outcome.CONTINUATION, first.trajectory)


def test_a_hint_loses_against_a_minted_id(gateway: Gateway) -> None:
    client = agent(gateway, None)
    first = client.turn("one", "1")
    client.messages[0]["content"] = "You are another agent."
    second = client.ask("two")
    assert (second.plan.identity.source, second.outcome) == (Source.REFERENCE, Outcome.EDITED)
    assert second.trajectory == first.trajectory


def test_the_end_of_a_session_ends_its_trajectories_the_main_one_last(gateway: Gateway) -> None:
    main = agent(gateway)
    main.ask("hello")
    ChatClient(gateway, url="s1").say("Another.").ask("other")
    events = gateway.core.end("acme", "s1", EndStatus.FAILED, outcome=0.5)
    facts = [event.fact for event in events]
    assert [fact.answer for fact in facts if isinstance(fact, TrajectoryEnded)] == ["other", "hello"]
    assert [fact.outcome for fact in facts if isinstance(fact, TrajectoryEnded)] == [None, 0.5]
    assert [fact.status for fact in facts if isinstance(fact, TrajectoryEnded)] == [EndStatus.FAILED] * 2
    assert gateway.core.end("acme", "s1") == []


def test_an_answer_after_the_end_of_its_session_is_not_recorded(gateway: Gateway) -> None:
    plan = gateway.begin(Api.CHAT, agent(gateway).body(), url="s1")
    gateway.core.end("acme", "s1")
    before = len(gateway.log)
    gateway.finish(plan, "late")
    assert len(gateway.log) == before


def test_idle_sessions_end_and_busy_ones_do_not(gateway: Gateway) -> None:
    agent(gateway, "s1").ask("hello")
    busy = gateway.begin(Api.CHAT, agent(gateway, "s2").body(), url="s2")
    agent(gateway, "s3").ask("hello")
    late = gateway.now_ms
    assert gateway.core.end_idle(late - 10_000) == []
    assert [event.fact.TYPE for event in ended_idle(gateway, late)] == [TrajectoryEnded.TYPE]
    gateway.finish(busy, "x")
    assert len(ended_idle(gateway, gateway.now_ms + 1)) == 2


def test_the_oldest_session_is_ended_when_there_are_too_many() -> None:
    gateway = Gateway(max_sessions=2)
    first = agent(gateway, "s1").ask("hello")
    for name in ("s2", "s3"):
        agent(gateway, name).ask("hello")
    assert gateway.types(first.trajectory) == ["trajectory.started", "model.called", "trajectory.ended"]


def test_a_session_has_a_bounded_number_of_open_trajectories(gateway: Gateway) -> None:
    for number in range(MAX_TRAJECTORIES + 5):
        ChatClient(gateway, url="s1").say(f"question {number}").ask("x")
    assert gateway.types().count("trajectory.ended") == 5
    main = gateway.log[0].trajectory_id
    assert "trajectory.ended" not in gateway.types(main)


def test_a_session_that_is_sampled_out_keeps_exact_prompts_and_emits_nothing(gateway: Gateway) -> None:
    policy = TenantPolicy(sample_rate=1e-9)
    client = agent(gateway)
    body = client.body()
    reply = gateway.ask(Api.CHAT, body, "abc", url="s1", tenant=Tenant("acme", policy))
    client.keep(reply)
    client.say("more")
    after = gateway.ask(Api.CHAT, client.body(), "x", url="s1", tenant=Tenant("acme", policy))
    assert (after.outcome, SAMPLED + ord("a") in after.prompt) == (Outcome.CONTINUATION, True)
    assert gateway.log == []


def test_a_masked_session_emits_neither_tokens_nor_texts(gateway: Gateway) -> None:
    tenant = Tenant("acme", TenantPolicy(masked=True))
    client = agent(gateway)
    reply = gateway.ask(
        Api.CHAT, client.body(), TEXT, url="s1", tenant=tenant, answer={"calls": [("bash", {"k": "secret"})]}
    )
    client.keep(reply)
    client.result(reply, "secret")
    gateway.ask(Api.CHAT, client.body(), "secret", url="s1", tenant=tenant)
    summary = ChatClient(gateway).say(f"secret {TEXT}")
    gateway.ask(Api.CHAT, summary.body(), "secret", url="s1", tenant=tenant)
    gateway.log += gateway.core.end("acme", "s1")
    kinds = {type(fact) for fact in gateway.facts()}
    assert kinds == {TrajectoryStarted, ModelCalled, ToolCalled, ToolReturned, ContextSummarized, TrajectoryEnded}
    for event in gateway.log:
        assert "secret" not in event.fact.model_dump_json()
        assert TEXT not in event.fact.model_dump_json()
        if isinstance(event.fact, ModelCalled):
            assert event.fact.hidden == ["context_ids", "logprobs", "messages", "sampled_ids"]


def test_consent_and_the_task_reach_the_first_event(gateway: Gateway) -> None:
    body = agent(gateway).body()
    plan = gateway.begin(Api.CHAT, body, url="s1", consent=False, task=task(task_id="t7", group_id="g", group_size=8))
    started = plan.events[0].fact
    assert isinstance(started, TrajectoryStarted)
    assert (started.consent, started.task_id, started.group_size) == (False, "t7", 8)


def test_the_first_event_names_the_tools_of_the_first_request(gateway: Gateway) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("search", "read")]
    plan = gateway.begin(Api.CHAT, agent(gateway).body() | {"tools": tools}, url="s1")
    started = plan.events[0].fact
    assert isinstance(started, TrajectoryStarted)
    assert started.tools_offered == "read,search"


def test_only_the_main_trajectory_is_a_member_of_the_group(gateway: Gateway) -> None:
    info = task(task_id="t7", group_id="g", group_size=8, agent="coder", task={"target": 1})
    reply = gateway.finish(
        gateway.begin(Api.CHAT, agent(gateway).body(), url="s1", task=info),
        calls=[("task", {"prompt": "Find every greeting in it."})],
    )
    for text in ("Find every greeting in it.", "Is it safe?"):
        gateway.begin(Api.CHAT, ChatClient(gateway).say(text).body(), url="s1", task=info)
    started = [fact for fact in gateway.facts() if isinstance(fact, TrajectoryStarted)]
    assert [(fact.group_id, fact.group_size, fact.task, fact.agent) for fact in started] == [
        ("g", 8, {"target": 1}, "coder"),
        (None, None, {}, "task"),
        (None, None, {}, "coder"),
    ]
    assert reply.trajectory == gateway.log[0].trajectory_id


def test_sessions_keep_no_answer_alive_that_the_store_forgot() -> None:
    gateway = Gateway(max_bytes=1)
    client = agent(gateway)
    reply = client.ask(TEXT, delivered=False)
    assert len(gateway.nodes) == 0
    plan = gateway.begin(Api.CHAT, client.body(), {"x-stainless-retry-count": "1"}, url="s1")
    assert (plan.decision.outcome, gateway.core.replayed(reply.plan)) == (Outcome.SIBLING, [])
    gateway.core.abandon(plan)
    client.keep(reply)
    client.say("more")
    assert client.ask("x").outcome is Outcome.EDITED
    ended = gateway.core.end("acme", "s1")[-1].fact
    assert isinstance(ended, TrajectoryEnded)
    assert ended.answer is None


def test_a_session_with_a_call_in_flight_is_not_the_first_to_be_ended() -> None:
    gateway = Gateway(max_sessions=2)
    busy = gateway.begin(Api.CHAT, agent(gateway, "s1").body(), url="s1")
    idle = agent(gateway, "s2").ask("hello")
    agent(gateway, "s3").ask("hello")
    assert gateway.types(idle.trajectory)[-1] == "trajectory.ended"
    assert gateway.types(gateway.finish(busy, "hello").trajectory) == ["trajectory.started", "model.called"]


def test_no_call_in_flight_loses_its_session_to_others() -> None:
    gateway = Gateway(max_sessions=2)
    slow = [gateway.begin(Api.CHAT, agent(gateway, name).body(), url=name) for name in ("s1", "s2", "s3")]
    for plan in slow:
        assert [type(event.fact) for event in gateway.finish(plan, "late").events][-1] is ModelCalled
    assert len(gateway.calls()) == len(slow)
    assert gateway.core.is_open("acme", "s1")
    agent(gateway, "s4").ask("hello")
    assert not gateway.core.is_open("acme", "s1")


def test_a_session_that_answered_late_does_not_hide_an_idle_one(gateway: Gateway) -> None:
    slow = gateway.begin(Api.CHAT, agent(gateway, "s1").body(), url="s1")
    idle = agent(gateway, "s2").ask("hello")
    before = gateway.now_ms + 100
    gateway.finish(slow, "late")
    assert [event.trajectory_id for event in ended_idle(gateway, before)] == [idle.trajectory]


def test_a_sub_agent_with_a_session_of_its_own_has_the_terms_of_its_parent(gateway: Gateway) -> None:
    main = {"x-session-id": "ses_a", "user-agent": "opencode/1"}
    body = agent(gateway).body()
    gateway.begin(Api.CHAT, body, main, consent=False)
    plan = gateway.begin(Api.CHAT, body, {"x-session-id": "ses_b", "x-parent-session-id": "ses_a"})
    assert plan.decision.outcome is Outcome.SUBAGENT
    assert plan.session.terms.consent is False


def test_a_sub_agent_whose_parent_has_ended_is_sampled_as_the_parent_was(gateway: Gateway) -> None:
    tenant = Tenant("acme", TenantPolicy(sample_rate=0.5))
    body = agent(gateway).body()
    for parent in ("ses_a", "ses_b", "ses_c", "ses_d"):
        was = gateway.begin(Api.CHAT, body, {"x-session-id": parent}, tenant=tenant).session.terms.recorded
        gateway.core.end("acme", parent)
        for number in range(4):
            headers = {"x-session-id": f"{parent}_{number}", "x-parent-session-id": parent}
            assert gateway.begin(Api.CHAT, body, headers, tenant=tenant).session.terms.recorded is was


def test_ids_can_be_minted_before_the_answer_ends(gateway: Gateway) -> None:
    plan = gateway.begin(Api.CHAT, agent(gateway).body(), url="s1")
    ids = {
        gateway.core.mint(plan, kind, gateway.now_ms, choice=c, position=p)
        for kind in Kind
        for c in (0, 1)
        for p in (0, 1)
    }
    assert len(ids) == 4 * len(Kind)


def test_a_prompt_of_the_completions_api_is_a_segment_of_its_own(gateway: Gateway) -> None:
    for prompt in ("once", "once upon"):
        gateway.ask(Api.COMPLETIONS, {"model": "policy", "prompt": prompt}, "x", url="s1")
    assert gateway.assert_exact() == 2


def test_every_event_can_be_sent(gateway: Gateway) -> None:
    client = agent(gateway)
    client.turn("one", "1")
    client.ask("two", reasoning="hm")
    gateway.log += gateway.core.end("acme", "s1")
    for event in gateway.log:
        envelope = Envelope("id", event.fact.TYPE, "gateway", 0, event.trajectory_id, event.seq)
        assert encode(event.fact, key=event.trajectory_id, envelope=envelope).value


@pytest.mark.parametrize("name", ["bash\n", "b" * 600, "\x00", " "])
def test_a_conversation_goes_on_after_a_call_of_a_tool_of_any_name(gateway: Gateway, name: str) -> None:
    client = ChatClient(gateway, url="s1").say("Do it.")
    reply = client.ask("", calls=[("bash", {"command": "a"}), (name, {"command": "b"})])
    client.keep(reply)
    client.result(reply, "one")
    client.result(reply, "there is no such tool", position=1)
    assert client.ask("I see.").outcome is Outcome.CONTINUATION
    returned = [fact for fact in gateway.facts() if isinstance(fact, ToolReturned)]
    assert [fact.tool for fact in returned] == ["bash", name[:512]]
    assert gateway.assert_exact() == 1


def test_the_assembler_makes_one_segment_of_a_conversation_that_grows(gateway: Gateway) -> None:
    client = agent(gateway)
    for number in range(4):
        client.turn(f"step {number}", f"out {number}")
    fold = SegmentFold()
    for call in gateway.calls():
        fold.add(call)
    (segment,) = fold.segments()
    assert fold.defects == set()
    prompt = gateway.begin(Api.CHAT, client.body(), url="s1").known_ids
    assert segment.token_ids == prompt
    assert segment.loss_mask.count(1) == sum(len(call.sampled_ids or ()) for call in gateway.calls())


steps = st.lists(
    st.sampled_from(["turn", "turn", "edit", "cut", "rewind", "retry", "choices", "side", "forget", "overlap"]),
    max_size=14,
)


@given(steps)
@settings(deadline=None, max_examples=60)
def test_whatever_clients_do_prompts_and_prefixes_are_exact(story: list[str]) -> None:
    """The log can be folded, each sampled token is in one event, and each prompt renders what the client sent."""
    gateway = Gateway(max_bytes=60_000)
    client = agent(gateway)
    sampled = 0
    for number, step in enumerate(story):
        client.say(f"u{number}")
        match step:
            case "edit" if any(each["role"] == "assistant" for each in client.messages):
                next(each for each in client.messages if each["role"] == "assistant")["content"] = f"edited {number}"
            case "cut" if len(client.messages) > 3:
                del client.messages[1:3]
            case "rewind" if len(client.messages) > 3:
                del client.messages[-3:-1]
            case "retry":
                client.ask("lost", delivered=False)
                sampled += 1
                assert gateway.begin(
                    Api.CHAT, client.body(), {"x-stainless-retry-count": "1"}, url="s1"
                ).decision.replay
            case "side":
                ChatClient(gateway, url="s1", tools=[]).say(f"title {number}").ask("t")
                sampled += 1
            case "forget":
                gateway.log += gateway.core.end("acme", "s1")
            case "overlap":
                plans = [gateway.begin(Api.CHAT, client.body(), url="s1") for _ in range(2)]
                for plan in reversed(plans):
                    gateway.finish(plan, "o")
                sampled += 2
        texts = ("left", "right") if step == "choices" else (f"a{number}",)
        reply = client.ask(*texts, n=len(texts))
        sampled += len(texts)
        client.keep(reply, choice=len(texts) - 1)
        exact = array("i", (each - SAMPLED + 1000 if each >= SAMPLED else each for each in reply.prompt))
        assert exact == render(reply.plan.request.messages)
    gateway.assert_exact()
    assert len(gateway.calls()) == sampled


def test_tools_without_results_are_left_open(gateway: Gateway) -> None:
    client = agent(gateway, tools=[tool(), tool("grep")])
    reply = client.ask("", calls=[("bash", {}), ("grep", {})])
    client.keep(reply)
    client.result(reply, "only one", position=1)
    client.ask("done")
    assert gateway.types() == [
        *("trajectory.started", "model.called", "tool.called", "tool.called"),
        *("tool.returned", "model.called"),
    ]
