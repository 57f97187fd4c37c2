"""CTranslate2 as a peer: python ctranslate2_peer.py MODEL_FOLDER THREADS WORK_FOLDER."""

import sys
from pathlib import Path

from serve_lines import Answer, serve


def build() -> Answer:
    import ctranslate2  # pyright: ignore[reportMissingImports]
    from ctranslate2.converters import TransformersConverter  # pyright: ignore[reportMissingImports]
    from tokenizers import Tokenizer

    folder, threads, work = sys.argv[1:]
    converted = Path(work) / "ctranslate2-float32"
    if not (converted / "model.bin").is_file():
        TransformersConverter(folder).convert(str(converted), quantization="float32", force=True)
    generator = ctranslate2.Generator(str(converted), device="cpu", compute_type="float32", intra_threads=int(threads), inter_threads=1)
    words = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))

    def answer(prompts: list[list[int]], num_new: list[int], ends: bool) -> list[list[int]]:
        texts = [[words.id_to_token(token) for token in prompt] for prompt in prompts]
        # It has one length for a batch and always an end token: without `ends` an empty list of end tokens would mean its own.
        stop = {} if ends else {"end_token": [_never(words)]}
        found = generator.generate_batch(
            texts, max_length=max(num_new), sampling_topk=1, include_prompt_in_result=False, return_end_token=False, **stop
        )
        return [list(result.sequences_ids[0])[:count] for result, count in zip(found, num_new, strict=True)]

    return answer


def _never(words: object) -> str:
    """A special token that no answer of an instruction model holds: the last one before the ordinary vocabulary."""
    special = sorted(index for index, token in words.get_added_tokens_decoder().items() if token.special)  # pyright: ignore[reportAttributeAccessIssue]
    return words.id_to_token(special[-1])  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    serve(["ctranslate2"], build)
