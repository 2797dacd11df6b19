"""How a process of its own answers signals."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

HEAD = """
    import os, signal, sys, time
    for number in (signal.SIGINT, signal.SIGHUP):  # under nohup, or in a shell's background, they are ignored
        signal.signal(number, signal.SIG_DFL)
    from megabert.settings.command_line.failures import guarded
    from megabert.settings.command_line import signals
    from megabert.settings.command_line.signals import SIGNALS
    SIGNALS.install("megabert")
    def send(number):
        os.kill(os.getpid(), number)
        time.sleep(5)
    def work():
        end = time.monotonic() + 20
        while time.monotonic() < end:
            [{} for _ in range(1000)]  # Python looks for objects that are gone while others are made
        print("came to its end")
"""


def ended(code: str) -> tuple[int, str]:
    """Run code as the body of a command; return its exit code and what it said."""
    program = textwrap.dedent(HEAD) + "def run():\n" + textwrap.indent(textwrap.dedent(code), "    ")
    program += "\nsys.exit(guarded(run, program='megabert', rank_label=str))\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signal_ends_a_command_with_the_shells_code(number):
    code, said = ended(f"send({int(number)})")
    assert code == 128 + number
    assert ("interrupted" if number == signal.SIGINT else f"ended by {number.name}") in said


INTERRUPTED = {
    "a callback drops the interruption": (
        signal.SIGTERM,
        """
        import weakref
        class Thing: pass
        thing = Thing()
        kept = weakref.ref(thing, lambda _: send(signal.SIGTERM))
        del thing
        work()
        """,
    ),
    "a library drops the interruption": (
        signal.SIGINT,
        """
        try:
            send(signal.SIGINT)
        except BaseException:
            pass
        work()
        """,
    ),
    "an error follows from the interruption": (
        signal.SIGTERM,
        """
        try:
            send(signal.SIGTERM)
        except BaseException:
            raise ValueError("ignored half a file")
        """,
    ),
}


@pytest.mark.parametrize(("number", "code"), INTERRUPTED.values(), ids=INTERRUPTED)
def test_interruption_ends_a_command_whatever_becomes_of_its_exception(number, code):
    code, said = ended(code)
    assert code == 128 + number
    assert "ignored" not in said
    assert "came to its end" not in said


def test_signal_waits_for_the_end_of_a_block_that_holds_it():
    code, said = ended("""
        with SIGNALS.held():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)
            print("whole")
        time.sleep(30)
    """)
    assert code == 143
    assert said.startswith("whole")


def test_ignored_signals_stay_ignored(tmp_path):
    program = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); " + " ".join(
        ["from megabert.settings.command_line.signals import SIGNALS; SIGNALS.install('x');", "signal.raise_signal(1)"]
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_second_signal_ends_a_command_at_once_and_removes_what_was_under_way(tmp_path):
    kills = "sleep 0.2; kill -TERM {pid}; sleep 0.2; kill -TERM {pid}"
    code, said = ended(f"""
        import hashlib, subprocess
        from megabert.foundation.files import atomic_path
        signals.ONE_REQUEST_OTHER_S = signals.PATIENCE_S = 0.0
        SIGNALS.waits_for = lambda: "a long function in C"
        with atomic_path({str(tmp_path / "file")!r}) as temporary:
            temporary.touch()
            subprocess.Popen(["sh", "-c", {kills!r}.format(pid=os.getpid())])
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # Python's handlers wait for it
    """)
    assert code == 143
    assert "SIGTERM received: this ends after a long function in C; another Ctrl-C or SIGTERM ends it at once" in said
    assert "a second signal, SIGTERM: this ends at once" in said
    assert os.listdir(tmp_path) == []


def test_signals_that_come_together_are_one_request(tmp_path):
    code, said = ended("""
        SIGNALS.graceful = (signal.SIGTERM,)
        SIGNALS.waits_for = lambda: "the step under way"
        signal.signal(signal.SIGTERM, lambda *_: None)
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.0)
        return 75
    """)
    assert code == 75
    assert said.count("SIGTERM received: this ends after the step under way") == 1


def test_request_to_stop_leaves_a_later_sigterm_its_time():
    code, said = ended("""
        from megabert.training.recovery.stop_signals import StopSignals
        signals.ONE_REQUEST_OTHER_S = signals.PATIENCE_S = 0.0
        with StopSignals() as stop:
            stop.begin_saving()
            for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM):
                os.kill(os.getpid(), number)
                time.sleep(0.2)
        return 75 if stop.received == "SIGUSR1" else 1
    """)
    assert code == 75, said


@pytest.mark.parametrize("waits_for", [None, "the checks"])
def test_sigterm_before_a_request_to_stop_is_granted_leaves_its_exit_code(waits_for):
    code, said = ended(f"""
        from megabert.training.recovery.stop_signals import StopSignals
        with StopSignals({waits_for!r}):
            os.kill(os.getpid(), signal.SIGUSR1)
            send(signal.SIGTERM)
    """)
    assert (code, "ended by SIGUSR1" in said) == (138, True), said


def test_signal_that_a_job_script_holds_comes_once_it_is_answered():
    sent = "os.kill(os.getpid(), signal.SIGUSR1)"
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # as the script does: all threads of a command hold it
    try:
        code, said = ended(f"""
            from megabert.training.recovery.stop_signals import StopSignals
            {sent}
            with StopSignals() as stop:
                return 75 if stop.received == "SIGUSR1" else 1
        """)
        assert code == 75, said
        assert ended(f"{sent}; send(signal.SIGTERM)")[0] == 138
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])


def test_child_ends_in_order_before_an_interrupted_command(tmp_path):
    trap = f"trap 'sleep 0.2; touch {tmp_path}/ended; exit' TERM"
    script = f"{trap}; sleep 1; kill -TERM $PPID; for i in $(seq 200); do sleep 0.05; done"
    arguments = f"logs=[{str(tmp_path / 'log')!r}], slots=[os.environ]"
    code, _ = ended(f"list(signals.run_children([['sh', '-c', {script!r}]], {arguments}))")
    assert code == 143
    assert sorted(os.listdir(tmp_path)) == ["ended", "log"]


def test_child_that_starts_as_the_signal_comes_is_ended_as_well(tmp_path):
    code, said = ended(f"""
        import subprocess
        started = []
        class Popen(subprocess.Popen):
            def __init__(self, *words, **others):
                super().__init__(*words, **others)
                started.append(self)
                os.kill(os.getpid(), signal.SIGTERM)
                for _ in range(100):  # a handler runs between two instructions
                    pass
        subprocess.Popen = Popen
        try:
            list(signals.run_children([["sleep", "60"]], logs=[{str(tmp_path / "log")!r}], slots=[os.environ]))
        finally:
            print("ended by", started[0].poll())
    """)
    assert code == 143
    assert "ended by -15" in said
