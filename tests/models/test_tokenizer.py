"""Text to ids and back with the embedded model's tokenizer."""

import pickle

import pytest

from drawloom.errors import RowError, SettingError
from drawloom.models.settings import ModelSettings
from drawloom.models.tokenizer import TokenizerText, load_text

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Capital of France?"}]


@pytest.fixture(scope="module")
def text() -> TokenizerText:
    return load_text(ModelSettings())


def test_plain_prompts_come_back(text):
    for prompt in ("Hello, world!", " two  spaces\n\ttab", "Ünïcödé 🎉 漢字", ""):
        assert text.decode(text.encode(prompt)) == prompt


def test_chat_is_rendered_with_the_template(text):
    ids = text.render(CHAT)
    start, end = text.encode("<|im_start|>"), text.encode("<|im_end|>")
    assert len(start) == len(end) == 1
    wanted = start + text.encode("system\nBe brief.") + end + text.encode("\n") + start + text.encode("user\nCapital of France?") + end
    assert ids == wanted + text.encode("\n") + start + text.encode("assistant\n")
    assert text.decode(ids) == "system\nBe brief.\nuser\nCapital of France?\nassistant\n"


def test_null_fields_of_a_struct_column_are_absent(text):
    padded = [{**message, "name": None, "tool_calls": None} for message in CHAT]
    assert text.render(padded) == text.render(CHAT)


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "at least one message"),
        ("hello", "must be a list"),
        ({"role": "user", "content": "x"}, "must be a list"),
        (["hello"], "message 0 is str"),
        ([CHAT[0], {"content": "x"}], "message 1 has role None"),
        ([{"role": "user"}], "content of type NoneType"),
        ([{"role": "user", "content": 3}], "content of type int"),
    ],
)
def test_malformed_messages_are_row_errors(text, messages, complaint):
    with pytest.raises(RowError, match=complaint) as caught:
        text.render(messages)
    assert caught.value.code == "bad_messages"


def test_template_that_refuses_and_template_that_is_missing():
    tokenizer = load_text(ModelSettings())._tokenizer
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(RowError, match="roles must alternate") as caught:
        TokenizerText(tokenizer, (2,)).render(CHAT)
    assert caught.value.code == "bad_messages"
    tokenizer.chat_template = None
    with pytest.raises(RowError, match="no chat template") as caught:
        TokenizerText(tokenizer, (2,)).render(CHAT)
    assert caught.value.code == "no_chat_template"


def test_sizes_ends_and_pickling(text):
    assert text.vocab_size == 49152
    assert text.eos_token_ids == (2,)
    assert pickle.loads(pickle.dumps(text)).render(CHAT) == text.render(CHAT)


def test_folder_without_tokenizer(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(SettingError, match="no usable tokenizer"):
        load_text(ModelSettings(name=str(tmp_path)))
