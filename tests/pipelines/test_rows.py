"""From rows to requests: roles of columns, overrides, seeds, and bad rows in many ways."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from commit_rig import Rig, prompts, write_rows

from drawloom.actors.fake import FakeText
from drawloom.actors.request import Request, Sampling
from drawloom.errors import RowError, SettingError
from drawloom.pipelines.columns import Columns, Roles, resolve
from drawloom.pipelines.contract import CONTRACT, OVERRIDES, PROMPTS
from drawloom.pipelines.outcomes import Outcome
from drawloom.pipelines.reading import read_unit
from drawloom.pipelines.rows import Place, RowSettings, default_seed, request_from_row, requests_of
from drawloom.pipelines.sources import find_inputs
from drawloom.pipelines.units import plan_units

TEXT = FakeText()
SETTINGS = RowSettings(sampling=Sampling(max_tokens=9, temperature=0.5), decoder="lookup", seed=5)


def request(row: Mapping[str, Any], settings: RowSettings = SETTINGS, schema: pa.Schema | None = None) -> Request:
    table = pa.Table.from_pylist([dict(row)], schema=schema)
    roles = resolve(settings.columns, table.schema)
    return request_from_row(table.to_pylist()[0], Place("u:0", "in.parquet", 7), roles, settings, TEXT)


def roles_of(columns: Columns, **types: pa.DataType) -> Roles:
    return resolve(columns, pa.schema(list(types.items())))


def test_the_contract_covers_every_field() -> None:
    assert set(CONTRACT) == {*PROMPTS, *OVERRIDES}


def test_a_row_without_columns_of_its_own_takes_the_defaults() -> None:
    found = request({"prompt": "hi", "note": 5})
    assert found == Request("u:0", TEXT.encode("hi"), SETTINGS.sampling, default_seed(5, Place("u:0", "in.parquet", 7)), "lookup")
    assert found.sampling is SETTINGS.sampling


def test_every_field_can_be_a_column() -> None:
    sampling = Sampling(
        max_tokens=3,
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        logit_bias={3: 1.5},
        stop=("a", "b"),
        stop_token_ids=(4,),
        ignore_eos=True,
        logprobs=2,
        n=3,
    )
    own = sampling.model_dump() | {"stop": ["a", "b"], "stop_token_ids": [4], "logit_bias": [{"token_id": 3, "bias": 1.5}]}
    own |= {"decoder": "multi_block", "decoder_params": {"tau": 0.9, "block": 8}, "seed": 1 << 60, "priority": 2}
    found = request({"prompt": "x"} | own)
    assert found.sampling == sampling
    assert (found.decoder, found.decoder_params, found.seed, found.priority) == ("multi_block", {"tau": 0.9, "block": 8}, 1 << 60, 2)


def test_a_null_cell_means_the_default() -> None:
    nothing = dict.fromkeys((*Sampling.model_fields, "decoder", "decoder_params", "speculation", "seed", "priority"))
    assert request({"prompt": "hi"} | nothing) == request({"prompt": "hi"})


JOB = RowSettings(decoder="lookup", decoder_params={"width": 4})


@pytest.mark.parametrize(
    ("own", "decoder", "params"),
    [
        ({}, "lookup", {"width": 4}),
        ({"speculation": None}, "lookup", {"width": 4}),
        ({"speculation": "auto"}, "lookup", {"width": 4}),
        ({"speculation": "off"}, "ar", {}),
        ({"speculation": {"drafter": "suffix", "width": 8}}, "suffix", {"width": 8}),
        ({"speculation": '{"width": 9}'}, "lookup", {"width": 9}),
        ({"decoder": "lookup"}, "lookup", {"width": 4}),
        ({"decoder": "ar"}, "ar", {}),
        ({"decoder": "jacobi", "decoder_params": {"width": 3}}, "jacobi", {"width": 3}),
    ],
)
def test_a_row_says_how_it_is_drafted(own: dict[str, Any], decoder: str, params: dict[str, Any]) -> None:
    """The job's parameters belong to its own recipe."""
    found = request({"prompt": "x"} | own, settings=JOB)
    assert (found.decoder, found.decoder_params) == (decoder, params)


@pytest.mark.parametrize(
    ("own", "code", "says"),
    [
        ({"speculation": "of"}, "invalid_speculation", "speculation is 'of', but"),
        ({"speculation": "[1]"}, "invalid_speculation", "is needed"),
        ({"speculation": '{"drafter": 5}'}, "invalid_speculation", "speculation.drafter is 5, but a decoder's name"),
        ({"speculation": "off", "decoder": "ar"}, "two_decoders", "speculation and decoder both hold a value"),
    ],
)
def test_speculation_that_says_nothing_is_refused(own: dict[str, Any], code: str, says: str) -> None:
    with pytest.raises(RowError) as caught:
        request({"prompt": "x"} | own)
    assert caught.value.code == code
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "kind", "wanted"),
    [
        ("stop", "one", pa.string(), ("one",)),
        ("stop", ["one", "two"], pa.list_(pa.string()), ("one", "two")),
        ("stop_token_ids", "[1, 2]", pa.string(), (1, 2)),
        ("logit_bias", '{"5": -1.0}', pa.string(), {5: -1.0}),
        ("logit_bias", {"5": -1.0, "6": None}, pa.struct([("5", pa.float64()), ("6", pa.float64())]), {5: -1.0}),
        ("logit_bias", [(5, -1.0)], pa.map_(pa.int64(), pa.float64()), {5: -1.0}),
        ("max_tokens", 5.0, pa.float64(), 5),
        ("max_tokens", 5, pa.uint8(), 5),
        ("temperature", 0, pa.int64(), 0.0),
        ("logprobs", 0, pa.int64(), 0),
    ],
)
def test_other_ways_to_write_a_field(field: str, value: Any, kind: pa.DataType, wanted: Any) -> None:
    found = request({"prompt": "x", field: value}, schema=pa.schema([("prompt", pa.string()), (field, kind)]))
    assert getattr(found.sampling, field) == wanted


def test_prompts_of_three_kinds() -> None:
    says = [{"role": "system", "content": "be brief", "name": None}, {"role": "user", "content": "hi", "name": "Ada"}]
    rendered = TEXT.render([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi", "name": "Ada"}])
    assert request({"messages": says}).prompt_token_ids == rendered
    text = '[{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]'
    assert request({"messages": text}).prompt_token_ids == rendered
    assert request({"prompt_token_ids": [1, 2, 3]}).prompt_token_ids == [1, 2, 3]
    named = SETTINGS.model_copy(update={"columns": Columns(prompt="question")})
    assert request({"question": "hi", "prompt": 5}, named).prompt_token_ids == TEXT.encode("hi")


def test_messages_lose_the_fields_that_only_other_rows_have() -> None:
    seen: list[Any] = []

    class Recorder(FakeText):
        def render(self, messages: Any) -> list[int]:
            seen.extend(messages)
            return [1]

    call = {"id": "c1", "function": {"name": "f", "arguments": None}}
    parts = [{"type": "text", "text": "look", "image_url": None}]
    says = [
        {"role": "assistant", "content": None, "tool_calls": [call], "name": None},
        {"role": "user", "content": parts, "tool_calls": None},
    ]
    roles = Roles({"messages": "messages"}, {}, {}, frozenset())
    request_from_row({"messages": says}, Place("u:0", "f", 0), roles, SETTINGS, Recorder())
    assert seen == [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": {"name": "f"}}]},
        {"role": "user", "content": [{"type": "text", "text": "look"}]},
    ]


def test_mixed_contents_and_stops_of_jsonl_become_requests(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "look"}]
    lines = [
        {"messages": [{"role": "user", "content": "hi"}], "stop": "a"},
        {"messages": [{"role": "user", "content": parts}], "stop": ["b", "c"]},
        {"messages": "not a chat", "stop": None},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan = plan_units(find_inputs(str(tmp_path)), 10)
    unit = next(plan.units())
    roles = resolve(Columns(), plan.schema)
    assert roles.json_text == {"messages", "stop"}

    class Text(FakeText):
        def render(self, messages: Any) -> list[int]:
            return self.encode(json.dumps(messages))

    first, second, third = requests_of(unit, read_unit(unit, plan.schema), roles, SETTINGS, Text())
    assert isinstance(first, Request)
    assert isinstance(second, Request)
    assert isinstance(third, Outcome)
    assert first.prompt_token_ids == TEXT.encode(json.dumps(lines[0]["messages"]))
    assert second.prompt_token_ids == TEXT.encode(json.dumps(lines[1]["messages"]))
    assert (first.sampling.stop, second.sampling.stop) == (("a",), ("b", "c"))
    assert third.failure is not None
    assert third.failure.code == "bad_json"


# Bad rows. Each is a RowError with a code for programs and the limit in words.

BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": None}, "empty_prompt", "null; give the row a prompt or drop it"),
    ({"prompt": ""}, "empty_prompt", "empty; give the row a prompt or drop it"),
    ({"messages": []}, "bad_messages", "at least one {role, content}"),
    ({"messages": [{"role": "user", "content": None}]}, "bad_messages", "message 0 has the content None"),
    ({"messages": [{"role": None, "content": "x"}]}, "bad_messages", "message 0 has the role None"),
    ({"messages": "no json"}, "bad_json", "messages is text that is not JSON"),
    ({"messages": '"a"'}, "bad_messages", "messages is 'a'"),
    ({"messages": '["a"]'}, "bad_messages", "message 0 is 'a'"),
    ({"prompt_token_ids": []}, "empty_prompt", "gives no token"),
    ({"prompt_token_ids": [1, -2]}, "bad_token_ids", "prompt_token_ids[1] is -2; the model knows 0 to"),
    ({"prompt_token_ids": [1, 1 << 30]}, "bad_token_ids", "prompt_token_ids[1] is 1073741824"),
    ({"prompt_token_ids": [1, None]}, "bad_token_ids", "prompt_token_ids[1] is None"),
    ({"prompt_token_ids": [1.5]}, "bad_token_ids", "prompt_token_ids[0] is 1.5"),
    ({"prompt_token_ids": '"abc"'}, "bad_token_ids", "a list of integers is needed"),
    ({"prompt": "x", "max_tokens": -1}, "invalid_sampling", "max_tokens: Input should be greater than or equal to 1 (got -1)"),
    ({"prompt": "x", "max_tokens": 5.5}, "invalid_sampling", "max_tokens"),
    ({"prompt": "x", "temperature": float("nan")}, "invalid_sampling", "temperature"),
    ({"prompt": "x", "temperature": -0.1}, "invalid_sampling", "temperature"),
    ({"prompt": "x", "top_p": 0.0}, "invalid_sampling", "top_p"),
    ({"prompt": "x", "stop": [""]}, "invalid_sampling", "an empty stop string would stop before the first token"),
    ({"prompt": "x", "stop": ["a", None]}, "invalid_sampling", "a list without nulls is needed"),
    ({"prompt": "x", "stop_token_ids": "{"}, "bad_json", "stop_token_ids is text that is not JSON"),
    ({"prompt": "x", "logit_bias": '{"a": 1}'}, "invalid_sampling", "logit_bias"),
    ({"prompt": "x", "logit_bias": "[1, 2]"}, "invalid_sampling", "{token id: bias} is needed"),
    ({"prompt": "x", "logit_bias": '{"1": 200}'}, "invalid_sampling", "a bias lies between -100 and 100"),
    ({"prompt": "x", "max_repeats": -2}, "invalid_sampling", "max_repeats: Input should be greater than or equal to 0"),
    ({"prompt": "x", "n": 1000}, "invalid_sampling", "n: Input should be less than or equal to 128"),
    ({"prompt": "x", "logprobs": 21}, "invalid_sampling", "less than or equal to 20"),
    ({"prompt": "x", "seed": -1}, "invalid_seed", "seed is -1; it lies between 0 and 18446744073709551615"),
    ({"prompt": "x", "seed": 1.5}, "invalid_seed", "an integer is needed"),
    ({"prompt": "x", "priority": float("inf")}, "invalid_priority", "an integer is needed"),
    ({"prompt": "x", "decoder_params": "[1]"}, "invalid_decoder_params", "{name: value} is needed"),
    ({"prompt": "x", "decoder_params": {"a": [1]}}, "invalid_decoder_params", "decoder_params.a is [1]"),
]


@pytest.mark.parametrize(("row", "code", "words"), BAD)
def test_a_bad_row_says_what_and_the_limit(row: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(RowError) as caught:
        request(row)
    assert caught.value.code == code
    assert words in str(caught.value)


def test_two_prompts_in_a_row() -> None:
    both = SETTINGS.model_copy(update={"columns": Columns(prompt="p", messages="m")})
    schema = pa.schema([("p", pa.string()), ("m", pa.string())])
    assert request({"p": "x", "m": None}, both, schema).prompt_token_ids == TEXT.encode("x")
    with pytest.raises(RowError, match="p and m both hold a value"):
        request({"p": "x", "m": "[]"}, both, schema)
    with pytest.raises(RowError, match="'p' and 'm' null"):
        request({"p": None, "m": None}, both, schema)


def test_ten_bad_rows_among_good_ones_are_ten_errors(tmp_path: Path) -> None:
    bad = [
        {"prompt": None},
        {"prompt": ""},
        *({"prompt": "x"} | other for other in (
            {"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 2.0}, {"stop": [""]}, {"seed": -5}, {"n": 999}, {"logprobs": 99},
            {"logit_bias": [{"token_id": -1, "bias": 0.0}]},
        )),
    ]  # fmt: skip
    rows: list[dict[str, Any]] = prompts(100)
    for place, one in enumerate(bad):
        rows.insert(place * 11, {"id": -place} | one)
    types = {"id": pa.int64(), "prompt": pa.string(), "max_tokens": pa.int64(), "temperature": pa.float64(), "top_p": pa.float64()}
    types |= {"stop": pa.list_(pa.string()), "seed": pa.int64(), "n": pa.int32(), "logprobs": pa.int32()}
    types["logit_bias"] = pa.list_(pa.struct([("token_id", pa.int64()), ("bias", pa.float64())]))
    rig = Rig(str(write_rows(tmp_path / "in.parquet", rows, pa.schema(list(types.items())))), str(tmp_path / "out"), rows_per_unit=16)
    job = rig.run()
    found = [row for unit in job.plan.units() for row in rig.table(job, unit).to_pylist()]
    failed = [row for row in found if row["error"]]
    assert (len(found), len(failed)) == (110, 10)
    assert {row["error"]["code"] for row in failed} == {"empty_prompt", "invalid_sampling", "invalid_seed"}
    assert all(row["samples"] == [] and row["engine"] is None and row["id"] <= 0 for row in failed)
    assert all(len(row["samples"]) == 1 for row in found if not row["error"])


# Roles


def test_the_prompt_column_must_be_clear() -> None:
    with pytest.raises(SettingError, match=r"no column prompt or messages or prompt_token_ids; name one of 'question', 'id'"):
        roles_of(Columns(), question=pa.string(), id=pa.int64())
    with pytest.raises(SettingError, match="the columns prompt and messages; say which holds the prompt"):
        roles_of(Columns(), prompt=pa.string(), messages=pa.string())
    with pytest.raises(SettingError, match=r"columns\.prompt: the input has no column 'promt'; did you mean 'prompt'"):
        roles_of(Columns(prompt="promt"), prompt=pa.string())
    with pytest.raises(SettingError, match="'prompt' holds int64, but prompt needs text; convert it, or name another column"):
        roles_of(Columns(), prompt=pa.int64())


def test_columns_that_only_look_like_settings() -> None:
    with pytest.raises(SettingError, match=r"'stop' holds timestamp.*but stop needs text or a list of text; .*columns\.overrides"):
        roles_of(Columns(), prompt=pa.string(), stop=pa.timestamp("us"))
    roles = roles_of(Columns(overrides={"max_tokens": "limit"}), prompt=pa.string(), stop=pa.timestamp("us"), limit=pa.int32())
    assert roles.overrides == {"max_tokens": "limit"}
    assert roles_of(Columns(overrides={}), prompt=pa.string(), n=pa.int64()).overrides == {}
    with pytest.raises(SettingError, match="'max_token' is not a field of a request; did you mean 'max_tokens'"):
        roles_of(Columns(overrides={"max_token": "limit"}), prompt=pa.string(), limit=pa.int32())


def test_an_earlier_output_as_input_needs_other_names(tmp_path: Path) -> None:
    first = Rig(str(write_rows(tmp_path / "in.parquet", prompts(6))), str(tmp_path / "first"))
    first.run()
    with pytest.raises(SettingError, match=r"already has the column samples, .*earlier output.*columns\.output_prefix"):
        Rig(first.output, str(tmp_path / "second")).run()
    columns = Columns(output_prefix="again_", overrides={})
    second = Rig(first.output, str(tmp_path / "second"), RowSettings(columns=columns))
    job = second.run()
    row = second.table(job, next(job.plan.units())).to_pylist()[0]
    assert len(row["samples"]) == len(row["again_samples"]) == 1


def test_a_seed_column_stays_and_the_used_seed_stands_beside_it(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "seed": 3}, {"prompt": "b", "seed": None}]
    rig = Rig(str(write_rows(tmp_path / "in.parquet", rows)), str(tmp_path / "out"))
    job = rig.open()
    found = rig.table(job, next(job.plan.units())).to_pylist()
    assert [row["seed"] for row in found] == [3, None]
    assert [row["seed_used"] for row in found] == [3, default_seed(0, Place("", "in.parquet", 1))]


def test_default_seeds_differ_by_job_file_and_row() -> None:
    seeds = {default_seed(job, Place("", file, row)) for job in range(3) for file in ("a", "b") for row in range(50)}
    assert len(seeds) == 300
    assert all(0 <= seed < 1 << 64 for seed in seeds)


def test_text_that_no_tokenizer_takes_is_one_rows_fault(tmp_path: Path) -> None:
    """Half of a surrogate pair gets through JSON and is refused only when it is encoded."""
    chat = '[{"role": "user", "content": "\\ud800"}]'
    path = write_rows(tmp_path / "in.parquet", [{"messages": chat}, {"messages": chat.replace("\\ud800", "hello")}])
    plan = plan_units(find_inputs(str(path)), 2)
    (unit,) = plan.units()
    bad, good = requests_of(unit, read_unit(unit, plan.schema), resolve(Columns(), plan.schema), SETTINGS, TEXT)
    assert isinstance(bad, Outcome)
    assert bad.failure is not None
    assert (bad.failure.code, "UnicodeEncodeError" in bad.failure.message) == ("internal", True)
    assert isinstance(good, Request)
