"""Which characters a terminal can show."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from rich import box

from pipeline.timeline import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ASCII = str.maketrans({"…": "...", "·": "-", "\u2013": "-", "—": "-", "→": "->", "─": "-", "│": "|", "╰": "`"})


@dataclass(frozen=True, kw_only=True)
class Charset:
    """Unicode or ASCII."""

    is_unicode: bool

    @property
    def bars(self) -> str:
        """Characters of growing height."""
        return "▁▂▃▄▅▆▇█" if self.is_unicode else "_.-=*#"

    @property
    def box(self) -> box.Box:
        """Return the borders of a panel."""
        return box.ROUNDED if self.is_unicode else box.ASCII

    def text(self, text: str) -> str:
        """Return untrusted text as it can be shown, without colours and control characters."""
        shown = plain(_COLOURS.sub("", text))
        return shown if self.is_unicode else shown.translate(_ASCII).encode("ascii", "replace").decode()

    def cut(self, text: str, width: int) -> str:
        """Return *text*, as it can be shown, in at most *width* characters."""
        shown = self.text(text)
        more = "…" if self.is_unicode else "..."
        return shown if len(shown) <= width else (shown[: max(0, width - len(more))] + more)[:width]

    def plot(self, values: Sequence[float], width: int) -> str:
        """Return the last *width* values as bars, from the least to the greatest of them."""
        shown = values[-width:]
        least, most = min(shown, default=0.0), max(shown, default=0.0)
        top = len(self.bars) - 1
        if not 0 < most - least < inf:
            return self.bars[top // 2] * len(shown)
        return "".join(self.bars[round((value - least) / (most - least) * top)] for value in shown)


def charset_of_terminal() -> Charset:
    """Return what the locale promises that standard output takes."""
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower()
    # in the locale C Python turns to UTF-8 by itself, and says so in LC_CTYPE; the terminal knows nothing of that
    kinds = ("LC_ALL", "LANG") if sys.flags.utf8_mode else ("LC_ALL", "LC_CTYPE", "LANG")
    locale = next((value for kind in kinds if (value := os.environ.get(kind))), "").lower()
    return Charset(is_unicode=encoding.startswith("utf") and ("utf-8" in locale or "utf8" in locale))
