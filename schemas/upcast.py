"""Old versions brought forward. A type's version is in its name; only a breaking change makes a new one.

An upcaster takes the fields of version n and gives the name and the fields of version n + 1. Chains are followed
until a type has no upcaster. None is needed yet: every type is at v1.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Upcaster: TypeAlias = Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]

UPCASTERS: Mapping[str, Upcaster] = {}
"""By the old type's name."""


def upcast(
    type_name: str, fields: dict[str, Any], upcasters: Mapping[str, Upcaster] = UPCASTERS
) -> tuple[str, dict[str, Any]]:
    """The newest form of ``fields``: its type and its fields."""
    while type_name in upcasters:
        type_name, fields = upcasters[type_name](fields)
    return type_name, fields
