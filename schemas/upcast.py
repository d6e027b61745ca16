"""Converts old versions of a type to the newest. The version is part of the type's name; only a breaking change creates
a new one.

An upcaster takes the fields of version n and returns the name and the fields of version n + 1. Upcasters are chained
until a type has none. None is needed yet: every type is at v1.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Upcaster: TypeAlias = Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]

UPCASTERS: Mapping[str, Upcaster] = {}
"""Upcasters by the old type's name."""


def upcast(
    type_name: str, fields: dict[str, Any], upcasters: Mapping[str, Upcaster] = UPCASTERS
) -> tuple[str, dict[str, Any]]:
    """Return the newest version of ``fields``: the type's name and the fields."""
    while type_name in upcasters:
        type_name, fields = upcasters[type_name](fields)
    return type_name, fields
