"""``headrace train``: a trainer against any Kafka and object store, from one file of settings."""

import sys
from pathlib import Path

import click

from headrace.deploy.terminal import tell_page
from headrace.schemas.safe_text import redacted


@click.command(
    "train",
    epilog="""\b
A first run:
  1. headrace topics --create             make the topics that your Kafka lacks (headrace up does it itself)
  2. headrace settings trainer --toml > run.toml
                                          every option with its meaning; uncomment what you want otherwise
  3. headrace train --config run.toml --check
                                          what would be trained, and where each thing goes; nothing is started
  4. headrace train --config run.toml     groups of the run are trained as they come; Ctrl-C ends it cleanly
  5. the same line again                  goes on where it was: from the newest checkpoint, at the log's next group

\b
Examples:
  headrace train --config deploy/training/laptop.toml --kafka localhost:9092
  headrace train --config run.toml --set optimizer.learning_rate=1e-6 --set kl.coefficient=0.01
  headrace train --config run.toml --set steps=10 --set seed=1 --run control --set shuffle_advantages=true
  torchrun --nproc-per-node 8 -m headrace.deploy.cli train --config run.toml
                                          on eight GPUs (device cuda) or cores; the checkpoint fits any number of them

While it runs it shows what it waits for, what it learns and when the next weights come. The same figures stand in
`steps`, on the dashboard's trainer page, for Prometheus and OTLP (HEADRACE_METRICS_PORTS, HEADRACE_OTLP), and with
writers.tensorboard_dir or writers.wandb_project there too. What each means: headrace metrics.

Settings come from --set, else the options here and HEADRACE_* variables, else the file, else defaults. Files to start
from: deploy/training. Every option: headrace settings trainer.
""",
)
@click.option("--config", "file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="TOML file.")
@click.option("--set", "assignments", multiple=True, metavar="OPTION=VALUE", help="One option; tables with a dot.")
@click.option("--kafka", metavar="HOST:PORT", help="Bootstrap address of Kafka (HEADRACE_KAFKA).")
@click.option("--run", metavar="NAME", help="Training run (HEADRACE_RUN).")
@click.option("--data", type=click.Path(file_okay=False), help="Folder of what is kept by default (HEADRACE_DATA).")
@click.option(
    "--progress",
    type=click.Choice(["auto", "panel", "lines"]),
    default="auto",
    show_default=True,
    help="A panel that stays in its place, or a line a step; auto: the panel on a terminal.",
)
@click.option("--check", is_flag=True, help="Print the settings as they would hold, and end.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error (HEADRACE_LOG_LEVEL).")
def command(
    file: Path | None, assignments: tuple[str, ...], check: bool, progress: str, **overrides: str | None
) -> None:
    """Train a policy on groups as they come, and publish each version.

    \b
    reads   training      groups of this run, with their advantages
            trajectories  the tokens that they point at
    writes  steps         what each step was trained on, to the offset and the hash, with its metrics
            weights       each new version: where it stands in the object store, with its hash
            rejected      rejected trajectories, with the reason; alerts: what an operator should know
            a checkpoint  on disk, before anything is published: nothing is trained twice, none is lost
    """
    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.configuration.shown import toml_of
    from headrace.deploy.processes.train import Show, train, trainer_config
    from headrace.deploy.processes.worker import run_process

    settings = load_settings(**overrides)
    if check:
        config = trainer_config(settings, file, assignments)
        tell_page(redacted(f"{toml_of(config)}\n\n# sha256 of what decides what is learnt: {config.sha256()}\n"))
        return
    sys.exit(run_process("trainer", settings, lambda: train(settings, file, assignments, show=Show(progress))))
