"""Tests of the extension module are left out where nobody built it; in CI it must be there."""

import os

import pytest

from headrace.streams.native.available import SPEEDUPS

needs_speedups = pytest.mark.skipif(
    SPEEDUPS is None and not os.environ.get("CI"), reason="the extension module is not built: `make native`"
)
