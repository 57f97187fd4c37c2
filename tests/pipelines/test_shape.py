"""Replicas and one reading task must fit: arithmetic against brute force."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawloom.pipelines.shape import Shape, room


def placements(nodes: list[dict[str, float]], shape: Shape) -> int:
    """The most replicas over all ways to put the reader on one node, counted one by one."""
    best = 0
    for reader in range(len(nodes)):
        cpus = [node["CPU"] - (place == reader) for place, node in enumerate(nodes)]
        if cpus[reader] < 0:
            continue
        total = 0
        for free, node in zip(cpus, nodes, strict=True):
            gpus = node.get("GPU", 0.0)
            while free >= shape.cpus and gpus >= shape.gpus:
                free, gpus, total = free - shape.cpus, gpus - shape.gpus, total + 1
        best = max(best, total)
    return best


@given(
    st.lists(st.fixed_dictionaries({"CPU": st.integers(0, 6), "GPU": st.integers(0, 2)}), max_size=4),
    st.sampled_from([0.5, 1.0, 2.0, 3.0]),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_room_counts_what_fits_beside_a_reader(nodes: list[dict[str, float]], cpus: float, gpus: float) -> None:
    shape = Shape(1, cpus, gpus)
    assert max(0, room(nodes, shape)) == placements(nodes, shape)


@pytest.mark.parametrize(
    ("nodes", "shape", "fitting"),
    [
        ([{"CPU": 2.0}], Shape(2, 1.0), 1),  # the pool would hold every CPU, and reading would wait for ever
        ([{"CPU": 3.0}], Shape(2, 1.0), 2),
        ([{"CPU": 2.0}, {"CPU": 1.0}], Shape(2, 1.0), 2),
        ([{"CPU": 8.0, "GPU": 1.0}], Shape(2, 1.0, 0.5), 2),
        ([{"CPU": 1.0, "GPU": 8.0}], Shape(1, 1.0, 1.0), 0),
        ([], Shape(1, 1.0), 0),
    ],
)
def test_known_rooms(nodes: list[dict[str, float]], shape: Shape, fitting: int) -> None:
    assert max(0, room(nodes, shape)) == fitting


def test_shapes_speak() -> None:
    assert str(Shape(3, 2.0, 0.5)) == "3 replicas of 2 CPU and 0.5 GPU"
    assert str(Shape(1, 0.5)) == "1 replica of 0.5 CPU"
