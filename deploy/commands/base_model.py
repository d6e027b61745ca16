"""``headrace base-model``: make a system's base model from scripted demonstrations."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.demo.systems import NAMES, system_named
from headrace.deploy.errors import StackError
from headrace.deploy.terminal import print_line

if TYPE_CHECKING:
    from headrace.deploy.demo.system import BaseModel

HELD_OUT_EPISODES = 400


@click.command()
@click.argument("system", type=click.Choice(NAMES), default=NAMES[0], metavar="[SYSTEM]")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder to write to.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of initial weights and example order.")
@click.option("--steps", type=click.IntRange(1), help="Optimiser steps; default: the system's (quick: 2,400).")
@click.option("--episodes", type=click.IntRange(1), help="Demonstrations; default: the system's (quick: 60,000).")
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True, help="Threads that PyTorch uses.")
def command(system: str, out: Path, seed: int, steps: int | None, episodes: int | None, threads: int) -> None:
    """Train a system's base model on scripted demonstrations that contain mistakes.

    With the default settings the result is like the model that ships with headrace. On the same kind of processor it is
    bit-identical every time.
    """
    make_base_model(system_named(system).base_model, out, seed=seed, steps=steps, episodes=episodes, threads=threads)


def make_base_model(
    recipe: "BaseModel",
    out: Path,
    *,
    seed: int = 0,
    steps: int | None = None,
    episodes: int | None = None,
    threads: int = 2,
) -> None:
    """Train the model of ``recipe`` and write it to the new folder ``out``; ``None``: the recipe's number.

    Raises :class:`StackError` if there is something in ``out``.
    """
    if out.exists() and any(out.iterdir()):
        raise StackError(f"--out {out} is not empty: name a new folder, existing models are never overwritten")
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)  # A folder that cannot be written to fails here, before the work.

    import torch

    from headrace.deploy.fine_tuning.stages import TerminalReporter
    from headrace.trainer.model.load import load_model, save_model
    from headrace.trainer.model.miniature import miniature_qwen3
    from headrace.trainer.model.transfer import begin_with
    from headrace.trainer.supervised.fine_tune import SupervisedConfig, TuningExample, fine_tune

    def examples(first: int, count: int) -> list[TuningExample]:
        label = f"demonstrations from task {first}"
        with click.progressbar(recipe.demonstrations(first, count), length=count, label=label) as bar:
            return [TuningExample(example.token_ids, example.mask) for episode in bar for example in episode]

    torch.set_num_threads(threads)
    train, held_out = examples(0, episodes or recipe.episodes), examples(recipe.held_out_first, HELD_OUT_EPISODES)
    model = miniature_qwen3(
        recipe.vocabulary_size,
        end_id=recipe.end_id,
        pad_id=recipe.pad_id,
        seed=seed,
        max_positions=recipe.max_positions,
        tied=recipe.tied,
        key_value_heads=recipe.key_value_heads,
    )
    if recipe.begins_with is not None:
        vocabulary = json.loads((recipe.begins_with / "tokenizer.json").read_text())["model"]["vocab"]
        shared = begin_with(model, _words(recipe.tokenizer()["model"]["vocab"]), load_model(recipe.begins_with),
                            _words(vocabulary))  # fmt: skip
        print_line(f"begins with {recipe.begins_with}, which shares {shared} words")
    print_line(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(train):,} examples, {threads} threads")
    usual = SupervisedConfig()
    config = replace(
        usual,
        steps=steps or recipe.steps,
        batch_size=recipe.batch_size,
        seed=seed,
        optimizer=replace(usual.optimizer, learning_rate=recipe.learning_rate),
        schedule=replace(usual.schedule, warmup_steps=recipe.warmup_steps),
    )
    last = fine_tune(model, train, held_out, config, TerminalReporter().trained)

    save_model(model, part)
    for name, content in (("tokenizer", recipe.tokenizer()), ("tokenizer_config", recipe.tokenizer_config())):
        (part / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    if out.exists():
        out.rmdir()
    part.rename(out)
    print_line(f"{out}: held-out loss {last.held_out_loss:.4f} after {last.seconds:.0f} s of training")


def _words(vocabulary: Mapping[str, int]) -> list[str]:
    """Return the words of a word-level vocabulary, by token id."""
    return sorted(vocabulary, key=vocabulary.__getitem__)
