"""`local invoke`: a function's handler in this process, against the running local stack.

So a breakpoint in it, or in the library, is met where somebody can step through it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import sys
from bdb import BdbQuit
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sluiceway
from botocore.exceptions import BotoCoreError
from samtranslator.yaml_helper import yaml_parse

from sluiceway_local import deploy, emulator, mappings, processes, stack, state
from sluiceway_local.poller import Context, Poller

WAIT_S = 1
"""For a message of one queue, before the next is looked at."""

SHOWN_SAMPLES = 3
"""Of those that a function has."""

Handler = Callable[[dict[str, Any], Any], Any]


@dataclass(frozen=True, slots=True)
class Function:
    """A function as it is deployed, and where its source is."""

    name: str
    """Of its folder."""
    physical_name: str
    path: Path
    environment: Mapping[str, str]
    timeout_s: float
    memory_mb: int
    endpoint_url: str
    queues: Mapping[str, str]
    """The names of the stack's queues, by their logical ids."""

    def context(self) -> Context:
        """Of one invocation, which begins now."""
        return Context(self.physical_name, self.timeout_s, memory_limit_in_mb=self.memory_mb)


def find(name: str, source: deploy.Source, folder: Path = state.FOLDER) -> Function:
    """The function of this folder's stack.

    Raises RuntimeError when no stack runs here, it has no such function, or the library of this
    process isn't that of the sources.
    """
    local = stack.running(folder)
    if local is None:
        raise RuntimeError("no local stack runs here; start one with: sluiceway local up --detach")
    known = deploy.functions(yaml_parse(source.template.read_text("utf-8")))
    if name not in known:
        raise RuntimeError(f"there is no function {name!r}; there are: {', '.join(sorted(known))}")
    library = source.root.absolute() / "layers/core"
    if not Path(sluiceway.__file__ or "").resolve().is_relative_to(library.resolve()):
        raise RuntimeError(
            f"the library of this process isn't that of the sources; set PYTHONPATH={library}"
        )
    names = deploy.physical_names(endpoint_url=local.endpoint_url, stack=local.stack)
    deployed = emulator.client("lambda", local.endpoint_url).get_function_configuration(
        FunctionName=names[known[name]], Qualifier="live"
    )
    return Function(
        name=name,
        physical_name=names[known[name]],
        path=source.root.absolute() / "functions" / name / "app.py",
        environment=deployed["Environment"]["Variables"],
        timeout_s=deployed["Timeout"],
        memory_mb=deployed["MemorySize"],
        endpoint_url=local.endpoint_url,
        queues={
            logical: physical.rsplit("/", 1)[-1]
            for logical, physical in names.items()
            if logical.endswith("Queue")
        },
    )


def environment(function: Function, ours: Mapping[str, str]) -> dict[str, str]:
    """What the handler's process has: of AWS's variables those of the emulator and no others."""
    return processes.emulator_environment(
        ours,
        function.endpoint_url,
        AWS_LAMBDA_FUNCTION_NAME=function.physical_name,
        **function.environment,
    )


def load(function: Function) -> Handler:
    """The handler, with this process's environment made the function's.

    Raises what goes wrong in its module.
    """
    wanted = environment(function, os.environ)
    os.environ.clear()
    os.environ.update(wanted)
    sys.path.insert(0, str(function.path.parent))
    spec = importlib.util.spec_from_file_location("app", function.path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{function.path} is no module")
    module = sys.modules["app"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    handler: Handler = module.handler
    return handler


def event(function: Function, file: str | None, text: str | None = None) -> Any:
    """The event of this file, or the text of the standard input; else the function's sample.

    Raises RuntimeError when there is none, or it is no JSON.
    """
    samples = function.path.parents[2] / "events"
    path = samples / f"{function.name}.json" if file is None else Path(file)
    if text is None:
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            if file is not None:
                raise RuntimeError(f"{file}: {error.strerror}") from None
            near = sorted(samples.glob(f"{function.name}_*"))
            others = [f"events/{one.name}" for one in near[:SHOWN_SAMPLES]]
            hint = f", such as {' or '.join(others)}" if others else ""
            raise RuntimeError(
                f"{function.name} has no sample of its own; give --event{hint}"
            ) from None
        except UnicodeDecodeError as error:
            raise RuntimeError(f"{path}: it is no UTF-8: {error.reason}") from None
    try:
        return _of_this_stack(json.loads(text), function.queues)
    except json.JSONDecodeError as error:
        where = "standard input" if file == "-" else path
        raise RuntimeError(f"{where}:{error.lineno}:{error.colno}: {error.msg}") from None


def _of_this_stack(event: Any, queues: Mapping[str, str]) -> Any:
    """The event, with this stack's queues in place of those that a sample names."""
    records = event.get("Records") if isinstance(event, dict) else None
    for record in records if isinstance(records, list) else []:
        arn = str(record.get("eventSourceARN", "")) if isinstance(record, dict) else ""
        before, colon, name = arn.rpartition(":")
        found = re.search(r"-(\w+Queue)-", name)
        if ":sqs:" in arn and found and found[1] in queues:
            record["eventSourceARN"] = f"{before}{colon}{queues[found[1]]}"
    return event


@contextmanager
def pollers(
    function: Function, handler: Handler, folder: Path = state.FOLDER
) -> Iterator[list[Poller]]:
    """One for each queue that feeds the function, in place of its event source mappings.

    Raises RuntimeError as `mappings.taken` does.
    """
    sqs = emulator.client("sqs", function.endpoint_url)
    # A stop from outside, as of an editor, gives the mappings back as well.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with mappings.taken(
        function.physical_name, function.name, function.endpoint_url, folder
    ) as names:
        yield [
            Poller(
                sqs=sqs,
                queue_url=sqs.get_queue_url(QueueName=name)["QueueUrl"],
                handler=handler,
                function_name=function.physical_name,
                timeout_s=function.timeout_s,
            )
            for name in names
        ]


def poll(pollers: list[Poller], folder: Path = state.FOLDER) -> None:
    """Gives the handler the messages of the queues, one by one, until Ctrl-C or the stack's end.

    Raises what the handler raises.
    """
    with suppress(KeyboardInterrupt, BdbQuit):  # after pdb's `c`, Ctrl-C comes to pdb first
        while True:
            for poller in pollers:
                try:
                    poller.once(wait_s=WAIT_S)
                except BotoCoreError:
                    if stack.running(folder) is None:
                        return
                    raise
