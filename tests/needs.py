"""Programs of the machine that some tests use."""

import os
import shutil

import pytest


def needs(program: str) -> pytest.MarkDecorator:
    """Skip the test if ``program`` is missing, except in CI."""
    return pytest.mark.skipif(
        shutil.which(program) is None and "CI" not in os.environ, reason=f"there is no {program} on the PATH"
    )
