"""A network that drafts: the text of autoregression, or its law; fewer forwards; K/V of its own that follows the target's pages."""

import dataclasses
from collections import Counter
from typing import Any

import pytest
from rig import Similar, engine, ids, request, same_texts
from rig import run as run_on

from drawloom.actors.request import Request
from drawloom.decoders.recipes import build
from drawloom.errors import RowError, SettingError
from drawloom.models.hash_lm import HashLM

VERIFIERS = ["coupled", "match", "rejection", "block", "kseq", "topk", "best-path"]


def some(count: int, verifier: str = "coupled", **more: Any) -> list[Request]:
    return [
        request(
            f"draft {k}",
            [k, 5, k % 3],
            "draft-model",
            k,
            {"verifier": verifier, **more},
            max_tokens=30 + k,
            temperature=(0.0, 0.8, 1.3)[k % 3],
            top_p=(1.0, 0.8)[k % 2],
        )
        for k in range(count)
    ]


def plain(asked: list[Request]) -> list[Request]:
    return [dataclasses.replace(one, id=f"ar {one.id}", decoder="ar", decoder_params={}) for one in asked]


@pytest.mark.parametrize(
    "settings",
    [{}, {"num_pages": 40}, {"prefill_rows": 3}, {"pack": "padded"}, {"max_sequences": 2}, {"share_prefix": False}],
    ids=["many pages", "preempting", "chunked", "fixed shapes", "two at once", "no sharing"],
)
def test_the_text_is_that_of_autoregression(settings: dict[str, Any]) -> None:
    asked = some(10)
    machine = engine(**settings)
    done = run_on(machine, [*asked, *plain(asked), request("block", [1, 2], "multi-block", 1, {"block": 8}, max_tokens=40)])
    for one in asked:
        assert ids(done[one.id]) == ids(done[f"ar {one.id}"])
    if "num_pages" in settings:
        assert machine.stats().preemptions > 0
    accepted, drafted = (sum(getattr(done[one.id].stats, name) for one in asked) for name in ("accepted", "drafted"))
    assert accepted > 0.4 * drafted
    assert machine.stats().draft_s > 0


def test_a_draft_that_says_the_same_is_accepted_whole() -> None:
    """So its K/V is right at every step, after refused drafts and after preemptions too."""
    settings: dict[str, Any]
    for settings in ({}, {"num_pages": 40}, {"prefill_rows": 3}):
        machine = engine(draft=HashLM(3), **settings)
        done = run_on(machine, [dataclasses.replace(one, sampling=one.sampling.model_copy(update={"ignore_eos": True})) for one in some(9)])
        for one in done.values():
            assert one.stats.accepted == one.stats.drafted
            if not settings:
                assert one.stats.forwards == -(-len(ids(one)) // 5)  # four drafted tokens and the target's own


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_one_text_for_a_seed_in_any_company(verifier: str) -> None:
    asked = some(6, verifier)
    alone = {one.id: ids(run_on(engine(), [one])[one.id]) for one in asked}
    settings: dict[str, Any]
    for settings in ({}, {"num_pages": 40}):
        done = run_on(engine(**settings), [*asked, *plain(asked)])
        assert {one.id: ids(done[one.id]) for one in asked} == alone


SHAPES: list[tuple[str, dict[str, Any]]] = [("draft-model", {"verifier": verifier, "width": 3}) for verifier in VERIFIERS[2:]]
SHAPES += [("sampled-paths", {"verifier": verifier, "width": 2, "paths": 2}) for verifier in ("rejection", "kseq", "block", "best-path")]
SHAPES += [("sampled-paths", {"verifier": "block", "width": 3, "paths": 3, "trunk": 1})]
SHAPES += [("sampled-paths", {"verifier": "block", "width": 2, "by": by, "draft": f"tiny-{by}"}) for by in ("dflash", "medusa")]
SHAPES += [("sampled-paths", {"verifier": "best-path", "width": 2, "by": "eagle", "draft": "tiny-eagle3", "paths": 3})]


@pytest.mark.parametrize(("name", "params"), SHAPES, ids=[" ".join(map(str, (name, *params.values()))) for name, params in SHAPES])
def test_the_law_is_the_targets(name: str, params: dict[str, Any]) -> None:
    """Of the first two tokens, against plain autoregression: a two-sample chi-square test."""
    settings = {"max_tokens": 2, "temperature": 1.0, "n": 100, "ignore_eos": True}
    counts = []
    for decoder, own in ((name, params), ("ar", {})):
        asked = [request(f"{k}", [1, 2], decoder, 1000 * len(counts) + k, own, **settings) for k in range(30)]
        done = run_on(engine(max_sequences=400, num_pages=3000), asked)
        counts.append(Counter(sample.token_ids for one in done.values() for sample in one.samples))
    assert same_texts(*counts) > 0.001
    biased = Counter({text: count for text, count in counts[0].items() if sum(text) % 3})
    assert same_texts(biased, counts[1]) < 1e-6


def test_a_draft_ends_where_its_network_is_not_sure() -> None:
    sure, all_ = (run_on(engine(), some(8, confidence=least)) for least in (0.9, 0.0))
    rates = [sum(one.stats.accepted for one in done.values()) / sum(one.stats.drafted for one in done.values()) for done in (sure, all_)]
    assert rates[0] > rates[1] + 0.05
    assert [ids(sure[name]) for name in sure] == [ids(all_[name]) for name in sure]


def test_a_short_context_ends_the_draft_and_not_the_text() -> None:
    """Long prompt, short drafter: what it cannot see it does not draft."""
    asked = [request(f"{k}", [k] * (50 + 10 * k), "draft-model", k, {}, max_tokens=40, ignore_eos=True) for k in range(5)]
    done = run_on(engine(draft=Similar(3, max_context=80)), [*asked, *plain(asked)])
    for one in asked:
        assert ids(done[one.id]) == ids(done[f"ar {one.id}"])
    assert done["0"].stats.drafted > done["3"].stats.drafted
    assert done["4"].stats.drafted == 0


def test_what_cannot_draft_is_refused() -> None:
    with pytest.raises(RowError, match="draft model 'far' is not loaded here \\('tiny-draft'"):
        engine().add(request("x", [1], "draft-model", 1, {"draft": "far"}))
    for params, says in (({"width": 0}, "width is 0"), ({"confidence": 1.5}, "confidence is 1.5"), ({"verifier": "none"}, "unknown")):
        with pytest.raises(SettingError, match=says):
            build("draft-model", params, None)


def test_logprobs_are_the_targets() -> None:
    asked = [dataclasses.replace(one, sampling=one.sampling.model_copy(update={"logprobs": 2})) for one in some(6, "coupled")]
    done = run_on(engine(), [*asked, *plain(asked)])
    for one in asked:
        assert done[one.id].samples[0].logprobs == done[f"ar {one.id}"].samples[0].logprobs


def test_lossy_verifiers_take_their_numbers() -> None:
    """Every token is among as many as there are; only the best one is the best; a bar that no probability reaches stops every draft."""
    shares = []
    for verifier in ("among-top:top=64", "among-top:top=1", "among-top:top=64,within=0", "typical:epsilon=2,alpha=99999"):
        done = run_on(engine(), some(9, verifier))
        stats = [one.stats for one in done.values()]
        shares.append(sum(one.accepted for one in stats) / sum(one.drafted for one in stats))
    assert shares[0] > 0.85  # what is drafted beyond the limit is not accepted
    assert shares[1] == shares[2] < 0.8
    assert shares[3] < 0.3


@pytest.mark.parametrize(
    ("verifier", "says"),
    [
        ("block:epsilon=1", "'block' has no numbers"),
        ("coupled:epsilon=1", "'coupled' has no numbers"),
        ("typical:epsilom=1", "no number 'epsilom'; did you mean 'epsilon'"),
        ("typical:epsilon", "epsilon is ''; a number such as 0.09"),
        ("typical:epsilon=-1", "at least 0"),
        ("typical:epsilon=nan", "at least 0"),
        ("among-top:top=1.5", "top is '1.5'; a number such as 3"),
        ("typical2:epsilon=1", "'typical2' is unknown"),
    ],
)
def test_wrong_numbers_of_verifiers_are_refused(verifier: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        build("draft-model", {"verifier": verifier}, None)
