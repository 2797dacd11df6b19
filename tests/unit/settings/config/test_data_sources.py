"""Sources of data and their shares in a phase: which configurations are refused, and what a layer overrides."""

from pathlib import Path

import pytest

from megabert.foundation.errors import ConfigError
from megabert.settings.config.loading import differences, load_run_config, phase_data, to_dict

SOURCES = {"wiki": "data/wiki", "web": "data/web"}


def load(*, data=None, phase=None, **flags):
    return load_run_config("debug", flags={"data": data or {"sources": SOURCES}, "phases": {"0": phase or {}}, **flags})


def test_phases_read_all_sources_by_name_or_those_with_a_share():
    config = load(phase={"mixture": {"wiki": 1, "web": 0.0}})
    wiki = {"wiki": Path("data/wiki/instances/128")}
    assert phase_data(config, config.phases[0]) == wiki
    folders = phase_data(config, config.phases[1])
    assert list(folders) == ["web", "wiki"], "sorted, whatever the file says"
    one = load(data={"path": "data/one"})
    assert phase_data(one, one.phases[0]) == {"": Path("data/one/instances/128")}


@pytest.mark.parametrize(
    ("data", "phase", "message"),
    [
        ({"path": "data/a", "sources": SOURCES}, {}, "name one of the two"),
        ({"sources": {}}, {}, r"data\.sources"),
        ({"sources": {"a/b": "data"}}, {}, r"data\.sources"),
        ({"path": "data/a"}, {"mixture": {"wiki": 1.0}}, "this phase reads no sources"),
        ({"path": "data/a"}, {"temperature": 0.5}, "this phase reads no sources"),
        ({"sources": SOURCES}, {"data": "shards", "temperature": 0.5}, "this phase reads no sources"),
        ({"sources": SOURCES}, {"mixture": {"wiki": 1.0}}, "web is in one alone"),
        ({"sources": SOURCES}, {"mixture": {"wiki": 1.0, "web": 1.0, "books": 1.0}}, "books is in one alone"),
        ({"sources": SOURCES}, {"mixture": {"wiki": -0.5, "web": 1.0}}, r"phases\.0\.mixture"),
        ({"sources": SOURCES}, {"mixture": {"wiki": float("nan"), "web": 1.0}}, r"phases\.0\.mixture"),
        ({"sources": SOURCES}, {"mixture": {"wiki": 0.0, "web": 0.0}}, "reads no source"),
        ({"sources": SOURCES}, {"mixture": {"wiki": 1.0, "web": 1.0}, "temperature": 0.5}, "one of the two"),
        ({"sources": SOURCES}, {"temperature": 1.5}, r"phases\.0\.temperature"),
    ],
)
def test_contradictions_are_refused(data, phase, message):
    with pytest.raises(ConfigError, match=message):
        load(data=data, phase=phase)


def test_a_later_layer_that_names_the_other_one_overrides(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("data: {path: data/a}\nphases:\n  0: {temperature: 0.5}\n", encoding="utf-8")
    flags = {"data": {"sources": SOURCES}, "phases": {"0": {"mixture": {"wiki": 1.0, "web": 3.0}}}}
    config = load_run_config("debug", [path], flags)
    assert (config.data.path, config.data.sources) == (None, SOURCES)
    assert (config.phases[0].temperature, config.phases[0].mixture) == (None, {"wiki": 1.0, "web": 3.0})


def test_another_share_is_a_difference_by_name():
    one, other = (to_dict(load(phase={"mixture": {"wiki": share, "web": 1.0}})) for share in (1.0, 2.0))
    assert differences(one, other) == {"phases.0.mixture.wiki": (1.0, 2.0)}
