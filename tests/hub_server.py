"""A small Hugging Face Hub on loopback, from the standard library, for the real `huggingface_hub` client.

    with HubServer(token="hf_test") as hub:
        subprocess.run([sys.executable, "push.py"], env=hub.env(tmp_path / "home"), check=True)
        assert "config.json" in hub.repos["user/model"].files()

The client reads its endpoint and token when it is imported: it runs in a subprocess with `hub.env(...)`, or
through `hub.run(code, home)`. Every file travels inside the commit (upload mode "regular"), so LFS, Xet and pull
requests are refused rather than imitated.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


API_PATH = re.compile(r"/api/(models|datasets)/([^/]+(?:/[^/]+)?)(?:/([a-z-]+)(?:/([^/]+)(?:/(.+))?)?)?")
RESOLVE_PATH = re.compile(r"/(?:(datasets)/)?([^/]+(?:/[^/]+)?)/resolve/([^/]+)/(.+)")
CARD_HEADER = re.compile(r"\s*---\r?\n(.*?)\r?\n---(?:\r?\n|$)", re.DOTALL)
DROPPED_VARIABLES = ("HF_", "HUGGING", "TRANSFORMERS_", "DIFFUSERS_")


def git_oid(data):
    """The id git gives to a file's content: what the Hub uses as its ETag."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def card_metadata(text):
    """`(metadata, errors)` of a README: top-level strings and lists of its YAML header, or None without a header."""
    header = CARD_HEADER.match(text)
    if header is None:
        return None, []
    data, errors, key = {}, [], None
    for number, line in enumerate(header[1].splitlines(), 2):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if pair := re.fullmatch(r"([\w.-]+):(?:\s+(.*))?", line):
            key, value = pair[1], (pair[2] or "").strip()
            if value[:1] not in ("'", '"', "[", "{") and ": " in value.partition(" #")[0]:
                errors.append(f"line {number}: mapping values are not allowed here")
            inline = [item.strip(" '\"") for item in value[1:-1].split(",")] if value[:1] == "[" else []
            data[key] = inline if value[:1] in ("", "[") else value.strip("'\"")
        elif (item := re.fullmatch(r"\s*-\s+(.*)", line)) and isinstance(data.get(key), list):
            data[key].append(item[1].strip("'\""))
        elif not line.startswith(" ") or key is None:
            errors.append(f"line {number}: can not read {line!r}")
    for key in ("license", "library_name", "pipeline_tag"):
        if not isinstance(data.get(key, ""), str):
            errors.append(f'"{key}" must be a string')
    data.pop("model-index", None)
    return data, errors


class HubError(Exception):
    """An answer other than 2xx; `code` is the X-Error-Code from which the client chooses its exception."""

    def __init__(self, status, message, code=None, **headers):
        super().__init__(message)
        self.status, self.body = status, {"error": message}
        self.headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **headers}


@dataclass
class Request:
    """One line of `hub.requests`; `path` is unquoted and keeps its query."""

    method: str
    path: str
    user_agent: str
    authenticated: bool
    range: str | None
    status: int | None = None


@dataclass
class Fault:
    """What `hub.fail`, `hub.cut` and their like plan; `left` counts down to 0 as requests meet it."""

    left: int
    match: str
    status: int | None = None
    headers: dict = field(default_factory=dict)
    after_bytes: int | None = None
    reset: bool = False
    body: bytes | None = None
    flip: float | None = None
    delay: float = 0.0


@dataclass(frozen=True)
class Commit:
    sha: str
    parent: str | None
    message: str
    files: dict


@dataclass
class Repo:
    """A repository: every commit holds its whole `{path: bytes}`."""

    id: str
    type: str = "model"
    private: bool = False
    commits: dict = field(default_factory=dict)
    branches: dict = field(default_factory=dict)

    @property
    def url_path(self):
        return self.id if self.type == "model" else f"{self.type}s/{self.id}"

    def at(self, revision="main"):
        """The commit that a branch or a sha names."""
        sha = self.branches.get(revision, revision)
        if sha not in self.commits:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[sha]

    def files(self, revision="main"):
        return self.at(revision).files

    def log(self, revision="main"):
        """The commits of a revision, newest first."""
        commits = [self.at(revision)]
        while commits[-1].parent:
            commits.append(self.commits[commits[-1].parent])
        return commits

    def commit(self, files, message, branch="main"):
        parent = self.branches.get(branch)
        content = [
            self.url_path,
            parent,
            len(self.commits),
            message,
            sorted((p, git_oid(d)) for p, d in files.items()),
        ]
        sha = hashlib.sha1(json.dumps(content).encode()).hexdigest()
        self.commits[sha] = Commit(sha, parent, message, files)
        self.branches[branch] = sha
        return self.commits[sha]


class HubServer:
    """The Hub: `start`/`stop` or a `with` block, which ends with an error if the server itself had a bug."""

    def __init__(self, token="hf_test", user="user"):
        self.token, self.user = token, user
        self.repos, self.requests, self.faults, self.errors = {}, [], [], []
        self.lock = threading.RLock()
        self.endpoint = self._server = None

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, *_):
        self.stop()
        if self.errors and kind is None:
            raise AssertionError("the test Hub failed:\n" + "\n".join(self.errors))

    def start(self):
        self._server = _Server(self)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        # The interval bounds how long stop() waits for this loop.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def stop(self):
        """Close every connection and join every thread; calling it again does nothing."""
        if self._server is not None:
            self._server.stop()
            self._thread.join()
            self._server = None

    def env(self, home, anonymous=False, **extra):
        """A whole environment for a subprocess: the caller's, without its Hugging Face and proxy variables."""
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(DROPPED_VARIABLES) and not name.lower().endswith("_proxy")
        }
        env.update(HF_ENDPOINT=self.endpoint, HF_HOME=str(home), NO_PROXY="127.0.0.1,localhost")
        env.update(no_proxy=env["NO_PROXY"], HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1")
        env.update(HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_UPDATE_CHECK="1")
        return {**env, **({} if anonymous else {"HF_TOKEN": self.token}), **extra}

    def run(self, code, home, anonymous=False, timeout=600, **extra):
        """Run Python `code` as a client and return its stdout; a failure shows the client's stderr."""
        command, env = [sys.executable, "-c", code], self.env(home, anonymous, **extra)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)
        if done.returncode:
            raise AssertionError(f"the client ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def add(self, repo_id, files, message="Add files", branch="main", **attributes):
        """Commit `{path: bytes}` without a client, creating repository and branch if needed; returns the sha."""
        with self.lock:
            repo = self._create(Repo(repo_id, **attributes))[0]
            repo.branches.setdefault(branch, repo.branches["main"])
            return repo.commit({**repo.files(branch), **files}, message, branch).sha

    def fail(self, times=1, status=500, match="", **headers):
        """Answer `status` to the next `times` requests whose "METHOD /path?query" contains `match`, or all of its
        parts between asterisks."""
        return self._plan(Fault(times, match, status, {k.replace("_", "-"): v for k, v in headers.items()}))

    def cut(self, times=1, match="", after_bytes=1000, reset=False):
        """Send `after_bytes` of the body and close the connection; with `reset`, by a TCP reset instead of an end."""
        return self._plan(Fault(times, match, after_bytes=after_bytes, reset=reset))

    def garble(self, times=1, match="", body=b"<html>Bad gateway</html>"):
        """Answer 200 with a body that is not what was asked for."""
        return self._plan(Fault(times, match, body=body))

    def flip(self, times=1, match="", place=0.5):
        """Change a bit of the body's byte at this share of its length."""
        return self._plan(Fault(times, match, flip=place))

    def stall(self, times=1, match="", seconds=1.0):
        """Answer as always, after this time."""
        return self._plan(Fault(times, match, delay=seconds))

    def _plan(self, fault):
        with self.lock:
            self.faults.append(fault)
        return fault

    def _fault(self, method, path):
        """The first planned fault that this request meets; a response without a body can not be cut."""
        with self.lock:
            for fault in self.faults:
                cuttable = fault.status is not None or method != "HEAD"
                parts = fault.match.split("*")
                if fault.left > 0 and cuttable and all(part in f"{method} {path}" for part in parts):
                    fault.left -= 1
                    return fault

    def _create(self, repo):
        known = self.repos.get(repo.url_path)
        if known is None:
            repo.commit({".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"}, "initial commit")
            self.repos[repo.url_path] = repo
        return known or repo, known is None

    def answer(self, method, url, headers, body):
        """`(status, headers, body)` of a request; `body` is JSON unless it is bytes. Raises HubError."""
        authorization = headers.get("Authorization")
        signed_in = authorization == f"Bearer {self.token}"
        if authorization and not signed_in:
            raise HubError(401, "Invalid credentials in Authorization header")
        path, query = url.path, parse_qs(url.query)
        if method in ("GET", "HEAD") and (found := RESOLVE_PATH.fullmatch(path)):
            kind, repo_id, revision, name = found.groups()
            return self._resolve(self._repo(kind, repo_id, signed_in), unquote(revision), unquote(name), headers)
        if path == "/api/validate-yaml":
            return self._validate(json.loads(body)["content"])
        if not signed_in and (method not in ("GET", "HEAD") or path == "/api/whoami-v2"):
            raise HubError(401, "Invalid username or password.")
        if path == "/api/whoami-v2":
            auth = {"type": "access_token", "accessToken": {"displayName": "test", "role": "write"}}
            return 200, {}, {"type": "user", "id": "0", "name": self.user, "orgs": [], "auth": auth}
        if path == "/api/repos/create":
            return self._create_repo(json.loads(body))
        found = API_PATH.fullmatch(path)
        if found is None:
            raise HubError(404, f"The test Hub has no {method} {path}")
        repo = self._repo(found[1], found[2], signed_in)
        revision, rest = unquote(found[4] or "main"), unquote(found[5] or "")
        action = getattr(self, f"_{method}_{found[3] or 'revision'}".lower().replace("-", "_"), None)
        if action is None:
            raise HubError(405, f"The test Hub has no {method} {path}")
        return 200, {}, action(repo, revision, rest=rest, query=query, body=body)

    def _repo(self, kind, repo_id, signed_in):
        repo = self.repos.get(f"datasets/{repo_id}" if kind == "datasets" else repo_id)
        if repo is None or repo.private and not signed_in:
            # The Hub does not tell strangers whether a private repository exists.
            raise HubError(404 if signed_in else 401, "Repository not found", "RepoNotFound")
        return repo

    def _create_repo(self, options):
        private = options.get("visibility") == "private" or bool(options.get("private"))
        repo_id = f"{options.get('organization') or self.user}/{options['name']}"
        repo = Repo(repo_id, options.get("type") or "model", private)
        url = {"url": f"{self.endpoint}/{repo.url_path}", "name": repo_id}
        created = self._create(repo)[1]
        return (200, {}, url) if created else (409, {}, {**url, "error": "You already created this repo"})

    def _validate(self, content):
        metadata, errors = card_metadata(content)
        warnings = [] if metadata else [{"message": "empty or missing yaml metadata in repo card"}]
        return 400 if errors else 200, {}, {"errors": [{"message": e} for e in errors], "warnings": warnings}

    def _resolve(self, repo, revision, name, headers):
        commit = repo.at(revision)
        known = {"X-Repo-Commit": commit.sha}
        if name not in commit.files:
            raise HubError(404, "Entry not found", "EntryNotFound", **known)
        data = commit.files[name]
        known.update({"ETag": f'"{git_oid(data)}"', "Accept-Ranges": "bytes"})
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("Range") or "")
        if wanted is None:
            return 200, known, data
        first, last = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
        if first > last:
            raise HubError(416, "Range not satisfiable", **{"Content-Range": f"bytes */{len(data)}"})
        return 206, {**known, "Content-Range": f"bytes {first}-{last}/{len(data)}"}, data[first : last + 1]

    def _get_revision(self, repo, revision, query, **_):
        commit = repo.at(revision)
        card = card_metadata(commit.files.get("README.md", b"").decode())[0] or {}
        siblings = [
            {"rfilename": path, **({"size": len(data), "blobId": git_oid(data)} if "blobs" in query else {})}
            for path, data in sorted(commit.files.items())
        ]
        info = {"id": repo.id, "author": repo.id.split("/")[0], "sha": commit.sha, "private": repo.private}
        info.update(gated=False, disabled=False, siblings=siblings, cardData=card, tags=card.get("tags", []))
        return {**info, **{key: card[key] for key in ("library_name", "pipeline_tag") if key in card}}

    def _get_tree(self, repo, revision, rest, query, **_):
        files, prefix = repo.files(revision), f"{rest}/" if rest else ""
        inside = [path[len(prefix) :].split("/") for path in sorted(files) if path.startswith(prefix)]
        if not inside:
            raise HubError(404, f"{rest} does not exist on {revision}", "EntryNotFound")
        deep = query.get("recursive", ["false"])[0].lower() in ("true", "1")
        paths = {prefix + "/".join(parts[:n]) for parts in inside for n in range(1, len(parts) + 1 if deep else 2)}
        return [self._entry(files, path) for path in sorted(paths)]

    def _entry(self, files, path):
        if path not in files:
            return {"type": "directory", "oid": git_oid(path.encode()), "size": 0, "path": path}
        return {"type": "file", "oid": git_oid(files[path]), "size": len(files[path]), "path": path}

    def _post_branch(self, repo, branch, body, **_):
        if branch in repo.branches:
            raise HubError(409, f"Reference already exists: {branch}")
        repo.branches[branch] = repo.at(json.loads(body or b"{}").get("startingPoint", "main")).sha

    def _post_preupload(self, repo, branch, body, **_):
        files = repo.files(branch)
        asked = [item["path"] for item in json.loads(body)["files"]]
        same = {"uploadMode": "regular", "shouldIgnore": False}
        return {"files": [{"path": p, **same, **({"oid": git_oid(files[p])} if p in files else {})} for p in asked]}

    def _post_commit(self, repo, branch, query, body, **_):
        if "create_pr" in query:
            raise HubError(400, "The test Hub has no pull requests")
        if branch not in repo.branches:
            raise HubError(404, f"Invalid rev id: {branch}", "RevisionNotFound")
        files, message = dict(repo.files(branch)), ""
        for key, value in ((item["key"], item["value"]) for item in map(json.loads, body.splitlines())):
            if key == "header":
                message = f"{value['summary']}\n\n{value.get('description', '')}".rstrip()
                if value.get("parentCommit", repo.branches[branch]) != repo.branches[branch]:
                    raise HubError(412, "A commit has happened since. Please refresh and try again.")
            elif key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key in ("deletedFile", "deletedFolder"):
                gone = [p for p in files if p == value["path"] or p.startswith(value["path"].rstrip("/") + "/")]
                if not gone:
                    raise HubError(404, "A file with this name doesn't exist", "EntryNotFound")
                for path in gone:
                    del files[path]
            else:
                raise HubError(400, f"The test Hub has no commit operation {key}")
        sha = repo.commit(files, message, branch).sha
        return {"success": True, "commitOid": sha, "commitUrl": f"{self.endpoint}/{repo.url_path}/commit/{sha}"}


class _Server(ThreadingHTTPServer):
    request_queue_size = 64

    def __init__(self, hub):
        self.hub, self.open = hub, {}
        super().__init__(("127.0.0.1", 0), _Handler)

    def server_bind(self):
        # HTTPServer.server_bind asks the name service for this host's name, which can block without a network.
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request, client_address):
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        with self.hub.lock:
            self.open[thread] = request
        thread.start()

    def process_request_thread(self, request, client_address):
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self.hub.lock:
                del self.open[threading.current_thread()]

    def stop(self):
        self.shutdown()
        with self.hub.lock:
            still_open = dict(self.open)
        for thread, connection in still_open.items():
            # A client that keeps its connection alive would keep the thread reading.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join()
        self.server_close()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):
            self.hub.errors.append(traceback.format_exc())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def handle_request(self):
        hub, url = self.server.hub, urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if url.path == "/api/agent-harnesses":
            # The client's own telemetry, once per HF_HOME and before its first call: it would use up planned faults.
            return self.send(200, {}, {"standardEnvVars": [], "harnesses": {}})
        shown = unquote(url.path) + (f"?{url.query}" if url.query else "")
        agent, signed = self.headers.get("User-Agent", ""), "Authorization" in self.headers
        request = Request(self.command, shown, agent, signed, self.headers.get("Range"))
        hub.requests.append(request)
        fault = hub._fault(self.command, shown)
        try:
            if fault is not None and fault.status is not None:
                raise HubError(fault.status, "planned by the test", **fault.headers)
            if fault is not None and fault.body is not None:
                request.status = 200
                return self.send(200, {}, fault.body)
            with hub.lock:
                status, headers, answer = hub.answer(self.command, url, self.headers, body)
        except HubError as error:
            status, headers, answer = error.status, error.headers, error.body
        except Exception:
            hub.errors.append(traceback.format_exc())
            status, headers, answer = 500, {}, {"error": "a bug of the test Hub"}
        request.status = status
        if fault is not None:
            time.sleep(fault.delay)
        self.send(status, headers, answer, fault)

    def send(self, status, headers, answer, fault=None):
        if not isinstance(answer, bytes):
            answer, headers = json.dumps(answer).encode(), {**headers, "Content-Type": "application/json"}
        if fault and fault.flip is not None and answer:
            answer = bytearray(answer)
            answer[int(fault.flip * (len(answer) - 1))] ^= 1
        self.send_response(status)
        for name, value in {**headers, "Content-Length": len(answer)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer[: fault.after_bytes] if fault else answer)
        self.close_connection |= bool(fault and fault.after_bytes is not None)
        if fault and fault.reset:
            # Closing at once with no linger time sends RST; rfile also holds the socket, so it goes first.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.rfile.close()
            self.connection.close()

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_request
