"""Programs that take the place of java, mvn and others."""

from pathlib import Path


def program(folder: Path, name: str, script: str) -> None:
    """Write the shell script ``script`` as an executable file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
