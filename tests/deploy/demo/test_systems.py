"""Every registered system is whole: its plan, options, rewards, tasks and base model exist."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.agents.swarm.tasks import Source, Split, make_task, task_id
from headrace.deploy.cli import cli
from headrace.deploy.configuration.settings import configured
from headrace.deploy.demo.circle import DemoPlan, plan_of
from headrace.deploy.demo.quick_system import QUICK
from headrace.deploy.demo.run import demo_settings
from headrace.deploy.demo.search_system import pruning_figures
from headrace.deploy.demo.summary import Figure, figure_lines, figures_of
from headrace.deploy.demo.swarm_system import SWARM
from headrace.deploy.demo.system import Arm, System, component_means, merged
from headrace.deploy.demo.systems import NAMES, system_named
from headrace.deploy.errors import StackError
from headrace.deploy.processes.registry import stack_processes
from headrace.deploy.stack.selection import select
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component, Reward
from headrace.streams.grouping.group_policy import parse_policies
from headrace.streams.rewards.registry import ANY_AGENT, DEFAULTS, parse_rewards
from headrace.trainer.config import TrainerConfig

ARMED = replace(
    QUICK,
    name="armed",
    program=None,
    options={"trainer": {"loss": "gspo", "max_staleness": 9}},
    arms={"slow": Arm("learns slowly", {"trainer": {"max_staleness": 2}}, {"learning_rate": 1e-5, "steps": 9})},
)


def plans(system: System) -> list[DemoPlan]:
    return [plan_of(system, arm) for arm in (None, *system.arms)]


@pytest.mark.parametrize("name", NAMES)
def test_every_plan_of_a_system_has_options_that_exist(name: str) -> None:
    for plan in plans(system_named(name)):
        settings = demo_settings(plan, "somewhere")
        select(stack_processes(), settings, ())
        where = {"bootstrap": "b:1", "run": "demo", "model_dir": Path("m"), "checkpoint_dir": Path("c")}
        config = configured(settings, "trainer", TrainerConfig, store_url="file:///nowhere", **where)
        assert config.steps == plan.steps
        rewards = plan.options().get("workers", {}).get("rewards", {})
        assert isinstance(rewards, dict)
        chosen = {**DEFAULTS, **rewards}
        assert all(chosen.get(agent, chosen[ANY_AGENT]) != DEFAULTS[ANY_AGENT] for agent in plan.system.agents)
        parse_rewards(rewards)


@pytest.mark.parametrize("name", NAMES)
def test_a_systems_tasks_have_levels_and_ids_of_their_own(name: str) -> None:
    tasks = system_named(name).tasks
    assert len(tasks.levels) > 1
    levels = [None, *range(len(tasks.levels))]
    ids = [tasks.training(number, level).task_id for number in (1_000_000, 1_000_001) for level in levels]
    held_out = [tasks.held_out(number).task_id for number in range(3)]
    assert len({*ids, *held_out}) == len(ids) + len(held_out)
    json.dumps(dict(tasks.training(1_000_000, 0).facts))
    for level in (-1, len(tasks.levels)):
        with pytest.raises(ValueError, match="level"):
            tasks.training(1_000_000, level)


@pytest.mark.parametrize("name", NAMES)
def test_a_systems_base_model_fits_its_vocabulary(name: str) -> None:
    system = system_named(name)
    config = json.loads((system.base / "config.json").read_text())
    assert config["vocab_size"] == system.base_model.vocabulary_size
    assert config["max_position_embeddings"] == system.base_model.max_positions
    assert json.loads((system.base / "tokenizer.json").read_text()) == system.base_model.tokenizer()
    [example, *_] = next(system.base_model.demonstrations(0, 1))
    assert len(example.token_ids) == len(example.mask) <= system.base_model.max_positions
    assert max(example.token_ids) < system.base_model.vocabulary_size


def test_what_is_given_replaces_the_arm_which_replaces_the_system() -> None:
    plan = plan_of(ARMED, "slow", steps=3, heldout_tasks=None)
    assert (plan.learning_rate, plan.steps, plan.heldout_tasks) == (1e-5, 3, 256)
    trainer = plan.options()["trainer"]
    assert (trainer["loss"], trainer["max_staleness"], trainer["steps"]) == ("gspo", 2, 3)
    assert plan_of(ARMED).options()["trainer"]["max_staleness"] == 9
    assert merged({"a": {"x": 1}}, {"b": {}}, {"a": {"y": 2}}) == {"a": {"x": 1, "y": 2}, "b": {}}


def test_a_learning_rate_that_declines_does_so_over_the_steps_of_the_plan() -> None:
    assert "schedule" not in DemoPlan(steps=9).options()["trainer"]
    declines = DemoPlan(steps=9, last_rate=0.1).options()["trainer"]
    assert declines["schedule"] == {"shape": "cosine", "decay_steps": 9, "final_share": 0.1}


def test_an_unknown_system_arm_or_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="no system 'chess': expected one of quick, search, "):
        system_named("chess")
    with pytest.raises(StackError, match="no arm 'fast': expected one of slow"):
        plan_of(ARMED, "fast")
    with pytest.raises(StackError, match="no arm 'fast': it has none"):
        plan_of(replace(QUICK, arms={}), "fast")
    with pytest.raises(StackError, match="no program for --through-gateway"):
        plan_of(ARMED, through_gateway=True)
    with pytest.raises(StackError, match="have no sandboxes: leave --sandboxes out"):
        plan_of(ARMED, sandboxes=tmp_path)
    for command in ("demo", "base-model"):
        assert "'chess' is not" in CliRunner().invoke(cli, [command, "chess"]).output


def test_without_a_name_the_quick_demo_runs() -> None:
    assert NAMES[0] == QUICK.name
    assert DemoPlan().system is QUICK
    assert "quick     (default)" in CliRunner().invoke(cli, ["demo", "--help"]).output


def test_the_users_model_is_used_instead_of_the_systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = plan_of(replace(QUICK, base=tmp_path / "base"))
    assert demo_settings(plan, "somewhere").model_dir == tmp_path / "base"
    monkeypatch.setenv("HEADRACE_MODEL_DIR", str(tmp_path / "mine"))
    assert demo_settings(plan, "somewhere").model_dir == tmp_path / "mine"


def test_a_systems_figures_are_shown_before_and_after() -> None:
    rewards = [
        Reward(
            trajectory_id=str(value),
            trajectory=Reference(partition=0, offset=0),
            spec="s@1",
            total=value,
            components={"recall": Component(value=value, weight=1.0)},
            ended_ms=0,
        )
        for value in (0.0, 1.0)
    ]
    assert component_means(rewards) == {"recall": 0.5}
    figures = figures_of(component_means(rewards), {"spawns": 2.0})
    assert figures == {"recall": Figure(before=0.5, after=None), "spawns": Figure(before=None, after=2.0)}
    assert figure_lines(figures) == ["  recall  0.500 → none", "  spawns  none → 2.000"]


def orchestrated(number: int, outcome: float, total: float | None) -> Reward:
    values = {"parallel": 0.5, "outcome": outcome}
    return Reward(
        trajectory_id=f"{number}-{outcome}",
        trajectory=Reference(partition=0, offset=0),
        task_id=task_id(Split.HELD_OUT, number),
        spec="swarm@2",
        total=total,
        maximum=1.5,
        components={name: Component(value=value, weight=0.3) for name, value in values.items()},
        sampled_tokens=20,
        ended_ms=0,
    )


def test_the_swarms_toggle_arm_is_a_group_policy_of_its_reward() -> None:
    options = merged(SWARM.options, SWARM.arms["toggle"].options)["workers"]
    policies, rewards = options["group_policies"], options["rewards"]
    assert isinstance(policies, dict)
    assert isinstance(rewards, dict)
    toggle = parse_policies(policies).of(rewards["swarm"]).toggle
    assert toggle is not None
    assert {source: toggle.budget("", source) is not None for source in Source} == dict.fromkeys(Source, True)


def test_the_swarms_figures_are_by_source_and_its_measure_is_the_outcome_alone() -> None:
    of = {source: [n for n in range(40) if make_task(task_id(Split.HELD_OUT, n)).source is source] for source in Source}
    wide, deep = of[Source.WIDE][0], of[Source.DEEP][:2]
    rewards = [orchestrated(wide, 0.5, 1.1), orchestrated(deep[0], 1.0, 1.3), orchestrated(deep[1], 0.0, None)]
    assert SWARM.figures is not None
    assert SWARM.figures(rewards) == {
        "wide reward": 1.1, "wide parallel": 0.5, "wide outcome": 0.5, "wide tokens": 20.0,
        "deep reward": 1.3, "deep parallel": 0.5, "deep outcome": 0.5, "deep tokens": 20.0,
    }  # fmt: skip
    assert SWARM.measure is not None
    assert [SWARM.measure.of(each) for each in rewards] == [0.5, 1.0, 0.0]
    assert SWARM.measure.of(rewards[0].model_copy(update={"components": {}, "total": None})) == 0.0


def pruned(hops: int, total: float, removed: int, evidence: int, streak: int) -> Reward:
    values = {"chunks_pruned": removed, "evidence_pruned": evidence, "longest_streak": streak, "output_recall": 0.5}
    return Reward(
        trajectory_id=f"{hops}-{total}",
        trajectory=Reference(partition=0, offset=0),
        task_id=f"search-heldout-000001-{hops}hops-b90",
        spec="search@5",
        total=total,
        maximum=2.0,
        components={name: Component(value=value, weight=0.0) for name, value in values.items()},
        ended_ms=0,
    )


def test_the_search_systems_figures_are_by_hops_and_about_pruning() -> None:
    rewards = [pruned(1, 2.0, 0, 0, 0), pruned(2, 1.0, 6, 0, 1), pruned(2, 0.0, 2, 2, 3)]
    assert pruning_figures(rewards) == {
        "reward, 1 hop": 1.0,
        "reward, 2 hops": 0.25,
        "attempts that prune": pytest.approx(2 / 3),
        "prune accuracy": 0.75,
        "longest prune streak": 3.0,
        "output recall": 0.5,
    }
    assert "prune accuracy" not in pruning_figures([pruned(1, 2.0, 0, 0, 0)])
