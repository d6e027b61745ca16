"""``headrace topology``: which function reads what and writes what."""

import click


@click.command(short_help="Show the stream processors and their topics.")
@click.option("--mermaid", "as_mermaid", is_flag=True, help="The whole circle as a Mermaid flowchart.")
def command(as_mermaid: bool) -> None:
    """Show the stream processors: the topics they read, the functions they run, the topics they write."""
    from headrace.streams.topology import describe, mermaid

    click.echo(mermaid() if as_mermaid else describe(), nl=False)
