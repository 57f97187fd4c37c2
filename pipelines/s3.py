"""An S3 prefix as a Store, by boto3 alone: one client, one way to authenticate, one policy for retries."""

import base64
import functools
import hashlib
import io
import random
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import boto3
import pyarrow as pa
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    MetadataRetrievalError,
    NoCredentialsError,
)

from drawloom.errors import SettingError
from drawloom.pipelines.objects import TMP, Listed, StoreError

T = TypeVar("T")
PAGE = 1000  # keys in one answer of ListObjectsV2, and in one DeleteObjects: S3's limits
PASSING = {"SlowDown", "InternalError", "RequestTimeout", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded"}
PASSING |= {"ConditionalRequestConflict", "OperationAborted", "BadDigest", "429"}  # besides every status from 500 on
ABSENT = {"NoSuchKey", "404", "NotFound"}
TAKEN = {"PreconditionFailed", "412"}
HINTS = {
    "NoSuchBucket": "create the bucket, or correct its name",
    "InvalidAccessKeyId": "correct AWS_ACCESS_KEY_ID, or the endpoint (AWS_ENDPOINT_URL)",
    "SignatureDoesNotMatch": "correct AWS_SECRET_ACCESS_KEY",
    "AccessDenied": "allow this action to these credentials, or use others",
    "403": "allow this action to these credentials, or correct the key and secret",
    "ExpiredToken": "renew the session's credentials",
    "PermanentRedirect": "set AWS_REGION to the bucket's region",
}


@dataclass(frozen=True)
class Patience:
    """How long one operation is tried again, and how long one answer is waited for. Seconds."""

    total_s: float
    connect_s: float
    read_s: float


BRISK = Patience(4.0, 3.0, 4.0)  # first contact: a wrong setting shows within 15 s
STEADY = Patience(300.0, 10.0, 60.0)  # in mid-job: outlast throttling or a failover
REFUSED_S = 30.0  # in mid-job a refusal may pass too: credentials are renewed, and access flickers under load


@dataclass(frozen=True)
class S3Store:
    """Objects under s3://bucket/prefix. Credentials, region and endpoint come from where boto3 takes them."""

    bucket: str
    prefix: str  # "" or ends in "/"
    exclusive: bool = True
    patience: Patience = STEADY

    @classmethod
    def at(cls, uri: str) -> Self:
        found = re.fullmatch(r"s3://([^/]+)/?(.*)", uri)
        if found is None:
            raise SettingError(f"{uri!r} is no S3 address; write s3://bucket/prefix")
        prefix = found[2].strip("/")
        return cls(found[1], prefix + "/" if prefix else "")

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def probe(self) -> Self:
        first, name = replace(self.brisk(), exclusive=True), f"{TMP}probe-{uuid.uuid4().hex}"
        next(iter(first.list(name)), None)
        first.put(name, b"drawloom")
        if first.read(name) != b"drawloom":
            raise StoreError(f"{self.uri}: an object was written but does not read back as it was; use another server")
        exclusive = not first.put_if_absent(name, b"drawloom, again")
        first.delete([name])
        return replace(self, exclusive=exclusive)

    def brisk(self) -> Self:
        return replace(self, patience=BRISK)

    def read(self, path: str) -> bytes:
        return self._get(path)

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        return self._get(path, Range=f"bytes={start}-{stop - 1}") if start < stop else b""

    def stat(self, path: str) -> Listed | None:
        try:
            found = self._call("HeadObject", path, lambda client: client.head_object(Bucket=self.bucket, Key=self.prefix + path))
        except FileNotFoundError:
            return None
        except StoreError:
            self._get(path, Range="bytes=0-0")  # an answer to HEAD has no body that says why; this one has
            raise
        return Listed(path, found["ContentLength"], found["ETag"].strip('"'))

    def list(self, prefix: str = "") -> Iterator[Listed]:
        more: dict[str, str] = {}
        while True:
            page = self._call(
                "ListObjectsV2",
                prefix,
                lambda client, more=more: client.list_objects_v2(Bucket=self.bucket, Prefix=self.prefix + prefix, MaxKeys=PAGE, **more),
            )
            for found in page.get("Contents", ()):
                if not found["Key"].endswith("/"):  # a folder's placeholder
                    yield Listed(found["Key"].removeprefix(self.prefix), found["Size"], found["ETag"].strip('"'))
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def put(self, path: str, data: bytes) -> None:
        self._put(path, data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if not self.exclusive:
            return self.stat(path) is None and self._put(path, data)
        return self._put(path, data, IfNoneMatch="*")

    def delete(self, paths: Iterable[str]) -> None:
        keys = [{"Key": self.prefix + path} for path in paths]
        for first in range(0, len(keys), PAGE):
            some = keys[first : first + PAGE]
            self._call("DeleteObjects", some[0]["Key"].removeprefix(self.prefix), functools.partial(_delete, bucket=self.bucket, keys=some))

    def open_input(self, path: str) -> pa.NativeFile:
        found = self.stat(path)
        if found is None:
            raise FileNotFoundError(f"{self.uri}/{path}")
        return pa.PythonFile(_Ranges(self, path, found.size), mode="r")

    def _get(self, path: str, **more: str) -> bytes:
        place = {"Bucket": self.bucket, "Key": self.prefix + path, **more}
        return self._call("GetObject", path, lambda client: client.get_object(**place)["Body"].read())

    def _put(self, path: str, data: bytes, **more: str) -> bool:
        """True when this call's bytes stand. A lost answer to a conditional put that had succeeded is told by reading back."""
        md5 = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        tries = 0

        def send(client: Any) -> bool:
            nonlocal tries
            tries += 1
            try:
                client.put_object(Bucket=self.bucket, Key=self.prefix + path, Body=data, ContentMD5=md5, **more)
            except ClientError as error:
                if more and error.response["Error"].get("Code") in TAKEN:
                    return False
                raise
            return True

        return self._call("PutObject", path, send) or (tries > 1 and self.read(path) == data)

    def _call(self, action: str, path: str, send: Callable[[Any], T]) -> T:
        """One operation, tried again while its errors look passing and patience lasts.

        Raises FileNotFoundError for an absent object, otherwise StoreError with action, bucket, key and reason.
        """
        client = _client(self.patience)
        started, wait_s = time.monotonic(), 0.1
        while True:
            try:
                return send(client)
            except ClientError as error:
                code = str(error.response["Error"].get("Code", ""))
                if code in ABSENT and action in ("GetObject", "HeadObject"):
                    raise FileNotFoundError(f"{self.uri}/{path}") from error
                failed, limit_s = error, self._limit_s(code, error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            except BotoCoreError as error:
                code, failed, limit_s = "", error, self._limit_without_answer_s(error)
            if time.monotonic() - started >= limit_s:
                raise StoreError(self._complaint(action, path, code, failed)) from failed
            time.sleep(random.uniform(0, wait_s))
            wait_s = min(2 * wait_s, 10.0)

    def _limit_s(self, code: str, status: int) -> float:
        """How long an error of this kind is worth trying again; 0 for one that will not pass."""
        if code in PASSING or status >= 500:
            return self.patience.total_s
        return REFUSED_S if status == 403 and self.patience == STEADY else 0.0

    def _limit_without_answer_s(self, error: BotoCoreError) -> float:
        """The same where the server did not answer, or was not asked."""
        if isinstance(error, (ConnectionError, HTTPClientError, IncompleteReadError)):
            return self.patience.total_s
        unsure = isinstance(error, (NoCredentialsError, CredentialRetrievalError, MetadataRetrievalError))
        return REFUSED_S if unsure and self.patience == STEADY else 0.0

    def _complaint(self, action: str, path: str, code: str, error: Exception) -> str:
        endpoint = _client(self.patience).meta.endpoint_url
        hint = f"; {HINTS[code]}" if code in HINTS else ""
        if isinstance(error, NoCredentialsError):
            hint = "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile (AWS_PROFILE), or a role"
        what = f"{code}: {error.response['Error'].get('Message', '')}" if isinstance(error, ClientError) else error
        return f"S3 {action} failed on bucket {self.bucket!r}, key {self.prefix + path!r} at {endpoint}: {what}{hint}"


def _delete(client: Any, bucket: str, keys: list[dict[str, str]]) -> None:
    """Raises ClientError for the first key that could not be deleted."""
    answer = client.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
    if errors := [one for one in answer.get("Errors", ()) if one.get("Code") not in ABSENT]:
        raise ClientError({"Error": {"Code": errors[0].get("Code", ""), "Message": errors[0].get("Message", "")}}, "DeleteObjects")


@functools.lru_cache(maxsize=8)
def _client(patience: Patience) -> Any:
    """One client per process and patience; boto3's clients may be used by many threads."""
    config = Config(
        retries={"total_max_attempts": 1},  # `_call` decides
        connect_timeout=patience.connect_s,
        read_timeout=patience.read_s,
        max_pool_connections=64,
        request_checksum_calculation="when_required",  # servers other than AWS refuse the newer trailers; Content-MD5 guards uploads
        response_checksum_validation="when_required",
    )
    try:
        return boto3.Session().client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise StoreError(f"no S3 client can be made: {error}; check AWS_ENDPOINT_URL, AWS_REGION and the profile") from error


class _Ranges(io.RawIOBase):
    """A seekable file of ranged requests, for pyarrow."""

    def __init__(self, store: S3Store, path: str, size: int) -> None:
        self._store, self._path, self._size, self._at = store, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        stop = self._size if size is None or size < 0 else min(self._size, self._at + size)
        data = self._store.read_range(self._path, self._at, stop)
        self._at += len(data)
        return data

    def readinto(self, target: Any) -> int:
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)
