"""The words of TextArena's games, which nltk would download."""

from collections.abc import Iterable
from pathlib import Path


def word_list(folder: Path, words: Iterable[str]) -> Path:
    """Write ``words`` into the new ``folder`` as a corpus of nltk; returns the folder, for ``NLTK_DATA``."""
    corpus = folder / "corpora" / "words"
    corpus.mkdir(parents=True)
    for name in ("en", "en-basic", "README"):
        (corpus / name).write_text("".join(f"{word}\n" for word in words))
    return folder
