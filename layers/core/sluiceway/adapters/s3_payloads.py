"""Big payloads in S3 (port PayloadStore)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from sluiceway.domain.errors import StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mypy_boto3_s3 import S3Client

URL_LIFETIME_S = 900


class S3Payloads:
    """The client is made on first use: most requests never need it, and it costs start-up time."""

    def __init__(self, client: Callable[[], S3Client], bucket: str) -> None:
        """`client` gives the client, the same each time."""
        self._client = client
        self._bucket = bucket

    def put(self, name: str, data: bytes) -> None:
        """See PayloadStore."""
        try:
            self._client().put_object(
                Bucket=self._bucket,
                Key=name,
                Body=data,
                ContentType="application/json",
                ContentEncoding="gzip",
            )
        except (BotoCoreError, ClientError) as error:
            raise StoreBusyError("The payload store failed.", retry_after_s=1) from error

    def get(self, name: str) -> bytes:
        """See PayloadStore."""
        with _errors_of(name):
            return self._client().get_object(Bucket=self._bucket, Key=name)["Body"].read()

    def size(self, name: str) -> int:
        """See PayloadStore."""
        with _errors_of(name):
            return self._client().head_object(Bucket=self._bucket, Key=name)["ContentLength"]

    def url(self, name: str) -> str:
        """See PayloadStore. Signed when it is asked for, since a signature ages."""
        return self._client().generate_presigned_url(
            "get_object",
            Params={"Bucket": self._bucket, "Key": name},
            ExpiresIn=URL_LIFETIME_S,
        )


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Raises KeyError when there is no such object, StoreBusyError for whatever else went wrong."""
    try:
        yield
    except ClientError as error:
        if error.response["Error"]["Code"] in {"NoSuchKey", "404"}:  # a HEAD has no body to say it
            raise KeyError(name) from error
        raise StoreBusyError("The payload store failed.", retry_after_s=1) from error
    except BotoCoreError as error:
        raise StoreBusyError("The payload store failed.", retry_after_s=1) from error
