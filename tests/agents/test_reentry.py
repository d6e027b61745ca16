"""A signal handler or a ``__del__`` that emits events while the same thread is inside the SDK does not deadlock.

Each program below runs in its own interpreter.
"""

import subprocess
import sys

import pytest

PROGRAM = """
import gc, logging, logging.handlers, queue, random, signal, sys, threading, time
from headrace.agents.sdk import Headrace

# A handler with a lock that is not reentrant, like those of the standard library.
records = queue.Queue()
logging.getLogger().addHandler(logging.handlers.QueueHandler(records))
chance, noted = random.Random(5), 0
away = "127.0.0.1:9"

def note(headrace, t, which):
    global noted
    kind = which % 7
    noted += 2 if kind in (0, 6) else 1
    if kind == 0:
        with headrace.current().tool("x") as call:  # no trajectory is open: dropped
            call.result = 1
    elif kind == 1:
        headrace.feedback("t", "alarm", 1.0)
    elif kind == 2:
        headrace.feedback("", "alarm", 1.0)  # not an identifier: dropped
    elif kind == 3:
        t.pruned([], 1, 1)
    elif kind == 4:
        headrace.trajectory(task_id=7, agent="a")  # a number: altered
    elif kind == 5:
        headrace.stats
        t.model_called("m")
    else:
        with t.tool("y"):
            pass

def forever_ready(headrace, t):
    busy = False
    def run(*_):
        nonlocal busy
        if busy or threading.current_thread() is not threading.main_thread():  # the count below is of one thread
            return
        busy = True
        note(headrace, t, chance.randrange(7))
        busy = False
    return run

def at_signals(run):
    signal.signal(signal.SIGALRM, run)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)

def at_collections(run):
    class Session:
        def __init__(self):
            self.me = self
        def __del__(self):
            run()
    gc.set_threshold(20, 2, 2)
    return lambda: [Session() for _ in range(3)]

def steady(moments):
    global noted
    headrace = Headrace(away, source="x", queue_size={queue_size}, flush_deadline_s=0)
    t = headrace.trajectory(task_id="t", agent="a")
    noted += 1
    run = forever_ready(headrace, t)
    more = moments(run) or (lambda: None)
    end, number = time.monotonic() + 2, 0
    while time.monotonic() < end:
        more()
        note(headrace, t, number)
        if number % 50 == 0:
            logging.warning("a line of the host's")
        number += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.disable()
    headrace.close(0)
    assert headrace.stats.emitted == noted, (headrace.stats, noted)
    headrace.feedback("t", "late", 1.0)
    assert headrace.stats.dropped["closed"] == 1

def first():
    for number in range(150):
        headrace = Headrace(away, source="x", flush_deadline_s=0)
        signal.signal(signal.SIGALRM, lambda *_: headrace.feedback("t", "alarm", 1.0))
        signal.setitimer(signal.ITIMER_REAL, 0.00001 + number % 50 * 0.00001)
        headrace.feedback("a", "s", 1.0)
        time.sleep(0.001)
        signal.setitimer(signal.ITIMER_REAL, 0)
        headrace.close(0)
        assert headrace.stats.emitted == 2, (number, headrace.stats)

{call}
print("survived")
"""


@pytest.mark.parametrize(
    ("call", "queue_size"),
    [
        ("steady(at_signals)", 5),
        ("steady(at_signals)", 100_000),
        ("steady(at_collections)", 5),
        ("steady(at_collections)", 100_000),
        ("first()", 5),
    ],
)
def test_the_host_s_thread_never_waits_for_itself(call: str, queue_size: int) -> None:
    program = PROGRAM.format(call=call, queue_size=queue_size)
    done = subprocess.run(  # the limit only detects hanging
        [sys.executable, "-X", "faulthandler", "-c", program], capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.stdout, done.returncode) == ("survived\n", 0), done.stderr
