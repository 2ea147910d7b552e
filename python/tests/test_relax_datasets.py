"""The drop-in's Eval datasets: paths, tasks and samples as the trainer makes them."""

import json
import logging
from types import SimpleNamespace

import pytest
from trainer import DataSource, arguments, install

import relax_rollout as rr
import relax_rollout.relax as adapter
from relax_rollout.relax.datasets import eval_datasets

pytestmark = pytest.mark.usefixtures("drop_in")


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def inputs(path, *names):
    """A file whose prompts are these names."""
    return write(path, *({"input": name} for name in names))


def samples(path, **more):
    (dataset,) = eval_datasets(SimpleNamespace(eval_prompt_data=["one", path], **more))
    return dataset.samples


def prompts(path):
    return [sample.prompt for sample in samples(path)]


# ---- paths ---------------------------------------------------------------------------------------


def test_lists_of_paths(tmp_path):
    a, b = inputs(tmp_path / "a.jsonl", "a0", "a1"), inputs(tmp_path / "b.jsonl", "b0", "b1")
    assert prompts(f"[{a}, {b}]") == ["a0", "a1", "b0", "b1"]
    assert prompts(f"({b},{a},)") == ["b0", "b1", "a0", "a1"]
    assert prompts(f'["{a}", "{b}"]') == ["a0", "a1", "b0", "b1"]
    assert prompts([str(b), str(a)]) == ["b0", "b1", "a0", "a1"]
    assert prompts(f'("{a}")') == ["a0", "a1"]
    assert prompts(a) == ["a0", "a1"]


def test_parts_of_lists_and_of_their_items(tmp_path):
    a, b = inputs(tmp_path / "a.jsonl", "a0", "a1"), inputs(tmp_path / "b.jsonl", "b0", "b1")
    assert prompts(f"[{a}@[1:],{b}@[:1]]") == ["a1", "b0"]
    assert prompts(f"[{a},{b}]@[1:3]") == ["a1", "b0"]
    assert prompts(f"[{a},{b}]@[-1:]") == ["b1"]
    assert prompts(f"[{a}@[1:],{b}]@[:2]") == ["a1", "b0"]


def test_directories_are_walked_to_the_bottom_in_the_order_of_names(tmp_path):
    place = tmp_path / "data"
    inputs(place / "b.jsonl", "b0", "b1")
    inputs(place / "a" / "deep" / "c.jsonl", "c")
    inputs(place / "a-first.jsonl", "first")
    (place / "dataset_infos.json").write_text('{"no": "data"}')
    more = inputs(tmp_path / "more.jsonl", "more")
    assert prompts(place) == ["first", "c", "b0", "b1"]
    assert prompts(f"{place}@[1:3]") == ["c", "b0"]
    assert prompts(f"[{place}, {more}]@[3:]") == ["b1", "more"]


def test_lines_that_are_not_json_are_left_out_with_a_warning(tmp_path, caplog):
    path = tmp_path / "a.jsonl"
    path.write_text('{"input": "a"}\n{"input": "b"\n\n{"input": "c"}\n')
    with caplog.at_level(logging.WARNING, "relax_rollout.relax"):
        assert prompts(path) == ["a", "c"]
        assert prompts(f"{path}@[1:2]") == ["c"], "as if it were not there"
    assert f"{path} line 2 is left out, as it is not JSON" in caplog.text


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{0}/none.jsonl", r"none\.jsonl: cannot be read: No such file"),
        ("[{0}/a.jsonl, {0}/none.jsonl]", r"none\.jsonl: cannot be read: No such file"),
        ("{0}/a.txt", r"a\.txt: expected a name that ends with \.jsonl"),
        ("{0}/empty", r"empty: no file in it ends with \.jsonl, \.parquet"),
        ("{0}/number.jsonl", r"number\.jsonl line 1: expected an object, found int"),
        ("{0}/tools.jsonl", r"tools\.jsonl row 1: tools under 'tools': not JSON"),
        ("{0}/object.jsonl", r"object\.jsonl row 0: tools under 'tools': expected a list, found d"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, path, message):
    inputs(tmp_path / "a.jsonl", "a")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "number.jsonl", 5)
    write(tmp_path / "tools.jsonl", {"input": "a"}, {"input": "a", "tools": "[tool"})
    write(tmp_path / "object.jsonl", {"input": "a", "tools": {"name": "f"}})
    with pytest.raises(rr.InvalidError, match=message):
        samples(path.format(tmp_path))


# ---- tasks ---------------------------------------------------------------------------------------


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def test_tools_are_those_of_their_column(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        {"input": "a", "tools": json.dumps(TOOLS)},
        {"input": "b", "tools": TOOLS, "metadata": {"tools": "stale", "k": 1}},
        {"input": "c", "metadata": {"tools": "kept"}},
    )
    expected = [{"tools": TOOLS}, {"tools": TOOLS, "k": 1}, {"tools": "kept"}]
    assert [sample.metadata for sample in samples(path)] == expected


def test_a_system_prompt_goes_before_messages_and_not_before_texts(tmp_path):
    messages = [{"role": "user", "content": "hi"}]
    path = write(tmp_path / "a.jsonl", {"input": "hi"}, {"input": messages})
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    assert [s.prompt for s in samples(path, system_prompt="Be brief.")] == [
        "hi",
        [system, *messages],
    ]
    assert [s.prompt for s in samples(path, system_prompt=None)] == ["hi", messages]


# ---- samples -------------------------------------------------------------------------------------


def test_group_reward_models_see_the_number_of_each_copy(monkeypatch, tmp_path):
    seen = []

    def judge(args, group):
        seen.append([(s.index, s.group_index, s.label) for s in group])
        return [s.index / 10 for s in group]

    install(monkeypatch, "judges", judge=judge)
    rows = ({"input": "hello", "label": n, "metadata": {"mode": "no_reward"}} for n in "ab")
    args = arguments(
        eval_prompt_data=["one", str(write(tmp_path / "a.jsonl", *rows))],
        n_samples_per_eval_prompt=2,
        eval_label_key="label",
        group_rm=True,
        custom_rm_path="judges.judge",
    )
    data = adapter.generate_rollout(args, 0, DataSource(), None, evaluation=True).data["one"]
    assert sorted(seen) == [[(0, 0, "a"), (1, 0, "a")], [(2, 1, "b"), (3, 1, "b")]]
    assert data["rewards"] == [0.0, 0.1, 0.2, 0.3]
    assert [s.index for s in data["samples"]] == [0, 1, 2, 3]


def test_reward_models_see_a_number_of_their_prompt(monkeypatch, tmp_path):
    seen = []

    def judge(args, sample):
        seen.append(sample.index)
        return float(sample.index // 2 == sample.group_index)

    install(monkeypatch, "judges", judge=judge)
    row = {"input": "hello", "metadata": {"mode": "no_reward"}}
    args = arguments(
        eval_prompt_data=["one", str(write(tmp_path / "a.jsonl", row, row))],
        n_samples_per_eval_prompt=2,
        custom_rm_path="judges.judge",
    )
    data = adapter.generate_rollout(args, 0, DataSource(), None, evaluation=True).data["one"]
    assert len(seen) == 4
    assert data["rewards"] == [1.0] * 4
    assert [s.index for s in data["samples"]] == [0, 1, 2, 3]
