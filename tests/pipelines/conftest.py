"""S3 servers as fixtures."""

from collections.abc import Callable, Iterator

import pytest
from moto.server import ThreadedMotoServer
from s3_rig import BUCKET, Server, seaweed

from drawloom.pipelines import s3


@pytest.fixture(scope="session")
def moto_server() -> Iterator[Server]:
    """moto: quick, accepts any secret."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        answering = Server(f"http://{host}:{port}")
        answering.client().create_bucket(Bucket=BUCKET)
        yield answering
    finally:
        server.stop()


@pytest.fixture(scope="session")
def weed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """SeaweedFS: checks signatures and conditions as S3 does."""
    with seaweed(tmp_path_factory.mktemp("weed")) as server:
        yield server


@pytest.fixture
def use_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Point this process at a server: use_s3(server, AWS_SECRET_ACCESS_KEY="wrong")."""

    def use(server: Server, **other: str) -> None:
        for name, value in (server.environment | other).items():
            monkeypatch.setenv(name, value)
        s3._client.cache_clear()

    yield use
    s3._client.cache_clear()
