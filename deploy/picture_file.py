"""Checks the file name of ``--picture`` before the command does its work."""

from pathlib import Path

import click

ENDINGS = (".svg", ".png", ".pdf")


def check_picture(file: Path) -> None:
    """Raise ``click.UsageError`` if no picture can be written to ``file``."""
    if file.suffix not in ENDINGS:
        raise click.UsageError("--picture takes a FILE that ends in .svg, .png or .pdf.")
    if not file.absolute().parent.is_dir():
        raise click.UsageError(f"--picture: there is no folder {file.absolute().parent}.")
