"""How the demo is shown: a picture that changes in place in a terminal, plain lines anywhere else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from demo_story import Story
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

STYLES = {
    "running": "green",
    "starting": "yellow",
    "succeeded": "bold green",
    "failed": "bold red",
    "stopped": "yellow",
}
EVENTS_SHOWN = 9


class View(Protocol):
    """What the demo is shown on."""

    def show(self) -> None:
        """Show how the story stands."""


@contextmanager
def watching(story: Story, *, is_silent: bool = False) -> Iterator[View]:
    """Show a story as long as the block lasts, in the way that standard output is made for."""
    console = Console()
    if is_silent:
        yield Lines(story, is_silent=True)
    elif console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield Picture(story, live)
    else:
        yield Lines(story)


class Lines:
    """What happened, a line each, as it happens; and the loss now and then."""

    def __init__(self, story: Story, *, is_silent: bool = False) -> None:
        self._story = story
        self._is_silent = is_silent
        self._told = 0
        self._next_loss = 20

    def show(self) -> None:
        """Print what is new."""
        if self._is_silent:
            return
        for sentence in self._story.told[self._told :]:
            print(sentence, flush=True)
        self._told = len(self._story.told)
        if self._story.step >= self._next_loss:
            self._next_loss = self._story.step + 20
            print(f"step {self._story.step}: loss {self._story.losses[self._story.step]:.4f}", flush=True)


class Picture:
    """Workers, the loss curve with a mark where a worker was lost, that loss, and what happened last."""

    def __init__(self, story: Story, live: Live) -> None:
        self._story = story
        self._live = live

    def show(self) -> None:
        """Draw it anew."""
        self._live.update(self._drawn(), refresh=True)

    def _drawn(self) -> RenderableType:
        story, width = self._story, self._live.console.width
        head = Text(f"Phalanx demo · round {story.status.round} · {story.status.phase}", style="bold")
        loss = story.losses.get(story.step, math.nan)
        numbers = f"step {story.step} of {story.steps} · loss {loss:.4f}" if story.losses else "no step yet"
        curve = sparkline(story, width - 2, can_draw=self._live.console.encoding.startswith("utf"))
        room = max(1, min(EVENTS_SHOWN, self._live.console.height - 13))
        events = story.told[-room:]
        events += [""] * (room - len(events))  # a picture that keeps its height does not jump
        marked = Text(mark(story, width - 2), style="bold red", no_wrap=True)
        lost = Text(
            story.loss_of_worker, style="bold red"
        )  # stays when other sentences have pushed it out below
        parts: list[RenderableType] = [head, self._workers(), Text(numbers), curve, marked, lost, Text("")]
        for sentence in events:
            style = "bold red" if "kill" in sentence else "cyan" if "checkpoint" in sentence else ""
            parts.append(Text(sentence, style=style, no_wrap=True, overflow="ellipsis"))
        return Group(*parts)

    def _workers(self) -> Table:
        table = Table(expand=False)
        table.add_column("rank", no_wrap=True, justify="right")
        table.add_column("process", no_wrap=True, justify="right")
        table.add_column("state", no_wrap=True, min_width=len("succeeded (0)"))
        for worker in self._story.status.workers:
            ended = "" if worker.exit_code is None else f" ({worker.exit_code})"
            state = Text(f"{worker.state}{ended}", style=STYLES[worker.state])
            table.add_row(str(worker.rank), str(worker.pid or ""), state)
        for _ in range(4 - len(self._story.status.workers)):
            table.add_row("", "", "")
        return table


def mark(story: Story, width: int) -> str:
    """Return the line below the curve: it points to where a worker was lost, if one was."""
    if story.lost is None:
        return ""
    width = max(1, min(width, story.steps))
    step = story.lost_near_step if story.lost_at_step is None else story.lost_at_step
    column = min(width - 1, max(step - 1, 0) * width // story.steps)
    text = f"rank {story.lost.rank} lost"
    if column + len(text) + 2 <= width:
        return f"{' ' * column}^ {text}"
    return f"{text} ^".rjust(column + 1)


def sparkline(story: Story, width: int, *, can_draw: bool = True) -> Text:
    """Return the loss curve in one line, on a logarithmic scale; what lies beyond the present step is dim."""
    width = max(1, min(width, story.steps))
    signs = "▁▂▃▄▅▆▇█" if can_draw else "_.-=+*%#"
    logs = {step: math.log(max(loss, 1e-12)) for step, loss in story.losses.items()}
    low, high = min(logs.values(), default=0.0), max(logs.values(), default=1.0)
    drawn = {"blue": "", "dim": ""}
    for column in range(width):
        first, last = column * story.steps // width + 1, (column + 1) * story.steps // width
        known = [logs[step] for step in range(first, last + 1) if step in logs]
        if not known:
            break
        height = (sum(known) / len(known) - low) / max(high - low, 1e-12)
        drawn["blue" if first <= story.step else "dim"] += signs[round(height * (len(signs) - 1))]
    return Text.assemble(*((text, style) for style, text in drawn.items()), no_wrap=True)
