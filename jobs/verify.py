"""`drawloom verify OUTPUT`: prove from the folder's own records that each input row has exactly one outcome."""

from rich.console import Console

from drawloom.pipelines.verify import Verdict, check, read_folder

MAX_SHOWN = 20


def verify(output: str, deep: bool = False) -> Verdict:
    """Check an output folder (local or s3://) without model, input or cluster. deep: read every part and hash its content again.

    Raises SettingError when the folder holds no job, DrawloomError when job.yaml or the plan is damaged.
    """
    return check(read_folder(output), deep)


def show(verdict: Verdict, console: Console) -> None:
    """One line per problem, then the result."""
    for problem in verdict.problems[:MAX_SHOWN]:
        console.print(f"[red]✗[/red] {problem}", highlight=False)
    if len(verdict.problems) > MAX_SHOWN:
        console.print(f"  and {len(verdict.problems) - MAX_SHOWN} more")
    sums = verdict.sums
    how = "parts read and hashed" if verdict.deep else "from manifests; --deep also reads the parts"
    kinds = f"({sums['completed']:,} completed, {sums['errors']:,} failed)"
    outcome = f"{sums['rows']:,} of {verdict.rows:,} rows have exactly one outcome {kinds}"
    sign = "[green]✓[/green]" if verdict.ok else "[red]✗[/red]"
    console.print(f"{sign} {verdict.output}: {outcome}, {sums['units']:,} of {verdict.units:,} units in order, {how}", highlight=False)
    console.print(f"  content {sums['content']}", highlight=False)
