"""What the live tests make of what AWS tells: logs, metrics, traces and messages; all pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

DENIED = re.compile(r"AccessDenied|is not authorized to perform|UnauthorizedOperation")
"""How AWS says that a role lacks a right."""


# ------------------------------------------------------------------------------------ logs


def vendor_lines(messages: Iterable[str]) -> list[dict[str, Any]]:
    """What the vendor logged about requests, without Lambda's own lines."""
    found = []
    for message in messages:
        try:
            line = json.loads(message)
        except ValueError:
            continue
        if isinstance(line, dict) and ("call" in line or "hook" in line):
            found.append(line)
    return found


def most_at_once(calls: Iterable[Mapping[str, Any]]) -> int:
    """How many of the vendor's calls ran at the same time at most."""
    moments = [
        moment for call in calls for moment in ((call["arrived_ms"], 1), (call["left_ms"], -1))
    ]
    running = most = 0
    for _, change in sorted(moments):  # one that ends as another begins leaves first
        running += change
        most = max(most, running)
    return most


def denials(messages: Iterable[str]) -> list[str]:
    """The lines in which AWS refused a role something."""
    return [message.strip() for message in messages if DENIED.search(message)]


# ------------------------------------------------------------------------------------ queues


def percentile(numbers: Iterable[float], percent: float) -> float:
    """By the nearest rank. Raises ValueError when there are none."""
    ordered = sorted(numbers)
    if not ordered:
        raise ValueError("there are no numbers")
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


def fairness(dwells_ms: Mapping[str, Iterable[int]]) -> dict[str, dict[str, float]]:
    """By group: how many messages it had, and how long they waited, in seconds."""
    told = {}
    for group, waits_ms in dwells_ms.items():
        waits_s = [wait_ms / 1000 for wait_ms in waits_ms]
        told[group] = {
            "messages": len(waits_s),
            "median_s": percentile(waits_s, 50),
            "most_s": max(waits_s),
        }
    return told


def facts_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a message from another, of an answer to ReceiveMessage with all attributes."""
    attributes = message["Attributes"]
    return {
        "message_id": message["MessageId"],
        "sent_ms": int(attributes["SentTimestamp"]),
        "first_received_ms": int(attributes["ApproximateFirstReceiveTimestamp"]),
        "receives": int(attributes["ApproximateReceiveCount"]),
        "source": attributes.get("DeadLetterQueueSourceArn"),
        "group": attributes.get("MessageGroupId"),
        "trace_header": attributes.get("AWSTraceHeader"),
    }


def moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, bool]:
    """Which facts a move to another queue kept."""
    return {f"keeps_{name}": before[name] == after[name] for name in before}


# ------------------------------------------------------------------------------------ metrics


def values(results: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Of an answer of GetMetricData, by the ids of its queries. No data: an empty list."""
    found: dict[str, list[float]] = {}
    for result in results:
        found.setdefault(result["Id"], []).extend(result["Values"])
    return found


# ------------------------------------------------------------------------------------ traces


def segments(traces: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The documents of an answer of BatchGetTraces, by the trace's id."""
    return {
        trace["Id"]: [json.loads(one["Document"]) for one in trace["Segments"]] for trace in traces
    }


def origins(documents: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """What made the segments, as X-Ray calls it: `AWS::Lambda`, `AWS::ApiGateway::Stage`."""
    return Counter(one["origin"] for one in documents if "origin" in one)


def every(document: Any) -> Iterator[Mapping[str, Any]]:
    """The document and all that is in it, as far as it has members."""
    if isinstance(document, dict):
        yield document
        for value in document.values():
            yield from every(value)
    elif isinstance(document, list):
        for value in document:
            yield from every(value)


def annotated(documents: Iterable[Mapping[str, Any]], name: str) -> set[Any]:
    """The values of an annotation, wherever it is."""
    return {
        part["annotations"][name]
        for document in documents
        for part in every(document)
        if isinstance(part.get("annotations"), dict) and name in part["annotations"]
    }


def links(documents: Iterable[Mapping[str, Any]]) -> set[str]:
    """The ids of the traces that these are linked to."""
    return {
        link["trace_id"]
        for document in documents
        for part in every(document)
        if isinstance(part.get("links"), list)
        for link in part["links"]
        if isinstance(link, dict) and "trace_id" in link
    }


def root_of(trace_header: str | None) -> str | None:
    """The trace's id in a header like `Root=1-…;Parent=…;Sampled=1`."""
    found = re.search(r"Root=(1-[0-9a-f]{8}-[0-9a-f]{24})", trace_header or "")
    return found[1] if found else None
