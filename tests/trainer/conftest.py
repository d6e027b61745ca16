"""Fixtures that many tests of the trainer share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's directory: the base of every run of the module."""
    from tests.trainer.builders import tiny_model

    return tiny_model(tmp_path_factory.mktemp("base"))
