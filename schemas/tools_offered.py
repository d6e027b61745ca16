"""The tools that an agent offers to its model, as a label of a trajectory's start.

    ["search", "read_file"]   →   read_file,search

Monitors compare how common each set of tools is. Only names count, in no order: a set of tools is one label.
"""

from collections.abc import Iterable
from hashlib import sha256

MAX_OFFERED = 200
"""Longest label, in characters."""


def tools_offered(names: Iterable[str]) -> str:
    """Return the label of the tools ``names``: sorted and joined by commas; empty without any. A longer one is cut, and
    ends with a hash of all names."""
    label = ",".join(sorted(set(names))).encode("utf-8", "replace").decode()
    if len(label) <= MAX_OFFERED:
        return label
    end = f"…#{sha256(label.encode()).hexdigest()[:12]}"
    return label[: MAX_OFFERED - len(end)] + end
