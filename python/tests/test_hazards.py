"""What a trainer does to a library inside it. Each in a process of its own: a hang is a failure."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from conftest import TESTS, alive, check_script, eventually, run_script

PRELUDE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
import os, sys, gc, warnings
import relax_rollout as rr
from conftest import options, task
"""


@pytest.fixture
def trainer():
    """Starts scripts whose output is read while they run; kills what is left."""
    started = []

    def start(code, *args, **env):
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code, *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=TESTS,
            env={**os.environ, **env},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def read_line(process, seconds=60.0):
    assert select.select([process.stdout], [], [], seconds)[0], "no output: the process hangs"
    line = process.stdout.readline()
    assert line, f"ended early with {process.wait()}"
    return line.strip()


# ---- fork ---------------------------------------------------------------------------------------

FORK = """
def child(*checks):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for check in checks: check()
            code = 0
        except BaseException as err:
            print("child:", repr(err), flush=True)
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def refused(call):
    def check():
        try: call()
        except rr.ForkedError as err:
            assert "spawn" in str(err) and "forkserver" in str(err), err
        else: raise AssertionError("no ForkedError")
    return check
"""


def test_fork_is_refused_at_once_and_names_the_cure():
    check_script(
        PRELUDE
        + FORK
        + """
engine = rr.Engine(options())
batch = engine.rollout(0, [task()])
tokens = batch.numpy("tokens")
expected = tokens.tolist()
def reads():
    assert tokens.tolist() == expected and batch[0].tokens.tolist() == expected
    assert batch.numpy("loss_mask").sum() > 0
child(
    refused(engine.stats), refused(lambda: engine.poll(0)), refused(lambda: engine.submit(["x"])),
    refused(lambda: engine.rollout(1, ["x"])), refused(lambda: engine.reply(1, {})),
    refused(lambda: engine.set_weight_version(1)), refused(engine.pause), refused(engine.resume),
    refused(engine.fileno), refused(lambda: rr.Engine(options())), reads,
)
batch.close()
del tokens
gc.collect()
assert engine.stats()
engine.rollout(1, [task()])
engine.close()
""",
        timeout=60,
    )


def test_a_child_that_exits_the_long_way_is_well():
    """atexit, finalizers and batch releases run in the child."""
    check_script(
        PRELUDE
        + """
engine = rr.Engine(options())
batch = engine.rollout(0, [task()])
views = [batch.numpy("tokens"), batch.column("tokens").__dlpack__()]
pid = os.fork()
if pid == 0:
    views.clear()
    batch.close()
    gc.collect()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert views[0].sum() > 0
engine.rollout(1, [task()])
""",
        timeout=60,
    )


def test_a_fork_before_the_first_engine_is_fine():
    check_script(
        PRELUDE
        + FORK
        + """
def works():
    with rr.Engine(options()) as engine:
        assert len(engine.rollout(0, [task()])) == 1
child(works)
works()
""",
        timeout=60,
    )


def test_subprocesses_are_fine():
    check_script(
        PRELUDE
        + """
import subprocess
with rr.Engine(options()) as engine:
    for _ in range(5):
        assert subprocess.run(["echo", "hi"], capture_output=True).stdout == b"hi\\n"
    engine.rollout(0, [task()])
"""
    )


# ---- signals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["engine.poll()", "engine.rollout(0, [task('hang')])"])
def test_ctrl_c_ends_a_wait(trainer, call):
    script = f"""
engine = rr.Engine(options())
print("ready", flush=True)
try:
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    waits = []
    for _ in range(3):  # the best of three: a busy machine may be late, a deaf one always is
        process = trainer(script)
        assert read_line(process) == "ready"
        time.sleep(0.5)  # into the wait
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert read_line(process) == "interrupted"
        waits.append(time.monotonic() - sent)
        assert process.wait(60) == 0
        if waits[-1] < 1:
            break
    assert min(waits) < 1


def test_ctrl_c_at_any_moment_loses_no_event():
    """A step that is interrupted again and again delivers all its rows in the end."""
    out = check_script(
        PRELUDE
        + """
import itertools, signal, threading
calls = itertools.chain([task("exit_one")] * 2, itertools.repeat(task("no_reward")))
quiet = threading.Event()
def pester():
    while not quiet.wait(0.03): os.kill(os.getpid(), signal.SIGINT)
score = lambda sessions: [1.0] * len(sessions)
with rr.Engine(options(rollout_batch_size=16), score=score) as engine:
    interrupted, batch = 0, None
    threading.Thread(target=pester, daemon=True).start()
    while batch is None:
        try:
            batch = engine.rollout(0, calls)
        except KeyboardInterrupt:
            interrupted += 1
            if interrupted == 30: quiet.set()
    quiet.set()
    balance = batch.report.group_balance
    print(interrupted > 0, len(batch), balance.dropped, batch.report.debt)
""",
        timeout=60,
    )
    assert out == "True 16 2 0\n"


def test_a_forked_child_may_leave_the_engines_block():
    check_script(
        PRELUDE
        + """
pid = 1
with rr.Engine(options()) as engine:
    pid = os.fork()
    if pid == 0:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert len(engine.rollout(0, [task()])) == 1
""",
        timeout=60,
    )


def test_one_step_at_a_time():
    check_script(
        PRELUDE
        + """
import threading
seen = []
def score(sessions):
    def again():
        try: engine.rollout(0)
        except rr.StateError as err: seen.append(str(err))
    again()
    thread = threading.Thread(target=again)
    thread.start()
    thread.join(20)
    return [1.0] * len(sessions)
with rr.Engine(options(), score=score) as engine:
    assert len(engine.rollout(0, [task("no_reward")])) == 1
assert len(seen) == 2 and all("one step runs at a time" in s for s in seen), seen
""",
        timeout=60,
    )


FAULT = """
import faulthandler, time
def fault(engine):
    try:
        engine.submit([{"metadata": {"__panic__": "nil"}}])
    except rr.PanicError as err:
        assert "nil pointer" in str(err), err
    else:
        raise AssertionError("no PanicError")
    print("alive", flush=True)
"""


def test_faulthandler_before_load():
    out = check_script(
        PRELUDE
        + FAULT
        + """
warnings.simplefilter("error")
faulthandler.enable()
fault(rr.Engine(options()))
""",
        RELAX_TEST_PANIC="1",
    )
    assert out == "alive\n"


@pytest.mark.parametrize(
    "later",
    [
        "engine = rr.Engine(options()); faulthandler.enable()",
        "faulthandler.enable(); engine = rr.Engine(options()); faulthandler.disable()",
    ],
)
def test_faulthandler_after_load_is_undone_with_one_warning(later):
    out = check_script(
        PRELUDE
        + FAULT
        + later
        + """
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    engine.stats()
    faulthandler.enable()
    engine.stats()
assert [w.category for w in seen] == [RuntimeWarning], seen
assert "faulthandler" in str(seen[0].message)
faulthandler.disable(); faulthandler.enable()
fault(engine)
""",
        RELAX_TEST_PANIC="1",
    )
    assert out == "alive\n"


def test_python_keeps_its_signals():
    check_script(
        """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # as the prelude does
handlers = {s: signal.getsignal(s) for s in signal.valid_signals() if s not in (9, 19)}
"""
        + PRELUDE
        + """
with rr.Engine(options()) as engine:
    engine.rollout(0, [task()])
for s, handler in handlers.items():
    assert signal.getsignal(s) is handler or signal.getsignal(s) == handler, s
r, w = os.pipe()
os.close(r)
try: os.write(w, b"x")
except BrokenPipeError: pass
else: raise AssertionError("SIGPIPE")
"""
    )


# ---- panics -------------------------------------------------------------------------------------


def test_a_panic_poisons_the_engine_and_the_process_lives():
    out = check_script(
        PRELUDE
        + """
engine = rr.Engine(options())
batch = engine.rollout(0, [task()])
texts = []
for call in (
    lambda: engine.submit([{"metadata": {"__panic__": True}}]),
    engine.stats, lambda: engine.poll(0), lambda: engine.rollout(1, [task()]),
    lambda: rr.Engine(options()),
):
    try: call()
    except rr.PanicError as err: texts.append(str(err))
assert len(texts) == 5, texts
assert all("asked for by RELAX_TEST_PANIC" in t for t in texts), texts
assert "panicOnRequest" in texts[1], texts[1]
assert batch.numpy("tokens").sum() > 0
engine.close()
print("alive")
""",
        RELAX_TEST_PANIC="1",
    )
    assert out == "alive\n"


# ---- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "os._exit", "sys.exit"])
def test_no_agent_outlives_the_trainer(trainer, tmp_path, how):
    pids = tmp_path / "pids.json"
    process = trainer(
        f"""
import threading
from pathlib import Path
engine = rr.Engine(options())
def run():
    try: engine.rollout(0, [task("family", pids={str(pids)!r})])
    except rr.RelaxError: pass
threading.Thread(target=run, daemon=True).start()
while not Path({str(pids)!r}).exists(): engine.stats()
print(os.getpid(), flush=True)
if {how!r} == "os._exit": os._exit(0)
if {how!r} == "sys.exit": sys.exit(0)
threading.Event().wait()
"""
    )
    read_line(process)
    family = json.loads(pids.read_text())
    assert len(family) == 3
    if how.startswith("SIG"):
        assert all(map(alive, family))
        process.send_signal(getattr(signal, how))
    process.wait(60)
    assert eventually(lambda: not any(map(alive, family)), 20), [p for p in family if alive(p)]


def test_exit_with_live_views_and_a_thread_in_poll():
    for _ in range(3):
        check_script(
            PRELUDE
            + """
import builtins, threading, time
engine = rr.Engine(options())
batch = engine.rollout(0, [task()])
builtins.kept = [batch, batch.numpy("tokens"), batch.column("tokens").__dlpack__()]
import numpy as np
builtins.more = np.from_dlpack(batch.column("logprobs"))
threading.Thread(target=engine.poll, daemon=True).start()
time.sleep(0.2)
""",
            timeout=60,
        )


def test_closing_wakes_other_threads():
    check_script(
        PRELUDE
        + """
import threading
engine = rr.Engine(options())
seen = []
def wait():
    try: engine.poll()
    except rr.ClosedError as err: seen.append(err)
threads = [threading.Thread(target=wait) for _ in range(4)]
for t in threads: t.start()
engine.close()
for t in threads: t.join(20)
assert len(seen) == 4
assert engine.closed
engine.close()
try: engine.submit(["x"])
except rr.ClosedError: pass
else: raise AssertionError("submit after close")
"""
    )


def test_one_engine_at_a_time_but_many_in_turn():
    check_script(
        PRELUDE
        + """
for turn in range(3):
    engine = rr.Engine(options())
    try: rr.Engine(options())
    except rr.AlreadyOpenError: pass
    else: raise AssertionError("two engines")
    assert len(engine.rollout(turn, [task()])) == 1
    engine.close()
engine = rr.Engine(options())
del engine
gc.collect()
rr.Engine(options()).close()
"""
    )


def test_limits_and_children_are_not_inherited(tmp_path):
    """Agents get no descriptor of the trainer, even an inheritable one."""
    out = tmp_path / "fds"
    check_script(
        PRELUDE
        + f"""
r, w = os.pipe()
os.set_inheritable(w, True)
with rr.Engine(options(agent_command="ls -l /proc/self/fd > {out}; exit 3",
                       max_consecutive_dropped_groups=1)) as engine:
    try: engine.rollout(0, [task()])
    except rr.StepFailedError: pass
"""
    )
    numbers = re.findall(r" (\d+) -> ", out.read_text())
    assert set(numbers) <= {"0", "1", "2", "3"}, out.read_text()  # 3 is ls reading the directory


def test_a_trainer_that_ignores_sigchld():
    check_script(
        PRELUDE
        + """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
with rr.Engine(options(max_consecutive_dropped_groups=1)) as engine:
    assert len(engine.rollout(0, [task()])) == 1
    try: engine.rollout(1, [task("exit_one")])
    except rr.StepFailedError as err: assert "exit code 1" in str(err) or "code 1" in str(err), err
    else: raise AssertionError("no failure")
"""
    )


def test_a_hang_is_seen():
    """The guard of this file itself."""
    with pytest.raises(subprocess.TimeoutExpired):
        run_script("import time; time.sleep(60)", timeout=1)
