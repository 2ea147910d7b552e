"""An agent without dependencies. What it does is the task's metadata "mode"."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

BASE = os.environ["RELAX_BASE_URL"].rstrip("/")
TASK = json.loads(Path(os.environ["RELAX_INPUT_JSON"]).read_text())
METADATA = TASK.get("metadata", {})


def ask(messages, session=None):
    """One model call; returns the HTTP status and the parsed answer."""
    body = json.dumps({"model": "model", "messages": messages}).encode()
    key = session or os.environ["RELAX_SESSION_ID"]
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{BASE}/v1/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as err:
        return err.code, err.read().decode()


def write(**output):
    Path(os.environ["RELAX_OUTPUT_JSON"]).write_text(json.dumps(output))


def user(text):
    return [{"role": "user", "content": text}]


def ok():
    messages = TASK.get("messages") or user("hello")
    for _ in range(METADATA.get("turns", 1)):
        status, answer = ask(messages)
        assert status == 200, answer
        messages = [*messages, answer["choices"][0]["message"], *user("go on")]
    write(reward=METADATA.get("reward", 1.0), metadata={"answered": METADATA.get("name", "")})


def team():
    """A main conversation and a searcher's, each exported under its name."""
    records = []
    for name, metadata in (
        ("main", {"outcome": METADATA["outcomes"][own_place()]}),
        ("searcher_0", {"usefulness": METADATA["usefulness"][own_place()]}),
    ):
        messages = user(f"{name}: hello")
        status, answer = ask(messages)
        assert status == 200, answer
        messages = [*messages, answer["choices"][0]["message"]]
        records.append({"name": name, "messages": messages, "metadata": metadata})
    records[0]["reward"] = METADATA["outcomes"][own_place()]
    text = "".join(json.dumps(record) + "\n" for record in records)
    Path(os.environ["RELAX_OUTPUT_JSON"]).write_text(text)


def own_place():
    """Which of the Group's Sessions this is: the first to make the file."""
    for place in range(len(METADATA["outcomes"])):
        claim = Path(METADATA["claims"]) / str(place)
        if claim.exists() and claim.read_text() == os.environ["RELAX_SESSION_ID"]:
            return place
        try:
            with claim.open("x") as file:
                file.write(os.environ["RELAX_SESSION_ID"])
            return place
        except FileExistsError:
            continue
    raise AssertionError("more sessions than outcomes")


def exit_one():
    ask(user("hello"))
    print("the agent lost its way", file=sys.stderr)
    sys.exit(1)


def edited():
    """Replays an answer it has changed, which begins another conversation."""
    _, answer = ask(user("hello"))
    message = {**answer["choices"][0]["message"], "content": "something else"}
    ask([*user("hello"), message, *user("go on")])
    write(reward=1.0)


def bad_output():
    ask(user("hello"))
    Path(os.environ["RELAX_OUTPUT_JSON"]).write_text("{not json")


def literal():
    """Writes an output file byte for byte."""
    ask(user("hello"))
    Path(os.environ["RELAX_OUTPUT_JSON"]).write_text(METADATA["output"])


def no_call():
    write(reward=1.0)


def hang():
    ask(user("hello"))
    time.sleep(3600)


def no_reward():
    ask(user("hello"))
    write(metadata={"answered": "no reward"})


def refused():
    """Requests that are refused must not cost the Session."""
    statuses = {
        "large": ask(user("x" * METADATA.get("size", 0))),
        "stranger": ask(user("hello"), session="nobody"),
    }
    status, answer = ask(user("hello"))
    assert status == 200, answer
    Path(METADATA["report"]).write_text(json.dumps(statuses))
    write(reward=1.0)


def family():
    """Leaves a child in the group and one that left it and ignores TERM; says their pids."""
    sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    near = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    far = subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True)
    pids = Path(METADATA["pids"])
    pids.with_suffix(".part").write_text(json.dumps([os.getpid(), near.pid, far.pid]))
    pids.with_suffix(".part").rename(pids)
    hang()


if __name__ == "__main__":
    globals()[METADATA.get("mode", "ok")]()
