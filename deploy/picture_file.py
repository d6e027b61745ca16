"""The file that a picture is asked for in, looked at before the work that it shows."""

from pathlib import Path

import click

ENDINGS = (".svg", ".png", ".pdf")


def check_picture(file: Path) -> None:
    """Raise ``click.UsageError`` where no picture can be written to ``file``."""
    if file.suffix not in ENDINGS:
        raise click.UsageError("--picture takes a FILE that ends in .svg, .png or .pdf.")
    if not file.absolute().parent.is_dir():
        raise click.UsageError(f"--picture: there is no folder {file.absolute().parent}.")
