"""``headrace up``: run the whole stack on this machine."""

import click

from headrace.deploy.processes.registry import stack_processes

_PARTS = ", ".join(process.name for process in stack_processes())


@click.command("up")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder (HEADRACE_DATA).")
@click.option("--without", metavar="PART,…", default="", help=f"Leave these parts out; parts: {_PARTS}.")
@click.option("--no-trainer", is_flag=True, help="Leave out the trainer.")
@click.option("--detach", is_flag=True, help="Return once everything is ready; the stack runs in the background.")
@click.option("--run", metavar="NAME", help="Training run (HEADRACE_RUN); default: the last one on the data folder.")
@click.option(
    "--model-dir",
    type=click.Path(file_okay=False),
    help="Base model (HEADRACE_MODEL_DIR); its name in the API is `policy`.",
)
@click.option("--kafka", metavar="HOST:PORT", help="Use this Kafka (HEADRACE_KAFKA).")
@click.option("--clickhouse", metavar="URL", help="Use this ClickHouse (HEADRACE_CLICKHOUSE).")
@click.option("--vllm", metavar="URL", help="Use this vLLM, which has headrace's plugin (HEADRACE_VLLM).")
@click.option("--store-url", metavar="URL", help="Object store for the weights (HEADRACE_STORE_URL).")
@click.option(
    "--set", "assignments", multiple=True, metavar="PART.OPTION=VALUE", help="Set an option: trainer.steps=60."
)
def command(
    without: str, no_trainer: bool, detach: bool, assignments: tuple[str, ...], **overrides: str | None
) -> None:
    """Start Kafka, ClickHouse, vLLM and headrace's processes; --without lists them all.

    Runs until Ctrl-C. All addresses are on the loopback interface, and all data is in one folder.

    \b
      headrace up                                                 the whole training loop
      headrace up --without vllm,trainer,follower                 no model: import, ledger, dashboard
      headrace up --model-dir MODEL --set vllm.max_model_len=8192 your own model, and the gateway in front of it
      headrace up --kafka broker:9092                             your own Kafka
      headrace up --set trainer.optimizer.learning_rate=0.0005    an option of one part

    Every setting (`headrace settings` lists them) can be an environment variable HEADRACE_NAME or a key of the TOML
    file that HEADRACE_CONFIG names. So are ports (HEADRACE_KAFKA_PORT, HEADRACE_GATEWAY_PORT, …); by default free ports
    are chosen, and reused at the next start.
    """
    from headrace.deploy.configuration.settings import load_settings, parse_options
    from headrace.deploy.stack.foreground import run_in_background, run_in_foreground
    from headrace.deploy.stack.model_packages import ensure_packages

    settings = load_settings(options=parse_options(assignments), **overrides)
    left_out = {name.strip() for name in without.split(",") if name.strip()} | ({"trainer"} if no_trainer else set())
    ensure_packages(stack_processes(), settings, left_out)
    run = run_in_background if detach else run_in_foreground
    run(settings, left_out)
