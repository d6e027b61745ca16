"""Limits that make no sense are refused with their name."""

from typing import Any

import pytest

from headrace.agents.sandbox.protocol import Limits


@pytest.mark.parametrize("field", ["wall_s", "cpu_s", "memory_bytes", "processes", "disk_bytes", "output_bytes"])
def test_a_limit_is_above_zero(field: str) -> None:
    values: dict[str, Any] = {field: 0}
    with pytest.raises(ValueError, match=rf"limits\.{field} is 0"):
        Limits(**values)


@pytest.mark.parametrize("path", ["usr/lib", "/usr/../etc"])
def test_a_masked_path_is_absolute(path: str) -> None:
    with pytest.raises(ValueError, match=r"limits\.masked"):
        Limits(masked=(path,))
