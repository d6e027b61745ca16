"""``headrace topology``: the topics that each process reads and writes, and the lag of each consumer group."""

import click

from headrace.deploy.terminal import print_line, print_text

_LAG = (
    "Print the current lag of every consumer group, by partition, and its position, which moves while it processes. "
    "Transaction markers count as records, so an idle group may show 1 or 2."
)


@click.command(short_help="Show the stream processors and their topics.")
@click.option("--mermaid", "as_mermaid", is_flag=True, help="Print all processes and topics as a Mermaid flowchart.")
@click.option("--lag", is_flag=True, help=_LAG)
@click.option("--kafka", metavar="HOST:PORT", help="Broker, for --lag; else HEADRACE_KAFKA, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
def command(as_mermaid: bool, lag: bool, kafka: str | None, data: str | None) -> None:
    """Show the stream processors: the topics they read, the functions they run and the topics they write."""
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.deploy.processes.drawing import mermaid
    from headrace.deploy.stack.state import address_of
    from headrace.streams.lag import measure_lag
    from headrace.streams.topology import describe

    if not lag:
        print_text(mermaid() if as_mermaid else describe())
        return
    bootstrap = address_of("kafka", kafka, data)
    lags = run_with_kafka(bootstrap, lambda: measure_lag(bootstrap))
    print_line(f"{'group':<16} {'topic':<14} {'partition':>9} {'records':>9} {'seconds':>9} {'position':>11}")
    for each in lags:
        figures = f"{each.records:>9} {each.seconds:>9.1f} {each.position:>11}"
        print_line(f"{each.group:<16} {each.topic:<14} {each.partition:>9} {figures}")
