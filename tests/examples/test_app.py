"""The page: what is behind it, and itself in a browser (make test-page)."""

import math
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from io import BytesIO
from pathlib import Path

import pytest
import torch
from page import layout, models, showing, stream, writing
from PIL import Image
from tiny import make_pipeline, seeded

from diffusers_text_nfdm import JumpScheduler, MarkovChainScheduler, NFDMTextPipeline, RefinementScheduler
from diffusers_text_nfdm.stories import StoryGrammar


ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "app.py"
STORY = StoryGrammar().sample(1, seed=3)[0]
TWO_STREAMS = {
    "prediction_type": "categorical", "predictor": "two_stream", "jumps": True, "max_length": 9,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def pipe():
    return make_pipeline("nfdm", JumpScheduler(jump_length=3, min_p=0.1), **TWO_STREAMS)


def seen(text: str) -> str:
    return re.sub(r"<[^>]+>", "", text)


def words_of_kind(html: str, kind: str) -> list[str]:
    return re.findall(rf'<span class="{kind}"[^>]*>(.*?)</span>', html)


def test_the_space_has_the_packages_and_the_gradio_that_are_tested():
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    needed = re.findall(r'"(.+?)"', setup.split("install_requires=[")[1].split("]")[0])
    assert (ROOT / "examples/space/requirements.txt").read_text().split() == needed
    version = re.search(r"^gradio==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)[1]
    card = (ROOT / "examples/space/README.md").read_text(encoding="utf-8")
    assert f"\nsdk_version: {version}\n" in card and "\napp_file: app.py\n" in card


def test_make_space_writes_a_folder_that_stands_alone_with_only_what_it_installs(tmp_path):
    done = subprocess.run(["make", "space", f"OUTPUT={tmp_path}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"app.py", "page", "README.md", "requirements.txt", "diffusers_text_nfdm", "checkpoints"} == {
        path.name for path in tmp_path.iterdir()
    }
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    absent = ["matplotlib", "gradio", "evaluate", "mauve", "accelerate", "tensorboard"]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); import app, page.layout, diffusers_text_nfdm"
    code += "; print(app.__file__, diffusers_text_nfdm.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(path.startswith(str(tmp_path)) for path in done.stdout.split())


def test_checkpoints_are_found_and_the_default_one_is_first(tmp_path):
    for name in ("a", models.DEFAULT_MODEL, "z"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model_index.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    names = [Path(path).name for path in models.find_checkpoints([tmp_path])]
    assert names == [models.DEFAULT_MODEL, "a", "z"]
    assert models.find_checkpoints([tmp_path / "z"]) == [str(tmp_path / "z")]


def test_only_schedulers_that_the_model_can_use_are_offered(pipe):
    assert models.usable_schedulers(pipe)[0] == "JumpScheduler" and len(models.usable_schedulers(pipe)) == 6
    latents = ["MarkovChainScheduler", "ReverseSDEScheduler", "ReverseODEScheduler"]
    assert models.usable_schedulers(make_pipeline("diffusion-lm")) == latents
    plain = make_pipeline("nfdm", RefinementScheduler(), **{**TWO_STREAMS, "jumps": False})
    assert models.usable_schedulers(plain) == ["RefinementScheduler", "DraftVerifyScheduler", *latents]


def test_only_controls_that_do_something_are_seen(pipe):
    assert not layout.scheduler_settings("JumpScheduler")["clock"]["visible"]
    assert layout.scheduler_settings("MarkovChainScheduler")["clock"]["visible"]
    steps = {name: layout.scheduler_settings(name)["steps"]["value"] for name in models.SCHEDULERS}
    assert steps["MarkovChainScheduler"] == 64 and steps["ReverseSDEScheduler"] == 512 and steps["JumpScheduler"] == 0
    settings = layout.model_settings(pipe)
    assert not any(settings[name]["visible"] for name in ("condition", "guidance_scale", "examples"))
    conditions = {"condition_length": 2, "condition_dropout": 0.1}
    settings = layout.model_settings(make_pipeline("nfdm", RefinementScheduler(), **TWO_STREAMS | conditions))
    assert settings["condition"]["visible"] and settings["guidance_scale"]["visible"]


@pytest.mark.parametrize("prompt", ["", "Tom saw", "Tom saw [MASK] red [MASK]", "Tom [GAP] ran ."])
@pytest.mark.parametrize("scheduler", ["JumpScheduler", "DraftVerifyScheduler", "RefinementScheduler"])
def test_the_result_is_the_pipelines_and_the_frames_lead_to_it(pipe, scheduler, prompt):
    shown = []
    result = writing.write(
        pipe, writing.Request(scheduler, prompt, num_texts=2, seed=5), lambda frame, known: shown.append(frame)
    )
    own = NFDMTextPipeline(pipe.model, pipe.tokenizer, writing.make_scheduler(pipe, writing.Request(scheduler)))
    own.set_progress_bar_config(disable=True)
    expected = own(prompt=prompt or None, num_samples=2, generator=seeded(5))
    assert result.texts == expected.texts and result.calls == expected.calls.tolist()
    assert torch.equal(result.frames[-1].tokens, expected.sequences) and result.frames[-1].settled.all()
    # A gap is seen only when its length is known.
    assert bool(shown) == ("[GAP]" not in prompt)
    given = [word for word in prompt.split() if not word.startswith("[")]
    for text in range(2):
        known = result.frames[-1].tokens[text][result.known[text]].tolist()
        assert pipe.tokenizer.convert_ids_to_tokens([token for token in known if token > 3]) == given
        words = words_of_kind(showing.render_text(pipe, result.frames[-1], result.known, text), "k")
        # END may be drawn in a gap, where the text ends.
        assert words == given[: len(words)] and words[:1] == given[:1]
        for before, after in zip(result.frames, result.frames[1:]):
            kept = before.settled[text] & (before.tokens[text] != pipe.model.config.pad_token_id)
            assert torch.equal(before.tokens[text][kept], after.tokens[text][kept])
    assert len(result.nats) == 2 and all(nats > 0 for nats in result.nats)


@pytest.mark.parametrize("name", ["diffusion-lm", "mulan"])
def test_latents_of_a_model_without_a_clean_stream_are_shown_too(name):
    pipe = make_pipeline(name)
    result = writing.write(pipe, writing.Request("ReverseODEScheduler", "Tom", steps=4, temperature=0.0))
    assert [frame.call for frame in result.frames] == [1, 2, 3, 4, None]
    assert result.nats is None and result.frames[0].sure.isnan().all()
    html = showing.render_result(pipe, result)
    assert words_of_kind(html, "k") == ["Tom"] * 5 + ["given"] and "how sure" not in html


def test_a_text_is_decoded_jointly_only_along_the_shared_clock():
    decoder = {"self_conditioning": True, "lattice_candidates": 2, "joint_decoder": True, "forward_num_layers": 0}
    scheduler = MarkovChainScheduler(finish_time=0.5, finish_calls=2)
    pipe = make_pipeline("nfdm", scheduler, **TWO_STREAMS | decoder | {"jumps": False})
    finished = {}
    for clock in ("shared", "ramp:2"):
        request = writing.Request("MarkovChainScheduler", steps=3, clock=clock)
        finished[clock] = writing.make_scheduler(pipe, request).config.finish_time
        assert len(writing.write(pipe, request).texts) == 1
    assert finished == {"shared": 0.5, "ramp:2": None}


def test_many_calls_are_thinned_out_for_the_replay(pipe, monkeypatch):
    monkeypatch.setattr(writing, "MAX_FRAMES", 4)
    result = writing.write(pipe, writing.Request("MarkovChainScheduler", steps=10, clock="shared", temperature=0.0))
    assert [frame.call for frame in result.frames] == [1, 4, 7, 10, None]


def test_the_temperature_acts_on_what_is_drawn(pipe):
    for t in (0.5, 1.5):
        request = writing.Request("RefinementScheduler", temperature=t)
        assert writing.make_scheduler(pipe, request).config.temperature == t
    requests = [writing.Request("JumpScheduler", temperature=t, num_texts=4, seed=1) for t in (0.1, 2.0)]
    assert writing.write(pipe, requests[0]).texts != writing.write(pipe, requests[1]).texts


def test_words_are_as_sure_as_the_clean_stream_is(pipe):
    ids = torch.tensor([[0, 4, 5, 3, 6, 1, 3, 3, 3]])
    sure = writing.token_probabilities(pipe, ids)
    nats = pipe.model.clean_stream(ids, None, next_token=True)[1]
    assert torch.allclose(sure[0, 1:3], torch.exp(-nats[0, :2])) and sure[0, 3:].isnan().all()


def test_a_frame_tells_known_sure_and_open_words_apart(pipe):
    ids = pipe.tokenizer.convert_tokens_to_ids
    tokens = torch.tensor([[0, ids("Tom"), ids("saw"), ids("a"), 3, ids("fox"), ids("."), 1, 3]])
    known = torch.tensor([[1, 1, 0, 0, 0, 0, 0, 0, 0]]).bool()
    settled = torch.tensor([[1, 1, 1, 0, 0, 1, 1, 1, 1]]).bool()
    sure = torch.tensor([[math.nan, 0.5, 0.999, 0.05, *[math.nan] * 5]])
    html = showing.render_text(pipe, writing.Frame(1, tokens, settled, sure), known, 0)
    assert seen(html) == "Tom saw a · fox."
    assert re.findall(r'class="(.+?)"', html) == ["k", "p9", "p0 d", "o", "pn", "pn"]


def test_texts_are_escaped():
    assert "<b>" not in showing.render_error(ValueError("`prompt` is '<b>'"))


def test_a_story_is_judged_by_the_grammar(pipe, monkeypatch):
    monkeypatch.setattr(showing, "tells_stories", lambda pipe: True)
    valid, likelihood = showing.judge(pipe, STORY, 45.678)
    assert valid == "✓ A story of the language."
    assert "45.68 nats" in likelihood and f"the truth is {-StoryGrammar().log_prob(STORY):.2f}." in likelihood
    words = STORY.split()
    broken = " ".join([*words[:7], "zebra", *words[8:]])
    invalid, likelihood = showing.judge(pipe, broken, 99.0)
    assert invalid.startswith("✗ Not a story") and words[6] in invalid and "comes “zebra”" in invalid
    assert "cannot be" in likelihood
    assert "it ends" in showing.judge(pipe, " ".join(words[:7]), None)[0]


def test_story_models_are_known_by_their_words(pipe):
    assert not models.tells_stories(pipe)


@pytest.mark.parametrize(
    "error, text",
    [
        (ValueError("no such clock"), "no such clock."),
        (OSError("\nIt is gone.\nTraceback"), "It is gone."),
        (RuntimeError("shapes"), "This went wrong (RuntimeError): shapes."),
    ],
)
def test_errors_are_sentences(error, text):
    assert showing.sentence(error) == text


def test_what_is_refused_ends_the_stream_with_the_reason(pipe):
    with pytest.raises(ValueError, match="has 2 gaps"):
        list(stream.stream(pipe, writing.Request("JumpScheduler", "[GAP] saw [GAP]")))
    with pytest.raises(ValueError, match="The clock is 'sundial'"):
        list(stream.stream(pipe, writing.Request("MarkovChainScheduler", clock="sundial", steps=2, temperature=0.0)))
    with pytest.raises(ValueError, match="Choose a model"):
        models.load(" ")


def test_unknown_words_are_noted(pipe):
    result = writing.write(pipe, writing.Request("JumpScheduler", "Tom saw Zebulon"))
    assert any("'Zebulon'" in note for note in result.notes)
    assert "Zebulon" in seen(showing.render_result(pipe, result))


def test_a_closed_stream_ends_the_writing(pipe, monkeypatch):
    ended = []

    def slow_write(pipe, request, show):
        try:
            while True:
                show(
                    writing.Frame(1, torch.zeros(1, 9).long(), torch.ones(1, 9).bool(), torch.ones(1, 9)),
                    torch.ones(1, 9),
                )
                time.sleep(0.01)
        except writing.Stopped:
            ended.append(True)
            raise

    monkeypatch.setattr(stream, "write", slow_write)
    shown = stream.stream(pipe, writing.Request("JumpScheduler"))
    assert "writing" in next(shown) and "call 1" in next(shown)
    shown.close()
    for _ in range(200):
        if ended:
            break
        time.sleep(0.01)
    assert ended


# ---- In a browser ---------------------------------------------------------------------------------------------------


def browser_path() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None)


@pytest.fixture(scope="module")
def address():
    pytest.importorskip("gradio", reason="the page needs gradio: make test-page installs it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, SCRIPT, "--port", port, "--checkpoints", ROOT / "checkpoints"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    server = subprocess.Popen(list(map(str, command)), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1200):
            assert server.poll() is None, server.stdout.read().decode()
            try:
                urllib.request.urlopen(url, timeout=10).read()
                break
            except OSError:
                time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait(600)


@pytest.fixture(scope="module")
def browser():
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright: make test-page installs it")
    path = browser_path()
    if path is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=[(1200, 850), (390, 844)], ids=["desktop", "phone"])
def page(request, browser, address):
    """The page, loaded, and every address that it asked for."""
    context = browser.new_context(viewport=dict(zip(("width", "height"), request.param)))
    page = context.new_page()
    page.set_default_timeout(600_000)
    page.asked = []
    page.on("request", lambda asked: page.asked.append(asked.url))
    page.goto(address)
    page.wait_for_selector("#write")
    # The examples come with a model that tells stories, once it is loaded.
    page.get_by_text("For example").wait_for()
    yield page
    context.close()


def press(page, button: str = "#write") -> str:
    """Press a button, wait for the text, return what is read of it."""
    page.evaluate("() => document.querySelector('#result').insertAdjacentHTML('beforeend', '<i id=old></i>')")
    page.evaluate("() => document.querySelectorAll('#result .play').forEach(one => one.remove())")
    page.click(button)
    page.wait_for_selector("#result .play, #result .error")
    return page.inner_text("#result .text .frame.on") if page.query_selector("#result .play") else ""


def keep(page, name: str) -> None:
    """Keep a screenshot in the folder that PAGE_SCREENSHOTS names."""
    if os.environ.get("PAGE_SCREENSHOTS"):
        folder = Path(os.environ["PAGE_SCREENSHOTS"])
        folder.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=folder / f"{name}-{page.viewport_size['width']}.png", full_page=True)


def keep_film(page, name: str) -> None:
    """Keep a film of the text in the making beside the screenshots."""
    if not os.environ.get("PAGE_SCREENSHOTS"):
        return
    frames = []
    for call in range(int(page.get_attribute("#result .at", "max")) + 1):
        page.fill("#result .at", str(call))
        frames.append(Image.open(BytesIO(page.screenshot())).convert("RGB"))
    # The colours of the last one, which has all of them, and no dots between: dots make a film large.
    palette = frames[-1].quantize(64)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    path = Path(os.environ["PAGE_SCREENSHOTS"]) / f"{name}-{page.viewport_size['width']}.gif"
    times = [700] * (len(frames) - 1) + [4000]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True)


@pytest.mark.page
def test_a_story_is_written_replayed_and_judged(page):
    story = press(page)
    keep(page, "story")
    assert len(story.split()) > 20
    assert 0 <= page.locator("#result .text").bounding_box()["y"] < 0.5 * page.viewport_size["height"]
    said = page.inner_text("#result .text ul")
    departure = StoryGrammar().explain(story)
    assert ("✓ A story of the language." in said) == (departure is None)
    assert "nats by the clean stream" in said
    last = int(page.get_attribute("#result .at", "max"))
    page.select_option("#result .speed", "12")
    page.click("#result .play")
    page.wait_for_function(f"() => document.querySelector('#result .at').value < {last}")
    page.wait_for_function(f"() => document.querySelector('#result .at').value == {last}")
    assert page.inner_text("#result .text .frame.on") == story
    page.fill("#result .at", "0")
    assert page.inner_text("#result output") == "call 1" and page.inner_text("#result .text .frame.on") != story
    assert press(page, "#another") != story
    # It is as wide as the screen, and asks nobody else.
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    others = [url for url in page.asked if not url.startswith(("http://127.0.0.1", "data:", "blob:"))]
    assert not others


@pytest.mark.page
def test_what_is_typed_is_in_the_text(page):
    page.fill("#prompt textarea", "One windy Friday, Leo")
    assert press(page).startswith("One windy Friday, Leo ")
    keep(page, "continued")
    keep_film(page, "continued")
    assert page.locator("#result .frame.on .k").all_inner_texts() == ["One", "windy", "Friday", ",", "Leo"]
    page.fill("#prompt textarea", STORY)
    word = STORY.split()[2]
    page.evaluate(
        """word => { const area = document.querySelector('#prompt textarea'), at = area.value.indexOf(word);
        area.setSelectionRange(at, at + word.length); }""",
        word.strip(","),
    )
    page.get_by_role("button", name="Selection → [MASK]").click()
    marked = page.input_value("#prompt textarea")
    assert marked == STORY.replace(word.strip(","), "[MASK]", 1)
    filled = press(page)
    keep(page, "filled")
    before, after = marked.split("[MASK]")
    assert filled.startswith(before) and filled.endswith(after)


@pytest.mark.page
def test_an_error_is_a_sentence_on_the_page(page):
    page.fill("#prompt textarea", "One [GAP] and [GAP]")
    press(page)
    keep(page, "error")
    error = page.inner_text("#result .error")
    assert "has 2 gaps; one [GAP] can be filled at a time." in error and "Traceback" not in error
    page.fill("#model input", "no/such-model")
    page.press("#model input", "Enter")
    page.get_by_text("Could not fetch the repository 'no/such-model'").wait_for()


@pytest.mark.page
def test_a_condition_is_obeyed_and_the_scheduler_changed(page):
    page.click("#model input")
    page.get_by_role("option", name="nfdm-e2e").click()
    page.fill("#condition textarea, #condition input", "name[Blue Spice], eatType[pub], area[riverside]")
    text = press(page)
    keep(page, "condition")
    assert "Blue Spice" in text
    page.get_by_text("Sampling", exact=True).click()
    page.wait_for_selector("#guidance")
    assert not page.is_visible("#clock")
    page.click("#scheduler input")
    page.get_by_role("option", name="MarkovChainScheduler").click()
    page.wait_for_selector("#clock", state="visible")
    page.fill("#steps input[type=number]", "8")
    page.press("#steps input[type=number]", "Tab")
    assert press(page)
    keep(page, "latents")
    assert page.inner_text("#result .text ul").startswith("8 calls.")
