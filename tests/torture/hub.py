"""A Hub on loopback that fails: loading and pushing must work all the same, or say what to do, and work the next time.

One client process does it all, because the client reads the Hub's address when it is imported.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from hub_server import HubServer
from tiny import make_pipeline

from .tally import Campaign, Tally, is_sentence


# Seconds that the client waits for an answer, one that is in time and one that is not.
PATIENCE, SLOW, TOO_SLOW = 2, 0.5, 5.0
CLIENT = """
import json, sys, time
from diffusers_text_nfdm import NFDMTextPipeline
from torture.damaged import fingerprint
# The Hub's client waits up to eight seconds between its tries.
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.05))
source = NFDMTextPipeline.from_pretrained(sys.argv[1])

def load(repository, **options):
    return fingerprint(NFDMTextPipeline.from_pretrained(repository, **options))

def attempt(action, repository, **options):
    try:
        return ["ok", action(repository, **options)]
    except Exception as error:
        return [type(error).__name__, str(error)]

for line in sys.stdin:
    kind, repository = json.loads(line)
    action = load if kind == "load" else source.push_to_hub
    tries = [attempt(action, repository)]
    again = {"force_download": True} if kind == "load" and "force_download=True" in tries[0][1] else {}
    tries.append(attempt(action, repository, **again))
    print("TRIED" + json.dumps(tries), flush=True)
"""
# What the client asks for, by a part of the request.
LOAD_POINTS = (
    "/api/models/{}",
    "HEAD /{}/resolve",
    "GET /{}/resolve/*model.safetensors",
    "GET /{}/resolve/*model_index.json",
    "GET /{}/resolve/*config.json",
    "GET /{}/resolve/*tokenizer.json",
)
PUSH_POINTS = ("/api/models/{}/preupload", "/api/models/{}/commit")


def faults(hub: HubServer, random) -> dict[str, Callable[[str], object]]:
    """Ways to plan a fault for requests that contain a string."""
    return {
        "500": lambda match: hub.fail(match=match),
        "503 for long": lambda match: hub.fail(times=99, match=match, status=503),
        "429": lambda match: hub.fail(match=match, status=429, Retry_After="0"),
        "403": lambda match: hub.fail(times=99, match=match, status=403),
        "reset": lambda match: hub.cut(match=match, after_bytes=random.choice([0, 10, 1000]), reset=True),
        "truncated": lambda match: hub.cut(match=match, after_bytes=random.choice([0, 10, 1000])),
        "no JSON": lambda match: hub.garble(match=match),
        "another bit": lambda match: hub.flip(match=match, place=random.random()),
        "slow": lambda match: hub.stall(match=match, seconds=SLOW),
        "too slow": lambda match: hub.stall(match=match, seconds=TOO_SLOW),
    }


def cases(hub: HubServer, campaign: Campaign) -> Iterator[tuple[str, str, str]]:
    """(load or push, fault, point): all of them once, and again while there is time."""
    everything = [(kind, fault, point) for kind, points in (("load", LOAD_POINTS), ("push", PUSH_POINTS))
                  for fault in faults(hub, campaign.random) for point in points
                  # Files have a checksum; another bit in any other answer is another answer.
                  if fault != "another bit" or point.startswith("GET")]  # fmt: skip
    for number in itertools.count():
        for case in campaign.random.sample(everything, len(everything)):
            if number and campaign.over:
                return
            yield case


def run(campaign: Campaign) -> Tally:
    tally = Tally("hub")
    source = campaign.folder / "source"
    pipeline = make_pipeline("mulan")
    pipeline.save_pretrained(source)
    files = {path.relative_to(source).as_posix(): path.read_bytes() for path in source.rglob("*") if path.is_file()}
    with HubServer() as hub:
        variables = {"HF_HUB_DOWNLOAD_TIMEOUT": str(PATIENCE), "HF_HUB_ETAG_TIMEOUT": str(PATIENCE)}
        env = hub.env(campaign.folder / "home", OMP_NUM_THREADS="1", **variables)
        env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        command = [sys.executable, "-c", CLIENT, str(source)]
        log = open(campaign.folder / "client.txt", "w")
        client = subprocess.Popen(
            command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
        hub.add("user/whole", files)
        expected = _ask(client, "load", "user/whole", campaign.folder)[0][1]
        for number, (kind, fault, point) in enumerate(cases(hub, campaign)):
            name = f"user/case-{number:05d}"
            if kind == "load":
                hub.add(name, files)
            faults(hub, campaign.random)[fault](point.format(name))
            tries = _ask(client, kind, name, campaign.folder)
            files_now = hub.repos[name].files() if name in hub.repos else {}
            found = judge(kind, fault, name, tries, expected, files, files_now)
            tally.judge(f"{kind}, {fault}", found and (found[0], f"{point}: {found[1]}"))
        client.stdin.close()
        client.wait()
        log.close()
    return tally


def _ask(client: subprocess.Popen, kind: str, name: str, folder: Path) -> list:
    client.stdin.write(json.dumps([kind, name]) + "\n")
    client.stdin.flush()
    for line in client.stdout:
        if line.startswith("TRIED"):
            return json.loads(line[len("TRIED") :])
    raise AssertionError((folder / "client.txt").read_text()[-2000:])


def judge(kind, fault, name, tries, expected, files, pushed) -> tuple[str, str] | None:
    """`tries` are the first and the second one, each ["ok", result] or [type of error, message]."""
    for number, (outcome, said) in enumerate(tries):
        if outcome == "ok":
            if kind == "load" and said != expected:
                return "silent", "it is another pipeline"
            # The card names its repository.
            compared = [path for path in files if kind == "push" and path != "README.md"]
            wrong = [path for path in compared if pushed.get(path) != files[path]]
            if wrong:
                return "half-written", f"pushed without an error, but {', '.join(wrong)} differ"
            return None
        if outcome not in ("OSError", "ValueError", "HfHubHTTPError", "RepositoryNotFoundError"):
            return "obscure", f"{outcome}: {said[:300]}"
        if not is_sentence(said) or (kind == "load" and name not in said):
            return "obscure", f"{outcome}: {said[:300]}"
        if number == 1 and fault not in ("403", "503 for long"):
            return "obscure", f"the second try failed, too: {said[:300]}"
    return None
