"""Tests of the extension module are skipped if it was not built; in CI it must be present."""

import os

import pytest

from headrace.streams.native.available import SPEEDUPS

needs_speedups = pytest.mark.skipif(
    SPEEDUPS is None and not os.environ.get("CI"), reason="the extension module is not built: `make native`"
)
