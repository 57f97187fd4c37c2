"""A cluster that is too small is refused; one that grows in time is not. No Ray runs here."""

import pytest
import ray

from drawloom.errors import DrawloomError, SettingError
from drawloom.pipelines import cluster
from drawloom.pipelines.cluster import connected, refuse_too_small
from drawloom.pipelines.shape import Shape


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, float]]]:
    """What the autoscaler was asked for."""
    found: list[list[dict[str, float]]] = []
    monkeypatch.setattr(cluster, "request_resources", lambda bundles: found.append(bundles))
    monkeypatch.setattr(cluster, "POLL_S", 0.01)
    return found


def test_a_cluster_may_grow_into_the_job(monkeypatch: pytest.MonkeyPatch, asked: list) -> None:
    nodes = [{"CPU": 1.0}]

    def live() -> list[dict[str, float]]:
        nodes.append({"CPU": 4.0, "GPU": 1.0})
        return nodes

    monkeypatch.setattr(cluster, "live_nodes", live)
    refuse_too_small(Shape(3, 2.0, 1.0), "somewhere", wait_s=30)
    assert len(nodes) == 4
    assert asked == [[{"CPU": 2.0, "GPU": 1.0}] * 3 + [{"CPU": 1}]] * 2


def test_one_that_does_not_is_refused_with_what_it_has(monkeypatch: pytest.MonkeyPatch, asked: list) -> None:
    monkeypatch.setattr(cluster, "live_nodes", lambda: [{"CPU": 4.0}, {"CPU": 2.0}])
    with pytest.raises(SettingError, match=r"6 replicas of 1 CPU .* \(2 nodes: 4 CPU/0 GPU, 2 CPU/0 GPU\); at most 5 fit"):
        refuse_too_small(Shape(6, 1.0), "somewhere", wait_s=0.05)
    assert len(asked) >= 2
    asked.clear()
    with pytest.raises(SettingError):
        refuse_too_small(Shape(6, 1.0), "somewhere")
    assert asked == []  # nobody was asked to wait


@pytest.mark.parametrize("kind", [Exception, RuntimeError, OSError])
def test_a_ray_that_does_not_start_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    stopped: list[bool] = []

    def init(**_: object) -> None:
        raise kind("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: stopped.append(True))
    with (
        pytest.raises(DrawloomError, match=r"Ray did not start on this machine: The current node timed out .* run again"),
        connected(Shape(1, 1.0), None),
    ):
        pass
    assert stopped == [True]  # its processes do not stay behind


def test_what_is_not_about_starting_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise TypeError("init() got an unexpected keyword")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(TypeError), connected(Shape(1, 1.0), None):
        pass
