"""Invalidation on the real template: by the command line, by an event, and by the API."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from sluiceway_local import emulator
from sluiceway_local.processes import wait_for

from tests.local.plant import TIMEOUT_S, built

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.local.plant import Plant

pytestmark = pytest.mark.slow

SECRET = "a-prompt-that-nobody-may-read"


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    with built(tmp_path_factory.mktemp("cache") / ".sluiceway") as made:
        yield made


def asked(plant: Plant, prompt: str) -> dict[str, Any]:
    """What a submit of this prompt is answered."""
    answer = plant.acme.post("/jobs", json={"model": "demo-chat", "input": prompt})
    assert answer.status_code in {200, 202}, answer.text
    job: dict[str, Any] = answer.json()
    return job


def a_hit(plant: Plant, prompt: str) -> str:
    """Runs the prompt, and gives the cache key of what is a hit from then on."""
    plant.until(asked(plant, prompt)["id"], "completed")
    hit = asked(plant, prompt)
    assert hit["cache"]["status"] == "hit"
    return str(hit["id"]).removeprefix("hit_")


def until_missed(plant: Plant, prompt: str) -> None:
    """Returns when the prompt is no hit any more: every process knows the epoch within 5 s."""
    assert wait_for(
        lambda: asked(plant, prompt)["cache"]["status"] == "miss",
        timeout_s=TIMEOUT_S,
        pause_s=0.2,
    )


def records(plant: Plant, subject: str) -> list[dict[str, str]]:
    found = plant.run_cli("audit", "--since", "1h")["records"]
    return [record for record in found if record["subject"] == subject]


@pytest.mark.proves(20)
def test_model_is_invalidated_by_the_command_line(plant: Plant) -> None:
    prompt = f"By the command line {SECRET}"
    key = a_hit(plant, prompt)
    before = plant.run_cli("cache", "show", key)

    done = plant.run_cli("cache", "invalidate", "--model", "demo-chat")
    until_missed(plant, prompt)

    assert done["subject"] == "model:demo-chat"
    assert (before["state"], before["freshness"], before["model"]) == (
        "entry",
        "fresh",
        "demo-chat",
    )
    after = json.loads(plant.cli("cache", "show", f"hit_{key}", "--json").stdout)
    assert (after["state"], after["invalidated_by"]) == ("invalidated", "model:demo-chat")
    assert after["invalidated_at"] == done["at"]
    assert SECRET not in json.dumps([before, after])
    assert plant.acme.get(f"/jobs/hit_{key}").status_code == 404
    record = records(plant, "model:demo-chat")[0]
    assert (record["action"], record["at"]) == ("cache.invalidate", done["at"])
    assert record["actor"].startswith("user:")


@pytest.mark.proves(20)
def test_model_is_invalidated_by_an_event(plant: Plant) -> None:
    prompt = "By an event"
    a_hit(plant, prompt)
    events = emulator.client("events", plant.local.endpoint_url)

    answer = events.put_events(
        Entries=[
            {
                "EventBusName": plant.local.outputs["EventBusName"],
                "Source": "sluiceway.ops",
                "DetailType": "CacheInvalidate",
                "Detail": json.dumps({"model": "demo-chat"}),
            }
        ]
    )
    events.close()
    until_missed(plant, prompt)

    assert answer["FailedEntryCount"] == 0
    actors = [record["actor"] for record in records(plant, "model:demo-chat")]
    assert f"event:{answer['Entries'][0]['EventId']}" in actors


@pytest.mark.proves(20)
def test_key_is_invalidated_by_the_api_at_once(plant: Plant) -> None:
    key, other = a_hit(plant, "By the API"), a_hit(plant, "By nobody")

    answer = plant.acme.post("/admin/cache/invalidate", json={"key": key})
    again = asked(plant, "By the API")

    assert (answer.status_code, answer.json()["found"]) == (200, True)
    assert again["cache"]["status"] == "miss"
    assert asked(plant, "By nobody")["id"] == f"hit_{other}"
    (record,) = records(plant, f"key:{key}")
    assert record["actor"].startswith("key:")
    plant.until(again["id"], "completed")
    assert asked(plant, "By the API")["cache"]["status"] == "hit"


@pytest.mark.proves(11)
@pytest.mark.parametrize(
    "sim", [{"finish": "length"}, {"finish": "tool_calls"}, {"empty": True}], ids=str
)
def test_answer_that_is_not_whole_is_the_jobs_alone(plant: Plant, sim: dict[str, Any]) -> None:
    options = {"sim": {**sim, "times": 1}}
    body = {"model": "demo-chat", "input": f"Not whole: {sim}", "options": options}

    first = plant.acme.post("/jobs", json=body).json()
    plant.until(first["id"], "completed")
    second = plant.acme.post("/jobs", json=body).json()
    plant.until(second["id"], "completed")
    third = plant.acme.post("/jobs", json=body).json()

    assert [one["cache"]["status"] for one in (first, second, third)] == ["miss", "miss", "hit"]


@pytest.mark.proves(19)
def test_failed_refresh_leaves_the_old_answer(plant: Plant) -> None:
    key = a_hit(plant, "Old but good")
    plant.entry_expires(key, soft_in_s=-1, hard_in_s=300)
    plant.vendor_fails("Old but good", status=400)

    stale = asked(plant, "Old but good")
    (refresh,) = plant.jobs_of(f"refresh#{key}")
    assert wait_for(
        lambda: plant.jobs_of(f"refresh#{key}")[0]["status"] == "failed", timeout_s=TIMEOUT_S
    )
    after = asked(plant, "Old but good")
    plant.vendor_recovers()

    assert refresh["status"] in {"queued", "processing", "failed"}
    assert [one["cache"]["status"] for one in (stale, after)] == ["stale", "stale"]
    assert after["result"] == stale["result"]


@pytest.mark.proves(21)
def test_every_answer_tells_the_age_of_its_entry_and_reading_moves_no_time(plant: Plant) -> None:
    key = a_hit(plant, "How old?")
    before = plant.entry(key)
    stored_s = float(before["stored_at_epoch_ms"]) / 1000
    assert wait_for(lambda: time.time() > stored_s + 2, timeout_s=TIMEOUT_S)

    submit = plant.acme.post("/jobs", json={"model": "demo-chat", "input": "How old?"})
    fetch = plant.acme.get(f"/jobs/hit_{key}")

    for answer in (submit, fetch):
        assert 2 <= int(answer.headers["age"]) <= time.time() - stored_s
        assert answer.json()["cache"]["age_s"] == int(answer.headers["age"])
    assert plant.entry(key) == before


def test_job_names_its_entry_and_a_tombstone_tells_its_time(plant: Plant) -> None:
    job_id = asked(plant, "Named by its job")["id"]
    plant.until(job_id, "completed")

    shown = plant.run_cli("cache", "show", job_id)
    done = plant.run_cli("cache", "invalidate", "--key", shown["cache_key"])
    gone = plant.cli("cache", "show", job_id, "--json")

    assert (shown["tenant"], shown["kept_in"]) == ("acme", "row")
    assert done["found"] is True
    assert gone.returncode == 1
    assert json.loads(gone.stdout) == {
        "cache_key": shown["cache_key"],
        "state": "invalidated",
        "invalidated_at": done["at"],
        "invalidated_by": f"key:{shown['cache_key']}",
    }


def test_big_result_is_shown_by_its_object(plant: Plant) -> None:
    job_id = plant.submit("A big result", {"size_bytes": 2_000_000})
    plant.until(job_id, "completed")

    shown = plant.run_cli("cache", "show", job_id)

    assert shown["kept_in"].startswith("object results/")
    assert 4096 < shown["size_bytes"] < 2_000_000


def test_model_that_the_catalogue_lacks_is_refused(plant: Plant) -> None:
    done = plant.cli("cache", "invalidate", "--model", "demo-chatt")

    assert done.returncode == 1
    assert "did you mean demo-chat?" in done.stderr


def test_ordinary_key_may_not_invalidate(plant: Plant) -> None:
    key = plant.local.partners["globex"]

    answer = plant.acme.post(
        "/admin/cache/invalidate",
        json={"tenant": "acme"},
        headers={"authorization": f"Bearer {key}"},
    )

    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_keys_and_cancels_are_on_record(plant: Plant) -> None:
    key_id = plant.run_cli("keys", "create", "initech")["key_id"]
    plant.run_cli("keys", "revoke", key_id)
    with plant.lane_stopped("Batch"):
        job_id = plant.submit("Cancelled", model="heavy")
        plant.run_cli("jobs", "cancel", job_id, "--tenant", "acme")
        plant.run_cli("jobs", "cancel", job_id, "--tenant", "acme")

    done = [record["action"] for record in records(plant, f"key:{key_id}")]
    assert done == ["key.revoke", "key.create"]
    assert [record["action"] for record in records(plant, f"job:{job_id}")] == ["job.cancel"]
