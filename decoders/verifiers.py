"""Verifiers by name: what each guarantees, and which draft laws keep that guarantee. The algorithms are in kernels/.

Laws of drafts: "one_hot" is a function of final tokens and past answers; "sampled" children are drawn independently from a law that comes
with them; "distinct" ones are drawn without replacement; "chosen" drafts depend on tokens that could be dropped, in any other way.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from drawloom.errors import SettingError
from drawloom.kernels import verify_sampled as tensor
from drawloom.settings import nearest

ONE_HOT, SAMPLED, DISTINCT, CHOSEN = "one_hot", "sampled", "distinct", "chosen"
EVERY = frozenset({ONE_HOT, SAMPLED, DISTINCT, CHOSEN})


@dataclass(frozen=True)
class Verifier:
    """`judge` None: the target draws for itself, and a drafted token stays when it is what the target says."""

    name: str
    lossless: bool  # the law of the text is exactly the target's
    laws: frozenset[str]
    about: str
    judge: Callable[..., tensor.Verdict] | None = None
    coupled: bool = False  # sampled drafts use the target's own noise
    paths: bool = False  # takes independent paths from the root alone

    @property
    def same_text(self) -> bool:
        """The text is that of autoregression with the same seed, not merely its law."""
        return self.judge is None


COUPLED = Verifier(
    "coupled",
    True,
    EVERY,
    "draft and target share noise keyed by (seed, position, token), and the target's own draw is what is emitted; Daliri et al. 2025",
    coupled=True,
)
VERIFIERS = {
    one.name: one
    for one in (
        COUPLED,
        Verifier("match", True, EVERY, "the same with noise of the draft's own; equal to `coupled` for drafts that are not sampled"),
        Verifier(
            "rejection",
            True,
            frozenset({ONE_HOT, SAMPLED}),
            "multi-step rejection, token by token on a chain; Leviathan et al. 2023, SpecInfer, arXiv 2305.09781",
            tensor.specinfer,
        ),
        Verifier(
            "without-replacement",
            True,
            frozenset({ONE_HOT, DISTINCT}),
            "the same for distinct children; Sequoia, arXiv 2402.12374",
            tensor.without_replacement,
        ),
        Verifier("topk", True, EVERY - {CHOSEN}, "EAGLE's rule, the target's own probability alone; arXiv 2401.15077", tensor.topk),
        Verifier("kseq", True, frozenset({SAMPLED}), "K-SEQ; SpecTr, arXiv 2310.15141", tensor.kseq),
        Verifier(
            "block",
            True,
            frozenset({ONE_HOT, SAMPLED}),
            "from the leaves to the root: block verification on a chain, arXiv 2403.10444; traversal verification on a tree, 2505.12398",
            tensor.traversal,
        ),
        Verifier(
            "best-path",
            True,
            frozenset({SAMPLED}),
            "block verification of the best of several paths, after arXiv 2602.16961",
            tensor.best_path,
            paths=True,
        ),
        Verifier(
            "typical", False, EVERY, "typical acceptance, with numbers `epsilon` and `alpha`; Medusa, arXiv 2401.10774", tensor.typical
        ),
        Verifier(
            "among-top",
            False,
            EVERY,
            "among the target's `top` likeliest, at most `within` nats below the best; blockwise parallel decoding, Stern et al. 2018",
            tensor.among_top,
        ),
    )
}


def verifier_named(told: str) -> Verifier:
    """A verifier by its name; lossy ones may have numbers behind it: "typical:epsilon=0.2,alpha=0.5". Raises SettingError when there is
    none of that name, or it has no such number."""
    name, _, numbers = told.partition(":")
    if name not in VERIFIERS:
        raise SettingError(f"verifier {name!r} is unknown; {nearest(name, list(VERIFIERS))}")
    found = VERIFIERS[name]
    if numbers and found.lossless:
        raise SettingError(f"verifier {name!r} has no numbers, and {numbers!r} stands behind it; leave that out")
    return replace(found, judge=_with(found, numbers)) if numbers else found


def _with(verifier: Verifier, told: str) -> Callable[..., tensor.Verdict]:
    """Its algorithm with the numbers that stand behind its name."""
    assert verifier.judge is not None
    known = {one.name: one.default for one in inspect.signature(verifier.judge).parameters.values() if one.kind is one.KEYWORD_ONLY}
    found: dict[str, float] = {}
    for part in told.split(","):
        key, _, value = part.partition("=")
        if key not in known:
            raise SettingError(f"verifier {verifier.name!r} has no number {key!r}; {nearest(key, list(known))}")
        try:
            found[key] = type(known[key])(value)
        except ValueError:
            raise SettingError(f"verifier {verifier.name!r}: {key} is {value!r}; a number such as {known[key]} is needed") from None
        if not found[key] >= 0:
            raise SettingError(f"verifier {verifier.name!r}: {key} is {value}; at least 0 is needed")
    return partial(verifier.judge, **found)


def check_law(verifier: Verifier, law: str, *, paths: bool = False) -> None:
    """Raises SettingError when the verifier would not keep what it guarantees with drafts of this law."""
    if law not in verifier.laws:
        fitting = [one.name for one in VERIFIERS.values() if law in one.laws and one.lossless]
        raise SettingError(
            f"verifier {verifier.name!r} takes drafts that are {' or '.join(sorted(verifier.laws))}, and these are {law}: the text would "
            f"lose the target's law; for such drafts there are {', '.join(fitting)}"
        )
    if verifier.paths and not paths:
        raise SettingError(f"verifier {verifier.name!r} takes independent paths, and this drafter makes no such; one that fits is 'block'")
