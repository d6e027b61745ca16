"""The harness counts critical steps, runs out of them, and gives every turn a defined result."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.swarm import vocabulary as words
from headrace.agents.swarm.harness import Assigned, Done, Harness, Limits, Observation, outcome
from headrace.agents.swarm.subagents import Report, SubTask, scripted_reports
from headrace.agents.swarm.tasks import Source, Split, Task, make_task, task_id
from headrace.schemas.events import EndStatus, ToolErrorClass

TASKS = [make_task(task_id(Split.TRAIN, number)) for number in range(60)]
WIDE = next(task for task in TASKS if task.source is Source.WIDE and len(task.evidence) == 8)
DEEP = next(task for task in TASKS if task.source is Source.DEEP and len(task.evidence) == 3)
RELIABLE = Limits(failed_searches=0.0)


def harness(task: Task, limits: Limits = RELIABLE) -> Harness:
    return Harness(task, "a", limits)


def shown(step: object) -> list[str]:
    assert isinstance(step, Observation)
    return words.decode_words(step.ids)


def act(episode: Harness, text: str) -> Observation | Assigned | Done:
    return episode.act(words.encode(text))


def delegate(episode: Harness, reports: list[Report]) -> Assigned:
    relation = episode.task.evidence[0].triple.relation
    act(episode, f"create_subagent alpha {relation} <end>")
    entities = [chunk.triple.subject for chunk in episode.task.evidence[: len(reports)]]
    assigned = act(episode, " ".join(f"assign_task alpha {entity}" for entity in entities) + " <end>")
    assert isinstance(assigned, Assigned)
    episode.report(reports)
    return assigned


def report(number: int, steps: int, task: Task = WIDE) -> Report:
    return Report(task.evidence[number], EndStatus.COMPLETED, steps)


def test_a_lookup_alone_takes_two_turns_and_shows_the_fact() -> None:
    episode, fact = harness(DEEP), DEEP.evidence[0]
    assert shown(act(episode, f"find_page {fact.triple.subject} <end>")) == ["<result>", fact.doc_id, "t09", "<agent>"]
    text = [fact.chunk_id, fact.triple.subject, fact.triple.relation, fact.triple.value]
    read = act(episode, f"read_page {fact.doc_id} {fact.triple.relation} <end>")
    assert shown(read) == ["<result>", *text, "t08", "<agent>"]
    assert list(episode.seen) == [fact.chunk_id]


def test_the_context_is_what_was_observed_and_sampled() -> None:
    episode = harness(DEEP)
    context = list(episode.observe())
    for text in (f"find_page {DEEP.evidence[0].triple.subject} <end>", "nothing <end>"):
        sampled = words.encode(text)
        step = episode.act(sampled)
        assert isinstance(step, Observation)
        context += [*sampled, *step.ids]
    assert list(episode.observe()) == context


@pytest.mark.parametrize(("steps", "critical"), [((6, 3, 4, 5), 8), ((2, 2, 2, 2), 4), ((1,), 3)])
def test_a_turn_of_sub_tasks_costs_one_and_the_slowest_of_them(steps: tuple[int, ...], critical: int) -> None:
    episode = harness(WIDE)
    delegate(episode, [report(number, each) for number, each in enumerate(steps)])
    assert episode.critical_steps == critical
    assert episode.steps_left == WIDE.budget - critical


def test_sub_agents_read_both_prompts_and_may_use_what_is_left_of_the_budget() -> None:
    episode = harness(WIDE)
    assigned = delegate(episode, [report(0, 2)])
    fact = WIDE.evidence[0].triple
    assert assigned.subtasks == (SubTask("alpha", (fact.relation,), (fact.subject,)),)
    assert assigned.max_steps == WIDE.budget - 2
    assert assigned.stage == 1


def test_messages_of_sub_agents_are_observed_in_order() -> None:
    episode = harness(WIDE)
    act(episode, "create_subagent alpha find <end>")
    act(episode, "assign_task alpha help assign_task alpha look <end>")
    fact = WIDE.evidence[2]
    text = [fact.chunk_id, fact.triple.subject, fact.triple.relation, fact.triple.value]
    seen = episode.report([Report(None, EndStatus.FAILED, 1), Report(fact, EndStatus.COMPLETED, 2)])
    assert shown(seen)[:6] == ["<result>", "nothing", *text]


def test_only_an_answer_is_accepted_when_no_step_is_left() -> None:
    for last, status in (("answer <end>", EndStatus.COMPLETED), ("find_page ada <end>", EndStatus.BUDGET_EXHAUSTED)):
        episode = harness(WIDE)
        delegate(episode, [report(0, WIDE.budget - 2)])
        assert episode.steps_left == 0
        done = act(episode, last)
        assert isinstance(done, Done)
        assert done.status is status


def test_an_assignment_to_an_unknown_sub_agent_is_an_error_and_costs_its_turn() -> None:
    episode = harness(WIDE)
    step = act(episode, "assign_task alpha ada <end>")
    assert isinstance(step, Observation)
    assert step.calls[0].error_class is ToolErrorClass.INVALID_ARGUMENTS
    assert (episode.critical_steps, episode.assigned) == (1, 0)


def test_a_search_that_timed_out_is_the_environments_fault_and_may_be_repeated() -> None:
    episode = harness(DEEP, Limits(failed_searches=0.5))
    text = f"find_page {DEEP.evidence[0].triple.subject} <end>"
    errors = []
    for _ in range(8):
        step = act(episode, text)
        assert isinstance(step, Observation)
        errors.append(step.calls[0].error_class)
    assert set(errors) == {None, ToolErrorClass.TIMEOUT}


def test_attempts_differ_in_which_searches_time_out_and_an_attempt_is_reproducible() -> None:
    def timeouts(attempt: str) -> tuple[int, ...]:
        episode = Harness(DEEP, attempt, Limits(failed_searches=0.5))
        for _ in range(8):
            act(episode, f"find_page {DEEP.evidence[0].triple.subject} <end>")
        return episode.observe()

    assert timeouts("a") == timeouts("a")
    assert len({timeouts(str(number)) for number in range(6)}) > 1


def test_the_reports_must_be_those_that_were_asked_for() -> None:
    episode = harness(WIDE)
    act(episode, "create_subagent alpha find <end>")
    with pytest.raises(ValueError, match="1 reports for 0"):
        episode.report([report(0, 1)])
    act(episode, "assign_task alpha help <end>")
    with pytest.raises(RuntimeError, match="outstanding"):
        act(episode, "answer <end>")
    with pytest.raises(ValueError, match="at most"):
        episode.report([report(0, WIDE.budget)])


class TestOutcome:
    ids = WIDE.targets
    everything = tuple(chunk.chunk_id for chunk in WIDE.corpus.chunks)

    def test_a_wide_answer_is_scored_by_item_f1(self) -> None:
        assert outcome(WIDE, self.ids, self.everything) == 1.0
        assert outcome(WIDE, self.ids[:4], self.everything) == pytest.approx(2 / 3)
        assert outcome(WIDE, (), self.everything) == 0.0
        wrong = [each for each in self.everything if each not in self.ids][:8]
        assert outcome(WIDE, [*self.ids, *wrong], self.everything) == pytest.approx(2 / 3)

    def test_items_that_were_never_shown_are_wrong(self) -> None:
        assert outcome(WIDE, self.ids, self.ids[:4]) == pytest.approx(0.5)

    def test_a_deep_answer_is_the_last_fact_alone(self) -> None:
        chain = [chunk.chunk_id for chunk in DEEP.evidence]
        assert outcome(DEEP, chain[-1:], chain) == 1.0
        assert outcome(DEEP, chain[:1], chain) == outcome(DEEP, chain, chain) == outcome(DEEP, (), chain) == 0.0


@given(st.lists(st.lists(st.integers(0, len(words.VOCABULARY) - 1), max_size=6), max_size=20), st.integers(0, 5))
def test_every_sequence_of_turns_has_a_defined_result_and_ends_within_the_budget(
    turns: list[list[int]], number: int
) -> None:
    episode, rng = Harness(TASKS[number], "a"), Random(0)
    for sampled in turns:
        step = episode.act([*sampled, words.END_ID])
        if isinstance(step, Assigned):
            step = episode.report(scripted_reports(step.subtasks, episode.task.corpus, step.max_steps, rng))
        if isinstance(step, Done):
            assert 0 <= step.outcome <= 1
            break
        assert 0 <= episode.critical_steps <= episode.task.budget
    assert episode.turns <= episode.task.budget + 1


@pytest.mark.parametrize("wrong", [{"failed_searches": 1.0}, {"failed_searches": -0.1}, {"sampled_tokens": 0}])
def test_invalid_limits_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(Limits(), **wrong)  # type: ignore[arg-type]
