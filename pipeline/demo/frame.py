"""The whole screen, as it stands at a moment."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from math import isinf
from typing import TYPE_CHECKING

from rich.layout import Layout
from rich.panel import Panel
from rich.text import Text

from pipeline.demo.sight import begins_record

if TYPE_CHECKING:
    from pipeline.demo.charset import Charset
    from pipeline.demo.sight import Sight

WIDTH, HEIGHT = 80, 24
"""The least that the screen needs."""
_SIDES = 4
"""The columns that the borders of a panel take."""
_EDGES = 2
_FORMATS = {"reward": "{:.3f}", "entropy": "{:.3f}", "step time": "{:.1f} s", "KV cache": "{:.0%}"}
_HEALTHS = {"Healthy": "bold green", "Degraded": "bold yellow", "Down": "bold red"}
_SEVERITIES = {"info": "cyan", "warning": "yellow", "critical": "red"}
_LEVELS = {"WARNING": "yellow", "ERROR": "red", "SUCCESS": "green"}
_QUIET_LEVEL = re.compile(r"^(\d\d:\d\d:\d\d) (?:INFO|SUCCESS) ")
_LEAST_USEFUL = ("The run is", "Evidence:", "Root cause:", "Symptoms:")
"""How lines of a message begin that are left out first where there is no room for all."""


def frame(sight: Sight, charset: Charset, width: int, height: int) -> Layout:
    """Return the screen of *width* by *height*, at least 80 by 24: what happens, and what runwatch says."""
    draw = _Drawing(sight, charset)
    spare = height - HEIGHT
    below = 12 + 2 * min(6, spare // 3)
    message = 8 + min(4, spare // 3) if sight.messages else 3
    left = width // 2
    screen, top = Layout(), Layout(size=height - 1 - below)
    top.split_row(
        Layout(draw.run(left, height - 1 - below), size=left),
        Layout(draw.runwatch(width - left, height - 1 - below), size=width - left),
    )
    screen.split_column(
        Layout(draw.title(width), size=1),
        top,
        Layout(draw.message(width, message), size=message),
        Layout(draw.check_in(width, below - message), size=below - message),
    )
    return screen


@dataclass(frozen=True)
class _Drawing:
    """The parts of the screen. Sizes include the borders."""

    sight: Sight
    charset: Charset

    def title(self, width: int) -> Text:
        """Draw what it is all about, and the time."""
        clock = f" {_minutes(self.sight.after_s)} of {_minutes(self.sight.show.lasts_s)}, Ctrl-C ends it "
        title = self.charset.cut(" runwatch watches a training run, so nobody has to", width - len(clock))
        return Text(title.ljust(width - len(clock)) + clock, style="reverse", no_wrap=True)

    def run(self, width: int, height: int) -> Panel:
        """Draw what happens: the launcher's terminal, and below it the fault."""
        fault = self._fault(width - _SIDES)
        room = height - _EDGES - len(fault)
        lines = [self._line(line.text, width - _SIDES) for line in self.sight.lines if begins_record(line)][-room:]
        lines += [Text()] * (room - len(lines))
        return self._panel("a training run (simulated)", [*lines, *fault], width, "cyan")

    def runwatch(self, width: int, height: int) -> Panel:
        """Draw what runwatch says: health, phase and step, the figures, the incident."""
        sight, inner = self.sight, width - _SIDES
        lines = [Text("starting ...")]
        if sight.health is not None:
            of = f" of {sight.max_steps}" if sight.max_steps else ""
            state = f"{sight.health.health}, {sight.health.phase}, step {sight.step}{of}"
            lines = [Text(state, style=_HEALTHS[sight.health.health])]
        for name, values in sight.figures.items():
            value = _FORMATS[name].format(values[-1]) if values else "not yet"
            lines.append(Text(f"{name:<10}{' '.join(filter(None, (self.charset.plot(values, inner - 20), value)))}"))
        lines += self._incident(inner, height - _EDGES - len(lines))
        return self._panel("runwatch, which watches it", lines, width, "blue")

    def message(self, width: int, height: int) -> Panel:
        """Draw the message that a person gets."""
        if not self.sight.messages:
            quiet = Text("No message so far: while all is well, nobody is disturbed.", style="dim")
            return self._panel("what a person is told", [quiet], width, "dim")
        at_s, message = self.sight.messages[-1]
        room, style = height - _EDGES, _SEVERITIES[message.severity]
        lines = [message.title, *message.body.splitlines()]
        for prefix in _LEAST_USEFUL:
            while len(lines) > room and (found := [line for line in lines if line.startswith(prefix)]):
                lines.remove(found[-1])
        shown = [Text(self.charset.cut(line, width - _SIDES)) for line in lines[:room]]
        shown[0].stylize(f"bold {style}")
        return self._panel(f"what a person is told, {self._since_fault(at_s)}", shown, width, style)

    def check_in(self, width: int, height: int) -> Panel:
        """Draw the last entry of STATUS.md, as much of it as there is room for."""
        if self.sight.check_in is None:
            return self._panel("check-in in STATUS.md", [Text("None yet.", style="dim")], width, "dim")
        heading, step, health, *rest = filter(None, self.sight.check_in.text.replace("**", "").splitlines())
        lines = [Text(self.charset.cut(line, width - _SIDES)) for line in (f"{step}, {health}", *rest)]
        title = f"check-in in STATUS.md, {heading.lstrip('# ')} (every 20 s here, else every hour)"
        return self._panel(title, lines[: height - _EDGES], width, "green")

    def _fault(self, width: int) -> list[Text]:
        strikes_s, story = self.sight.show.strikes_s, self.sight.show.fault.story
        if isinf(strikes_s):
            return self._wrapped(f"No fault: {story}", width, 3, "magenta")
        left_s = strikes_s - self.sight.after_s
        if left_s > 0:
            return self._wrapped(f"Fault in {left_s:.0f} s: {story}", width, 3, "magenta")
        return self._wrapped(f"FAULT {-left_s:.0f} s ago: {story}", width, 3, "bold reverse magenta")

    def _line(self, text: str, width: int) -> Text:
        plain = " ".join(self.charset.text(text).split())
        level = next((level for level in _LEVELS if f" {level} " in plain[:20]), "")
        return Text(self.charset.cut(_QUIET_LEVEL.sub(r"\1 ", plain), width), style=_LEVELS.get(level, ""))

    def _incident(self, width: int, room: int) -> list[Text]:
        incidents = [one for one in self.sight.incidents if one.severity != "info"]
        if not incidents:
            return [Text("No incident.")]
        newest = incidents[-1]
        over = ", over" if newest.state == "closed" else ""
        root = f"Root cause: {newest.failure_mode} in {newest.component}{over}"
        lines = self._wrapped(root, width, 2, f"bold {_SEVERITIES[newest.severity]}")
        lines.append(Text(f"found {self._since_fault(self.sight.root_said_s(newest))}"))
        followed = f"What followed: {', '.join(newest.symptoms) or 'nothing yet'}"
        lines += self._wrapped(followed, width, room - len(lines))
        since_s = 0.0 if isinf(self.sight.show.strikes_s) else self.sight.show.strikes_s
        alerts = [f"{at_s - since_s:+6.1f} s  {summary}" for at_s, summary in self.sight.alerts(newest)]
        lines += [Text(self.charset.cut(alert, width), style="dim") for alert in alerts]
        return lines[:room]

    def _since_fault(self, at_s: float) -> str:
        late_s = self.sight.late_s(at_s)
        return f"{at_s:.1f} s after the launch" if late_s is None else f"{late_s:.1f} s after the fault"

    def _panel(self, title: str, lines: list[Text], width: int, style: str) -> Panel:
        body = Text("\n", no_wrap=True, overflow="crop").join(lines)
        named = Text(self.charset.cut(title, width - 6))
        return Panel(body, title=named, title_align="left", box=self.charset.box, border_style=style)

    def _wrapped(self, text: str, width: int, most: int, style: str = "") -> list[Text]:
        """Return *text* in at most *most* lines, the last of which is cut if need be."""
        lines = textwrap.wrap(self.charset.text(text), width)
        kept = lines[: max(0, most)]
        if len(lines) > len(kept) > 0:
            kept[-1] = self.charset.cut(f"{kept[-1]} {lines[len(kept)]}", width)
        return [Text(line, style=style) for line in kept]


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
