"""The fake engine keeps the promises of a real one, so that what is tested with it means something."""

import pytest

from drawloom.actors.fake import EOS, FakeEngine, FakeText
from drawloom.actors.request import Completion, Request, Sampling
from drawloom.errors import RowError

TEXT = FakeText()


def request(prompt: str, row: str = "r", seed: int = 0, **sampling) -> Request:
    return Request(row, TEXT.encode(prompt), Sampling(**sampling), seed)


def complete(*requests: Request, max_running: int = 64) -> dict[str, Completion]:
    engine, done = FakeEngine(max_running), []
    for one in requests:
        engine.add(one)
    while engine.num_unfinished:
        done += engine.step()
    return {completion.id: completion for completion in done}


def test_text_depends_on_prompt_sampling_and_seed_alone() -> None:
    crowd = [request(f"stranger {place}", str(place), seed=place) for place in range(40)]
    alone = complete(request("hello", seed=7))["r"].samples
    assert complete(*crowd, request("hello", seed=7), max_running=3)["r"].samples == alone
    assert complete(request("hello", seed=8))["r"].samples != alone
    assert complete(request("hullo", seed=7))["r"].samples != alone
    greedy = [complete(request("hello", seed=seed, temperature=0.0))["r"].samples for seed in (7, 8)]
    assert greedy[0] == greedy[1]


def test_limits_are_honoured() -> None:
    long = complete(request("[[fake long 50]]", max_tokens=20))["r"].samples[0]
    assert (len(long.token_ids), long.finish_reason) == (20, "length")
    short = complete(request("[[fake long 5]]", max_tokens=20))["r"].samples[0]
    assert (len(short.token_ids), short.finish_reason) == (5, "stop")
    assert len(complete(request("x", n=3))["r"].samples) == 3
    assert len(complete(request("x", max_tokens=9, ignore_eos=True))["r"].samples[0].token_ids) == 9


def test_stop_strings_cut_the_text() -> None:
    whole = complete(request("hello", max_tokens=20))["r"].samples[0].text
    word = whole.split()[2]
    cut = complete(request("hello", max_tokens=20, stop=[word]))["r"].samples[0]
    assert cut.text == whole[: whole.index(word)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", word)


def test_bad_requests_are_refused() -> None:
    for bad, code in [("", "empty_prompt"), ("x" * 5000, "too_long")]:
        with pytest.raises(RowError) as caught:
            FakeEngine().add(request(bad))
        assert caught.value.code == code
    with pytest.raises(RowError):
        FakeEngine().add(Request("r", [EOS + 1]))


def test_a_rehearsal_refuses_the_decoders_that_the_real_job_would() -> None:
    for decoder, params, words in (("lokup", {}, "did you mean 'lookup'"), ("lookup", {"zork": 3}, "'zork' is not a parameter")):
        one = Request("r", TEXT.encode("x"), Sampling(), 1, decoder, params)
        with pytest.raises(RowError, match=words):
            FakeEngine(4).check(one)
    FakeEngine(4).check(Request("r", TEXT.encode("x"), Sampling(), 1, "multi-block", {"buffer": 2}))


def test_bytes_and_words_come_back_as_text() -> None:
    assert TEXT.decode(TEXT.encode("häkeln")) == "häkeln"
    assert TEXT.decode([256, 257, EOS]) == "warp weft"


def test_cancelled_rows_are_gone() -> None:
    engine = FakeEngine(max_running=1)
    engine.add(request("a", "a"))
    engine.add(request("b", "b"))
    assert engine.cancel("b")
    assert not engine.cancel("b")
    assert engine.num_unfinished == 1
