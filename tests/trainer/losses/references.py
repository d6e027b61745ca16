"""TRL and verl as published on the package index, for tests and benchmarks."""

from pathlib import Path

from tests.beside import installed

REQUIREMENTS = Path(__file__).parent / "references.txt"


def references() -> Path:
    """The folder with the references, made where it is missing."""
    return installed(REQUIREMENTS)
