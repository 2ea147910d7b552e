"""Options: the set is Go's, types are checked, mistakes are named."""

import json
import pickle
import re
from pathlib import Path

import pytest
from conftest import ROOT

from relax_rollout import Config, ConfigError, Engine
from relax_rollout.config import describe_options

REQUIRED = {"agent_command": "true", "agent_cwd": "/"}


def test_options_are_those_of_go():
    source = (ROOT / "relax" / "config.go").read_text()
    tags = re.findall(r'`json:"([a-z0-9_]+)', source)
    assert len(tags) == len(set(tags))
    assert set(tags) == {name for name, _, _ in describe_options()}


def test_kinds_are_those_of_go():
    source = (ROOT / "relax" / "config.go").read_text()
    kinds = {
        "string": {"str", "path"},
        "int": {"int"},
        "int64": {"int"},
        "float64": {"finite number"},
        "bool": {"bool"},
        "[]string": {"list of str"},
        "[]int32": {"list of int"},
        "map[string]string": {"mapping of str to str"},
        "json.RawMessage": {"mapping with str keys"},
    }
    ours = {name: kind for name, kind, _ in describe_options()}
    for go, tag in re.findall(r'^\t\w+ +\*?(\S+) +`json:"([a-z0-9_]+)', source, re.M):
        assert ours[tag] in kinds[go], tag


def test_every_option_is_described():
    for name, _, doc in describe_options():
        assert doc.endswith("."), name
        assert len(doc) > 15, name


def test_only_what_is_set_is_sent():
    config = Config(**REQUIRED, agent_timeout=3, rollout_stop=("a", "b"), agent_env={"A": "1"})
    assert json.loads(config.to_json()) == {
        **REQUIRED,
        "agent_timeout": 3,
        "rollout_stop": ["a", "b"],
        "agent_env": {"A": "1"},
    }


def test_paths_are_accepted_where_paths_are_meant():
    config = Config(agent_command="true", agent_cwd=Path("/tmp"))
    assert config.agent_cwd == "/tmp"
    with pytest.raises(ConfigError, match="agent_command: expected str"):
        Config(agent_command=Path("/bin/true"), agent_cwd="/")


@pytest.mark.parametrize("make", [lambda **o: Config(**o), Config.from_dict, Engine])
def test_unknown_options_are_refused_with_a_suggestion(make):
    options = {**REQUIRED, "agent_timeuot": 3}
    with pytest.raises(ConfigError, match=r"did you mean agent_timeout\?") as caught:
        make(**options) if make.__name__ == "<lambda>" else make(options)
    assert caught.value.option == "agent_timeuot"


def test_unknown_options_far_from_any_name():
    with pytest.raises(ConfigError, match="python -m relax_rollout options"):
        Config.from_dict({**REQUIRED, "zzz": 1})


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("agent_timeout", "60", "finite number, found str '60'"),
        ("agent_timeout", float("nan"), "finite number, found float nan"),
        ("rollout_batch_size", 1.5, "int, found float 1.5"),
        ("rollout_batch_size", True, "int, found bool True"),
        ("custom_rm", 1, "bool, found int 1"),
        ("agent_env", {"A": 1}, "mapping of str to str, found dict"),
        ("rollout_stop", "abc", "list of str, found str 'abc'"),
        ("rollout_stop_token_ids", [1, "2"], "list of int, found list"),
        ("simulator", [1], "mapping with str keys, found list"),
    ],
)
def test_wrong_types_are_named(option, value, expected):
    with pytest.raises(ConfigError) as caught:
        Config.from_dict({**REQUIRED, option: value})
    assert caught.value.option == option
    assert f"option {option}: expected {expected}" in str(caught.value)


def test_values_json_cannot_say():
    with pytest.raises(ConfigError, match="option simulator: not a JSON value"):
        Config(**REQUIRED, simulator={"a": {1, 2}})


@pytest.mark.parametrize("missing", sorted(REQUIRED))
def test_required_options(missing):
    options = {k: v for k, v in REQUIRED.items() if k != missing}
    with pytest.raises(ConfigError, match=f"option {missing}: required") as caught:
        Config.from_dict(options)
    assert caught.value.option == missing


def test_a_config_is_a_value():
    config = Config(**REQUIRED, agent_timeout=3)
    assert config == Config.from_dict(config.to_dict())
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(AttributeError):
        config.agent_timeout = 4


def test_errors_survive_pickling():
    err = pickle.loads(pickle.dumps(ConfigError("text", "agent_cwd")))
    assert (str(err), err.option) == ("text", "agent_cwd")


def test_a_document_that_is_no_mapping():
    with pytest.raises(ConfigError, match="expected a mapping, found list"):
        Config.from_dict([])
