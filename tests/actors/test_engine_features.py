"""Drafters that read the target's hidden states: each drafts what its naive reference would, and the text is that of autoregression."""

from collections.abc import Callable
from typing import Any

import drafter_checkpoints as checkpoints
import pytest
import tiny
from rig import ids, request, run

from drawloom.actors.build import build_engine
from drawloom.actors.draft_rows import DraftRows
from drawloom.actors.drafting import DraftModels
from drawloom.actors.request import Request
from drawloom.actors.settings import EngineSettings
from drawloom.decoders.recipes import build
from drawloom.errors import RowError, SettingError
from drawloom.models.settings import ModelSettings

KINDS = list(checkpoints.FIRST)
WIDTH = checkpoints.WIDTH
MANY = [{}, {"num_pages": 40}, {"prefill_rows": 3}, {"pack": "padded"}, {"max_sequences": 2}, {"share_prefix": False}]
NAMES = ["many pages", "preempting", "chunked", "fixed shapes", "two at once", "no sharing"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.written(tmp_path_factory.mktemp("target") / "x", sharp=0.2)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    folders: dict[str, str] = {}
    return lambda kind: folders.setdefault(kind, checkpoints.written(kind, tmp_path_factory.mktemp(kind) / kind))


def some(count: int, kind: str, drafter: str, nodes: int = 0, **more: Any) -> list[Request]:
    params = {"draft": drafter, "width": WIDTH, "nodes": nodes, **more}
    prompts = [[k + 1] if k % 5 == 4 else [7, 8, 9, 10, 11, *range(20, 21 + k % 7), k] for k in range(count)]
    return [
        request(
            f"{kind} {k}",
            prompt,
            checkpoints.RECIPES[checkpoints.kind_of(kind)],
            k,
            params,
            max_tokens=15 + k,
            temperature=(0.0, 0.8, 1.5)[k % 3],
            top_p=(1.0, 0.8)[k % 2],
            repetition_penalty=(1.0, 1.0, 1.2)[k % 3],
            n=(1, 1, 1, 3)[k % 4],
        )
        for k, prompt in enumerate(prompts)
    ]


def plain(asked: list[Request]) -> list[Request]:
    return [Request(f"ar {one.id}", one.prompt_token_ids, one.sampling, seed=one.seed, decoder="ar") for one in asked]


EACH = [(kind, name, settings) for kind in KINDS for name, settings in zip(NAMES, MANY, strict=True)]
EACH += [(form, "preempting", {"num_pages": 40, "prefill_rows": 7}) for form in checkpoints.DESCENDANTS]


@pytest.mark.parametrize(("kind", "settings"), [(kind, one) for kind, _, one in EACH], ids=[f"{kind} {name}" for kind, name, _ in EACH])
def test_what_it_drafts_is_what_its_reference_drafts(
    kind: str, settings: dict[str, Any], target: str, drafter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every step, after refused drafts, preemptions, chunks and shared prefixes: its K/V and the features it read are right."""
    folder, seen = drafter(kind), []
    original = DraftModels._by

    def watch(self: DraftModels, model: Any, who: Any) -> Any:
        texts = [list(one.tokens) for one in who.texts]
        out = original(self, model, who)
        seen.extend(zip(texts, out.tokens.tolist(), who.dice.temperature.tolist(), strict=True))
        return out

    monkeypatch.setattr(DraftModels, "_by", watch)
    machine = checkpoints.engine_of(target, folder, kind, **settings)
    asked = some(7, kind, folder)
    done = run(machine, [*asked, *plain(asked)])
    if "num_pages" in settings:
        assert machine.stats().preemptions > 0
    for one in asked:
        for index in range(one.sampling.n):
            assert ids(done[one.id], index) == ids(done[f"ar {one.id}"], index)
    naive = checkpoints.Naive(kind, tiny.plain(target), checkpoints.network_of(kind))
    cold = [(text, draft) for text, draft, temperature in seen if not temperature]
    assert len(cold) > 20
    for text, draft in cold:
        assert naive.draft(text, WIDTH) == draft


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of a drafter lies in its text's own pages."""
    original = DraftRows.ragged

    def watch(self: DraftRows, known: Any, step: Any) -> Any:
        for one, before, rows in zip(self.texts, known, step.valid.sum(1).tolist(), strict=True):
            assert before + rows <= len(one.pages) * self.page_tokens
        return original(self, known, step)

    monkeypatch.setattr(DraftRows, "ragged", watch)


TREES = [(kind, nodes, settings) for kind in KINDS for nodes in (11, 1) for settings in ({}, {"num_pages": 40})]
TREES += [(form, 9, {"num_pages": 40}) for form in ("p-eagle", "part", "eagle-1", "eagle-3.1", "mtp", "dflare", "hydra-ungrounded")]


@pytest.mark.parametrize(("kind", "nodes", "settings"), TREES, ids=str)
def test_trees_keep_the_text(kind: str, nodes: int, settings: dict[str, Any], target: str, drafter: Any, inside: None) -> None:
    """Small trees of deep drafts, too: then the drafter has more rows than the target."""
    folder = drafter(kind)
    machine = checkpoints.engine_of(target, folder, kind, **settings)
    asked = some(8, kind, folder, nodes=nodes, ranks=3)
    done = run(machine, [*asked, *plain(asked)])
    for one in asked:
        for index in range(one.sampling.n):
            assert ids(done[one.id], index) == ids(done[f"ar {one.id}"], index)
        assert done[one.id].stats.drafted > 0


@pytest.mark.parametrize("kind", ["block", "eagle"])
@pytest.mark.parametrize("verifier", ["rejection", "block", "topk"])
def test_one_text_for_a_seed_in_any_company(kind: str, verifier: str, target: str, drafter: Any) -> None:
    folder = drafter(kind)
    asked = some(5, kind, folder, verifier=verifier) if verifier != "topk" else some(5, kind, folder, nodes=9, ranks=3, verifier=verifier)
    alone = {one.id: ids(run(checkpoints.engine_of(target, folder, kind), [one])[one.id]) for one in asked}
    done = run(checkpoints.engine_of(target, folder, kind, num_pages=60), [*asked, *plain(asked)])
    assert {one.id: ids(done[one.id]) for one in asked} == alone


def test_what_cannot_draft_is_refused(target: str, drafter: Any) -> None:
    machine = checkpoints.engine_of(target, drafter("block"), "block")
    with pytest.raises(RowError, match="is one for the decoder 'dflash', not 'eagle'"):
        machine.add(request("x", [1], "eagle", 1, {"draft": drafter("block")}))
    with pytest.raises(RowError, match=r"width is 9; drafter .* says at most 5 tokens"):
        machine.add(request("x", [1], "dflash", 1, {"draft": drafter("block"), "width": 9}))
    with pytest.raises(SettingError, match="no hidden states"):
        build_engine(ModelSettings(name="hash"), EngineSettings(num_pages=20), "dflash", {"draft": drafter("block")})
    with pytest.raises(SettingError, match="a model of its own, not one on a target's features; use the decoder draft-model"):
        build_engine(ModelSettings(name=target), EngineSettings(num_pages=20), "dflash", {"draft": target})
    for params, says in (
        ({"width": 0}, "width is 0"),
        ({"nodes": 4, "ranks": 0}, "ranks is 0"),
        ({"nodes": 4, "confidence": 2.0}, "confidence"),
    ):
        with pytest.raises(SettingError, match=says):
            build("dflash", params, None)
    for params in ({"verifier": "without-replacement"}, {"verifier": "kseq", "nodes": 8}):
        with pytest.raises(SettingError, match=str(params["verifier"])):
            build("dflash", params, None)


def test_a_drafter_that_corrects_itself_drafts_chains(target: str, drafter: Any) -> None:
    for form in checkpoints.CORRECTED:
        machine = checkpoints.engine_of(target, drafter(form), form)
        with pytest.raises(RowError, match="tells each token the ones before it, so that it drafts a chain; set nodes=0"):
            machine.add(
                request("x", [1], checkpoints.RECIPES[checkpoints.kind_of(form)], 1, {"draft": drafter(form), "width": 4, "nodes": 4})
            )


@pytest.mark.parametrize("form", ["dspark", "dspark-rnn"])
def test_a_confidence_head_ends_drafts(form: str, target: str, drafter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first place that it gives less than the limit; the text stays."""
    folder, seen = drafter(form), []
    original = DraftModels._by

    def watch(self: DraftModels, model: Any, who: Any) -> Any:
        texts, out = [list(one.tokens) for one in who.texts], original(self, model, who)
        seen.extend(zip(texts, out.num.tolist(), who.dice.temperature.tolist(), strict=True))
        return out

    monkeypatch.setattr(DraftModels, "_by", watch)
    asked = some(6, form, folder, confidence=0.5)
    done = run(checkpoints.engine_of(target, folder, form), [*asked, *plain(asked)])
    for one in asked:
        assert ids(done[one.id]) == ids(done[f"ar {one.id}"])
    naive = checkpoints.Naive(form, tiny.plain(target), checkpoints.network_of(form))
    lengths = set()
    for text, num, temperature in seen:
        if not temperature:
            naive.draft(text, WIDTH)
            sure = [chance >= 0.5 for chance in naive.chances]
            assert num == (sure.index(False) if False in sure else WIDTH)
            lengths.add(num)
    assert len(lengths) > 1


@pytest.mark.parametrize("form", checkpoints.FORMS)
@pytest.mark.parametrize(("paths", "trunk"), [(2, 0), (3, 2)])
def test_paths_are_drawn_behind_their_own_tokens(form: str, paths: int, trunk: int, target: str, drafter: Any, monkeypatch: Any) -> None:
    """At temperature 0 every path is the chain that its reference drafts; at others the texts are those of autoregression under `match`."""
    folder, seen = drafter(form), []
    original = DraftModels._by

    def watch(self: DraftModels, model: Any, who: Any) -> Any:
        texts, out = [list(one.tokens) for one in who.texts], original(self, model, who)
        seen.extend(zip(texts, out.tokens.tolist(), who.dice.temperature.tolist(), strict=True))
        return out

    monkeypatch.setattr(DraftModels, "_by", watch)
    params = {"draft": folder, "by": checkpoints.RECIPES[checkpoints.kind_of(form)], "width": WIDTH, "paths": paths, "trunk": trunk}
    asked = [
        Request(f"{one.id}", one.prompt_token_ids, one.sampling, seed=one.seed, decoder="sampled-paths", decoder_params=params)
        for one in some(4, form, folder)
    ]
    done = run(checkpoints.engine_of(target, folder, form, num_pages=60), [*asked, *plain(asked)])
    for one in asked:
        for index in range(one.sampling.n):
            assert ids(done[one.id], index) == ids(done[f"ar {one.id}"], index)
    naive = checkpoints.Naive(form, tiny.plain(target), checkpoints.network_of(form))
    levels = [1] * trunk + [paths] * (WIDTH - trunk)
    cold = [(text, draft) for text, draft, temperature in seen if not temperature]
    assert len(cold) > 10
    for text, draft in cold:
        chain = naive.draft(text, WIDTH)
        assert draft == [token for token, count in zip(chain, levels, strict=True) for _ in range(count)]
    warm = [draft for _, draft, temperature in seen if temperature]
    assert form == "eagle-1" or any(draft[-1] != draft[-2] for draft in warm)  # whose weights are so large that nothing is drawn


@pytest.mark.parametrize("form", ["block", "heads", "p-eagle", "hydra-ungrounded"])
def test_a_static_tree_keeps_the_text(form: str, target: str, drafter: Any) -> None:
    params = {"draft": drafter(form), "by": checkpoints.RECIPES[checkpoints.kind_of(form)], "nodes": "0 1 0.0 0.1 1.0 0.0.0"}
    asked = [
        Request(one.id, one.prompt_token_ids, one.sampling, seed=one.seed, decoder="static-tree", decoder_params=params)
        for one in some(5, form, drafter(form))
    ]
    done = run(checkpoints.engine_of(target, drafter(form), form, num_pages=60), [*asked, *plain(asked)])
    for one in asked:
        assert ids(done[one.id]) == ids(done[f"ar {one.id}"])
    assert sum(done[one.id].stats.accepted for one in asked) > 0


def test_a_tree_stops_where_it_gains_nothing(target: str, drafter: Any) -> None:
    """OPT-Tree: with a gain that no level reaches the tree has one level, with none it is EAGLE-2's; the text is the same."""
    texts, accepted = [], []
    for name, more in (("eagle", {}), ("opt-tree", {"gain": 0.0}), ("opt-tree", {"gain": 0.3}), ("opt-tree", {"gain": 9.0})):
        params = {"draft": drafter("eagle"), "width": WIDTH, "nodes": 9, "ranks": 3, **more}
        asked = [
            Request(one.id, one.prompt_token_ids, one.sampling, seed=one.seed, decoder=name, decoder_params=params)
            for one in some(5, "eagle", drafter("eagle"))
        ]
        done = run(checkpoints.engine_of(target, drafter("eagle"), "eagle"), asked)
        texts.append([ids(done[one.id]) for one in asked])
        accepted.append([done[one.id].stats for one in asked])
    assert texts[0] == texts[1] == texts[2] == texts[3]
    drafted = [sum(one.drafted for one in stats) for stats in accepted]
    assert drafted[0] == drafted[1] > drafted[2] > drafted[3]
    assert all(one.accepted_by_position[1:] == [] or not sum(one.accepted_by_position[1:]) for one in accepted[3])


def test_what_paths_and_static_trees_cannot_be() -> None:
    for name, params, says in (
        ("sampled-paths", {"paths": 1}, "paths is 1, at least 2"),
        ("sampled-paths", {"trunk": 4}, "trunk is 4; paths part before the last of 4 tokens"),
        ("sampled-paths", {"verifier": "coupled"}, "all be the same"),
        ("sampled-paths", {"verifier": "best-path", "trunk": 1}, "independent paths"),
        ("sampled-paths", {"by": "lookup"}, "by is 'lookup'"),
        ("sampled-paths", {"paths": 1000, "width": 9}, "rows a forward"),
        ("static-tree", {"by": "eagle"}, "says its places|say all places"),
        ("static-tree", {"nodes": "0.0"}, "continues"),
        ("opt-tree", {"gain": -1.0}, "gain is -1"),
        ("opt-tree", {"gain": float("nan")}, "gain is nan"),
        ("sampled-paths", {"paths": 10**6, "width": 10**6}, "1000000000001 rows a forward"),
        ("opt-tree", {"ranks": 10**9}, "candidates of a tree"),
        ("dflash", {"width": 10**8, "nodes": 5}, "candidates of a tree"),
        ("medusa", {"nodes": 10**7}, "rows a forward"),
        ("draft-model", {"width": 10**7}, "rows a forward"),
    ):
        with pytest.raises(SettingError, match=says):
            build(name, params, None)
