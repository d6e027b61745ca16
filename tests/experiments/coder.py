"""The coder learns in the simulator, with and without summaries: what each earns on held-out tasks, by their size.

python -m tests.experiments.coder --seed 0 --steps 60 --json FILE                       with summaries
python -m tests.experiments.coder --seed 0 --steps 60 --json FILE --no-summaries        the same budget without
python -m tests.experiments.coder --seed 0 --steps 60 --json FILE --control             shuffled advantages
python -m tests.experiments.coder --markdown FILE …                                     tables of such files
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import Qwen3ForCausalLM

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.harness import Limits
from headrace.agents.coder.warm_runner import WarmRunner
from headrace.streams.rewards.coder import CODER, CODER_SHORT
from tests.experiments.page import table
from tests.simulator.coder import CoderEpisode, TestCache, held_out_episodes, sampling_settings, training_episodes
from tests.simulator.learn import Evaluation, LearnSettings, Step, evaluate, learn, trainer_settings
from tests.simulator.sampling import Attempt

BASE = Path(__file__).parents[2] / "agents" / "coder" / "base"
SIZES = (1, 2, 3, 4, 6, 8)
TASKS_A_SEED = 100_000


def values(attempts: Sequence[Attempt[CoderEpisode]]) -> dict[str, float]:
    """Returns the means over ``attempts``: reward, verdict, and how they worked."""
    episodes = [attempt.episode for attempt in attempts]
    uses = [[use for turn in episode.turns for use in turn.tools] for episode in episodes]
    ends = [episode.done for episode in episodes]
    return {
        "reward": fmean(episode.reward() for episode in episodes),
        "outcome": fmean(end.outcome if end else 0.0 for end in ends),
        "solved": fmean(end is not None and end.outcome == 1.0 for end in ends),
        "submitted": fmean(end is not None and end.answer is not None for end in ends),
        "turns": fmean(len(episode.turns) for episode in episodes),
        "sampled_tokens": fmean(sum(turn.sampled_tokens for turn in episode.turns) for episode in episodes),
        "summaries": fmean(episode.harness.summaries for episode in episodes),
        "summary_tokens": fmean(
            sum(turn.sampled_tokens for turn in episode.turns if turn.summarized) for episode in episodes
        ),
        "looked_up": fmean(any(use.arguments.get("path") == words.CONSTANTS_FILE for use in each) for each in uses),
        "tested": fmean(any(use.tool == words.RUN_TESTS for use in each) for each in uses),
        "failed_calls": fmean(sum(use.error_class is not None for use in each) for each in uses),
        "open_todos": fmean(episode.score().components["unfinished_todos"].value for episode in episodes),
        "exits": fmean(any("exit" in use.arguments.get("body", "") for use in each) for each in uses),
        "edited_tests": fmean(
            any(use.tool == words.EDIT and use.arguments.get("path") == words.TESTS_FILE for use in each)
            for each in uses
        ),
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains and evaluates one arm; returns its curve and its values by size, which ``--json`` writes."""
    torch.set_num_threads(2)
    model = Qwen3ForCausalLM.from_pretrained(arguments.base, dtype=torch.float32)
    limits = Limits(summaries=0) if arguments.no_summaries else Limits()
    spec = CODER_SHORT if arguments.length_cost else CODER
    settings = LearnSettings(
        sampling_settings(limits),
        trainer=trainer_settings(
            steps=arguments.steps,
            seed=arguments.seed,
            learning_rate=arguments.learning_rate,
            constant_length=48,
            shuffle_advantages=arguments.control,
        ),
        maximum=1.0,
        first_task=arguments.seed * TASKS_A_SEED,
        held_out_tasks=arguments.held_out,
    )
    steps: list[dict[str, Any]] = []
    held_out: list[dict[str, Any]] = []

    def report(event: Step | Evaluation) -> None:
        if isinstance(event, Step):
            steps.append({"step": event.version, **event.values, "groups": event.groups, "seconds": event.seconds})
            print(f"step {event.version}: {_short(event.values)}", flush=True)
        else:
            held_out.append({"version": event.version, "greedy": event.greedy, "sampled": event.sampled})
            print(f"held out at {event.version}: greedy {_short(event.greedy)}; sampled {_short(event.sampled)}")

    by_size: dict[str, Any] = {}
    with WarmRunner() as runner:
        cache = TestCache(runner)
        training = training_episodes(cache, spec=spec, limits=limits)
        learn(model, training, settings, held_out_episodes(cache, spec=spec, limits=limits), values, report)
        if arguments.save:
            model.save_pretrained(arguments.save)
        for size in SIZES:
            episodes = held_out_episodes(cache, size=size, spec=spec, limits=limits)
            found = evaluate(model, episodes, settings, arguments.steps, values)
            by_size[str(size)] = {"greedy": found.greedy, "sampled": found.sampled}
            print(f"{size} functions: greedy {_short(found.greedy)}; sampled {_short(found.sampled)}", flush=True)
        runs = {"runs": cache.runs, "known": cache.hits}
    arm = "control" if arguments.control else "without summaries" if arguments.no_summaries else "with summaries"
    if arguments.length_cost:
        arm += ", length cost"
    return {"arm": arm, "seed": arguments.seed, "steps": steps, "held_out": held_out, "by_size": by_size, "tests": runs}


def markdown(files: Sequence[Path]) -> str:
    """Returns two tables of the results in ``files``: before and after, and by size."""
    results = [json.loads(file.read_text()) for file in files]
    learnt = table(
        (
            "arm, seed",
            "greedy before",
            "after",
            "sampled before",
            "after",
            "looked up",
            "exits",
            "open to-dos",
            "tokens",
        ),
        (
            (
                f"{result['arm']}, {result['seed']}",
                *(f"{evaluation[mode]['reward']:.3f}" for mode in ("greedy", "sampled") for evaluation in ends),
                *(
                    f"{ends[0]['sampled'][name]:{form}} → {ends[1]['sampled'][name]:{form}}"
                    for name, form in (
                        ("looked_up", ".2f"),
                        ("exits", ".3f"),
                        ("open_todos", ".2f"),
                        ("sampled_tokens", ".0f"),
                    )
                ),
            )
            for result in results
            for ends in [(result["held_out"][0], result["held_out"][-1])]
        ),
    )
    arms: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        arms[result["arm"]].append(result["by_size"])
    sizes = table(
        ("arm (sampled; summaries of an attempt)", *(f"{size}" for size in SIZES)),
        (
            (
                arm,
                *(
                    f"{fmean(each[str(size)]['sampled']['outcome'] for each in found):.2f} "
                    f"({fmean(each[str(size)]['sampled']['summaries'] for each in found):.1f})"
                    for size in SIZES
                ),
            )
            for arm, found in arms.items()
        ),
    )
    return f"{learnt}\n\n{sizes}\n"


def _short(found: Any) -> str:
    names = ("reward", "outcome", "turns", "summaries", "looked_up", "tested")
    return ", ".join(f"{name} {found[name]:.2f}" for name in names)


def main() -> None:
    """Runs an arm, or prints tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, default=BASE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--held-out", type=int, default=128, help="held-out tasks of an evaluation, also of each size")
    parser.add_argument("--learning-rate", type=float, default=8e-4)
    parser.add_argument("--no-summaries", action="store_true")
    parser.add_argument("--length-cost", action="store_true", help="coder@2 instead of coder@1")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--save", type=Path, help="folder for the model")
    parser.add_argument("--markdown", type=Path, nargs="+", metavar="FILE", help="print tables of results")
    arguments = parser.parse_args()
    if arguments.markdown:
        print(markdown(arguments.markdown))
        return
    result = run(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
