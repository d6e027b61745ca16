"""``headrace worker NAME``: one part as one process."""

import sys

import click

NAMES = (
    "streams", "assemble", "workers", "score", "group",
    "sink", "traces", "trainer", "follower", "clickhouse", "dashboard",
)  # fmt: skip


@click.command("worker")
@click.argument("name", type=click.Choice(NAMES))
@click.option("--data", type=click.Path(file_okay=False), help="Folder for what is kept (HEADRACE_DATA).")
@click.option("--kafka", metavar="HOST:PORT", help="Bootstrap address of Kafka (HEADRACE_KAFKA).")
@click.option("--clickhouse", metavar="URL", help="Address of ClickHouse (HEADRACE_CLICKHOUSE).")
@click.option("--vllm", metavar="URL", help="Address of vLLM (HEADRACE_VLLM).")
@click.option("--run", metavar="NAME", help="Training run (HEADRACE_RUN).")
@click.option("--set", "assignments", multiple=True, metavar="PART.OPTION=VALUE", help="An option of the part.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error (HEADRACE_LOG_LEVEL).")
def command(name: str, assignments: tuple[str, ...], **overrides: str | None) -> None:
    """Run one part as one process, for systemd or Kubernetes.

    Everything can be set in the environment; readiness is told by sd_notify; SIGTERM ends it cleanly.

    \b
      streams     assemble, score and group in one  HEADRACE_KAFKA
      assemble    events → trajectories             HEADRACE_KAFKA
      workers     score and group, on Faust         HEADRACE_KAFKA
      score       the first of them alone           HEADRACE_KAFKA
      group       the second alone                  HEADRACE_KAFKA
      sink        every topic → ClickHouse          HEADRACE_KAFKA, HEADRACE_CLICKHOUSE
      traces      every topic → OpenTelemetry       HEADRACE_KAFKA, HEADRACE_OTLP
      trainer     training → steps, weights         HEADRACE_KAFKA, HEADRACE_STORE_URL
      follower    weights → vLLM → applied          HEADRACE_KAFKA, HEADRACE_VLLM
      clickhouse  embedded engine behind HTTP       HEADRACE_CLICKHOUSE_PORT
      dashboard   pages over ClickHouse             HEADRACE_CLICKHOUSE, HEADRACE_DASHBOARD_PORT
    """
    from headrace.deploy.configuration.settings import load_settings, parse_options
    from headrace.deploy.processes.worker import run_worker

    sys.exit(run_worker(name, load_settings(options=parse_options(assignments), **overrides)))
