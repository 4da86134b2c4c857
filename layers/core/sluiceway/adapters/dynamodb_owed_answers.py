"""Answers that are owed, in DynamoDB (port OwedAnswers).

Coordination rows, by `coordination_key`:
    owed#<tenant>#<digest of a request>     job_id, ends_at_epoch_ms, ttl_epoch_s
"""

from __future__ import annotations

from sluiceway.adapters.dynamodb import Table, Write

_ROW_OUTLIVES_END_S = 3600


class DynamoDBOwedAnswers:
    """Weakness: of two equal requests that are told to come again at once, the later one counts."""

    def __init__(self, table: Table, coordination: str) -> None:
        """`coordination`: name of the Coordination table."""
        self._table = table
        self._name = coordination

    def find(self, tenant: str, digest: str, *, now_ms: int) -> str | None:
        """See OwedAnswers."""
        row = self._table.read(self._name, _key(tenant, digest))
        if row is None or row["ends_at_epoch_ms"] < now_ms:
            return None
        job_id: str = row["job_id"]
        return job_id

    def owe(self, tenant: str, digest: str, job_id: str, *, until_ms: int) -> None:
        """See OwedAnswers."""
        row = {
            **_key(tenant, digest),
            "job_id": job_id,
            "ends_at_epoch_ms": until_ms,
            "ttl_epoch_s": until_ms // 1000 + _ROW_OUTLIVES_END_S,
        }
        self._table.write(Write(self._name, _key(tenant, digest), item=row))

    def forget(self, tenant: str, digest: str, job_id: str) -> None:
        """See OwedAnswers."""
        self._table.write(
            Write(
                self._name,
                _key(tenant, digest),
                condition="#job_id = :job_id",
                values={"job_id": job_id},
            )
        )


def _key(tenant: str, digest: str) -> dict[str, str]:
    return {"coordination_key": f"owed#{tenant}#{digest}"}
