"""Each sample event, given to what was built under AWS's own runtime."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from sluiceway.bootstrap import Settings
from sluiceway_local import processes
from sluiceway_local.simulator import Simulator

from tests.rie.cloud import FUNCTIONS, STACK, fill, sample
from tests.rie.runtime import packages_of
from tests.template.samples import SAMPLES, table

if TYPE_CHECKING:
    from tests.rie.cloud import Cloud
    from tests.rie.runtime import Runtime

pytestmark = pytest.mark.slow

NO_SINK = "http://127.0.0.1:9/"
ROWS = table()
FIRST = {
    name: re.sub(r"(?<=.)([A-Z])", r"_\1", name.removesuffix("Function")).lower()
    for name in FUNCTIONS
}
FIRST["ApiFunction"] = "api_submit"
"""Of each function one sample."""

PROBE = """
import os, sys, sysconfig

class Noted(type(os.environ)):
    read = set()

    def __getitem__(self, name):
        self.read.add(name)
        return super().__getitem__(name)

    def items(self):  # who looks through all of them reads none
        return {name: super(Noted, self).__getitem__(name) for name in self}.items()

    def copy(self):
        return dict(self.items())

os.environ.__class__ = Noted
import app

def handler(event, context):
    left_ms = context.get_remaining_time_in_millis()
    app.handler(event, context)
    return {
        "read": list(Noted.read),
        "files": {name: getattr(of, "__file__", None) for name, of in sys.modules.items()},
        "stdlib": sysconfig.get_path("stdlib"),
        "left_ms": left_ms,
        "memory_mb": int(context.memory_limit_in_mb),
    }
"""
"""Tells what a function has loaded, which variables it has read, and what it is given."""

_OF_THE_EMULATOR = re.compile(
    r"\d\d \w{3} \d{4} \d\d:\d\d:\d\d,\d{3} \[|(START|END|REPORT) RequestId: "
)


def told_by(answer: Any) -> str:
    """What the samples' README says of an answer."""
    match answer:
        case {"statusCode": status}:
            return str(status)
        case {"policyDocument": {"Statement": [{"Effect": effect}]}}:
            return str(effect)
    return json.dumps(answer)


def ended(function: Runtime) -> str:
    """All output, when an invocation has ended."""
    assert processes.wait_for(lambda: "REPORT RequestId" in function.output, timeout_s=10)
    return function.output


class Reply(NamedTuple):
    """What came of one sample."""

    name: str
    answer: Any
    output: str


@pytest.fixture(scope="module", params=SAMPLES)
def reply(
    request: pytest.FixtureRequest, ministack: str, tmp_path_factory: pytest.TempPathFactory
) -> Reply:
    name: str = request.param
    with Simulator() as sim:
        cloud = fill(ministack, tmp_path_factory.mktemp("sample"), sim)
        with cloud.run(ROWS[name].function) as function:
            answer = function.invoke(sample(name, hook=NO_SINK))
            return Reply(name, answer, ended(function))


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.startswith("publish_events")])
@pytest.mark.proves(16)
def test_end_that_is_told_twice_has_the_same_id(name: str, cloud: Cloud) -> None:
    with cloud.run("PublishEventsFunction") as publisher:
        for _ in range(2):
            publisher.invoke(sample(name))

    first, second = (json.loads(message["Body"]) for message in cloud.messages("WebhookQueue"))
    assert first["event_id"] == second["event_id"]


class Probed(NamedTuple):
    """What a function tells of itself, and the settings that it has."""

    function: str
    settings: dict[str, str]
    told: dict[str, Any]


@pytest.fixture(scope="module", params=FUNCTIONS)
def probed(
    request: pytest.FixtureRequest, ministack: str, tmp_path_factory: pytest.TempPathFactory
) -> Probed:
    function: str = request.param
    folder = tmp_path_factory.mktemp("probe")
    (folder / "probe.py").write_text(PROBE)
    with Simulator() as sim:
        cloud = fill(ministack, folder, sim)
        with cloud.run(function, handler="probe.handler", code=folder) as running:
            told = running.invoke(sample(FIRST[function], hook=NO_SINK))
    return Probed(function, cloud.settings_of(function), told)


def test_sample_gets_the_answer_of_its_table(reply: Reply) -> None:
    assert told_by(reply.answer) == ROWS[reply.name].answer
    assert reply.output.count("INIT RTDONE(status: success)") == 1


def test_function_writes_nothing_but_json_lines_with_the_ids_of_the_request(reply: Reply) -> None:
    lines = [
        line for line in reply.output.splitlines() if line and not _OF_THE_EMULATOR.match(line)
    ]

    logged = [line for line in map(json.loads, lines) if "_aws" not in line]

    (invocation,) = re.findall(r"^START RequestId: (\S+)", reply.output, re.MULTILINE)
    of_the_gateway = SAMPLES[reply.name].get("requestContext", {}).get("requestId")
    assert {line["request_id"] for line in logged} <= {of_the_gateway or invocation}
    assert {line["service"] for line in logged} <= {"sluiceway"}
    assert "hunter2" not in reply.output  # the samples' word for prompts and results


def test_function_reads_the_settings_that_the_template_gives_it_and_no_others(
    probed: Probed,
) -> None:
    known = {name.upper() for name in Settings.__dataclass_fields__} | set(probed.settings)

    read = {name for name in probed.told["read"] if name in known}

    of_powertools = {name for name in known if name.startswith("POWERTOOLS_")}
    assert read - of_powertools == set(probed.settings) - of_powertools - {"PARAMETERS"}
    assert {"POWERTOOLS_SERVICE_NAME", "POWERTOOLS_LOG_LEVEL"} <= read


def test_function_takes_everything_from_its_layer_but_the_runtime_client(probed: Probed) -> None:
    ours = tuple(map(str, packages_of(probed.function)))

    elsewhere = {
        name.partition(".")[0]
        for name, file in probed.told["files"].items()
        if file and not file.startswith((probed.told["stdlib"], *ours))
    }

    assert "awslambdaric" in elsewhere
    assert elsewhere <= {"__main__", "awslambdaric", "probe", "runtime_client", "simplejson"}


def test_function_has_the_time_and_the_memory_of_the_template(probed: Probed) -> None:
    of = STACK.properties(probed.function)

    timeout_ms, left_ms = int(of["Timeout"]) * 1000, probed.told["left_ms"]

    assert timeout_ms - 5_000 < left_ms <= timeout_ms
    assert probed.told["memory_mb"] == of["MemorySize"]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_function_without_one_of_its_settings_fails_by_its_name(
    function: str, cloud: Cloud
) -> None:
    settings = cloud.settings_of(function)
    missing = next(name for name in settings if not name.startswith(("POWERTOOLS_", "PARAMETERS")))
    del settings[missing]

    with cloud.run(function, settings=settings) as broken:
        answer = broken.invoke(sample(FIRST[function]))

    assert set(answer) == {"errorMessage", "errorType", "requestId", "stackTrace"}
    assert (answer["errorType"], answer["errorMessage"]) == ("KeyError", f"'{missing}'")
