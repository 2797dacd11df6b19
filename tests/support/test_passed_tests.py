pytest_plugins = "pytester"


def run(pytester, broken: bool):
    pytester.makepyfile(test_two=f"def test_one(): pass\n\ndef test_two(): assert {not broken}\n")
    return pytester.runpytest_inprocess("-p", "progress_option", "--progress", "state/soak")


def test_passed_tests_are_left_out_until_the_code_changes(pytester, monkeypatch):
    from support import passed_tests

    pytester.makepyfile(
        progress_option="from pathlib import Path\n"
        "from support.passed_tests import Progress\n"
        "def pytest_addoption(parser): parser.addoption('--progress', type=Path)\n"
        "def pytest_configure(config): config.pluginmanager.register(Progress(config.getoption('--progress')))\n"
    )
    pytester.syspathinsert()
    monkeypatch.setattr(passed_tests, "code_version", lambda: "a")
    run(pytester, broken=True).assert_outcomes(passed=1, failed=1)
    run(pytester, broken=False).assert_outcomes(passed=1, deselected=1)
    run(pytester, broken=False).assert_outcomes(deselected=2)
    monkeypatch.setattr(passed_tests, "code_version", lambda: "b")
    run(pytester, broken=False).assert_outcomes(passed=2)
