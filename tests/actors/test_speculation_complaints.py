"""What users of other engines complained of in speculative decoding, one test each; numbers as in the list in docs/decoding.md."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import drafter_checkpoints as checkpoints
import pytest
import tiny
from rig import engine, ids, prompts, request, run

from drawloom.actors.request import Request
from drawloom.decoders.recipes import RECIPES, build
from drawloom.decoders.trees import TreeVerify
from drawloom.decoders.verifiers import SAMPLED, VERIFIERS, verifier_named
from drawloom.errors import RowError, SettingError

DRAWS = ("lookup", "suffix", "recycling", "draft-model", "jacobi", "jacobi-forcing", "lookahead")
SETTINGS: list[dict[str, Any]] = [{}, {"num_pages": 60}, {"prefill_rows": 3}]


def asked_of(name: str, count: int = 8, **sampling: Any) -> list[Request]:
    return [
        request(f"{name} {k}", prompt, name, 100 + k, **{"max_tokens": 24, "temperature": (0.0, 0.8, 1.5)[k % 3], **sampling})
        for k, prompt in enumerate(prompts(count, 5))
    ]


def plain(asked: list[Request]) -> list[Request]:
    return [replace(one, id=f"ar {one.id}", decoder="ar", decoder_params={}) for one in asked]


@pytest.mark.parametrize("name", DRAWS)
def test_01_a_shared_prefix_is_not_read_again(name: str) -> None:
    """The second request of a prompt reads as few of its tokens as without drafts, and gets its first token in as few forwards."""
    machine = engine()
    first = request("first", [*range(40)], name, 1, max_tokens=4)
    done = run(machine, [first])
    for decoder in (name, "ar"):
        done |= run(machine, [replace(first, id=decoder, decoder=decoder)])
    assert done[name].stats.cached_prompt_tokens == done["ar"].stats.cached_prompt_tokens > 30
    # The last part of a prompt runs by itself before the first tree.
    assert done[name].stats.forwards <= done["ar"].stats.forwards + build(name, {}, None).drafts_trees


@pytest.mark.parametrize("name", DRAWS)
def test_04_logprobs_are_those_without_drafts_one_for_each_token(name: str) -> None:
    """Complaints 4 and 6; corrections, bonus tokens, end tokens and stops included."""
    asked = asked_of(name, 9, logprobs=3, stop=("ba",))
    for settings in SETTINGS[:2]:
        done = run(engine(**settings), [*asked, *plain(asked)])
        for one in asked:
            sample, other = done[one.id].samples[0], done[f"ar {one.id}"].samples[0]
            assert sample.logprobs == other.logprobs
            assert len(sample.logprobs or ()) == len(sample.token_ids)
            assert sample.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-4)


@pytest.mark.parametrize("name", ["lookup", "draft-model", "jacobi"])
def test_07_a_seed_gives_one_text_whatever_the_batch_and_the_length_of_drafts(name: str) -> None:
    asked = asked_of(name)
    want = {one.id: ids(run(engine(), [one])[one.id]) for one in asked}
    for number, width in enumerate((1, 3, 9)):
        wide = [replace(one, decoder_params={"width": width}) for one in asked]
        done = run(engine(**SETTINGS[number]), [*reversed(wide), *asked_of("ar"), *asked_of("multi-block")])
        assert {one.id: ids(done[one.id]) for one in asked} == want


@pytest.mark.parametrize("name", DRAWS)
def test_12_stops_see_one_token_at_a_time(name: str) -> None:
    """A stop string or token inside a draft ends the text there, with the reason that it has without drafts."""
    asked = asked_of(name, 9, stop=("e", "ab"), stop_token_ids=(9,))
    done = run(engine(), [*asked, *plain(asked)])
    for one in asked:
        sample, other = done[one.id].samples[0], done[f"ar {one.id}"].samples[0]
        assert (sample.text, sample.token_ids, sample.finish_reason, sample.stop_reason) == (
            other.text,
            other.token_ids,
            other.finish_reason,
            other.stop_reason,
        )


@pytest.mark.parametrize("name", DRAWS)
def test_13_penalties_and_bias_count_the_draft_before_them(name: str) -> None:
    asked = asked_of(name, 9, frequency_penalty=1.5, presence_penalty=0.7, repetition_penalty=1.3, logit_bias={3: 4.0, 5: -60.0})
    done = run(engine(), [*asked, *plain(asked)])
    unlike = asked_of(name, 9)
    other = run(engine(), unlike)
    assert any(ids(done[one.id]) != ids(other[one.id]) for one in asked)
    for one in asked:
        assert ids(done[one.id]) == ids(done[f"ar {one.id}"])
        assert 5 not in ids(done[one.id])


def test_16_a_long_prompt_with_a_short_drafter(tmp_path: Path) -> None:
    """Beyond the drafter's context there are no drafts, and no crash; before it there are."""
    target = tiny.written(tmp_path / "target", sharp=0.2)
    for kind in ("block", "eagle"):
        network = checkpoints.network_of(kind)
        config = checkpoints.config_of(kind, network) | {"max_position_embeddings": 24}
        folder = checkpoints.written(kind, tmp_path / kind, config)
        asked = [
            request(str(length), [*range(1, length + 1)], checkpoints.RECIPES[kind], 1, {"draft": folder, "width": 4}, max_tokens=20)
            for length in (4, 16, 40)
        ]
        done = run(checkpoints.engine_of(target, folder, kind), [*asked, *plain(asked)])
        drafted = [done[one.id].stats.drafted for one in asked]
        assert drafted[0] > drafted[1] > drafted[2] == 0
        for one in asked:
            assert ids(done[one.id]) == ids(done[f"ar {one.id}"])


@pytest.mark.parametrize("name", sorted(one.name for one in VERIFIERS.values() if one.judge is not None and SAMPLED in one.laws))
def test_18_a_sampled_draft_carries_what_it_was_drawn_from(name: str) -> None:
    """Verifiers that test a draft ask its network for the law of every token; one that was not told it could not be lossless."""
    decoder = build("draft-model", {"verifier": name}, None)
    assert isinstance(decoder, TreeVerify)
    assert decoder.drafting is not None
    assert decoder.drafting.laws
    assert not decoder.drafting.coupled


@pytest.mark.parametrize("name", DRAWS)
def test_21_drafts_of_a_ragged_batch(name: str) -> None:
    """Prompts of one to thirty tokens, sixteen at once, each with drafts of its own length."""
    asked = [replace(one, sampling=one.sampling.model_copy(update={"max_tokens": 3 + 2 * k})) for k, one in enumerate(asked_of(name, 16))]
    done = run(engine(), [*asked, *plain(asked)])
    assert all(ids(done[one.id]) == ids(done[f"ar {one.id}"]) for one in asked)


def test_22_each_request_chooses_its_drafter_and_how_much_it_drafts() -> None:
    """In one batch: none, others, and other lengths; each is told what it got."""
    choices = [("ar", {}), ("lookup", {"width": 2}), ("lookup", {"width": 9}), ("recycling", {}), ("draft-model", {})]
    asked = [
        request(f"{k}", prompt, name, 1, params, max_tokens=24, temperature=0.0)
        for k, (prompt, (name, params)) in enumerate(zip(prompts(5, 5), choices, strict=True))
    ]
    done = run(engine(), asked)
    for one in asked:
        assert (done[one.id].decoder, done[one.id].decoder_params) == (one.decoder, one.decoder_params)
    assert done["0"].stats.drafted == 0 < done["4"].stats.drafted


@pytest.mark.parametrize("name", DRAWS)
def test_25_samples_of_one_prompt(name: str) -> None:
    asked = asked_of(name, 5, n=3, temperature=0.9)
    machine = engine()
    done = run(machine, [*asked, *plain(asked)])
    assert machine.planner.admission.prefix_hit_tokens > 0
    for one in asked:
        assert [ids(done[one.id], k) for k in range(3)] == [ids(done[f"ar {one.id}"], k) for k in range(3)]
        assert len({tuple(ids(done[one.id], k)) for k in range(3)}) > 1


def test_26_what_is_counted_is_defined() -> None:
    """drafted: proposals that a forward checked; accepted: those that became text; the target's own token is neither; by position."""
    asked = asked_of("draft-model", 6, ignore_eos=True)
    done = run(engine(), asked)
    for one in done.values():
        assert sum(one.stats.accepted_by_position) == one.stats.accepted <= one.stats.drafted
        assert list(one.stats.accepted_by_position) == sorted(one.stats.accepted_by_position, reverse=True)
        own = len(ids(one)) - one.stats.accepted
        assert 0 < own <= one.stats.forwards


def test_27_nothing_falls_back_silently() -> None:
    for wrong, says in (
        (request("x", [1], "no-such", 1), "no-such"),
        (request("x", [1], "draft-model", 1, {"draft": "tiny-draftt"}), "is not loaded here"),
        (request("x", [1], "dflash", 1, {"draft": "another"}), "is not loaded here"),
    ):
        with pytest.raises(RowError, match=says):
            engine().add(wrong)


def test_28_a_law_that_a_verifier_does_not_take_is_refused() -> None:
    """Every drafter declares its law, and every pair is checked when it is made."""
    for name, row in RECIPES.items():
        if "verifier" not in row.params:
            continue
        for verifier in VERIFIERS:
            drafter = getattr(build(name, {}, None), "drafter", None)
            law = getattr(drafter, "law", None)
            assert law is not None
            if law not in verifier_named(verifier).laws:
                with pytest.raises(SettingError, match=verifier):
                    build(name, {"verifier": verifier}, None)


def test_30_drafters_are_paid_for_before_pages_are_counted(tmp_path: Path) -> None:
    """K/V of a drafter and the features that it reads lie in the pages, so there are fewer of them in the same memory."""
    target, own = tiny.written(tmp_path / "target"), 2 * 2 * 2 * 8  # numbers a token: keys and values of two layers with two heads of 8
    for kind, more in (("block", 2 * 32 + 2 * 2 * 2 * 8), ("eagle", 2 * 32 + 2 * 2 * 8), ("heads", 32)):
        machine = checkpoints.engine_of(target, checkpoints.written(kind, tmp_path / kind), kind, num_pages=None, kv_gib=0.002)
        assert machine.pool.num_pages == int(0.002 * 2**30) // (4 * 4 * (own + more))
