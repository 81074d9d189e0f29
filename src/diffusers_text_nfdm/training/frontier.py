"""The frontier of a finished run: calls of the predictor against what the texts are worth, by ways of sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from diffusers import SchedulerMixin

from ..likelihood import LikelihoodEstimate, exact_likelihood, jump_likelihood
from ..metrics.frontier import measure_sampling
from ..metrics.sampling import Sampling
from ..pipelines.checks import finish_time
from ..schedulers import DraftVerifyScheduler, JumpScheduler, RefinementScheduler


if TYPE_CHECKING:
    from .trainer import Trainer


def measure_frontier(trainer: Trainer, estimate: LikelihoodEstimate) -> list[dict]:
    """One row for each sampling of the settings: calls, validity, variety, speed, and the likelihood along its clock.

    Draft and verify has the likelihood of the clean stream, which is exact, and so have jumps with as many calls as
    tokens. Refinement has none; the others have a bound. The `estimate` is that of the model's own clock.
    """
    arguments, pipeline, rows = trainer.arguments, trainer.pipeline(), []
    bounds = {trainer.family.along(trainer.released): estimate.nats_per_story}
    pipeline.set_progress_bar_config(disable=True)
    texts = trainer.data.validation_rows(2 * arguments.evaluation_texts)
    stories = arguments.dataset == "stories"
    for name, text in arguments.frontier.items():
        sampling = Sampling.parse(text)
        row = measure_sampling(
            pipeline,
            sampling,
            arguments.frontier_samples,
            arguments.evaluation_batch_size,
            arguments.seed,
            stories,
            **trainer.data.conditions(arguments.frontier_samples),
        )
        key, likelihood = _likelihood(trainer, getattr(pipeline, "scheduler", None), sampling)
        if key not in bounds:
            bounds[key] = None if likelihood is None else likelihood(texts).nats_per_story
        rows.append(
            {
                "name": name,
                **row,
                "clock": key,
                "tokens_per_second": trainer.data.mean_tokens / row["seconds_per_text"],
                "nats_per_text": bounds[key] and bounds[key].value,
                "nats_error": bounds[key] and bounds[key].monte_carlo_error,
            }
        )
    return rows


def _likelihood(
    trainer: Trainer, scheduler: SchedulerMixin | None, sampling: Sampling
) -> tuple[str, Callable[[dict], LikelihoodEstimate] | None]:
    """What the texts of a sampling are draws of, by name, and its likelihood of prepared texts, if it has one."""
    model, draws = trainer.released, 2 * trainer.arguments.evaluation_draws
    if isinstance(scheduler, DraftVerifyScheduler):
        return "clean stream", lambda texts: exact_likelihood(model, **texts)
    if isinstance(scheduler, JumpScheduler):
        calls, length = sampling.num_inference_steps, scheduler.config.jump_length
        if calls >= model.config.max_length - 1:
            return "clean stream", lambda texts: exact_likelihood(model, **texts)
        options = {"num_inference_steps": calls, "jump_length": length, "seed": trainer.arguments.seed}
        options["batch_size"] = trainer.arguments.evaluation_batch_size
        # Half of the texts: each is read once for every call and draw.
        number = trainer.arguments.evaluation_texts
        name = f"jumps, {calls} calls" + (f", {length} ahead" if length != JumpScheduler().config.jump_length else "")
        return name, lambda texts: jump_likelihood(
            model, **{name: values[:number] for name, values in texts.items()}, **options
        )
    if isinstance(scheduler, RefinementScheduler):
        # It chooses its order by what it sees.
        return "an order of its own", None
    along, options = trainer.family.along(model, sampling.clock), {}
    if scheduler is not None and (finish := finish_time(scheduler)) is not None:
        along, options = f"{along}, decoded at {finish}", {"finish_time": finish}
    return along, lambda texts: trainer.family.likelihood(model, texts, draws, sampling.clock, **options)


def render_frontier(rows: list[dict], entropy: float | None = None) -> str:
    """The rows as a table."""
    width = max([26, *(len(row["name"]) + 2 for row in rows)])
    lines = [
        f"{'sampling':{width}s}{'calls':>7s}{'(most)':>8s}{'valid':>8s}{'distinct':>10s}{'choices':>9s}"
        f"{'nats':>16s}{'x truth':>9s}{'tokens/s':>10s}  along"
    ]
    for row in rows:
        valid = f"{row['validity']:.1%}" if "validity" in row else "-"
        choices = f"{row['coverage']:.1%}" if row.get("tested_choices") else "-"
        nats, known = "-", row["nats_per_text"] is not None
        if known:
            nats = f"{row['nats_per_text']:.2f}" + (f" ± {row['nats_error']:.2f}" if row["nats_error"] else "")
        ratio = f"{row['nats_per_text'] / entropy:.3f}" if entropy and known else "-"
        lines.append(
            f"{row['name']:{width}s}{row['calls']:7.1f}{row['most_calls']:8d}{valid:>8s}{row['distinct']:10.1%}{choices:>9s}"
            f"{nats:>16s}{ratio:>9s}{row['tokens_per_second']:10.0f}  {row['clock']}"
        )
    return "\n".join(lines)
