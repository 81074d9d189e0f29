"""The real `huggingface_hub` client, in subprocesses, against the loopback Hub of `hub_server.py`."""

import http.client
import json
import os
import threading
from pathlib import Path

import pytest
from hub_server import HubServer, card_metadata


README = b"---\nlicense: mit\nlibrary_name: diffusers\ntags:\n- text-generation\n- nfdm\n---\n# Model\n"
# What a client script needs: `report` prints one JSON value, `attempt` also names the exception and its cause.
PRELUDE = """
import json, os, pathlib, sys
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
api = HfApi()
report = lambda value: print(json.dumps(value))
def attempt(call, *args, **kwargs):
    try:
        return ["ok", call(*args, **kwargs)]
    except Exception as error:
        return [type(error).__name__, type(error.__cause__).__name__]
"""


@pytest.fixture
def hub():
    with HubServer() as server:
        yield server


def client(hub, home, code, **options):
    """Run `code` after the prelude; returns the JSON values it reported."""
    return [json.loads(line) for line in hub.run(PRELUDE + code, home, **options).splitlines()]


def asked(hub, match):
    """`(method, status, range)` of the logged requests whose path contains `match`."""
    return [(r.method, r.status, r.range) for r in hub.requests if match in r.path]


def test_push_and_download_round_trip(hub, tmp_path):
    weights = os.urandom(3_000_000)
    source = tmp_path / "source"
    (source / "unet dir").mkdir(parents=True)
    (source / "README.md").write_bytes(README)
    (source / "model.safetensors").write_bytes(weights)
    (source / "unet dir" / "config.json").write_bytes(b"{}")
    code = f"""
report(api.repo_exists("user/model"))
url = api.create_repo("model")
report([url.repo_id, api.create_repo("user/model", exist_ok=True).repo_id, attempt(api.create_repo, "model")[0]])
report(api.upload_folder(repo_id="user/model", folder_path={str(source)!r}, commit_message="First").oid)
report(api.upload_folder(repo_id="user/model", folder_path={str(source)!r}).oid)
info = api.model_info("user/model", files_metadata=True)
report([info.sha, info.library_name, info.tags, {{s.rfilename: s.size for s in info.siblings}}])
report(sorted(api.list_repo_files("user/model")))
report([api.repo_exists("user/model"), api.file_exists("user/model", "no.json"), api.whoami()["name"]])
report(snapshot_download("user/model"))
"""
    before, created, first, again, info, listed, known, folder = client(hub, tmp_path / "home", code)
    files = {path.relative_to(source).as_posix(): path.read_bytes() for path in source.rglob("*") if path.is_file()}
    repo = hub.repos["user/model"]
    stored = {".gitattributes": repo.files()[".gitattributes"], **files}
    assert before is False and created == ["user/model", "user/model", "HfHubHTTPError"]
    assert first == again == repo.branches["main"], "an upload that changes nothing must not make a commit"
    assert [commit.message for commit in repo.log()] == ["First", "initial commit"]
    assert repo.files() == stored
    assert info == [first, "diffusers", ["text-generation", "nfdm"], {name: len(d) for name, d in stored.items()}]
    assert listed == sorted(stored) and known == [True, False, "user"]
    assert {name: Path(folder, name).read_bytes() for name in stored} == stored
    assert all(r.user_agent and r.authenticated for r in hub.requests)


def test_private_repository_is_hidden_without_the_token(hub, tmp_path):
    read = """
report([attempt(call)[0] for call in (
    lambda: api.model_info("user/secret").id,
    lambda: snapshot_download("user/secret"),
    lambda: hf_hub_download("user/secret", "a.txt"),
)])
"""
    write = """
report(attempt(lambda: api.upload_file(path_or_fileobj=b"y", path_in_repo="a.txt", repo_id="user/secret").oid)[0])
"""
    create = 'api.create_repo("user/secret", private=True)\n'
    assert client(hub, tmp_path / "owner", create + write + read) == ["ok", ["ok"] * 3]
    hub.add("user/open", {"a.txt": b"x"})
    stranger = client(hub, tmp_path / "stranger", read + write + write.replace("secret", "open"), anonymous=True)
    assert stranger == [["RepositoryNotFoundError"] * 3, "HfHubHTTPError", "HfHubHTTPError"]
    assert client(hub, tmp_path / "wrong", read, HF_TOKEN="hf_wrong") == [["HfHubHTTPError"] * 3]
    assert hub.repos["user/secret"].private and hub.repos["user/open"].files()["a.txt"] == b"x"


def test_revisions_keep_their_content(hub, tmp_path):
    code = """
api.create_repo("user/model")
put = lambda text, **kw: api.upload_file(
    path_or_fileobj=text.encode(), path_in_repo="a/b.txt", repo_id="user/model", **kw).oid
first = put("one")
api.create_branch("user/model", branch="old/er")
second = put("two")
third = put("three", revision="old/er")
report([first, second, third])
read = lambda revision: pathlib.Path(hf_hub_download("user/model", "a/b.txt", revision=revision)).read_text()
report([read(revision) for revision in (first, second, "main", "old/er", None)])
report((pathlib.Path(snapshot_download("user/model", revision=first)) / "a/b.txt").read_text())
report([attempt(read, "missing")[0], attempt(hf_hub_download, "user/model", "c.txt")[0]])
api.delete_file("a/b.txt", "user/model")
report(api.list_repo_files("user/model"))
"""
    shas, read, snapshot, missing, left = client(hub, tmp_path, code)
    assert len(set(shas)) == 3 and all(len(sha) == 40 for sha in shas)
    assert read == ["one", "two", "two", "three", "two"] and snapshot == "one"
    assert missing == ["RevisionNotFoundError", "RemoteEntryNotFoundError"]
    assert left == [".gitattributes"]
    repo = hub.repos["user/model"]
    assert [repo.files(sha)["a/b.txt"] for sha in shas] == [b"one", b"two", b"three"]


def test_dataset_repository_has_its_own_names(hub, tmp_path):
    hub.add("user/data", {"train.txt": b"a\n"}, type="dataset")
    code = """
report(pathlib.Path(hf_hub_download("user/data", "train.txt", repo_type="dataset")).read_text())
report([api.repo_exists("user/data"), api.repo_exists("user/data", repo_type="dataset")])
api.upload_file(path_or_fileobj=b"b", path_in_repo="test.txt", repo_id="user/data", repo_type="dataset")
"""
    assert client(hub, tmp_path, code) == ["a\n", [False, True]]
    assert list(hub.repos) == ["datasets/user/data"] and hub.repos["datasets/user/data"].files()["test.txt"] == b"b"


def test_metadata_of_a_readme_is_checked(hub, tmp_path):
    hub.add("user/model", {})
    code = """
put = lambda text: api.upload_file(path_or_fileobj=text, path_in_repo="README.md", repo_id="user/model").oid
report([attempt(put, text)[0] for text in (b"---\\nlicense: a: b\\n---\\n", b"---\\nlicense: mit\\n---\\n")])
"""
    assert client(hub, tmp_path, code) == [["ValueError", "ok"]]
    assert hub.repos["user/model"].files()["README.md"] == b"---\nlicense: mit\n---\n"


@pytest.mark.parametrize(
    "text, metadata, errors",
    [
        (README.decode(), {"license": "mit", "library_name": "diffusers", "tags": ["text-generation", "nfdm"]}, 0),
        ("# No header\n", None, 0),
        ("---\ntags: [a, 'b']\nmodel-index:\n- name: x\n  results: []\n---\n", {"tags": ["a", "b"]}, 0),
        ("---\nlicense:\n- mit\n---\n", {"license": ["mit"]}, 1),
        ("---\nno colon here\n---\n", {}, 1),
    ],
)
def test_card_metadata(text, metadata, errors):
    found = card_metadata(text)
    assert (found[0], len(found[1])) == (metadata, errors)


def test_server_errors_on_downloads(hub, tmp_path):
    """The client retries a 500 on HEAD by itself but not on GET of the file, where a second call succeeds."""
    hub.add("user/model", {"a.bin": b"12345"})
    on_head = hub.fail(match="HEAD /user/model/resolve")
    on_get = hub.fail(match="GET /user/model/resolve")
    code = """
report([attempt(hf_hub_download, "user/model", "a.bin") for _ in range(2)])
"""
    ((first, second),) = client(hub, tmp_path, code)
    assert first == ["HfHubHTTPError", "HTTPStatusError"] and second[0] == "ok"
    assert Path(second[1]).read_bytes() == b"12345"
    head, get = ("HEAD", 200, None), ("GET", 200, None)
    assert asked(hub, "resolve") == [("HEAD", 500, None), head, ("GET", 500, None), head, get]
    assert on_head.left == on_get.left == 0


def test_server_errors_on_api_calls(hub, tmp_path):
    """A 500 on the commit or on the repository's description comes out at once, one on preupload is retried."""
    hub.add("user/model", {"a.bin": b"12345"})
    hub.fail(match="POST /api/models/user/model/commit")
    hub.fail(match="preupload")
    hub.fail(match="/revision/main")
    hub.fail(match="GET /api/models/user/model", status=403, X_Error_Code="GatedRepo")
    code = """
put = lambda: api.upload_file(path_or_fileobj=b"x", path_in_repo="b.bin", repo_id="user/model").oid
report([attempt(put)[0], attempt(put)[0]])
report([attempt(snapshot_download, "user/model") for _ in range(2)])
report(attempt(snapshot_download, "user/model")[0])
"""
    puts, snapshots, last = client(hub, tmp_path, code)
    assert puts == ["HfHubHTTPError", "ok"]
    assert [status for _, status, _ in asked(hub, "preupload")] == [500, 200, 200]
    assert snapshots == [["LocalEntryNotFoundError", "HfHubHTTPError"], ["GatedRepoError", "HTTPStatusError"]]
    assert last == "ok" and hub.repos["user/model"].files()["b.bin"] == b"x"


def test_reset_download_fails_and_the_next_gives_the_whole_file(hub, tmp_path):
    weights = os.urandom(200_000)
    hub.add("user/model", {"model.safetensors": weights, "config.json": b"{}"})
    fault = hub.cut(match="model.safetensors", reset=True)
    code = """
report(attempt(snapshot_download, "user/model"))
cache = pathlib.Path(os.environ["HF_HOME"], "hub")
report([path.name for path in cache.rglob("model.safetensors")] + [path.name for path in cache.rglob("*.incomplete")])
report(attempt(snapshot_download, "user/model"))
"""
    first, partial, (second, folder) = client(hub, tmp_path, code)
    assert first == ["ReadError", "ReadError"] and partial == [] and fault.left == 0
    assert second == "ok" and Path(folder, "model.safetensors").read_bytes() == weights


def test_cut_download_is_resumed_by_the_client(hub, tmp_path):
    """The client reads by 10 MiB and resumes after the last whole piece."""
    piece = 10 * 1024 * 1024
    weights = os.urandom(piece + 1_000_000)
    hub.add("user/model", {"model.safetensors": weights})
    hub.cut(match="model.safetensors", after_bytes=piece + 1000)
    ((outcome, path),) = client(hub, tmp_path, 'report(attempt(hf_hub_download, "user/model", "model.safetensors"))')
    assert outcome == "ok" and Path(path).read_bytes() == weights
    assert asked(hub, "resolve")[1:] == [("GET", 200, None), ("GET", 206, f"bytes={piece}-")]


def test_offline_from_the_cache_after_the_server_stopped(hub, tmp_path):
    hub.add("user/model", {"a.bin": b"12345", "sub/b.json": b"{}"})
    code = """
report([attempt(snapshot_download, "user/model"), attempt(hf_hub_download, "user/model", "sub/b.json")])
report(attempt(hf_hub_download, "user/model", "other.bin")[0])
"""
    online = client(hub, tmp_path / "home", code)
    hub.stop()
    offline = client(hub, tmp_path / "home", code, HF_HUB_OFFLINE="1")
    assert [name for name, _ in offline[0]] == ["ok", "ok"] and offline[0] == online[0]
    assert Path(offline[0][1][1]).read_bytes() == b"{}"
    assert (online[1], offline[1]) == ("RemoteEntryNotFoundError", "LocalEntryNotFoundError")
    assert client(hub, tmp_path / "empty", code, HF_HUB_OFFLINE="1")[0][0][0] == "LocalEntryNotFoundError"


def test_ranges_and_headers():
    with HubServer() as hub:
        sha = hub.add("user/model", {"a.bin": bytes(range(100))})
        connection = http.client.HTTPConnection(hub.endpoint.removeprefix("http://"))

        def get(headers, method="GET"):
            connection.request(method, "/user/model/resolve/main/a.bin", headers=headers)
            response = connection.getresponse()
            return response.status, response.headers, response.read()

        status, headers, body = get({}, "HEAD")
        assert (status, headers["X-Repo-Commit"], headers["Content-Length"], body) == (200, sha, "100", b"")
        assert get({})[1]["ETag"] == headers["ETag"] and get({})[2] == bytes(range(100))
        status, headers, body = get({"Range": "bytes=90-"})
        assert (status, headers["Content-Range"], body) == (206, "bytes 90-99/100", bytes(range(90, 100)))
        assert get({"Range": "bytes=3-5"})[2] == bytes([3, 4, 5])
        assert get({"Range": "bytes=100-"})[0] == 416
        connection.close()


def test_stopping_ends_threads_of_open_connections():
    before = set(threading.enumerate())
    with HubServer() as hub:
        connection = http.client.HTTPConnection(hub.endpoint.removeprefix("http://"))
        connection.request("GET", "/api/models/user/none")
        assert connection.getresponse().read() and set(threading.enumerate()) > before
    assert set(threading.enumerate()) == before
    connection.close()


def test_a_bug_of_the_server_fails_the_test():
    with pytest.raises(AssertionError, match="JSONDecodeError"):
        with HubServer() as hub:
            connection = http.client.HTTPConnection(hub.endpoint.removeprefix("http://"))
            connection.request("POST", "/api/validate-yaml", body=b"not json")
            assert connection.getresponse().status == 500
            connection.close()


def test_environment_drops_what_would_reach_another_hub(hub, tmp_path, monkeypatch):
    for name in ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "https_proxy", "HTTP_PROXY", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    env = hub.env(tmp_path, anonymous=True, EXTRA="1")
    assert not {"HF_HUB_OFFLINE", "HF_HUB_CACHE", "https_proxy", "HTTP_PROXY", "HUGGING_FACE_HUB_TOKEN"} & set(env)
    assert "HF_TOKEN" not in env and hub.env(tmp_path)["HF_TOKEN"] == "hf_test"
    assert env["EXTRA"] == "1" and env["PATH"] == os.environ["PATH"] and env["HF_ENDPOINT"] == hub.endpoint
    assert env["NO_PROXY"] == env["no_proxy"] == "127.0.0.1,localhost"
