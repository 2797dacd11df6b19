"""Runs whose shards are at a URL train as from the folder itself, bit for bit, whatever the server does."""

import pytest
from support.faulty_server import proxying, serving_files
from support.runs import Run, assert_equal_runs


@pytest.fixture(scope="session")
def unbroken(shards, made_once):
    def run_in(folder):
        return Run(folder / "unbroken", shards, ranks=2)

    return run_in(made_once("from_a_folder", lambda folder: run_in(folder).finish_well()))


@pytest.fixture
def server(shards):
    with serving_files(shards) as port, proxying(port) as proxy:
        yield proxy


def url_run(folder, server, **flags):
    return Run(folder / "run", server.url, ranks=2, flags={"data.cache": folder / "cache", **flags})


def test_two_ranks_train_from_a_server_as_from_the_folder(unbroken, server, tmp_path):
    run = url_run(tmp_path, server)
    run.finish_well()
    assert_equal_runs(run, unbroken)
    shards = [line for line in server.requests if ".arrow" in line]
    assert len(shards) == len(set(shards)) > 0, "each file is fetched once for both ranks"
