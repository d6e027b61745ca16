"""The rules apply: budget, thresholds, exclusion, pruning, turns; and no sampled token is dropped."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agents.search import vocabulary as words
from headrace.agents.search.harness import Done, Harness, Limits, Observation
from headrace.agents.search.tasks import Split, make_task, task_id
from headrace.schemas.events import EndStatus, ToolErrorClass

TASKS = [make_task(task_id(Split.TRAIN, number)) for number in range(60)]
THREE_HOPS = next(task for task in TASKS if len(task.chain) == 3)


def episode(limits: Limits | None = None) -> Harness:
    return Harness(THREE_HOPS, limits)


def query(hop: int) -> str:
    fact = THREE_HOPS.chain[hop].triple
    return f"search_corpus {fact.subject} {fact.relation} <end>"


def say(harness: Harness, text: str) -> Observation:
    step = harness.act(words.encode(text))
    assert isinstance(step, Observation), step
    return step


def over_the_hard_threshold() -> Harness:
    harness = episode()
    say(harness, query(0))
    say(harness, query(1))
    assert harness.used >= harness.limits.hard
    return harness


def test_the_prompt_is_the_question_a_usage_line_and_the_agent_token() -> None:
    text = words.decode(episode().observe())
    assert text.startswith(f"<task> {' '.join(THREE_HOPS.question)} [Token usage: 1 4 / 1 2 0 ]")
    assert text.endswith("<agent>")


def test_a_search_shows_chunks_within_its_own_token_budget() -> None:
    result = say(episode(), query(0)).result
    assert len(result["chunk_ids"]) == 3
    assert len(result["text"].split()) <= Limits().search_tokens


def test_the_context_grows_by_what_was_sampled_and_what_was_shown() -> None:
    harness = episode()
    before = harness.observe()
    sampled = words.encode(query(0))
    step = say(harness, query(0))
    assert harness.observe() == (*before, *sampled, *step.ids)


def test_a_search_omits_chunks_that_were_already_shown() -> None:
    harness = episode(Limits(budget=400, soft=390, hard=395))
    shown: list[str] = []
    for _ in range(5):
        shown += say(harness, "search_corpus friend <end>").result["chunk_ids"]
    assert shown
    assert len(shown) == len(set(shown))


def test_exclusion_survives_pruning() -> None:
    harness = episode()
    shown = say(harness, query(0)).result["chunk_ids"]
    say(harness, f"prune_chunks {' '.join(shown)} <end>")
    assert not set(say(harness, query(0)).result["chunk_ids"]) & set(shown)


def test_a_document_is_read_whole_whether_or_not_its_chunks_were_seen() -> None:
    harness = episode()
    say(harness, query(0))
    doc_id = THREE_HOPS.chain[0].doc_id
    assert len(say(harness, f"read_document {doc_id} <end>").result["chunk_ids"]) == 4


def test_a_document_is_cut_to_whole_chunks_that_fit_the_remaining_budget() -> None:
    harness = episode(Limits(budget=46, soft=40, hard=45))
    step = harness.act(words.encode("read_document d00 <end>"))
    assert isinstance(step, Done)
    assert step.observation is not None
    assert len(step.observation.result["chunk_ids"]) == 2


def test_grep_shows_five_chunks_at_most() -> None:
    shown = say(episode(), "grep_corpus is <end>").result["chunk_ids"]
    assert len(shown) == 5


def test_a_search_without_results_is_reported() -> None:
    absent = sorted(
        {*words.PEOPLE, *words.CITIES} - {word for c in THREE_HOPS.corpus.chunks for word in c.triple.words}
    )
    result = say(episode(), f"grep_corpus {absent[0]} <end>").result
    assert result == {"chunk_ids": [], "text": "nothing found"}


class TestThresholds:
    """The budget applies: two searches exhaust it."""

    def test_past_the_soft_threshold_the_usage_line_suggests_pruning(self) -> None:
        harness = episode(Limits(soft=30))
        say(harness, query(0))
        assert words.decode(harness.observe()).endswith("] consider pruning <agent>")

    def test_past_the_hard_threshold_every_tool_but_pruning_is_refused(self) -> None:
        for text in (query(2), "grep_corpus ada <end>", "read_document d00 <end>"):
            step = say(over_the_hard_threshold(), text)
            assert step.error_class is ToolErrorClass.REFUSED

    def test_a_refused_call_shows_nothing(self) -> None:
        harness = over_the_hard_threshold()
        seen = list(harness.seen)
        say(harness, query(2))
        assert list(harness.seen) == seen

    def test_pruning_makes_room_for_the_next_search(self) -> None:
        harness = over_the_hard_threshold()
        others = [chunk.chunk_id for chunk in harness.view if chunk.chunk_id not in THREE_HOPS.targets]
        assert say(harness, f"prune_chunks {' '.join(others)} <end>").error_class is None
        assert say(harness, query(2)).error_class is None

    def test_a_used_up_budget_ends_the_episode_without_an_answer(self) -> None:
        harness = over_the_hard_threshold()
        step: Observation | Done = say(harness, query(2))
        while isinstance(step, Observation):
            step = harness.act(words.encode(query(2)))
        assert (step.status, step.answer) == (EndStatus.BUDGET_EXHAUSTED, None)

    def test_an_answer_is_always_allowed(self) -> None:
        step = over_the_hard_threshold().act(words.encode("answer c01 c02 c01 <end>"))
        assert step == Done(EndStatus.COMPLETED, {"chunk_ids": ["c01", "c02"]})

    def test_usage_counts_every_token_before_the_line(self) -> None:
        harness = episode()
        say(harness, query(0))
        text = words.decode_words(harness.observe())
        last = len(text) - 1 - text[::-1].index("[Token")
        assert "".join(text[last + 2 : text.index("/", last)]) == str(last) == str(harness.used)

    def test_thresholds_in_the_wrong_order_are_refused(self) -> None:
        with pytest.raises(ValueError, match="soft ≤ hard ≤ budget"):
            Limits(soft=80, hard=70)


class TestPruning:
    """A prune rewrites the context and changes nothing else."""

    def test_the_new_context_shows_the_question_and_what_was_kept(self) -> None:
        harness = over_the_hard_threshold()
        kept = [chunk for chunk in harness.view if chunk.chunk_id in THREE_HOPS.targets]
        others = [chunk.chunk_id for chunk in harness.view if chunk not in kept]
        step = say(harness, f"prune_chunks {' '.join(others)} <end>")
        text = words.decode(step.ids)
        assert step.ids == harness.observe()
        assert harness.view == kept
        assert text.startswith(f"<task> {' '.join(THREE_HOPS.question)} {query(0)} <result> ")
        assert not any(chunk_id in text for chunk_id in others)

    def test_it_says_how_much_was_gained(self) -> None:
        harness = over_the_hard_threshold()
        before = harness.context_tokens
        target = harness.view[0].chunk_id
        step = say(harness, f"prune_chunks {target} <end>")
        assert step.pruned is not None
        assert step.pruned.chunk_ids == (target,)
        assert step.pruned.tokens_before == before + 3
        assert step.pruned.tokens_after == harness.context_tokens < before

    def test_what_was_pruned_still_counts_as_seen(self) -> None:
        harness = over_the_hard_threshold()
        seen = list(harness.seen)
        say(harness, f"prune_chunks {' '.join(seen)} <end>")
        assert harness.view == []
        assert list(harness.seen) == seen

    def test_chunks_that_are_not_in_view_cannot_be_pruned(self) -> None:
        harness = episode()
        assert say(harness, "prune_chunks c00 <end>").error_class is ToolErrorClass.INVALID_ARGUMENTS


def test_without_pruning_nothing_is_advised_and_nothing_but_the_prune_is_refused() -> None:
    harness = episode(Limits(pruning=False))
    [first, *_] = say(harness, query(0)).result["chunk_ids"]
    say(harness, query(1))
    assert harness.used >= harness.limits.hard
    assert "pruning" not in words.decode(harness.observe())
    refused = say(harness, f"prune_chunks {first} <end>")
    assert refused.error_class is ToolErrorClass.REFUSED
    assert refused.pruned is None
    assert first in {chunk.chunk_id for chunk in harness.view}


def test_without_pruning_the_budget_alone_ends_the_episode() -> None:
    harness = episode(Limits(pruning=False))
    say(harness, query(0))
    say(harness, query(1))
    ended = harness.act(words.encode(query(2)))
    assert isinstance(ended, Done)
    assert ended.status is EndStatus.BUDGET_EXHAUSTED


def test_a_malformed_action_is_an_error_that_the_model_sees_and_the_episode_continues() -> None:
    harness = episode()
    step = say(harness, "ada of c03 <end>")
    assert (step.tool, step.error_class) == ("unknown", ToolErrorClass.INVALID_ARGUMENTS)
    assert step.arguments == {"raw": "ada of c03 <end>"}
    assert words.decode(step.ids).startswith("<error> invalid action")


def test_the_last_turn_ends_the_episode() -> None:
    harness = episode(Limits(turns=2))
    say(harness, query(0))
    step = harness.act(words.encode(query(1)))
    assert isinstance(step, Done)
    assert step.status is EndStatus.TURNS_EXHAUSTED
    assert step.observation is not None


def word(kind: Sequence[str]) -> st.SearchStrategy[int]:
    return st.sampled_from([words.TOKEN_IDS[item] for item in kind])


ACTIONS = st.one_of(
    st.lists(st.integers(0, len(words.VOCABULARY) - 1), max_size=16),
    st.tuples(word([words.SEARCH]), word(words.RELATIONS), st.just(words.END_ID)),
    st.tuples(word([words.READ]), word(words.DOCUMENTS), st.just(words.END_ID)),
    st.tuples(word([words.PRUNE]), word(words.CHUNKS), st.just(words.END_ID)),
)


@settings(max_examples=300, deadline=None)
@given(task=st.sampled_from(TASKS), actions=st.lists(ACTIONS, min_size=8, max_size=8))
def test_every_policy_ends_within_the_limits(task: object, actions: list[Sequence[int]]) -> None:
    harness = Harness(task)  # type: ignore[arg-type]
    limits = harness.limits
    for sampled in actions:
        before = harness.observe()
        step = harness.act(sampled)
        if isinstance(step, Done):
            break
        assert harness.observe() == (step.ids if step.pruned else (*before, *sampled, *step.ids))
        assert harness.context_tokens < limits.budget
    assert isinstance(step, Done)
    assert harness.turns <= limits.turns
    assert harness.context_tokens <= limits.budget + limits.sampled_tokens + 16
