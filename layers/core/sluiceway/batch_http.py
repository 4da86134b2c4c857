"""Replies about batches."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from sluiceway.domain.batch import Batch, Refusal
from sluiceway.domain.times import rfc3339
from sluiceway.http import LEAST_POLL_S, STATUS, Reply, cost, hit_body, job_body, poll_after_s

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sluiceway.domain.backlog import Place
    from sluiceway.domain.freshness import KeptHit
    from sluiceway.domain.job import Job


def batch_reply(
    status: int,
    batch: Batch,
    jobs: Mapping[str, Job],
    told: Mapping[str, dict[str, Any]],
    *,
    base_path: str,
    now_ms: int,
    places: Mapping[str, Place],
) -> Reply:
    """A batch as the partner sees it.

    By ids of jobs and hits: `jobs` that there are, `places` of the open ones, and `told`, which is
    `{"result": …}` or `{"result_url": …}` where there is one.
    """
    data: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    for item in batch.items:
        job = jobs.get(item.job_id or "")
        if item.hit is not None:
            shown = hit_body(item.hit, base_path=base_path) | told.get(item.hit.hit_id, {})
        elif job is not None:
            shown = job_body(
                job,
                base_path=base_path,
                now_ms=now_ms,
                deduplicated=item.deduplicated,
                place=places.get(job.job_id),
            ) | told.get(job.job_id, {})
        else:
            refusal = item.refusal or Refusal("job_not_found", "There is no such job any more.")
            data.append({"custom_id": item.custom_id, "error": _refused(refusal)})
            counts["failed"] += 1
            continue
        data.append({"custom_id": item.custom_id, "job": shown})
        counts[_COUNTED_AS.get(shown["status"], shown["status"])] += 1
    is_open = counts["in_progress"] > 0
    url = f"{base_path}/batches/{batch.batch_id}"
    body = {
        "id": batch.batch_id,
        "object": "batch",
        "status": "in_progress" if is_open else "completed",
        "created_at": rfc3339(batch.created_at_epoch_ms),
        "request_counts": {"total": len(data)}
        | {name: counts[name] for name in ("completed", "failed", "cancelled", "in_progress")},
        "usage": _usage_of(batch, jobs),
        "data": data,
        "urls": {"self": url},
    }
    headers = {"Location": url} if status == 202 else {}  # noqa: PLR2004
    if is_open:
        longest_s = max(map(poll_after_s, places.values()), default=LEAST_POLL_S)
        headers["Retry-After"] = str(longest_s)
    return Reply(status, body, headers)


_COUNTED_AS = {
    **dict.fromkeys(("queued", "processing", "retrying"), "in_progress"),
    "dead_lettered": "failed",
}
"""States of jobs that `request_counts` has another word for."""


def _refused(refusal: Refusal) -> dict[str, Any]:
    """A refusal in the words of a problem."""
    body: dict[str, Any] = {
        "code": refusal.code,
        "message": refusal.message,
        "retryable": refusal.retry_after_s is not None or STATUS[refusal.code] >= 500,  # noqa: PLR2004
    }
    if refusal.errors:
        body["errors"] = list(refusal.errors)
    if refusal.retry_after_s is not None:
        body["retry_after_s"] = refusal.retry_after_s
    return body


def _usage_of(batch: Batch, jobs: Mapping[str, Job]) -> dict[str, Any]:
    """The sums; what several items share is counted once."""
    hits = {item.hit.hit_id: item.hit for item in batch.items if item.hit is not None}
    ended = [job for job in jobs.values() if job.result is not None]
    called: list[KeptHit | Job] = [*hits.values(), *ended]
    return {
        "input_tokens": sum(one.input_tokens or 0 for one in called),
        "output_tokens": sum(one.output_tokens or 0 for one in called),
        "cost": cost(sum(job.cost_nanos or 0 for job in ended)),
        "saved": cost(
            sum(hit.cost_nanos for hit in hits.values())
            + sum(job.saved_nanos or 0 for job in ended)
        ),
    }
