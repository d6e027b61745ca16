"""Characters as those of ASCII that they stand for."""

import pytest

from headrace.agents.masking import folding
from headrace.agents.masking.folding import folded, visible

EVERY = "".join(map(chr, range(0x110000)))


def test_forms_of_ascii_become_ascii_and_invisible_characters_go() -> None:
    assert folded("４１１１－ ada\u200b＠mill。example ١٢ ß") == "4111- ada@mill.example 12 ß"
    assert visible("ａ\u00ad\u200bb") == "ａb"


INVISIBLE = "\ufe0f\U000e0100\u034f\u115f\u17b4\u180b\u2065\u3164\uffa0\ufff0\U000e0fff"
"""Variation selectors, fillers and others that fonts do not show and whose category is not that of formats."""


@pytest.mark.parametrize("character", INVISIBLE)
def test_what_fonts_do_not_show_goes(character: str) -> None:
    text = f"4111{character}1111"
    assert (folded(text), visible(text)) == ("41111111", "41111111")


def test_a_text_of_every_character_is_folded_and_what_is_kept_of_it_is_bounded() -> None:
    assert len(folded(EVERY)) == len(visible(EVERY))
    assert folded(folded(EVERY)) == folded(EVERY)
    assert max(len(folding._FOLDED), len(folding._VISIBLE)) <= folding._KEPT
    assert folded("\U0010ffff４") == "\U0010ffff4"
