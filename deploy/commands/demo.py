"""``headrace demo``: the whole circle in one command."""

import click


@click.command("demo")
@click.option("--seed", type=click.IntRange(0, 997), default=0, show_default=True, help="Of tasks, engine and trainer.")
@click.option("--steps", type=click.IntRange(min=1), default=60, show_default=True, help="Optimiser steps.")
@click.option("--heldout", type=click.IntRange(min=1), default=256, show_default=True, help="Held-out tasks.")
@click.option("--control", is_flag=True, help="Shuffle advantages inside their groups: nothing should be learnt.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write the summary here, as JSON.")
@click.option("--plot", "plot_path", type=click.Path(dir_okay=False), help="Write the reward curve here (PNG).")
@click.option("--keep", is_flag=True, help="Leave stack and dashboard up at the end, until Ctrl-C.")
@click.option("--data", type=click.Path(file_okay=False), help="Folder; the demo uses DIR/demo, afresh each time.")
def command(
    seed: int,
    steps: int,
    heldout: int,
    control: bool,
    json_path: str | None,
    plot_path: str | None,
    keep: bool,
    data: str | None,
) -> None:
    """Watch an agent learn, from its events to new weights and back.

    A small search agent works at generated tasks. Its events flow through Kafka, are scored and grouped; the trainer
    learns from them and publishes weights; vLLM swaps them while the agent goes on. Then the same held-out tasks as
    before are tried again. Takes some minutes and ends by itself, with a summary and a picture.
    """
    from pathlib import Path

    from headrace.deploy.demo.circle import DemoPlan
    from headrace.deploy.demo.run import run_demo

    run_demo(
        DemoPlan(seed=seed, steps=steps, heldout_tasks=heldout, control=control),
        data=data,
        json_path=Path(json_path) if json_path else None,
        plot_path=Path(plot_path) if plot_path else None,
        keep=keep,
    )
