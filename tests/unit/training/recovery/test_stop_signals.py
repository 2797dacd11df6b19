import os
import signal

import pytest

from megabert.training.recovery.stop_signals import SIGNALS, StopSignals


@pytest.fixture(autouse=True)
def handlers():
    """Give the handlers back, whatever a test leaves."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_is_noted_and_ends_nothing(number):
    with StopSignals() as stop:
        assert stop.received is None
        os.kill(os.getpid(), number)
        assert stop.received == number.name


def test_first_signal_is_kept():
    with StopSignals() as stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == "SIGUSR1"


def test_handlers_are_given_back_without_a_signal(handlers):
    with StopSignals():
        pass
    assert {number: signal.getsignal(number) for number in SIGNALS} == handlers


def test_signals_on_the_way_out_do_not_change_the_exit_code():
    with StopSignals():
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
