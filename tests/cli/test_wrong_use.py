"""Wrong use is one line that says why, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from commanding import ONE, call, complaint
from fake_device import LocalFleet


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--shape 4xx", "'4xx' is not a shape: write sizes joined by x, such as 4096x1024"),
        ("--shape=-1x3", "'-1x3' is not a shape: write sizes joined by x, such as 4096x1024"),
        ("--shape 1e9x1e9", "'1e9x1e9' is not a shape"),
        ("--shape 1000000000x1000000000", "1e+18 elements, more than any device holds"),
        ("--shape 4x4,,5x5", "'4x4,,5x5' has an empty shape"),
        ("--shape 64,768", "write 64x768 for one shape of 2 axes, or --shape 64 --shape 768 for"),
        ("--shape 64x768,8", "write --shape 64x768 --shape 8; otherwise join the sizes"),
        ("--shape (64,768)", "'(64,768)' is not a shape: write sizes joined by x, such as 64x768"),
        ("--shape 64X768", "'64X768' is not a shape: write sizes joined by x, such as 64x768"),
        (
            "--shape 5 --normalized-dims 2",
            "--shape: shape 5 has fewer than 2 axes to normalise over (--normalized-dims 2)",
        ),
        ("--preset ci --shape 4x4 --normalized-dims 3", "--shape: shape 4x4 has fewer than 3 axes"),
        (
            "--dtype float23",
            "--dtype: 'float23' is not one of float16, bfloat16, float32, float64; did",
        ),
        ("--dtype float32,", "'float32,' has an empty value"),
        ("--dtype same", "--dtype: 'same' is not one of float16,"),
        (
            "--param-dtype int8",
            "--param-dtype: 'int8' is not one of float16, bfloat16, float32, float64",
        ),
        (
            "--distribution nromal",
            "--distribution: no distribution named 'nromal'; did you mean 'normal'?",
        ),
        ("--layout contigous", "--layout: no layout named 'contigous'; did you mean 'contiguous'?"),
        ("--grad-output oens", "--grad-output: no grad_output named 'oens'; did you mean 'ones'?"),
        ("--device cuda", "--device: device 'cuda' cannot be used: torch sees no CUDA device"),
        ("--device tpu", "--device: no device named 'tpu'; did you mean 'cpu'?"),
        ("--direction backwar", "--direction: 'backwar' is not one of forward, backward, forward+"),
        ("--parameters norml", "--parameters: no parameters named 'norml'; did you mean 'normal'?"),
        ("--mode jit", "--mode: 'jit' is not one of eager, compiled"),
        ("--affine all", "--affine: 'all' is not one of both, weight, bias, none"),
        ("--measure speed", "--measure: 'speed' is not one of errors, latency, cold, memory"),
        ("--eps=-1", "--eps: must be greater than or equal to 0 (found -1.0)"),
        ("--eps nan", "--eps: must be a finite number (found nan)"),
        ("--eps small", "'small' is not a number, nor several joined by commas"),
        ("--threads 0", "--threads: must be greater than or equal to 1 (found 0)"),
        ("--threads 1.5", "'1.5' is not a whole number, nor several joined by commas"),
        ("--seed one", "'one' is not a whole number"),
        ("--seed 99999999999999999999", "--seed: must be less than 9223372036854775808"),
        ("-i nativ", "-i: no implementation named 'nativ'; did you mean 'native'?"),
        ("-i gone.py:f", "-i: gone.py:f: cannot import: no file gone.py"),
        ("-i json:nope", "json:nope: json has no 'nope'"),
        ("-i json:decoder", "json:decoder: is of type module, not a function"),
        ("--preset models_gpu", "preset models_gpu: device 'cuda' cannot be used: torch sees no"),
        ("--preset quik", "no preset named 'quik'; presets: ci, conditioning, full, models, "),
        ("--sweep gone.toml", "gone.toml: cannot be read: No such file or directory"),
        ("--preset ci --sweep mine.toml", "give --preset or --sweep, not both"),
        ("--out mine.csv", "--out mine.csv: a results file ends in .parquet"),
        ("--resume", "--resume needs --out, the results file to continue"),
        ("--shard 3/2", "'3/2' is not a shard: write i/n with i from 1 to n, such as 2/4"),
        ("--shard 0/2", "'0/2' is not a shard"),
        ("--shard ²/3", "'²/3' is not a shard"),
        ("--shard 2", "'2' is not a shard"),
        ("--time-budget 10", "'10' is not a time: write 90s, 10m or 2h"),
        ("--time-budget 0s", "'0s' is not a time"),
        ("--time-budget=-5m", "'-5m' is not a time"),
        ("--time-budget infh", "'infh' is not a time"),
        (
            "--fail-on wrong,crashed",
            "'crashed' is not one of wrong, out_of_guarantee, unsupported, out_of",
        ),
        ("--dtyp float32", "No such option"),
        ("stray", "unexpected extra argument"),
    ],
)
def test_a_run_that_cannot_be_is_refused_in_one_line(
    fleet: LocalFleet, arguments: str, line: str
) -> None:
    assert line in complaint("run", *arguments.split())
    assert fleet.started == []
    assert not Path("results").exists()


def test_every_mistake_of_a_sweep_file_has_its_line() -> None:
    Path("mine.toml").write_text('[[grids]]\nshapes = ["4xx"]\nseeds = []\nshape = ["4x4"]\n')
    found = call("run", "--sweep", "mine.toml")
    assert found.exit_code == 2
    assert found.stderr.splitlines() == [
        "layernorm-bench: mine.toml:2: grids[0].shapes[0]: '4xx' is not a shape: write sizes joined "
        "by x, such as 4096x1024",
        "layernorm-bench: mine.toml:3: grids[0].seeds: needs at least one value (found [])",
        "layernorm-bench: mine.toml:4: grids[0].shape: unknown key; did you mean 'shapes'?",
    ]


def test_a_name_in_a_sweep_file_that_does_not_exist_is_answered_with_its_place() -> None:
    Path("mine.toml").write_text(
        '[[grids]]\nlayouts = ["contiguous", "contigous"]\nimplementations = ["nativ"]\n'
    )
    found = call("run", "--sweep", "mine.toml")
    assert found.stderr.startswith(
        "layernorm-bench: mine.toml:3: grids[0].implementations[0]: no implementation named 'nativ'"
    )
    found = call("run", "--sweep", "mine.toml", "-i", "native")
    assert found.stderr.startswith(
        "layernorm-bench: mine.toml:2: grids[0].layouts[1]: no layout named 'contigous'"
    )


def test_an_option_in_the_place_of_an_axis_of_a_file_is_what_a_mistake_names() -> None:
    Path("mine.toml").write_text('[[grids]]\nlayouts = ["contiguous"]\n[[grids]]\n')
    line = complaint("run", "--sweep", "mine.toml", "--layout", "contigous")
    assert line.startswith("--layout: no layout named 'contigous'")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("bad",), "No such command 'bad'"),
        (("list", "everything"), "'everything' is not one of 'all', 'implementations'"),
        (("report",), "Missing argument 'RUN...'"),
        (("--verbose",), "No such option"),
    ],
)
def test_a_command_that_is_misspelt_is_refused(arguments: tuple[str, ...], line: str) -> None:
    assert line in complaint(*arguments)


@pytest.mark.parametrize("command", ["run", "report"])
def test_a_file_that_is_no_results_file_is_named(command: str) -> None:
    Path("mine.parquet").write_text("junk")
    arguments = ("run", *ONE, "--resume") if command == "run" else ("report", "mine.parquet")
    line = complaint(*arguments)
    assert line.startswith("mine.parquet: not a readable results file, or damaged: ")
    assert Path("mine.parquet").read_text() == "junk"


def test_a_results_file_with_damaged_bytes_is_named() -> None:
    assert call("run", *ONE, "--json").exit_code == 0
    path = Path("mine.parquet")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    # more than the header of a page, in some bytes of which a change means nothing
    content[middle : middle + 256] = bytes(256)
    path.write_bytes(content)
    assert complaint("report", "mine.parquet").startswith("mine.parquet: ")


def test_a_parquet_file_of_something_else_is_named() -> None:
    import pandas

    pandas.DataFrame({"a": [1]}).to_parquet("mine.parquet")
    assert complaint("report", "mine.parquet") == (
        "mine.parquet: a parquet file, but not written by layernorm-bench"
    )


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gone.parquet", "gone.parquet: no such file; make one with `layernorm-bench run`"),
        ("gone.jsonl", "gone.jsonl: cannot be read: No such file or directory"),
    ],
)
def test_a_report_of_a_run_that_is_not_there_is_refused(name: str, line: str) -> None:
    assert complaint("report", name) == line


def test_a_report_of_a_damaged_journal_is_refused_with_its_line() -> None:
    Path("mine.jsonl").write_text('{"Run": {}}\n{"Run": {}}\n')
    assert complaint("report", "mine.jsonl").startswith("mine.jsonl: line 1 is damaged: ")


def test_one_bad_run_among_good_ones_is_refused() -> None:
    assert call("run", *ONE, "--json").exit_code == 0
    assert "gone.parquet" in complaint("report", "mine.parquet", "gone.parquet")


def test_results_that_are_there_are_not_overwritten() -> None:
    assert call("run", *ONE, "--json").exit_code == 0
    before = Path("mine.parquet").read_bytes()
    assert complaint("run", *ONE) == (
        "mine.parquet exists; continue it with --resume, or choose another --out"
    )
    assert Path("mine.parquet").read_bytes() == before


def test_a_folder_that_cannot_be_written_is_named(fleet: LocalFleet) -> None:
    Path("file").write_text("no folder")
    line = complaint("run", "-i", "native", "--shape", "2x8", "--out", "file/mine.parquet")
    assert line.startswith("file/mine.jsonl: cannot be written: ")
    assert fleet.started == []


@pytest.mark.parametrize("out", ["mine.parquet", "other.parquet", "mine.py"])
def test_a_page_takes_the_place_of_nothing_but_a_page(out: str) -> None:
    assert call("run", *ONE, "--json").exit_code == 0
    Path("mine.py").write_text("def norm(x, *_):\n    return x\n")
    before = {each: each.read_bytes() for each in Path().iterdir()}
    assert complaint("report", "mine.parquet", "--out", out).startswith(f"--out {out}: a page ends")
    assert {each: each.read_bytes() for each in Path().iterdir()} == before


def test_a_page_that_cannot_be_written_is_named() -> None:
    assert call("run", *ONE, "--json").exit_code == 0
    Path("file").write_text("no folder")
    Path("folder.html").mkdir()
    for out, why in (("file/page.html", "File exists"), ("folder.html", "Is a directory")):
        assert complaint("report", "mine.parquet", "--out", out) == (
            f"{out}: cannot be written: {why}"
        )
