"""Characters as those of ASCII that they stand for."""

from headrace.agents.masking import folding
from headrace.agents.masking.folding import folded, visible

EVERY = "".join(map(chr, range(0x110000)))


def test_forms_of_ascii_become_ascii_and_invisible_characters_go() -> None:
    assert folded("４１１１－ ada\u200b＠mill。example ١٢ ß") == "4111- ada@mill.example 12 ß"
    assert visible("ａ\u00ad\u200bb") == "ａb"


def test_a_text_of_every_character_is_folded_and_what_is_kept_of_it_is_bounded() -> None:
    assert len(folded(EVERY)) == len(visible(EVERY))
    assert folded(folded(EVERY)) == folded(EVERY)
    assert max(len(folding._FOLDED), len(folding._VISIBLE)) <= folding._KEPT
    assert folded("\U0010ffff４") == "\U0010ffff4"
