"""Train the systems of a plan and put them on one page: calls against quality, at several budgets, and with one thing
changed at a time.

    python evaluation/study.py --runs runs/study --output docs/study

trains what is not trained yet, goes on with what was stopped, and writes docs/study.md, docs/study.png and
docs/study.json of what is finished. What docs/study.json has is not trained again, so that a study can be made in
pieces, on several machines; `--only NAME ...` trains these alone, and anew, `--only` none.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import yaml

from diffusers_text_nfdm.files import output_file, write_file
from diffusers_text_nfdm.training import TrainingArguments
from diffusers_text_nfdm.training.recipe_files import read_config


ROOT = Path(__file__).parents[1]
PLAN = Path(__file__).with_suffix(".yaml")
SCRIPT = ROOT / "examples" / "train_nfdm.py"
# What the page has of a run's summary.
KEPT = ("parameters", "steps", "entropy", "likelihood", "samples", "frontier")


def read_plan(path: Path) -> dict[str, dict]:
    """The settings of every run: those of its recipe, and what the plan changes; a `model_config` is changed, too."""
    known = [field.name for field in fields(TrainingArguments)]
    plan = yaml.safe_load(path.read_text(encoding="utf-8"))
    runs = {}
    for name, changes in plan["runs"].items():
        changes = dict(changes)
        settings = read_config(changes.pop("config"), known)
        for key in ("model_config", "scheduler_config"):
            settings[key] = {**settings.get(key, {}), **changes.pop(key, {})}
        for key in settings["model_config"].copy():
            if settings["model_config"][key] is None:
                del settings["model_config"][key]
        runs[name] = {**settings, **changes}
        unknown = set(runs[name]) - set(known)
        if unknown:
            raise ValueError(f"{path} has the unknown setting {sorted(unknown)[0]!r} in {name!r}.")
    return runs


def train(name: str, settings: dict, folder: Path) -> None:
    """Train a run, or go on with it."""
    run = folder / name
    if (run / "summary.json").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / f"{name}.yaml"
    write_file(config, yaml.safe_dump(settings, sort_keys=False))
    command = [sys.executable, str(SCRIPT), "--config", str(config), "--output_dir", str(run)]
    if run.is_dir():
        command += ["--resume", "latest"]
    write_file(folder / f"{name}.commit", commit() + "\n")
    code = subprocess.run(command).returncode
    if code:
        raise OSError(f"The run {name!r} ended with exit code {code}; the same command goes on with it.")


def commit() -> str:
    """The commit of the code, by git."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    result = subprocess.run(command, capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else "unknown"


def cpu_seconds(run: Path) -> float:
    """CPU seconds of the steps of a run."""
    total, last = 0.0, 0
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "train/cpu_seconds_per_step" in row:
            total += (row["step"] - last) * row["train/cpu_seconds_per_step"]
            last = row["step"]
    return total


def read_run(name: str, folder: Path) -> dict | None:
    """What a finished run tells, or `None`."""
    path = folder / name / "summary.json"
    if not path.is_file():
        return None
    summary = json.loads(path.read_text(encoding="utf-8"))
    code = folder / f"{name}.commit"
    made_by = code.read_text(encoding="utf-8").strip() if code.is_file() else "unknown"
    found = {"name": name, "seconds": cpu_seconds(folder / name), "commit": made_by}
    return found | {key: summary[key] for key in KEPT if key in summary}


def page(runs: dict[str, dict | None], command: str, picture: str | None) -> str:
    """A table of all runs, and below it one of their samplings."""
    lines = [
        "# Study",
        "",
        f"Made by `{command}`, which goes on where it stopped. Nats are of the validation texts: a bound,",
        "or exact for the autoregressive model; beside them, times the entropy of the grammar. CPU seconds are those",
        "of the steps, all threads together. The last column has the commit of the code: compare what is of one.",
        "",
        "| run | parameters | steps | CPU seconds | nats | times the truth | commit |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        if run is None:
            lines.append(f"| {name} | | | not run | | | |")
            continue
        nats = run["likelihood"]["nats_per_story"]
        error = f" ± {nats['monte_carlo_error']:.2f}" if nats["monte_carlo_error"] else ""
        lines.append(
            f"| {name} | {run['parameters']:,} | {run['steps']:,} | {run['seconds']:.0f} | "
            f"{nats['value']:.2f}{error} | {nats['value'] / run['entropy']:.3f} | {run['commit']} |"
        )
    lines += ["", "Stories of the language, by the run's own sampler and by those of its frontier:", ""]
    lines += ["| run | sampling | calls | most | valid | choices right | nats |", "|---|---|---|---|---|---|---|"]
    for name, run in runs.items():
        if run is None:
            continue
        samples = run["samples"]
        lines.append(f"| {name} | its own | | | {samples['grammatical'] / samples['number']:.1%} | | |")
        for row in run.get("frontier", ()):
            choices = f"{row['coverage']:.1%} of {row['tested_choices']}" if row.get("tested_choices") else "-"
            nats = "-" if row["nats_per_text"] is None else f"{row['nats_per_text']:.2f}"
            if row["nats_error"]:
                nats += f" ± {row['nats_error']:.2f}"
            lines.append(
                f"| {name} | `{row['sampling']}` | {row['calls']:.1f} | {row['most_calls']} | {row['validity']:.1%} | "
                f"{choices} | {nats} |"
            )
    if picture is not None:
        lines += ["", f"![Valid stories against calls]({picture})"]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, default=PLAN, help="YAML file (default: evaluation/study.yaml)")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/study"), help="folder of the runs (default: runs/study)"
    )
    parser.add_argument("--only", nargs="*", help="names of the runs to train (default: all)")
    parser.add_argument("--output", type=output_file, help="file to write, without its ending: .md, .png, .json")
    args = parser.parse_args(arguments)
    try:
        plan = read_plan(args.plan)
        kept = None if args.output is None else args.output.with_suffix(".json")
        finished = json.loads(kept.read_text(encoding="utf-8")) if kept is not None and kept.is_file() else {}
        for name in [name for name in plan if name not in finished] if args.only is None else args.only:
            if name not in plan:
                raise ValueError(f"The plan has no run {name!r}; it has {', '.join(plan)}.")
            train(name, plan[name], args.runs)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    runs = {name: read_run(name, args.runs) or finished.get(name) for name in plan}
    picture = None if args.output is None else args.output.with_suffix(".png")
    text = page(runs, "python evaluation/study.py", None if picture is None else picture.name)
    print(text)
    if args.output is not None:
        from diffusers_text_nfdm.plots.frontier import plot_study

        write_file(kept, json.dumps({name: run for name, run in runs.items() if run}, indent=1) + "\n")
        write_file(args.output.with_suffix(".md"), text)
        frontier_of = yaml.safe_load(args.plan.read_text(encoding="utf-8")).get("frontier_of", runs)
        plot_study([run for run in runs.values() if run], frontier_of).savefig(picture, dpi=130)


if __name__ == "__main__":
    main()
