"""An agent that does what its task's metadata "steps" says, in order:

{"ask": text}     one more turn of its conversation
{"wait": fifo}    reads a FIFO to its end
{"slot": [path]}  takes the first file that does not exist yet, waits for one if there is none;
                  gives it back when the agent exits
{"meet": [path]}  makes the first that does not exist, and waits for all
{"fail_once": path}  exits with 1 if the file does not exist, and makes it
{"exit": code}    exits
"""

import atexit
import os
import sys
import time
from pathlib import Path

from plain import METADATA, TASK, ask, user, write

conversation = []


def do_ask(text):
    conversation.extend(user(text))
    status, answer = ask(conversation)
    assert status == 200, answer
    conversation.append(answer["choices"][0]["message"])


def do_wait(fifo):
    Path(fifo).read_bytes()


def claim(path):
    try:
        Path(path).open("x").close()
    except FileExistsError:
        return False
    return True


def do_slot(paths):
    while True:
        for path in paths:
            if claim(path):
                atexit.register(os.unlink, path)
                return
        time.sleep(0.01)


def do_meet(paths):
    assert any(claim(path) for path in paths), "one too many"
    while not all(map(os.path.exists, paths)):
        time.sleep(0.01)


def do_fail_once(path):
    if claim(path):
        sys.exit(1)


def do_exit(code):
    sys.exit(code)


for step in METADATA.get("steps") or [{"ask": m["content"]} for m in TASK["messages"]]:
    for what, argument in step.items():
        globals()[f"do_{what}"](argument)
write(
    reward=METADATA.get("reward", 1.0),
    metadata={
        "mode": os.environ["RELAX_ROLLOUT_MODE"],
        "group": os.environ["RELAX_GROUP_ID"],
        "pid": os.getpid(),
    },
)
