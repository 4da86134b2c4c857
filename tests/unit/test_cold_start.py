"""What the benchmark of starts reckons, and how it plays AWS."""

from __future__ import annotations

from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest

from bench import cold_start
from bench.cold_start import Answer, Recording, Start, ratio, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

GET = {"x-amz-target": "DynamoDB_20120810.GetItem"}
PUT = {"x-amz-target": "DynamoDB_20120810.PutItem"}


def recorded(*answers: Answer) -> Recording:
    return Recording("http://127.0.0.1:1", list(answers), whole=True)


@pytest.fixture
def port() -> Iterator[int]:
    with serving(cold_start._Aws) as server:
        server.recording = recorded(  # type: ignore[attr-defined]
            Answer("POST DynamoDB_20120810.GetItem", 200, [("x-amzn-requestid", "1")], b"{}")
        )
        yield server.server_address[1]


def test_recording_gives_the_answers_in_order() -> None:
    first, second = Answer("POST a.B", 200, (), b"1"), Answer("GET /path", 404, (), b"2")
    recording = recorded(first, second)

    told = [
        recording.answer("POST", "/", {"x-amz-target": "a.B"}, b""),
        recording.answer("GET", "/path?token=other", {}, b""),
    ]

    assert told == [first, second]
    assert recording.faults == []


@pytest.mark.parametrize("headers", [PUT, {}])
def test_another_request_than_the_recorded_one_is_a_fault(headers: dict[str, str]) -> None:
    recording = recorded(Answer("POST DynamoDB_20120810.GetItem", 200, (), b"{}"))

    answer = recording.answer("POST", "/", headers, b"")

    assert answer.status == 500
    assert "instead of POST DynamoDB_20120810.GetItem" in recording.faults[0]


def test_a_request_too_many_is_a_fault() -> None:
    recording = recorded()

    recording.answer("POST", "/", GET, b"")

    assert recording.faults == ["POST DynamoDB_20120810.GetItem came instead of nothing"]


def test_answer_is_given_as_it_came(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port)

    connection.request("POST", "/", b"{}", GET)
    answer = connection.getresponse()

    assert (answer.status, answer.read()) == (200, b"{}")
    assert answer.headers["x-amzn-requestid"] == "1"
    connection.close()


def test_ratio_is_the_middle_of_the_rounds() -> None:
    found = {
        "floor": [Start(100, 0, 0, None), Start(200, 0, 0, None), Start(100, 0, 0, None)],
        "api": [Start(100, 30, 0, None), Start(200, 40, 0, None), Start(900, 0, 0, None)],
    }

    assert ratio(found, "api", "floor") == pytest.approx(1.3)
