"""Colours of graphics have enough contrast (WCAG 2.2, 1.4.11: 3:1), texts 4.5:1 (1.4.3)."""

import re

import pytest

from headrace.deploy.dashboard.page_html import STATIC

STYLE = (STATIC / "style.css").read_text()
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in re.findall(r":root \{(.*?)\}", STYLE, re.S)
)
GRAPHICS = (*(f"c{number}" for number in range(8)), "quiet", "edge")
TEXTS = ("ink", "ink-2", "ink-3", "good", "warn", "bad", "link")


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_graphics_and_texts_stand_out_from_cards(theme: dict[str, str]) -> None:
    for names, least in ((GRAPHICS, 3), (TEXTS, 4.5)):
        weak = {name: round(contrast(theme[name], theme["card"]), 2) for name in names}
        assert {name: found for name, found in weak.items() if found < least} == {}
