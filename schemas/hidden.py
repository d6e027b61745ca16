"""Model calls whose tokens are hidden: token ids decode to the text, so they are left out wherever it is masked.

Every producer of events leaves out the same fields, and the assembler labels such a trajectory ``redacted``.
"""

from collections.abc import Iterable
from typing import Any, Final

TOKEN_FIELDS: Final = ("context_ids", "logprobs", "sampled_ids")
"""Fields of a model call that hold its tokens."""


def hidden_tokens(also: Iterable[str] = ()) -> dict[str, Any]:
    """Return the fields of a ``model.called`` whose tokens are hidden. ``also``: names of other hidden fields.

    Without its tokens a prefix is of no use, and spans would not tile what is absent.
    """
    return {
        **dict.fromkeys(TOKEN_FIELDS),
        "prefix_length": 0,
        "prefix_sha256": None,
        "version_spans": [],
        "hidden": sorted({*TOKEN_FIELDS, *also}),
    }
