"""``headrace train``: run a trainer with any Kafka and object store, configured by one file."""

import sys
from pathlib import Path

import click

from headrace.deploy.terminal import print_error, print_text
from headrace.schemas.safe_text import redacted


@click.command(
    "train",
    epilog="""\b
A first run:
  1. headrace topics --create             create the topics that your Kafka lacks (headrace up does this itself)
  2. headrace settings trainer --toml > run.toml
                                          every option with its meaning; uncomment the options to change
  3. headrace train --config run.toml --check
                                          print the resulting settings; nothing is started
  4. headrace train --config run.toml     train groups of the run as they arrive; Ctrl-C stops cleanly
  5. the same command again               resume from the newest checkpoint, at the next group in the log

\b
Examples:
  headrace train --config deploy/training/laptop.toml --kafka localhost:9092
  headrace train --config run.toml --set optimizer.learning_rate=1e-6 --set kl.coefficient=0.01
  headrace train --config run.toml --set steps=10 --set seed=1 --run control --set shuffle_advantages=true
  torchrun --nproc-per-node 8 -m headrace.deploy.cli train --config run.toml
                                          on eight GPUs (device cuda) or cores; a checkpoint fits any number of them

While it runs it shows what it waits for, its metrics and when the next weights are due. The same metrics are in
`steps`, on the dashboard's trainer page, in Prometheus and OTLP (HEADRACE_METRICS_PORTS, HEADRACE_OTLP), and in
TensorBoard or W&B (writers.tensorboard_dir, writers.wandb_project). `headrace metrics` explains each of them.

--set takes precedence over the other options here and HEADRACE_* variables, these over the file, and the file over
defaults. Files to start from: deploy/training. Every option: headrace settings trainer.
""",
)
@click.option("--config", "file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="TOML file.")
@click.option("--set", "assignments", multiple=True, metavar="OPTION=VALUE", help="Set one option; tables with a dot.")
@click.option("--kafka", metavar="HOST:PORT", help="Bootstrap address of Kafka (HEADRACE_KAFKA).")
@click.option("--run", metavar="NAME", help="Training run (HEADRACE_RUN).")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder (HEADRACE_DATA).")
@click.option(
    "--progress",
    type=click.Choice(["auto", "panel", "lines"]),
    default="auto",
    show_default=True,
    help="A panel that is updated in place, or one line per step; auto: the panel on a terminal.",
)
@click.option("--check", is_flag=True, help="Print the resulting settings, and warnings, and exit.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error (HEADRACE_LOG_LEVEL).")
def command(
    file: Path | None, assignments: tuple[str, ...], check: bool, progress: str, **overrides: str | None
) -> None:
    """Train a policy on groups as they arrive, and publish each version.

    \b
    reads   training      groups of this run, with their advantages
            trajectories  the trajectories that the groups refer to, with their tokens
    writes  steps         the offsets and hashes of each step's training data, and its metrics
            weights       each new version: its address in the object store and its hash
            rejected      rejected trajectories, with the reason
            alerts        problems that an operator should know about
            budget        how many groups samplers may have in flight
            a checkpoint  on disk, before anything is published: no group is trained twice and none is lost
    """
    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.configuration.shown import toml_of
    from headrace.deploy.processes.ranks import leads
    from headrace.deploy.processes.train import ProgressDisplay, train, trainer_config
    from headrace.deploy.processes.worker import run_process
    from headrace.deploy.stack.trainer_beside import warnings_about

    settings = load_settings(**overrides)
    if check:
        config = trainer_config(settings, file, assignments)
        said = "".join(f"# Warning: {each}\n" for each in warnings_about(config, settings.data))
        hashed = f"# sha256 of the settings that affect learning: {config.sha256()}\n"
        print_text(redacted(f"{toml_of(config)}\n\n{hashed}{said}"))
        return

    def run() -> int:
        if leads():
            for each in warnings_about(trainer_config(settings, file, assignments), settings.data):
                print_error(f"Warning: {each}")
        return train(settings, file, assignments, show=ProgressDisplay(progress))

    sys.exit(run_process("trainer", settings, run))
