"""``headrace asyncapi``: the topics as an AsyncAPI document."""

from pathlib import Path

import click

from headrace.deploy.terminal import print_line, print_text


@click.command("asyncapi")
@click.option("--write", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write it to this file.")
def command(write: Path | None) -> None:
    """Print the topics as an AsyncAPI 3.0 document (JSON), with examples.

    \b
      headrace asyncapi --write asyncapi.json      for AsyncAPI Studio, a catalogue or a code generator
    """
    from headrace.schemas.asyncapi import asyncapi, render

    text = render(asyncapi())
    if write is None:
        print_text(text)
        return
    unchanged = write.exists() and write.read_text() == text
    if not unchanged:
        write.write_text(text)
    print_line(f"{write}: {'unchanged' if unchanged else 'written'}.")
