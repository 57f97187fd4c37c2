"""`drawloom generate INPUT OUTPUT`: complete every row of the input, exactly once, however often it is interrupted and run again."""

from dataclasses import dataclass, replace

from rich.console import Console

from drawloom.jobs.settings import JobSettings
from drawloom.jobs.summary import print_summary
from drawloom.pipelines.commits import Hook, Job, no_hook, open_job
from drawloom.pipelines.ledger import SUCCESS, totals
from drawloom.pipelines.past import past_texts
from drawloom.pipelines.preflight import preflight
from drawloom.pipelines.progress import Figures, Tally, shown
from drawloom.pipelines.sizing import FINE_ROWS, sized
from drawloom.pipelines.sources import find_inputs
from drawloom.pipelines.store import open_store
from drawloom.pipelines.units import Plan, plan_units


@dataclass(frozen=True)
class Result:
    """How a job ended. `figures` is None when there was nothing to do; `num_errors` counts the whole output."""

    output: str
    num_rows: int
    num_errors: int
    figures: Figures | None


def generate(settings: JobSettings, console: Console, hook: Hook = no_hook) -> Result:
    """Start, resume or confirm a job; returns when every row has one outcome.

    Raises SettingError before any work starts, DrawloomError when the job cannot go on (running it again resumes it). A finished job
    is left as it is: no model is loaded and no Ray started.
    """
    job = open_output(settings, hook)
    done = job.finished and job.log.store.stat(SUCCESS) is not None
    figures = None if job.finished else work(job, settings, console)
    if not done:
        job.finish()
    sums = totals(job.entries.values())
    result = Result(job.log.store.uri, sums["rows"], sums["errors"], figures)
    print_summary(result.output, sums, figures, console)
    return result


def open_output(settings: JobSettings, hook: Hook = no_hook) -> Job:
    """The job of the output folder, made when there is none yet, after everything that could be wrong has been looked at."""
    if settings.decoder != "ar" or settings.decoder_params:
        from drawloom.decoders.recipes import build  # with torch: plain autoregression needs no look at it

        build(settings.decoder, settings.decoder_params, mask_token=0)
    if settings.engine.drafts_from:
        past_texts(settings.engine.drafts_from, 1)  # there are some
    files = find_inputs(settings.input)
    store = preflight(settings.input, files, open_store(settings.output))

    def plan() -> Plan:
        if settings.rows_per_unit is not None:
            return plan_units(files, settings.rows_per_unit, settings.columns)
        return sized(plan_units(files, FINE_ROWS, settings.columns))

    return open_job(store, settings.identity(), files, plan, settings.columns, hook)


def work(job: Job, settings: JobSettings, console: Console) -> Figures:
    """Run the pending units through replicas."""
    from drawloom.pipelines.batch import Spec  # with ray: whoever has nothing to do need not wait for its import
    from drawloom.pipelines.cluster import connected
    from drawloom.pipelines.run import Pool, Watcher, run_job

    tally = Tally(job.plan.num_rows, sum(entry.rows for entry in job.entries.values()))
    if tally.done_rows:
        console.print(f"resuming: {tally.done_rows:,} of {tally.total_rows:,} rows are done", highlight=False)
    shape = settings.shape
    spec = Spec(job.log, job.plan.schema, settings, settings.model, settings.engine, settings.replica)
    pool = Pool(shape, settings.in_flight(job.plan.rows_per_unit), settings.lost_after_s)
    start_s = settings.start_timeout_s + settings.lost_after_s
    with connected(shape, settings.address, settings.wait_for_nodes_s, start_s), shown(tally, settings.progress, console):
        run_job(job, spec, pool, Watcher(tally.committed, tally.seen))
    return replace(tally.figures(), eta_s=0.0)
