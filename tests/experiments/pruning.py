"""Pruning under a budget that questions of several hops cannot meet without it: what is possible, and what is learnt.

python -m tests.experiments.pruning                    # what budgets allow, by a player without mistakes
python -m tests.experiments.pruning --results DIR      # also what is learnt; a run whose file is in DIR is not repeated
"""

import argparse
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from headrace.agents.search.demonstrations import HELD_OUT_FIRST
from headrace.agents.search.harness import Limits
from headrace.agents.search.pruning import ROOMY, TIGHT, warm_up_demonstrations
from headrace.agents.search.tasks import HOP_WEIGHTS, Split, hops_of, make_task, task_id
from headrace.streams.rewards.context1 import BETA, FIRST_BETA, SEARCH_RECALLS, context1
from headrace.streams.rewards.schedule import Schedule, Shape, linear
from headrace.trainer.learning.optimizers import OptimizerSettings
from headrace.trainer.learning.schedules import RateShape, ScheduleSettings
from headrace.trainer.model.load import load_model
from headrace.trainer.supervised.fine_tune import SupervisedConfig, TuningExample, fine_tune
from tests.experiments.page import COLOURS, new_figure, show, table, write
from tests.simulator.learn import Curve, Evaluation, LearnSettings, Step, learn, trainer_settings
from tests.simulator.search import FIRST_TRAINING_TASK, SearchEpisode, sampling_settings
from tests.simulator.search_player import play_perfectly
from tests.simulator.search_values import search_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel

BASE = Path(__file__).parents[2] / "agents" / "search" / "base"

LIMITS = TIGHT
BUDGETS: Sequence[Limits] = (Limits(), replace(LIMITS, budget=96), LIMITS)
"""The default limits, under which only three hops need a prune, and tighter ones."""
ARMS: Mapping[str, Limits] = {"with pruning": LIMITS, "without": replace(LIMITS, pruning=False)}
WITH, WITHOUT = ARMS

SEEDS, STEPS, WARM_UP_STEPS = 3, 80, 390
HELD_OUT_PER_HOPS = 40
GROUPS = 8
ROOMY_UNTIL = 18
"""Policy version from which the arm's limits apply in training. Before it one and two hops fit without a prune, so that
searching and answering are learnt first."""
ANNEALED_AT = 40
"""Policy version at which β reaches 2 and the curriculum its last weights."""

TRAINED_ON = context1(
    name="search-pruning", version=1, beta=linear(FIRST_BETA, BETA, until=ANNEALED_AT), records_recall=True
)
"""``search@2`` with a shorter anneal, and with both recalls."""
MEASURED_BY = SEARCH_RECALLS
"""``search@3``: held-out attempts are scored at the last β, whatever the version."""

CURRICULUM: Mapping[int, Schedule] = {
    hops: Schedule(Shape.LINEAR, first, last, since=ROOMY_UNTIL, until=ANNEALED_AT)
    for hops, first, last in ((1, 0.35, 0.1), (2, 0.65, 0.4), (3, 0.0, 0.5))
}
"""Share of training tasks by hops over the policy version: easy to hard."""

Runs: TypeAlias = dict[tuple[str, int], dict[str, Any]]
"""Values of curves by arm and seed."""

_TASKS_PER_SEED = 1_000_000
_BLOCK = 100
"""Task numbers among which one with the wanted hops is taken."""


def training_task(number: int, version: int, seed: int) -> str:
    """Returns the id of training task ``number`` of a seed, with the hops that the curriculum draws at ``version``."""
    weights = [schedule.at(version) for schedule in CURRICULUM.values()]
    [hops] = Random(f"curriculum/{seed}/{number}").choices(list(CURRICULUM), weights)
    first = FIRST_TRAINING_TASK + seed * _TASKS_PER_SEED + number * _BLOCK
    identifiers = (task_id(Split.TRAIN, first + place) for place in range(_BLOCK))
    return next(identifier for identifier in identifiers if hops_of(identifier) == hops)


def held_out_ids(per_hops: int) -> list[str]:
    """Returns the first ``per_hops`` held-out tasks of each number of hops, by turns."""
    numbered = [task_id(Split.HELD_OUT, number) for number in range(per_hops * 20)]
    by_hops = [list(islice((each for each in numbered if hops_of(each) == hops), per_hops)) for hops in HOP_WEIGHTS]
    return [identifier for several in zip(*by_hops, strict=True) for identifier in several]


@dataclass(frozen=True, slots=True)
class Allowed:
    """What limits allow the player without mistakes, by hops."""

    reward: dict[int, float]
    """Mean reward, as a share of the maximum."""
    answered: dict[int, float]
    """Share of attempts whose answer has all evidence."""


def allowed(limits: Limits, per_hops: int, *, bold: bool = False) -> Allowed:
    """Play ``per_hops`` held-out tasks of each number of hops."""
    rewards: dict[int, list[float]] = {hops: [] for hops in HOP_WEIGHTS}
    answers: dict[int, list[bool]] = {hops: [] for hops in HOP_WEIGHTS}
    for identifier in held_out_ids(per_hops):
        episode = play_perfectly(make_task(identifier), limits, bold=bold)
        rewards[hops_of(identifier)].append(episode.reward() / episode.maximum)
        answers[hops_of(identifier)].append(episode.score().components["output_recall"].value == 1)
    return Allowed(
        {hops: fmean(values) for hops, values in rewards.items()},
        {hops: fmean(values) for hops, values in answers.items()},
    )


def warm_up_examples(limits: Limits, count: int, first: int = 0) -> list[TuningExample]:
    """Returns ``count`` sequences of scripted attempts under ``limits``, mostly at tasks of several hops."""
    found: list[TuningExample] = []
    for shown in warm_up_demonstrations(first, count, limits):
        found += [TuningExample(each.token_ids, each.mask) for each in shown]
        if len(found) >= count:
            break
    return found


def warmed_up(limits: Limits, steps: int = WARM_UP_STEPS) -> "PreTrainedModel":
    """Returns the shipped base model after ``steps`` of imitating demonstrations, mistakes included, under ``limits``.

    The shipped base has seen only the default limits, and few prunes.
    """
    config = SupervisedConfig(
        steps=steps,
        optimizer=OptimizerSettings(learning_rate=2e-3, betas=(0.9, 0.98), weight_decay=0.01),
        schedule=ScheduleSettings(shape=RateShape.COSINE, warmup_steps=20, final_share=0.1),
        report_every=steps,
    )
    model = load_model(BASE)
    train, held_out = warm_up_examples(limits, steps * 64), warm_up_examples(limits, 100, HELD_OUT_FIRST)
    fine_tune(model, train, held_out, config, lambda _: None)
    return model


def run(
    model: "PreTrainedModel",
    limits: Limits,
    seed: int,
    *,
    steps: int = STEPS,
    groups: int = GROUPS,
    per_hops: int = HELD_OUT_PER_HOPS,
    evaluate_every: int | None = 20,
    report: Callable[[Step | Evaluation], None] = lambda _: None,
) -> Curve:
    """Train ``model`` in place under ``limits``: groups of 8, CISPO, 4 substeps, β and curriculum as above."""
    roomy = replace(ROOMY, pruning=limits.pruning)

    def training(number: int, version: int) -> SearchEpisode:
        task = make_task(training_task(number, version, seed))
        chosen = roomy if version < ROOMY_UNTIL else limits
        return SearchEpisode(task, version, spec=TRAINED_ON, limits=chosen)

    held_out = held_out_ids(per_hops)
    settings = LearnSettings(
        sampling_settings(ROOMY),
        trainer=trainer_settings(
            learning_rate=4e-4, steps=steps, substeps=4, groups_per_step=groups, seed=seed, loss="cispo"
        ),
        maximum=TRAINED_ON.maximum,
        held_out_tasks=len(held_out),
        evaluate_every=evaluate_every,
    )
    return learn(
        model,
        training,
        settings,
        lambda number, version: SearchEpisode(make_task(held_out[number]), version, spec=MEASURED_BY, limits=limits),
        search_values,
        report,
    )


def as_json(curve: Curve) -> dict[str, Any]:
    """Returns a curve's values for a file."""
    return {
        "steps": [{"version": step.version, **step.values, "groups": step.groups} for step in curve.steps],
        "held_out": [
            {"version": each.version, "greedy": dict(each.greedy), "sampled": dict(each.sampled)}
            for each in curve.held_out
        ],
    }


def results(folder: Path, seeds: int) -> Runs:
    """Returns the curves of all arms and seeds; those that ``folder`` lacks are learnt, and kept there."""
    folder.mkdir(parents=True, exist_ok=True)
    found: Runs = {}
    for arm, limits in ARMS.items():
        base: PreTrainedModel | None = None
        for seed in range(seeds):
            path = folder / f"{arm.replace(' ', '-')}-{seed}.json"
            if not path.exists():
                base = base or warmed_up(limits)
                curve = run(copy.deepcopy(base), limits, seed, report=_Printed(arm, seed))
                path.write_text(json.dumps(as_json(curve)))
            found[arm, seed] = json.loads(path.read_text())
    return found


class _Printed:
    """Prints evaluations and every tenth step."""

    def __init__(self, arm: str, seed: int) -> None:
        self._name = f"{arm}, seed {seed}"

    def __call__(self, made: Step | Evaluation) -> None:
        if isinstance(made, Evaluation):
            shown = ", ".join(
                f"{name} {made.greedy[name]:.2f}" for name in ("reward", "reward_1", "reward_2", "reward_3")
            )
            print(f"{self._name}: version {made.version}, greedy: {shown}", flush=True)
        elif made.version % 10 == 0:
            print(f"{self._name}: step {made.version}, reward {made.values['reward']:.2f}", flush=True)


def cell(values: Sequence[float]) -> str:
    """Returns mean and standard deviation; a dash without values."""
    if not values:
        return "–"
    return f"{fmean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def main() -> None:
    """Run what is missing, then write the page; without results, print what budgets allow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="folder of finished runs; unset: nothing is learnt, nor written")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.results is None:
        show(_allowed(), "with --results DIR also what is learnt")
        return
    runs, seeds = results(options.results, options.seeds), range(options.seeds)
    title = "Pruning under a budget that several hops cannot meet without it"
    write("pruning", title, [*_allowed(), *_learnt(runs, seeds)], _figure(runs, seeds), options="--results DIR")


def _allowed() -> list[str]:
    ways = ((WITH, True, False), (f"{WITHOUT}, stops in time", False, False), (f"{WITHOUT}, searches on", False, True))
    rows = [
        [
            f"{limits.budget}, {limits.soft}, {limits.hard}" + (" (default)" if limits == Limits() else ""),
            way,
            *(f"{value:.2f}" for value in (*found.reward.values(), *found.answered.values())),
        ]
        for limits in BUDGETS
        for way, pruning, bold in ways
        for found in [allowed(replace(limits, pruning=pruning), HELD_OUT_PER_HOPS, bold=bold)]
    ]
    head = ["budget, soft, hard threshold, in tokens", ""]
    head += [f"{what}, {hops} hop{'s' * (hops > 1)}" for what in ("reward", "answered") for hops in HOP_WEIGHTS]
    return [
        "A scripted player without mistakes (`tests/simulator/search_player.py`) plays the search agent's harness on "
        f"{HELD_OUT_PER_HOPS} held-out tasks of each number of hops. *With pruning*, from the hard threshold on the "
        "harness refuses every tool but the prune, and answers stay allowed; *without*, it refuses the prune and "
        "nothing else, so that the whole budget can be used. There the player either stops while the largest possible "
        "result still fits, and answers with what it has, or searches on until the budget ends the attempt. Mean "
        "reward (Context-1's, β = 2) as a share of its maximum, and the share of attempts that answer with all "
        "evidence:",
        table(head, rows),
        "So three hops cannot be answered without a prune under the default limits already, and two hops not at a "
        f"budget of {LIMITS.budget}. An attempt that searches on and never answers can still earn 0.6, for what it has "
        "seen: reward alone does not show that pruning is needed.",
    ]


def _learnt(runs: Runs, seeds: range) -> list[str]:
    def held_out(arm: str, place: int, mode: str, name: str) -> str:
        return cell(
            [each[name] for seed in seeds for each in [runs[arm, seed]["held_out"][place][mode]] if name in each]
        )

    learnt = [
        [arm, mode, moment, *(held_out(arm, place, mode, f"reward_{hops}") for hops in HOP_WEIGHTS)]
        for arm in ARMS
        for mode in ("greedy", "sampled")
        for moment, place in (("before", 0), ("after", -1))
    ]
    names = ("pruned_3", "prune_accuracy", "longest_streak", "trajectory_recall", "output_recall", "answered")
    by_step = [
        [str(made["version"]), *(held_out(WITH, place, "greedy", name) for name in names)]
        for place, made in enumerate(runs[WITH, 0]["held_out"])
    ]
    return [
        f"**Learnt** under a budget of {LIMITS.budget} tokens, by the miniature model (0.36 M parameters) in the "
        "simulator (`tests/simulator`). The shipped base imitates sloppy demonstrations under the arm's own limits "
        f"for {WARM_UP_STEPS} steps; then {STEPS} steps of CISPO with {GROUPS} groups of 8, 4 substeps, β from "
        f"{FIRST_BETA:g} to {BETA:g} and the curriculum from few hops to many over {ANNEALED_AT} versions, the first "
        f"{ROOMY_UNTIL} of them with a budget that one and two hops meet without a prune. "
        f"{len(seeds)} seeds, {HELD_OUT_PER_HOPS} held-out tasks of each number of hops, mean ± deviation:",
        table(["", "", "", "1 hop", "2 hops", "3 hops"], learnt),
        "Pruning by version, greedy on the held-out tasks. Accuracy: share of removed chunks that are no evidence. The "
        "trajectory's recall counts what was ever shown, the output's what is in the answer:",
        table(
            ["version", "3-hop attempts that prune", "accuracy", "longest streak", "trajectory recall",
             "output recall", "answered"],
            by_step,
        ),
    ]  # fmt: skip


def _figure(runs: Runs, seeds: range) -> "Figure":
    figure = new_figure()
    rewards, recalls = figure.subplots(1, 2)
    for arm, colour in zip(ARMS, COLOURS, strict=False):
        for mode, style in (("greedy", "-"), ("sampled", "--")):
            for hops, marker in ((2, "o"), (3, "s")):
                points = list(zip(*(runs[arm, seed]["held_out"] for seed in seeds), strict=True))
                rewards.plot(
                    [point[0]["version"] for point in points],
                    [fmean(each[mode][f"reward_{hops}"] for each in point) for point in points],
                    color=colour, linestyle=style, marker=marker, markersize=4, label=f"{arm}, {hops} hops, {mode}",
                )  # fmt: skip
    rewards.set(title="held-out reward", xlabel="step", ylabel="share of the maximum", ylim=(0, 1.25))
    rewards.legend(fontsize=7, ncols=2, loc="upper left")
    shown = (("trajectory_recall", "trajectory recall"), ("output_recall", "output recall"))
    for (name, label), colour in zip((*shown, ("prune_accuracy", "prune accuracy")), COLOURS, strict=False):
        steps = list(zip(*(runs[WITH, seed]["steps"] for seed in seeds), strict=True))
        values = [[each[name] for each in step if name in each] for step in steps]
        recalls.plot(
            [place for place, each in enumerate(values) if each],
            [fmean(each) for each in values if each],
            color=colour, label=label,
        )  # fmt: skip
    recalls.set(title="training samples, with pruning", xlabel="step", ylim=(0, 1.02))
    recalls.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    main()
