"""The demo's figures: from records to text and picture."""

from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from headrace.agents.rollouts.rollout_metrics import SamplingReport
from headrace.deploy.configuration.settings import configured
from headrace.deploy.demo.circle import DemoPlan
from headrace.deploy.demo.exactness import Exactness
from headrace.deploy.demo.plot import draw, drawn
from headrace.deploy.demo.run import demo_settings, fresh_folder
from headrace.deploy.demo.summary import (
    REWARD_SHARE,
    HeldOut,
    Monitored,
    Summary,
    VersionReward,
    by_trajectory,
    mean_reward,
    mixed_versions,
    monitored,
    normalised,
    render,
    reward_by_version,
)
from headrace.deploy.demo.usage import Usage
from headrace.deploy.errors import StackError
from headrace.deploy.processes.registry import stack_processes
from headrace.deploy.stack.selection import select
from headrace.schemas.events import Purpose
from headrace.schemas.records.alert import Alert, Episode, EpisodeState
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.watch import Lane, Reading, Readings
from headrace.trainer.config import TrainerConfig


def reward(name: str, total: float | None, versions: tuple[int, int] = (0, 0), **fields: object) -> Reward:
    return Reward.model_validate(
        {
            "trajectory_id": name,
            "trajectory": Reference(partition=0, offset=0),
            "spec": "search@1",
            "total": total,
            "maximum": 2.0,
            "oldest_version": versions[0],
            "newest_version": versions[1],
            "ended_ms": 0,
        }
        | fields
    )


REWARDS = [
    reward("a", 2.0),
    reward("b", 1.0, (0, 1)),
    reward("c", 0.0, (1, 1)),
    reward("e", 2.0, (1, 1), purpose=Purpose.EVALUATE),
]

SUMMARY = Summary(
    seed=1,
    control=False,
    heldout=HeldOut(sampled_before=0.2, sampled_after=0.6, greedy_before=0.3, greedy_after=0.55),
    heldout_tasks=4,
    steps=2,
    ledger={
        "started": 4,
        "trained": 2,
        "rejected_by": {"group": {"evaluation": 1}},
        "pending_by": {"open": 0, "untrained": 1},
        "adds_up": True,
    },
    weights_published=3,
    weights_applied=3,
    mixed_version_trajectories=1,
    reward_by_version=[VersionReward(version=0, mean=0.3, trajectories=9)],
    seconds={"learn": 10.0, "total": 12.0},
    peak_memory_bytes=2**30,
    plot="reward.png",
    data="data",
    dashboard=None,
)


def test_a_reward_is_a_share_of_its_maximum_and_0_if_unscored() -> None:
    assert normalised(reward("a", 1.5)) == 0.75
    assert normalised(reward("a", None)) == 0.0
    assert normalised(reward("a", 1.0, maximum=None)) == 0.0


def test_a_system_may_measure_held_out_attempts_by_something_else_than_the_reward() -> None:
    assert mean_reward(by_trajectory(REWARDS), ["a", "b", "c"], lambda each: float(each.total == 1.0)) == 1 / 3
    assert "Held-out reward, share of the maximum, 4 tasks" in render(SUMMARY)
    assert "Held-out item F1, 4 tasks" in render(SUMMARY.model_copy(update={"measure": "item F1"}))


def test_the_least_duration_is_the_processor_time_over_all_cores() -> None:
    assert "Processor time" not in render(SUMMARY)
    usage = Usage(
        seconds=10.0, cores=2, processor_s={"vllm": 8.0}, idle_s=4.0, sampled_tokens=None, prompt_tokens=None,
        trainer_wait_s=0.0, trainer_s=0.0,
    )  # fmt: skip
    text = render(SUMMARY.model_copy(update={"processor_s": 15.0, "usage": usage}))
    assert "Processor time 15 s: at least 8 s on 2 cores that nothing else uses" in text
    alone = render(SUMMARY.model_copy(update={"processor_s": 15.0}))
    assert "Processor time 15 s: at least 15 s on 1 core that nothing else uses" in alone


def test_a_mean_over_unscored_trajectories_is_an_error() -> None:
    rewards = by_trajectory(REWARDS)
    assert mean_reward(rewards, ["a", "b"]) == 0.75
    with pytest.raises(LookupError, match="1 of 2"):
        mean_reward(rewards, ["a", "missing"])
    with pytest.raises(LookupError):
        mean_reward(rewards, [])


def test_training_rollouts_are_grouped_by_their_oldest_version_without_evaluations() -> None:
    assert reward_by_version(REWARDS) == [
        VersionReward(version=0, mean=0.75, trajectories=2),
        VersionReward(version=1, mean=0.0, trajectories=1),
    ]
    assert mixed_versions(REWARDS) == 1


def test_the_gain_is_the_smaller_improvement() -> None:
    assert SUMMARY.heldout.gain == pytest.approx(0.25)


def test_the_summary_contains_every_fate_and_whether_they_add_up() -> None:
    text = render(SUMMARY)
    assert "the ledger adds up" in text
    for line in ("trained", "group: evaluation", "pending: untrained", "0.200 → 0.600", "0.300 → 0.550"):
        assert line in text
    assert "pending: open" not in text
    broken = SUMMARY.model_copy(update={"ledger": SUMMARY.ledger | {"adds_up": False}})
    assert "DOES NOT ADD UP" in render(broken)


def test_the_summary_counts_the_calls_of_a_program() -> None:
    assert "through the gateway" not in render(SUMMARY)
    found = Exactness(
        calls=100, continuing=60, retokenised=2, unknown_prefixes=3, echoes={"equal": 90, "missing": 10}, text_differs=7
    )
    text = render(SUMMARY.model_copy(update={"through_gateway": True, "exactness": found}))
    shown = [" ".join(line.split()) for line in text.splitlines()]
    assert "Calls through the gateway 100, text only; 60 continue an earlier one" in shown
    assert "retokenisation differences 5" in shown
    assert "prompts that the engine reports otherwise 10 (equal: 90)" in shown
    assert "answers whose text has other tokens 7 (kept as sampled)" in shown


def test_the_summary_says_what_the_sampler_did() -> None:
    assert "Groups sampled" not in render(SUMMARY)
    done = SamplingReport(
        groups=12,
        groups_by_level={"1 hop": 8, "2 hops": 4},
        fates={"gradient": 5, "zero_variance_all_fail": 3, "zero_variance_all_equal": 1},
        restored={"kept": 9, "resumed": 2},
        levels=("1 hop", "2 hops"),
        pass_rates={"1 hop": 0.75},
        seconds=20.0,
        waited_s=5.0,
    )
    shown = [" ".join(line.split()) for line in render(SUMMARY.model_copy(update={"sampling": done})).splitlines()]
    assert "Groups sampled 12, one task each; 4 without a gradient, waiting for the trainer 25% of the time" in shown
    assert "curriculum 1 hop → 2 hops" in shown
    assert {"1 hop: 8 groups, 75% passed", "2 hops: 4 groups, none scored"} <= set(shown)
    assert "after a restart: 9 kept, 2 resumed" in shown


def test_the_json_has_the_published_keys() -> None:
    promised = {"heldout", "steps", "ledger", "weights_published", "weights_applied", "mixed_version_trajectories"}
    assert promised | {"seconds"} <= set(SUMMARY.model_dump())
    assert set(SUMMARY.model_dump()["heldout"]) == {"sampled_before", "sampled_after", "greedy_before", "greedy_after"}


@pytest.mark.parametrize("measure", [REWARD_SHARE, "item F1 of wide tasks and accuracy of deep ones"])
def test_the_legend_is_inside_the_picture_and_covers_no_curve(measure: str) -> None:
    figure = drawn(SUMMARY.model_copy(update={"measure": measure}))
    FigureCanvasAgg(figure).draw()
    (legend,), (axes,) = figure.legends, figure.axes
    extent = legend.get_window_extent()
    assert min(extent.x0, extent.y0) >= 0
    assert extent.x1 <= figure.bbox.width
    assert not extent.overlaps(axes.get_window_extent())
    assert legend.get_title().get_text() == ("" if measure == REWARD_SHARE else f"held-out tasks: {measure}")


def test_the_curve_is_drawn(tmp_path: Path) -> None:
    draw(SUMMARY, tmp_path / "reward.png")
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")


def test_the_options_of_the_plan_exist() -> None:
    settings = demo_settings(DemoPlan(control=True, steps=7), "somewhere")
    select(stack_processes(), settings, ())
    nowhere = Path("nowhere")
    config = configured(
        settings,
        "trainer",
        TrainerConfig,
        bootstrap="b:1",
        run="demo",
        model_dir=nowhere,
        checkpoint_dir=nowhere,
        store_url="file:///nowhere",
    )
    assert (config.steps, config.shuffle_advantages) == (7, True)


def test_only_a_folder_of_the_demo_is_emptied(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    fresh_folder(folder)
    (folder / "old").touch()
    fresh_folder(folder)
    assert not (folder / "old").exists()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.txt").touch()
    with pytest.raises(StackError, match="not created by a demo"):
        fresh_folder(theirs)
    assert (theirs / "thesis.txt").exists()


def test_the_summary_says_how_much_the_monitors_judged_and_what_alarmed() -> None:
    key = {"lane": Lane.ATTEMPT, "run": "demo", "agent": "search", "task_source": "wiki", "spec": ""}
    span = {"trajectories": 64, "first_version": 1, "last_version": 1, "since_ms": 1, "until_ms": 2}
    learnt = {"turns": Reading(value=5.0, trajectories=64), "talks": Reading(value=0.0, trajectories=64)}
    judged = {"turns": Reading(value=5.0, trajectories=64, expected=4.9, sd=0.1)}
    readings = [Readings(**key, **span, window=number, readings=each) for number, each in enumerate((learnt, judged))]
    episode = Episode(
        id="e1", monitor="turns", state=EpisodeState.OPENED, agent="search", task_source="wiki", since_ms=1
    )
    alarm = Alert(run="demo", source="watch", kind="monitor_turns", message="…", episode=episode)
    other = Alert(run="demo", source="trainer", kind="disk_full", message="…")
    assert monitored(readings, [other]) == Monitored(windows=2, judged=1, alarms=[])
    found = monitored(readings, [alarm, alarm, other])
    assert found.alarms == ["turns/search/wiki"]
    text = render(SUMMARY.model_copy(update={"monitors": found}))
    assert "Monitors: 2 windows, 1 values judged, 1 alarmed: turns/search/wiki" in text
    assert "none alarmed" in render(SUMMARY.model_copy(update={"monitors": monitored(readings, [])}))
