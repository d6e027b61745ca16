"""Whether the curriculum helps to learn pruning: with and without it, by sampled tokens, as ``headrace demo search``.

python -m tests.experiments.curriculum --results DIR      # a run whose file is in DIR is not repeated
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from headrace.agents.rollouts import curriculum
from headrace.agents.rollouts.curriculum import CurriculumSettings, GroupResult
from headrace.agents.rollouts.tasks import training_number
from headrace.agents.search.pruning import CURRICULUM, LEVELS, PRUNING_TASKS, ROOMY, TIGHT, BudgetedTask
from headrace.agents.search.tasks import HOP_WEIGHTS
from headrace.streams.rewards.context1 import SEARCH_PRUNING, SEARCH_RECALLS
from headrace.trainer.model.load import load_model
from tests.experiments.page import COLOURS, new_figure, table, write
from tests.experiments.pruning import as_json, cell
from tests.simulator.learn import Curve, Evaluation, LearnSettings, Step, learn, trainer_settings
from tests.simulator.sampling import Attempt
from tests.simulator.search import SearchEpisode, sampling_settings
from tests.simulator.search_values import search_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = Path(__file__).parents[2] / "agents" / "search" / "pruning_base"
ARMS: Mapping[str, CurriculumSettings | None] = {"with the curriculum": CURRICULUM, "without": None}
WITH, WITHOUT = ARMS
SEEDS, STEPS, GROUPS, HELD_OUT = 3, 40, 8, 120
EVALUATE_EVERY = 10

Runs: TypeAlias = dict[tuple[str, int], dict[str, Any]]
"""Values of curves by arm and seed."""


class Tasks:
    """The training tasks of a run, at the level that the pass rates of its groups have reached."""

    def __init__(self, settings: CurriculumSettings | None, seed: int) -> None:
        self.levels: list[int | None] = []
        """Level after each group; ``None`` without a curriculum."""
        self.sampled_tokens: list[int] = []
        """Tokens sampled by all groups up to each."""
        self._settings = settings
        self._seed = seed
        self._state = None if settings is None else curriculum.start(settings, len(LEVELS))
        self._made: dict[int, BudgetedTask] = {}

    def task(self, place: int) -> BudgetedTask:
        """Returns the task of the group with this number."""
        if place not in self._made:
            number = training_number(self._seed, place)
            level = None
            if self._state is not None and self._settings is not None:
                level = curriculum.level_of(self._state, self._settings, number=number, seed=self._seed)
            self._made[place] = PRUNING_TASKS.training(number, level)
        return self._made[place]

    def after_group(self, place: int, members: Sequence[Attempt[SearchEpisode]]) -> None:
        """Fold a group's results."""
        before = self.sampled_tokens[-1] if self.sampled_tokens else 0
        self.sampled_tokens.append(before + sum(len(call.sampled) for each in members for call in each.calls))
        if self._state is not None and self._settings is not None:
            shares = [each.episode.reward() / each.episode.maximum for each in members]
            rate = fmean(share >= self._settings.passes_at for share in shares)
            result = GroupResult(self._made[place].level, rate, len(members))
            self._state = curriculum.after(self._state, result, self._settings)
        self.levels.append(None if self._state is None else self._state.level)


def run(
    settings: CurriculumSettings | None,
    seed: int,
    *,
    steps: int = STEPS,
    groups: int = GROUPS,
    held_out: int = HELD_OUT,
    evaluate_every: int | None = EVALUATE_EVERY,
    control: bool = False,
    report: Callable[[Step | Evaluation], None] = lambda _: None,
) -> tuple[Curve, Tasks]:
    """Train the shipped base with the trainer's settings of ``headrace demo search``."""
    tasks = Tasks(settings, seed)

    def training(place: int, version: int) -> SearchEpisode:
        task = tasks.task(place)
        return SearchEpisode(task.task, version, spec=SEARCH_PRUNING, limits=task.limits)

    def evaluated(number: int, version: int) -> SearchEpisode:
        task = PRUNING_TASKS.held_out(number)
        return SearchEpisode(task.task, version, spec=SEARCH_RECALLS, limits=task.limits)

    learn_settings = LearnSettings(
        sampling_settings(ROOMY),
        trainer=trainer_settings(
            learning_rate=4e-4,
            steps=steps,
            substeps=4,
            groups_per_step=groups,
            seed=seed,
            loss="cispo",
            shuffle_advantages=control,
        ),
        maximum=SEARCH_PRUNING.maximum,
        held_out_tasks=held_out,
        evaluate_every=evaluate_every,
    )
    model = load_model(BASE)
    return learn(model, training, learn_settings, evaluated, search_values, report, tasks.after_group), tasks


def results(folder: Path, seeds: int) -> Runs:
    """Returns the curves of both arms and all seeds; those that ``folder`` lacks are learnt, and kept there."""
    folder.mkdir(parents=True, exist_ok=True)
    found: Runs = {}
    for seed in range(seeds):
        for arm, settings in ARMS.items():
            path = folder / f"{arm.replace(' ', '-')}-{seed}.json"
            if not path.exists():
                curve, tasks = run(settings, seed, report=_Printed(f"{arm}, seed {seed}"))
                values = as_json(curve) | {"levels": tasks.levels, "sampled_tokens": tasks.sampled_tokens}
                path.write_text(json.dumps(values))
            found[arm, seed] = json.loads(path.read_text())
    return found


class _Printed:
    """Prints evaluations and every fifth step."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, made: Step | Evaluation) -> None:
        if isinstance(made, Evaluation):
            names = ("reward", "reward_1", "reward_2", "reward_3", "prune_accuracy")
            for mode, values in (("greedy", made.greedy), ("sampled", made.sampled)):
                shown = ", ".join(f"{name} {values[name]:.2f}" for name in names if name in values)
                print(f"{self._name}: version {made.version}, {mode}: {shown}", flush=True)
        elif made.version % 5 == 0:
            seconds = " + ".join(f"{each:.1f}" for each in made.seconds)
            print(f"{self._name}: step {made.version}, reward {made.values['reward']:.2f}, {seconds} s", flush=True)


def tokens_at(run_: Mapping[str, Any]) -> list[int]:
    """Returns the tokens that were sampled for training before each evaluation."""
    return [([0, *run_["sampled_tokens"]])[each["version"] * GROUPS] for each in run_["held_out"]]


def at_tokens(run_: Mapping[str, Any], mode: str, name: str, budget: int) -> float:
    """Returns a held-out value after ``budget`` sampled tokens, on the line between the evaluations around it."""
    points = list(zip(tokens_at(run_), (each[mode][name] for each in run_["held_out"]), strict=True))
    for (left, before), (right, after) in pairwise(points):
        if left <= budget <= right:
            return float(before + (after - before) * (budget - left) / (right - left))
    raise ValueError(f"the run sampled {points[-1][0]} tokens, not {budget}")


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="folder of finished runs")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    runs, seeds = results(options.results, options.seeds), range(options.seeds)
    write("curriculum", "Pruning with and without a curriculum", _paragraphs(runs, seeds), _figure(runs, seeds))


def _paragraphs(runs: Runs, seeds: range) -> list[str]:
    budget = min(tokens_at(runs[arm, seed])[-1] for arm in ARMS for seed in seeds)
    names = ("reward", *(f"reward_{hops}" for hops in HOP_WEIGHTS))
    rows = [
        [
            arm,
            mode,
            f"{tokens:,}",
            *(cell([at_tokens(runs[arm, seed], mode, name, tokens) for seed in seeds]) for name in names),
        ]
        for mode in ("greedy", "sampled")
        for tokens in (0, budget // 2, budget)
        for arm in ARMS
    ]
    reached = [
        f"{name} in step {cell([each for seed in seeds if (each := first_step(runs[WITH, seed], level)) is not None])}"
        for level, name in enumerate(each.name for each in LEVELS)
        if level
    ]
    sampled = ", ".join(f"{arm} {cell([tokens_at(runs[arm, seed])[-1] / 1000 for seed in seeds])}" for arm in ARMS)
    return [
        "The miniature model of `headrace demo search` (`agents/search/pruning_base`) learns in the simulator with "
        f"that command's settings, on samples of the newest version only: {STEPS} steps of CISPO with {GROUPS} groups "
        f"of 8, 4 substeps, a budget of {TIGHT.budget} tokens of context, reward `search@5`. *With the curriculum*, "
        "tasks begin with one and two hops under a roomy budget, which needs no prune, and become harder as soon as "
        f"the pass rate of the latest {CURRICULUM.window} groups is {CURRICULUM.raise_at:g}; *without*, "
        "all are like those of the last level from the start. "
        f"{len(seeds)} seeds (`--results DIR --seeds {len(seeds)}`), "
        f"{HELD_OUT} held-out tasks of one, two and three hops by turns, mean reward as a share of "
        "the maximum ± deviation. Both arms are compared after equally many tokens sampled for training "
        "(interpolated between evaluations); thousands of tokens in all steps: "
        f"{sampled}.",
        table(["", "", "tokens", "all tasks", "1 hop", "2 hops", "3 hops"], rows),
        f"The curriculum reached {', '.join(reached)}. After {budget:,} tokens its mean reward differs from that "
        "without it "
        + " and ".join(
            f"by {_mean(runs, WITH, mode, budget, seeds) - _mean(runs, WITHOUT, mode, budget, seeds):+.2f} {mode}"
            for mode in ("greedy", "sampled")
        )
        + ". The base has imitated prunes under the tight budget already; the roomy level was made for bases that lose "
        "pruning before it pays.",
    ]


def _mean(runs: Runs, arm: str, mode: str, tokens: int, seeds: range) -> float:
    return fmean(at_tokens(runs[arm, seed], mode, "reward", tokens) for seed in seeds)


def first_step(run_: Mapping[str, Any], level: int) -> float | None:
    """Returns the step before which a run first reached ``level``; ``None`` if it never did."""
    levels = enumerate(run_["levels"], start=1)
    return next((place / GROUPS for place, each in levels if each is not None and each >= level), None)


def _figure(runs: Runs, seeds: range) -> "Figure":
    figure = new_figure()
    for axes, mode in zip(figure.subplots(1, 2, sharey=True), ("greedy", "sampled"), strict=True):
        budget = min(tokens_at(runs[arm, seed])[-1] for arm in ARMS for seed in seeds)
        for arm, style in zip(ARMS, ("-", "--"), strict=True):
            for hops, colour in zip(HOP_WEIGHTS, COLOURS, strict=False):
                places = [budget * place // 16 for place in range(17)]
                values = [
                    fmean(at_tokens(runs[arm, seed], mode, f"reward_{hops}", place) for seed in seeds)
                    for place in places
                ]
                label = f"{arm}, {hops} hop{'s' * (hops > 1)}"
                axes.plot([place / 1000 for place in places], values, style, color=colour, label=label)
        axes.set(title=f"held-out reward, {mode}", xlabel="thousand sampled tokens", ylim=(0, 1.02))
        axes.legend(fontsize=7)
    return figure


if __name__ == "__main__":
    main()
