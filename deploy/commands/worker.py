"""``headrace worker NAME``: run one part of the stack as one process."""

import sys

import click

from headrace.deploy.processes.registry import workers

_WORKERS = workers()
_ABOUT = max(len(process.about) for process in _WORKERS.values())
_TABLE = "\n".join(
    f"  {name:<11} {process.about:<{_ABOUT}}  {', '.join(f'HEADRACE_{each.upper()}' for each in process.settings)}"
    for name, process in _WORKERS.items()
)
_HELP = f"""Run one part of the stack as one process, for systemd or Kubernetes.

Every setting can be an environment variable. Readiness is signalled by sd_notify; SIGTERM stops the process cleanly.

\b
{_TABLE}
"""


@click.command("worker", help=_HELP)
@click.argument("name", type=click.Choice([*_WORKERS]))
@click.option("--data", type=click.Path(file_okay=False), help="Data folder (HEADRACE_DATA).")
@click.option("--kafka", metavar="HOST:PORT", help="Bootstrap address of Kafka (HEADRACE_KAFKA).")
@click.option("--clickhouse", metavar="URL", help="Address of ClickHouse (HEADRACE_CLICKHOUSE).")
@click.option("--vllm", metavar="URL", help="Address of vLLM (HEADRACE_VLLM).")
@click.option("--run", metavar="NAME", help="Training run (HEADRACE_RUN).")
@click.option("--set", "assignments", multiple=True, metavar="PART.OPTION=VALUE", help="Set an option of the part.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error (HEADRACE_LOG_LEVEL).")
def command(name: str, assignments: tuple[str, ...], **overrides: str | None) -> None:
    """Run the process called ``name``."""
    from headrace.deploy.configuration.settings import load_settings, parse_options
    from headrace.deploy.processes.worker import run_worker

    sys.exit(run_worker(_WORKERS[name], load_settings(options=parse_options(assignments), **overrides)))
