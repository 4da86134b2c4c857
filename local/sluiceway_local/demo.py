"""The demo: the main job on a stack of its own, step by step, for people to read."""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from sluiceway_cli.api import Api, ApiError
from sluiceway_cli.progress import OPEN, colour

from sluiceway_local import emulator, stack
from sluiceway_local.state import LocalStack

PROMPT = "Why does a queue help when a vendor allows only so many requests a minute?"
VENDOR_DELAY_S = 2.0
"""Long enough to see the states go by."""

JOB_TIMEOUT_S = 60.0


class DemoError(RuntimeError):
    """The demo didn't go as it should."""


def run_demo(console: Console, *, port: int = 0) -> None:
    """Starts a stack, shows the main job, and stops the stack. Raises DemoError when it fails."""
    console.print("[bold]Sluiceway demo[/]: the real template on an emulator, no account needed\n")
    with _own_stack(console, port or emulator.free_port()) as local:
        acme = Api(local.api_url, local.partners["acme"])
        globex = Api(local.api_url, local.partners["globex"])
        request = _request()

        _title(console, 1, "A partner submits a prompt and is answered at once")
        job = _submit(console, acme, request)
        _title(console, 2, "The same work again, while it runs, spelled otherwise: the same job")
        _submit(console, acme, _other_spelling(request), same_as=job["id"])
        _title(console, 3, "A worker takes the job from the queue and calls the vendor")
        done = _follow(console, acme, job)
        console.print(f"   [green]{escape(done['result']['text'])}[/]", soft_wrap=True)
        _usage(console, done)
        _title(console, 4, "The same request once more: answered from the cache, for nothing")
        hit = _submit(console, acme, request)
        _expect(hit["cache"]["status"] == "hit", "the cache didn't have the answer")
        _usage(console, hit)
        _title(console, 5, "Another partner asks for that job: it does not exist for them")
        _refused(console, globex, job["id"])
        _title(console, 6, "What the vendor saw")
        calls = _vendor_calls(local)
        console.print(f"   {calls} call for 3 requests")
        _expect(calls == 1, "the vendor was called more than once")
    console.print("\n[bold green]Done.[/] Everything that was started is stopped again.")
    console.print("Next: [bold].venv/bin/sluiceway local up[/], and the first curl in README.md.")


@contextmanager
def _own_stack(console: Console, port: int) -> Iterator[LocalStack]:
    """A stack in a folder of its own, so that one that runs here is left alone."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sluiceway-demo-") as name:
        folder = Path(name)
        try:
            yield stack.up(
                stack.source(),
                port=port,
                folder=folder,
                say=lambda text: console.print(
                    f"[dim]{time.monotonic() - began:5.1f} s  {text}[/]"
                ),
            )
        finally:
            stack.down(folder)


def _request() -> dict[str, Any]:
    return {
        "model": "demo-chat",
        "input": PROMPT,
        "options": {"temperature": 1, "sim": {"delay_s": VENDOR_DELAY_S}},
        "metadata": {"shown_in": "demo"},
    }


def _other_spelling(request: dict[str, Any]) -> dict[str, Any]:
    """The same work: members in another order, 1.0 for 1, and other metadata."""
    options = {**dict(reversed(request["options"].items())), "temperature": 1.0}
    return {"options": options, "input": request["input"], "model": request["model"]}


def _submit(
    console: Console, api: Api, request: dict[str, Any], *, same_as: str | None = None
) -> dict[str, Any]:
    console.print(f"   POST /jobs  {escape(json.dumps(request)[:60])}…", soft_wrap=True)
    began = time.monotonic()
    job = api.submit(request)
    took_ms = (time.monotonic() - began) * 1000
    told = f"[{colour(job['status'])}]{job['status']}[/]"
    if job["cache"]["status"] == "hit":
        told += ", from the cache"
    if job["deduplicated"]:
        told += ", deduplicated"
    console.print(f"   [dim]{took_ms:.0f} ms[/]  {job['id']}  {told}", soft_wrap=True)
    if same_as is not None:
        _expect(job["id"] == same_as and job["deduplicated"], "the duplicate got a job of its own")
    return job


def _follow(console: Console, api: Api, job: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    shown = ""
    while True:
        if job["status"] != shown:
            shown = job["status"]
            took_s = time.monotonic() - began
            console.print(f"   [dim]{took_s:4.1f} s[/]  [{colour(shown)}]{shown}[/]")
        if job["status"] not in OPEN:
            break
        if time.monotonic() - began > JOB_TIMEOUT_S:
            raise DemoError(f"the job is still {job['status']} after {JOB_TIMEOUT_S:g} s")
        time.sleep(0.1)
        job = api.job(job["id"])
    _expect(job["status"] == "completed", f"the job ended as {job['status']}: {job.get('error')}")
    return job


def _usage(console: Console, job: dict[str, Any]) -> None:
    usage = job["usage"]
    console.print(
        f"   {usage['input_tokens']} + {usage['output_tokens']} tokens, "
        f"cost {usage['cost']:g}, saved {usage['saved']:g}"
    )


def _refused(console: Console, api: Api, job_id: str) -> None:
    try:
        api.job(job_id)
    except ApiError as error:
        console.print(f"   GET /jobs/{job_id}  {error.status} {error.problem['code']}")
        _expect(error.status == 404, "another tenant's job was refused in a way that tells of it")  # noqa: PLR2004
    else:
        raise DemoError("another tenant could read the job")


def _vendor_calls(local: LocalStack) -> int:
    url = local.vendor_url.removesuffix("/v1") + "/_control/calls"
    with emulator.direct.open(url, timeout=5) as answer:
        calls: int = json.load(answer)["calls"]
        return calls


def _title(console: Console, number: int, text: str) -> None:
    console.print(f"\n[bold]{number}. {text}[/]")


def _expect(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - reads like an assertion
    if not holds:
        raise DemoError(otherwise)
