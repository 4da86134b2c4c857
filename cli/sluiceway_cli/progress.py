"""How a job looks on a terminal, and in a log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

OPEN = frozenset({"queued", "processing", "retrying"})

_COLOURS = {"completed": "green", "failed": "red", "dead_lettered": "red", "cancelled": "yellow"}

Show = Callable[[dict[str, Any]], None]


@contextmanager
def display(console: Console, *, quiet: bool = False) -> Iterator[Show]:
    """Shows a job as it changes: one moving line on a terminal, else a line for each change."""
    began = time.monotonic()
    last = ""

    def text(job: dict[str, Any]) -> str:
        attempt = f", attempt {job['attempts']}" if job["attempts"] else ""
        return f"{job['id']}  {job['status']}{attempt}"

    if quiet:
        yield lambda _: None
    elif console.is_terminal:
        with console.status("") as status:

            def move(job: dict[str, Any]) -> None:
                status.update(f"{text(job)}  {time.monotonic() - began:.0f} s")

            yield move
    else:

        def write(job: dict[str, Any]) -> None:
            nonlocal last
            if text(job) != last:
                last = text(job)
                console.print(last, soft_wrap=True, highlight=False)

        yield write


def lines(job: dict[str, Any]) -> list[str]:
    """The job in a few lines: what it is, what became of it, what it cost."""
    told = [f"job      {job['id']}", f"status   {job['status']}", f"model    {job['model']}"]
    cache = job["cache"]
    if cache["status"] == "hit":
        told.append("cache    hit" + (f", {cache['age_s']} s old" if "age_s" in cache else ""))
    if job["deduplicated"]:
        told.append("         the same work was submitted before: this is its job")
    if error := job.get("error"):
        told.append(f"error    {error['code']}: {error['message']}")
    if usage := job.get("usage"):
        told.append(
            f"usage    {usage['input_tokens']} + {usage['output_tokens']} tokens, "
            f"cost {usage['cost']:g}" + (f", saved {usage['saved']:g}" if usage["saved"] else "")
        )
    if result := job.get("result"):
        cut = " (cut off by the token limit)" if result["finish_reason"] == "length" else ""
        told.append(f"result{cut}\n{result['text']}")
    if url := job.get("result_url"):
        told.append(f"result   too large to show; for 15 minutes at\n{url}")
    return told


def colour(status: str) -> str:
    """For a terminal."""
    return _COLOURS.get(status, "cyan")
