"""Text on a transformers tokenizer: plain prompts, chats, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

from drawloom.errors import RowError, SettingError
from drawloom.models.checkpoint import Checkpoint, locate
from drawloom.models.diffusion import family_of
from drawloom.models.settings import ModelSettings


class TokenizerText:
    """The Text protocol over a tokenizer with its chat template. Picklable."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos_token_ids: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = len(tokenizer)
        self.eos_token_ids = eos_token_ids

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a plain prompt, with the special tokens that the model expects at its start."""
        return list(self._tokenizer(prompt, verbose=False)["input_ids"])

    def render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a chat, ready for the answer.

        Raises RowError `no_chat_template` when the model has none, `bad_messages` when a message is malformed or refused by the template.
        """
        if not self._tokenizer.chat_template:
            raise RowError("no_chat_template", "this model has no chat template; give a plain prompt, or use an instruction-tuned model")
        chat = [_checked(index, message) for index, message in enumerate(_listed(messages))]
        try:
            token_ids: Any = self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            return list(token_ids)
        except TemplateError as error:
            raise RowError("bad_messages", f"the model's chat template refuses these messages: {error}") from None

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def load_text(settings: ModelSettings) -> TokenizerText:
    """The tokenizer of a checkpoint. Raises SettingError when it cannot be found or read."""
    return text_of(locate(settings))


def text_of(checkpoint: Checkpoint) -> TokenizerText:
    """The tokenizer of a checkpoint that has been located."""
    tokenizer = tokenizer_of(checkpoint)
    return TokenizerText(tokenizer, checkpoint.eos_token_ids(tokenizer.eos_token_id))


def tokenizer_of(checkpoint: Checkpoint) -> Any:
    """The transformers tokenizer of a checkpoint, whose own code is never run nor asked about. Raises SettingError when there is none."""
    folder = checkpoint.place_of("tokenizer_config.json")
    fast = (folder / "tokenizer.json").is_file()
    own = AutoTokenizer if family_of(checkpoint) is None else PreTrainedTokenizerFast if fast else Qwen2Tokenizer
    more: dict[str, Any] = {"gguf_file": checkpoint.gguf, "trust_remote_code": False} if own is AutoTokenizer else {}
    try:
        tokenizer = own.from_pretrained(folder, local_files_only=True, **more)
        if len(tokenizer.get_vocab()) <= len(tokenizer.get_added_vocab()):
            raise ValueError("it has no words, since no file with a vocabulary is there")
    except (OSError, ValueError) as error:
        raise SettingError(f"no usable tokenizer in {checkpoint.folder}: {error}; put tokenizer.json beside the weights") from None
    return tokenizer


def _listed(messages: object) -> Sequence[Any]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence) or not messages:
        got = f"{type(messages).__name__} {str(messages)[:60]!r}"
        raise RowError("bad_messages", f"messages must be a list of at least one message, got {got}")
    return messages


def _checked(index: int, message: object) -> dict[str, Any]:
    """One message as a plain dict without null fields (columns of structs fill absent fields with nulls)."""
    if not isinstance(message, Mapping):
        raise RowError("bad_messages", f"message {index} is {type(message).__name__}; each message is an object with role and content")
    if not isinstance(message.get("role"), str):
        raise RowError("bad_messages", f"message {index} has role {message.get('role')!r}; it must be text such as user or assistant")
    present = {str(key): value for key, value in message.items() if value is not None}
    if not isinstance(present.get("content"), str) and "tool_calls" not in present:
        raise RowError("bad_messages", f"message {index} has content of type {type(message.get('content')).__name__}; it must be text")
    return present
