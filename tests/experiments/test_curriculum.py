"""The short form of ``curriculum.py``: pruning is learnt on one seed, levels follow pass rates, tokens are compared."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headrace.agents.search.pruning import CURRICULUM, LEVELS
from headrace.deploy.demo.circle import plan_of
from headrace.deploy.demo.search_system import SEARCH
from tests.experiments import curriculum
from tests.experiments.curriculum import ARMS, BASE, GROUPS, WITH, WITHOUT, Tasks


def group(share: float, calls: int = 2, tokens: int = 5) -> list[Any]:
    """Return the eight attempts of a group with equal rewards."""
    episode = SimpleNamespace(reward=lambda: 2.0 * share, maximum=2.0)
    return [SimpleNamespace(episode=episode, calls=[SimpleNamespace(sampled=(0,) * tokens)] * calls)] * 8


def test_pruning_is_learnt_on_one_seed_within_a_minute() -> None:
    torch.set_num_threads(1)
    curve, _ = curriculum.run(None, seed=0, steps=40, held_out=60, evaluate_every=None)
    before, after = curve.held_out
    for old, new in ((before.greedy, after.greedy), (before.sampled, after.sampled)):
        assert new["reward"] >= old["reward"] + 0.25
        assert new["reward_3"] >= old["reward_3"] + 0.15  # three hops cannot be answered without a prune
        assert new["prune_accuracy"] > 0.75
    assert after.greedy["pruned_3"] > 0.9


def test_the_settings_are_those_of_the_live_demo() -> None:
    plan = plan_of(SEARCH)
    trainer = plan.options()["trainer"]
    assert (plan.groups_per_step, plan.heldout_tasks) == (GROUPS, curriculum.HELD_OUT)
    assert (plan.learning_rate, trainer["substeps"], trainer["loss"]) == (4e-4, 4, "cispo")
    assert plan.curriculum == ARMS[WITH]
    assert plan_of(SEARCH, "no-curriculum").curriculum is ARMS[WITHOUT] is None
    assert plan.system.base.resolve() == BASE.resolve()


def test_tasks_become_harder_as_groups_pass_and_easier_as_they_fail() -> None:
    tasks = Tasks(CURRICULUM, seed=0)
    for share, level in ((0.8, 1), (0.8, 2), (0.0, 1), (0.0, 0)):
        seen = len(tasks.levels)
        for place in range(seen, seen + 4 * CURRICULUM.window):
            tasks.task(place)
            tasks.after_group(place, group(share))
            if tasks.levels[-1] == level:
                break
        assert tasks.levels[-1] == level
    assert tasks.sampled_tokens[:2] == [80, 160]


def test_without_a_curriculum_every_task_is_of_the_last_level() -> None:
    tasks = Tasks(None, seed=0)
    tasks.after_group(0, group(0.9))
    assert tasks.levels == [None]
    assert tasks.task(0).limits == LEVELS[-1].limits
    assert tasks.task(0) is tasks.task(0)


def made(tokens: int, last: float) -> dict[str, Any]:
    """Return a run of two steps that sampled ``tokens`` in each group."""
    values = {"reward": last, **{f"reward_{hops}": last for hops in (1, 2, 3)}}
    zero = dict.fromkeys(values, 0.0)
    return {
        "held_out": [
            {"version": 0, "greedy": zero, "sampled": zero},
            {"version": 2, "greedy": values, "sampled": values},
        ],
        "sampled_tokens": [tokens * place for place in range(1, 2 * GROUPS + 1)],
        "levels": [0] * GROUPS + [2] * GROUPS,
    }


def test_arms_are_compared_after_equally_many_tokens() -> None:
    run = made(10, 0.8)
    assert curriculum.tokens_at(run) == [0, 10 * 2 * GROUPS]
    assert curriculum.at_tokens(run, "greedy", "reward", 10 * GROUPS) == pytest.approx(0.4)
    with pytest.raises(ValueError, match="sampled 160 tokens, not 161"):
        curriculum.at_tokens(run, "greedy", "reward", 161)


def test_the_page_says_when_levels_were_reached_and_what_equal_tokens_earn() -> None:
    runs = {(arm, seed): made(tokens, 0.8) for arm, tokens in ((WITH, 10), (WITHOUT, 20)) for seed in (0, 1)}
    text = "\n".join(curriculum._paragraphs(runs, range(2)))
    assert f"| {WITHOUT} | greedy | 160 | 0.40 ± 0.00 |" in text
    assert f"| {WITH} | greedy | 160 | 0.80 ± 0.00 |" in text
    assert f"{LEVELS[2].name} in step {(GROUPS + 1) / GROUPS:.2f} ± 0.00" in text
    assert curriculum.first_step(made(10, 0.8), 3) is None


def test_a_finished_run_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = curriculum.run
    monkeypatch.setattr(
        curriculum, "run", lambda settings, seed, **_: run(settings, seed, steps=1, groups=2, held_out=3)
    )
    first = curriculum.results(tmp_path, seeds=1)
    monkeypatch.setattr(curriculum, "run", lambda *_, **__: pytest.fail("the run was repeated"))
    assert curriculum.results(tmp_path, seeds=1) == first
    assert [len(first[arm, 0]["sampled_tokens"]) for arm in ARMS] == [2, 2]
