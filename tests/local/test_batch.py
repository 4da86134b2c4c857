"""A batch on the local stack: items of every kind, and each with its own result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sluiceway_local.processes import wait_for

from tests.local.plant import TIMEOUT_S, built

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.local.plant import Plant

pytestmark = pytest.mark.slow

KNOWN = [f"Known before the batch, {number}" for number in range(4)]
NEW = [f"New in the batch, {number}" for number in range(14)]


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    with built(tmp_path_factory.mktemp("batch") / ".sluiceway") as made:
        yield made


def items() -> list[dict[str, Any]]:
    """40 of them: 14 new ones twice, 4 hits twice, and 4 that are wrong in between."""
    prompts = [*NEW, *KNOWN, *reversed(NEW), *KNOWN]
    made = [
        {"custom_id": f"item-{number}", "model": "demo-chat", "input": prompt}
        for number, prompt in enumerate(prompts)
    ]
    wrong: list[dict[str, Any]] = [
        {"model": "no-such-model", "input": "x"},
        {"model": "demo-chat"},
        {"model": "demo-chat", "input": "x", "unknown": 1},
        {"model": "demo-chat", "input": "never seen", "cache": {"mode": "only"}},
    ]
    for number, one in enumerate(wrong):
        made.insert(number * 11, {"custom_id": f"wrong-{number}", **one})
    return made


def test_batch_of_every_kind_of_item_ends_with_each_result_at_its_place(plant: Plant) -> None:
    for job_id in [plant.submit(prompt) for prompt in KNOWN]:
        plant.until(job_id, "completed")
    sent = items()

    answer = plant.acme.post("/batches", json={"jobs": sent})

    assert answer.status_code == 202, answer.text
    batch_id = answer.json()["id"]

    def fetched() -> dict[str, Any]:
        body: dict[str, Any] = plant.acme.get(
            f"/batches/{batch_id}", headers={"Prefer": "wait=5"}
        ).json()
        return body

    assert wait_for(lambda: fetched()["status"] == "completed", timeout_s=2 * TIMEOUT_S)
    body = fetched()
    assert [one["custom_id"] for one in body["data"]] == [one["custom_id"] for one in sent]
    assert body["request_counts"] == {
        "total": 40,
        "completed": 36,
        "failed": 4,
        "cancelled": 0,
        "in_progress": 0,
    }
    shown = {one["custom_id"]: one for one in body["data"]}
    assert [shown[f"wrong-{number}"]["error"]["code"] for number in range(4)] == [
        "model_not_found",
        "validation_failed",
        "validation_failed",
        "cache_miss",
    ]
    for one in sent:
        if one["custom_id"].startswith("item-"):
            job = plant.acme.get(f"/jobs/{shown[one['custom_id']]['job']['id']}").json()
            assert one["input"] in job["result"]["text"]
    hits = [one for one in body["data"] if one.get("job", {}).get("id", "").startswith("hit_")]
    assert len(hits) == 2 * len(KNOWN)
    assert {plant.calls(prompt)["calls"] for prompt in [*KNOWN, *NEW]} == {1}
    usage = body["usage"]
    tokens = [
        job["usage"]
        for job in {one["job"]["id"]: one["job"] for one in body["data"] if "job" in one}.values()
    ]
    for name in ("input_tokens", "output_tokens"):
        assert usage[name] == sum(one[name] for one in tokens)
    assert plant.globex.get(f"/batches/{batch_id}").json()["code"] == "batch_not_found"
