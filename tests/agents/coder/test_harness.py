"""The rules of an episode: results, limits, the to-do list, summaries, and that no tokens raise."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.harness import Done, Harness, Limits, Observation, Purpose, TestRun
from headrace.schemas.events import EndStatus, ToolErrorClass
from tests.agents.coder.players import act, play, repair, training_task

WIDE = Limits(budget=900, summarize_at=900, result_tokens=400)


def shown(step: object) -> str:
    """Return the text that an observation adds to the context."""
    assert isinstance(step, Observation)
    return words.decode(step.ids)


def test_the_first_context_is_the_task_and_the_usage_line() -> None:
    task = training_task(1, 2)
    context = words.decode(Harness(task).observe())
    assert context == f"<task> repair {' '.join(task.targets)} [Token usage: 2 %] <agent>"


def test_the_context_is_what_was_sampled_and_observed() -> None:
    def grows(harness: Harness, sampled: list[int]) -> None:
        before = harness.observe()
        copies.append((before, sampled))

    copies: list[tuple[tuple[int, ...], list[int]]] = []
    play(training_task(2, 1), limits=WIDE, each=grows)
    for (before, sampled), (after, _) in pairwise(copies):
        assert after[: len(before) + len(sampled)] == (*before, *sampled)


def test_constants_and_files_can_be_read_and_searched() -> None:
    task = training_task(3, 1)
    [name], harness = task.targets, Harness(task, WIDE)
    constant, number = next(iter(task.constants.items()))
    assert f"{constant} {number}" in shown(act(harness, "read constants.txt <end>"))
    assert f"constants.txt {constant} {number}" in shown(act(harness, f"grep {constant} <end>"))
    assert f"{task.paths[name]} # {name} :" in shown(act(harness, f"grep {name} <end>"))


def test_thinking_is_counted_apart_from_the_call() -> None:
    task = training_task(4, 1)
    harness = Harness(task)
    edited = act(harness, f"# rate 7 {repair(task, task.targets[0])}")
    assert isinstance(edited, Observation)
    assert (edited.tool, edited.thinking_tokens) == (words.EDIT, 3)
    silent = act(harness, "run_tests <end>")
    assert isinstance(silent, Observation)
    assert silent.thinking_tokens == 0
    done = act(harness, "# submit <end>")
    assert isinstance(done, Done)
    assert done.observation is not None
    assert done.observation.thinking_tokens == 1


def test_a_repair_passes_the_tests_and_the_verdict() -> None:
    task = training_task(4, 1)
    harness = Harness(task)
    assert task.targets[0] in shown(act(harness, "run_tests <end>"))
    assert "<result> passed" in shown(act(harness, repair(task, task.targets[0]), "run_tests <end>"))
    done = act(harness, "submit <end>")
    assert isinstance(done, Done)
    assert (done.status, done.outcome) == (EndStatus.COMPLETED, 1.0)
    assert done.answer == {"passed": list(task.specifications)}


def test_a_partial_repair_earns_its_share() -> None:
    task = training_task(4, 2)
    done = act(Harness(task), repair(task, task.targets[1]), "submit <end>")
    assert isinstance(done, Done)
    assert done.outcome == 0.5


def test_tests_are_a_request_whose_inputs_depend_on_the_purpose() -> None:
    task = training_task(5, 1)
    harness = Harness(task)
    check = harness.act(words.encode("run_tests <end>"))
    assert check == TestRun(Purpose.CHECK, task.calls(), task.check_inputs)
    with pytest.raises(RuntimeError, match="pending"):
        harness.act(words.encode("submit <end>"))
    harness.tested({})
    with pytest.raises(RuntimeError, match="no test run"):
        harness.tested({})
    verdict = harness.act(words.encode("submit <end>"))
    assert isinstance(verdict, TestRun)
    assert not set(verdict.inputs) & set(task.check_inputs)


def test_a_test_run_without_results_fails_every_function_and_says_why() -> None:
    harness = Harness(training_task(5, 1))
    harness.act(words.encode("run_tests <end>"))
    step = harness.tested({}, "timed_out")
    assert isinstance(step, Observation)
    assert step.result["error"] == "timed_out"
    assert step.result["passed"] == 0


def test_mistakes_are_errors_of_the_policy_and_cost_a_turn() -> None:
    harness = Harness(training_task(6, 1))
    for line in (
        "found found <end>",
        "read returns.py <end>",
        "edit returns.py fee : return x <end>",
        "todo_done fee <end>",
    ):
        step = act(harness, line)
        assert isinstance(step, Observation)
        assert step.error_class is ToolErrorClass.INVALID_ARGUMENTS
    assert harness.turns == 4


def test_a_long_result_is_cut_off_and_says_so() -> None:
    harness = Harness(training_task(7, 4), Limits(result_tokens=10))
    step = act(harness, "read constants.txt <end>")
    assert isinstance(step, Observation)
    assert step.result["omitted_tokens"] > 0
    assert len(step.result["text"].split()) == 10


def test_endless_calls_end_with_nothing() -> None:
    harness = Harness(training_task(8, 1))
    step: object = None
    while not isinstance(step, Done):
        step = act(harness, "run_tests <end>") if not harness.summary_due else act(harness, "<end>")
    assert step.status is EndStatus.TURNS_EXHAUSTED
    assert (step.outcome, harness.turns) == (0.0, harness.most_turns)


def test_without_summaries_the_budget_ends_the_episode() -> None:
    limits = Limits(summaries=0)
    _, done, _ = play(training_task(9, 4), limits=limits)
    assert (done.status, done.outcome) == (EndStatus.BUDGET_EXHAUSTED, 0.0)
    _, done, _ = play(training_task(9, 4))
    assert (done.status, done.outcome) == (EndStatus.COMPLETED, 1.0)


def summarized(harness: Harness) -> Harness:
    """Read until a summary is due."""
    while not harness.summary_due:
        act(harness, "read constants.txt <end>")
    return harness


def test_a_summary_is_asked_for_at_the_limit_and_replaces_the_context() -> None:
    task = training_task(10, 2)
    first, second = task.targets
    harness = Harness(task)
    act(harness, f"todo_add {first} {second} <end>", f"todo_done {first} <end>")
    summarized(harness)
    assert words.decode(harness.observe()).endswith("<summarize> <agent>")
    assert harness.context_tokens >= harness.limits.summarize_at
    before = harness.context_tokens
    step = act(harness, "rate 7 <end>")
    assert isinstance(step, Observation)
    assert step.summarized is not None
    assert (step.summarized.chain_index, step.summarized.summary_tokens) == (1, 3)
    assert (step.summarized.tokens_before, step.summarized.tokens_after) == (before + 3, harness.context_tokens)
    assert step.ids == harness.observe()
    assert words.decode(step.ids).startswith(
        f"<task> repair {first} {second} <summary> rate 7 <state> summaries 1 todo {second} done {first} [Token usage:"
    )


def test_the_to_do_list_is_shown_when_it_changes() -> None:
    first, second = (task := training_task(10, 2)).targets
    harness = Harness(task)
    assert shown(act(harness, f"todo_add {first} {second} <end>")).startswith(f"<result> todo {first} {second} [")
    assert shown(act(harness, f"todo_done {first} <end>")).startswith(f"<result> todo {second} done {first} [")


def test_summaries_are_counted_and_bounded() -> None:
    harness = Harness(training_task(11, 4), Limits(summaries=2))
    for number in (1, 2):
        summarized(harness)
        act(harness, "<end>")
        assert harness.summaries == number
    step: object = None
    while not isinstance(step, Done):
        assert not harness.summary_due
        step = act(harness, "read constants.txt <end>")
    assert step.status is EndStatus.BUDGET_EXHAUSTED


def test_a_summary_keeps_words_and_drops_markers() -> None:
    harness = summarized(Harness(training_task(12, 2)))
    step = act(harness, "<agent> rate <state> 7 <task>")
    assert isinstance(step, Observation)
    assert step.summarized is not None
    assert step.summarized.summary == "rate 7"


def test_a_call_in_place_of_a_summary_is_a_summary() -> None:
    harness = summarized(Harness(training_task(13, 1)))
    step = act(harness, "submit <end>")
    assert isinstance(step, Observation)
    assert step.summarized is not None


def test_edits_change_the_repository_and_say_which_file() -> None:
    task = training_task(14, 1)
    harness = Harness(task)
    step = act(harness, repair(task, task.targets[0]))
    assert isinstance(step, Observation)
    assert step.written == task.paths[task.targets[0]]
    assert harness.repository.text(step.written) == task.reference.text(step.written)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 20))
def test_any_tokens_have_a_defined_result_within_the_limits(data: st.DataObject, number: int) -> None:
    task = training_task(number)
    harness = Harness(task, replace(Limits(), turns=6, turns_per_function=2))
    calls = st.sampled_from(
        [
            "read constants.txt",
            "read tests.py",
            "grep rate",
            "run_tests",
            "submit",
            *(f"grep {name}" for name in task.targets),
            f"todo_add {' '.join(task.targets)}",
            repair(task, task.targets[0]).removesuffix(" <end>"),
        ]
    ).map(lambda line: words.encode(f"{line} <end>"))
    noise = st.lists(st.integers(0, len(words.VOCABULARY) + 2), max_size=harness.limits.sampled_tokens)
    step: object = None
    while not isinstance(step, Done):
        sampled = data.draw(calls | noise)
        step = harness.act(sampled)
        if isinstance(step, TestRun):
            step = harness.tested({})
        assert harness.turns <= harness.most_turns
        # A call and what it returns may exceed the budget once; then the episode ends or a summary is due.
        if isinstance(step, Observation):
            assert harness.context_tokens < harness.limits.budget or harness.summary_due
    assert 0 <= step.outcome <= 1


@pytest.mark.parametrize("changes", [{"turns": 0}, {"summaries": -1}, {"summarize_at": 500}, {"sampled_tokens": 0}])
def test_limits_that_make_no_sense_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        Limits(**changes)
