import os
import signal

import pytest

from megabert.training.recovery.stop_signals import SIGNALS, CtrlC, StopSignals


@pytest.fixture(autouse=True)
def handlers():
    """Heed Ctrl-C, which a shell's background ignores, and give the handlers back, whatever a test leaves."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_is_noted_and_ends_nothing(number):
    with StopSignals() as stop:
        stop.begin_saving()
        assert stop.received is None
        os.kill(os.getpid(), number)
        assert stop.received == number.name


def test_sigterm_and_ctrl_c_are_the_commands_as_long_as_there_is_nothing_to_save(handlers):
    with StopSignals() as stop:
        assert signal.getsignal(signal.SIGTERM) == handlers[signal.SIGTERM]
        assert signal.getsignal(signal.SIGINT) == handlers[signal.SIGINT]
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.received == "SIGUSR1"
    with StopSignals("the checks") as stop:
        assert signal.getsignal(signal.SIGINT) == handlers[signal.SIGINT]
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == "SIGTERM"


def test_ctrl_c_that_a_shell_has_ignored_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopSignals() as stop:
        stop.begin_saving()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.received is None


def test_a_handler_of_a_callers_own_stays():
    signal.signal(signal.SIGINT, own := lambda number, frame: None)
    with CtrlC() as stop:
        stop.begin_saving()
        assert signal.getsignal(signal.SIGINT) is own
    assert signal.getsignal(signal.SIGINT) is own


def test_first_signal_is_kept():
    with StopSignals() as stop:
        stop.begin_saving()
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == "SIGUSR1"


def test_handlers_are_given_back_without_a_signal(handlers):
    with StopSignals():
        pass
    assert {number: signal.getsignal(number) for number in SIGNALS} == handlers


def test_signals_on_the_way_out_do_not_change_the_exit_code():
    with StopSignals() as stop:
        stop.begin_saving()
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
