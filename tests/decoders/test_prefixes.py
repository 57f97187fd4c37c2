"""Trees of the likeliest prefixes: the known answer of DDTree, and every prefix counted."""

import itertools
import math

import pytest
import torch

from drawloom.decoders.drafting import Drafted, Drafting, Grown
from drawloom.decoders.prefixes import all_prefixes, best_of, choices_of, first_level, gain_of, next_level, rows_of, static_tree
from drawloom.decoders.step import lines_of
from drawloom.decoders.trees import Tree
from drawloom.errors import SettingError

LINES = lines_of([[5, 6], [7]], [20, 20], [[0], [0]], 4)


def prefixes(tree: Tree, line: int) -> dict[tuple[int, ...], int]:
    """Drafted prefixes and their depth."""
    found: dict[tuple[int, ...], int] = {}
    paths: list[tuple[int, ...]] = [()]
    for row in range(1, tree.tokens.shape[1]):
        parent = int(tree.parent[line, row])
        assert parent < row
        paths.append((*paths[parent], int(tree.tokens[line, row])))
        if tree.valid[line, row]:
            assert bool(tree.valid[line, parent])
            found[paths[-1]] = int(tree.depth[line, row])
    return found


def test_the_known_answer_of_ddtree() -> None:
    """KA-6: q1 = (.5, .3, .2), q2 = (.6, .3, .1), five nodes; the expected accepted length is 1.48."""
    chances = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]])
    score, tokens = (one.expand(2, -1, -1).contiguous() for one in chances.log().topk(3, -1))
    tree = best_of(LINES, all_prefixes(tokens, score, 5), 5)
    for line in range(2):
        found = prefixes(tree, line)
        assert found in ({(0,): 1, (0, 0): 2, (1,): 1, (2,): 1, (1, 0): 2},)
        assert sum(math.prod(chances[place, token].item() for place, token in enumerate(path)) for path in found) == pytest.approx(1.48)


@pytest.mark.parametrize("seed", range(8))
def test_no_prefix_outside_is_likelier(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    width, ranks, nodes = 1 + seed % 4, 1 + seed % 3, 3 + 2 * seed
    score, tokens = torch.rand(2, width, 6, generator=generator).log_softmax(-1).topk(ranks, -1)
    tree = best_of(LINES, all_prefixes(tokens, score, nodes), nodes)
    for line in range(2):
        every = {
            tuple(int(tokens[line, place, rank]) for place, rank in enumerate(path)): sum(
                score[line, place, rank].item() for place, rank in enumerate(path)
            )
            for depth in range(1, width + 1)
            for path in itertools.product(range(ranks), repeat=depth)
        }
        found = prefixes(tree, line)
        assert len(found) == min(nodes, len(every))
        assert {path: len(path) for path in found} == found
        worst = min(every[path] for path in found)
        assert all(value <= worst + 1e-6 for path, value in every.items() if path not in found)


@pytest.mark.parametrize("seed", range(4))
def test_a_grown_tree_is_that_of_a_beam_search(seed: int) -> None:
    """Each level is R tokens behind each of the R best prefixes of the level before; the best nodes of all levels are kept."""
    generator = torch.Generator().manual_seed(seed)
    ranks, width, nodes, vocab = 3, 4, 9, 7
    table = torch.randn(2, width, vocab, vocab, generator=generator).log_softmax(-1)  # of the last token
    beams: list[list[tuple[float, tuple[int, ...]]]] = [[(0.0, (0,))], [(0.0, (0,))]]
    every: list[dict[tuple[int, ...], float]] = [{}, {}]
    grown: Grown | None = None
    for level in range(width):
        for line in range(2):
            fresh = []
            for score, path in beams[line]:
                values, ids = table[line, level, path[-1]].topk(ranks)
                fresh += [(score + value, (*path, token)) for value, token in zip(values.tolist(), ids.tolist(), strict=True)]
            every[line] |= {path[1:]: score for score, path in fresh}
            beams[line] = sorted(fresh, reverse=True)[:ranks]
        if grown is None:
            score, tokens = table[:, 0, 0].topk(ranks, -1)
            grown = first_level(tokens, score)
        else:
            step, parent = rows_of(grown, LINES.length - 1, ranks)
            assert (step.scored.sum(1) == ranks).all()
            assert (parent <= torch.arange(parent.shape[1])).all()
            last = step.tokens[:, -ranks:]
            score, tokens = torch.stack([table[line, level][last[line]] for line in range(2)]).topk(ranks, -1)
            grown = next_level(grown, tokens, score)
    assert grown is not None
    tree = best_of(LINES, grown, nodes)
    for line in range(2):
        want = sorted(every[line], key=lambda path: -every[line][path])[:nodes]
        assert set(prefixes(tree, line)) == set(want)


def test_what_was_not_drafted_is_not_in_the_tree() -> None:
    empty = Grown.empty(2, 3, 2, LINES.length.device)
    assert not best_of(LINES, empty, 6).valid[:, 1:].any()


def test_the_known_answer_of_medusa() -> None:
    """KA-6: choices (0), (0, 0), (1), (0, 1) are rows with positions 0, 1, 1, 2, 2, and their tokens the ranks' own."""
    choices = choices_of("0 0.0 1 0.1")
    drafter = static_tree(Drafting("x", 2, 0.0, True, False, "heads", 2), choices)
    top = torch.tensor([[[10, 11], [20, 21]], [[12, 13], [22, 23]]])
    drafted = Drafted(top[..., 0], torch.tensor([2, 1]), None, top, torch.zeros_like(top, dtype=torch.float32))
    tree = drafter.propose(LINES, drafter.receive(drafter.begin(LINES), drafted))
    assert tree.depth[0].tolist() == [0, 1, 1, 2, 2]
    assert tree.parent[0].tolist() == [0, 0, 0, 1, 1]
    assert tree.tokens.tolist() == [[6, 10, 11, 20, 21], [7, 12, 13, 22, 23]]
    assert tree.valid.tolist() == [[True] * 5, [True, True, True, False, False]]  # the second text's draft has one place


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "name at least one node"),
        ("0 0", "each once"),
        ("0 1.0", "'1.0' but not '1'"),
        ("0 a", "'a'"),
        ("0 -1", "'-1'"),
        ("0 0.", r"'0\.'"),
        ("999", "below 256"),
        (" ".join(".".join("0" * depth) for depth in range(1, 70)), "at most 64 ranks"),
    ],
)
def test_a_static_tree_that_is_none_is_refused(text: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        choices_of(text)


def test_what_a_level_adds() -> None:
    """The best two of .5, .3 promise .8 tokens; with .45 and .2 below the first they promise .95; with candidates that are out, no more."""
    before = first_level(torch.tensor([[1, 2]]), torch.tensor([[0.5, 0.3]]).log())
    behind = torch.tensor([[[0.9, 0.05], [0.66, 0.1]]]).log()
    after = next_level(before, torch.tensor([[[3, 4], [5, 6]]]), behind)
    assert gain_of(before, after, 2).item() == pytest.approx(0.15)
    assert gain_of(before, after, 4).item() == pytest.approx(0.45 + 0.198)
    assert gain_of(before, next_level(before, torch.tensor([[[3, 4], [5, 6]]]), behind - torch.inf), 4).item() == 0.0
