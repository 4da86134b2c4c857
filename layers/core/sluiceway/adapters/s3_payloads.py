"""Big payloads in S3 (port PayloadStore)."""

from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from sluiceway.domain.errors import StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_s3 import S3Client

URL_LIFETIME_S = 900


class S3Payloads:
    """The client is made on first use: most requests never need it, and it costs start-up time."""

    def __init__(self, client: "Callable[[], S3Client]", bucket: str) -> None:
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
        try:
            return self._client().get_object(Bucket=self._bucket, Key=name)["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":
                raise KeyError(name) from error
            raise StoreBusyError("The payload store failed.", retry_after_s=1) from error
        except BotoCoreError as error:
            raise StoreBusyError("The payload store failed.", retry_after_s=1) from error

    def url(self, name: str) -> str:
        """See PayloadStore. Signed when it is asked for, since a signature ages."""
        return self._client().generate_presigned_url(
            "get_object",
            Params={"Bucket": self._bucket, "Key": name},
            ExpiresIn=URL_LIFETIME_S,
        )
