"""The paper's tables: numbers as printed, the paper's configurations, and the same table after any kill."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest

import processes
from lipcert.experiments.paper import PAPER as ALL
from lipcert.experiments.plan import Cost, expected
from lipcert.experiments.reproduce import SIZES as IMAGES
from lipcert.experiments.reproduce import paper_seconds, record_row
from lipcert.experiments.scales import RADII, Settings, planned, scale_of, scaled
from lipcert.models.build import parameters
from lipcert.models.presets import model_spec
from lipcert.records import RADII as EPS
from lipcert.records import RunFolder, RunRecord
from lipcert.reports.paper_layout import footnotes, latex_table, markdown, rich_tables
from lipcert.training.config import TrainConfig
from paths import ROOT

PAPER, OFFSETS, SIZES = ALL.tables, ALL.offsets, ALL.sizes
SOURCE = ROOT.parent / "shared" / "paper.tex"
TRAINED = ("table1", "table2", "table5", "offsets", "corrected")


def command(*words):
    return processes.command("reproduce", *words)


# The numbers


def test_every_row_of_the_paper_is_there():
    counts = {name: len(table.rows) for name, table in PAPER.items()}
    assert counts == {
        "table1": 7 + 4,
        "table2": 5 + 4 + 2 + 4,
        "table3": 4,
        "table5": 2 * 4,
        "offsets": 2 * 3 * 4,
        "corrected": 2 * 2 * 4,
        "inference": 2,
    }
    assert sorted(table.number for table in PAPER.values()) == [1, 2, 3, 4, 5, 6, 7]
    for table in PAPER.values():
        assert all(len(row.numbers) == len(table.columns) for row in table.rows)


@pytest.mark.parametrize("name", ["table1", "table2", "offsets", "corrected", "table5"])
def test_printed_accuracy_falls_with_the_radius(name):
    for row in PAPER[name].rows:
        shares = [number for number in row.numbers[:5] if number is not None]
        if name == "table1":
            shares = [number for number in row.numbers[:5] if number is not None]
        assert shares == sorted(shares, reverse=True), row
        assert 0 <= min(shares) <= max(shares) <= 100


def test_the_tables_agree_with_each_other():
    default = {(row.data, row.model): row.numbers for row in PAPER["offsets"].rows if row.group == "3√2/2"}
    main = {(row.data, row.model): row.numbers[:5] for name in ("table1", "table2") for row in PAPER[name].rows}
    assert len(default) == 8
    for key, numbers in default.items():
        assert main[key] == numbers
    for row in PAPER["table5"].rows:  # an attack finds at least what a certificate leaves
        assert all(
            attacked >= certified
            for attacked, certified in zip(row.numbers, main[row.data, row.model][1:], strict=True)
        )


def printed(label):
    """The numbers in the body of a table of the source, in order; a dash is None."""
    text = SOURCE.read_text(encoding="utf-8")
    where = text.index(rf"\label{{{label}}}")
    start = max(text.rfind(rf"\begin{{{kind}}}", 0, where) for kind in ("table", "wraptable"))
    start = text.index(r"\begin{tabular}", start)
    body = text[start : text.index(r"\end{tabular}", start)]
    body = body.split(r"\midrule", 1)[1]
    body = re.sub(r"\\(cite[a-z]*|cmidrule|multirow|frac|sqrt)(\[[^]]*\])?(\{[^}]*\})?(\[[^]]*\])?", " ", body)
    body = re.sub(r"\\multicolumn\{\d\}\{.\}\{(-?)\}", r" \1 ", body)
    numbers = []
    for line in body.split("\n"):
        for cell in line.split("&")[1:]:
            found = re.fullmatch(r"\s*(-|[\d.]+)\s*(M|min|sec)?\s*(\\\\)?\s*", cell)
            if found:
                value = None if found[1] == "-" else float(found[1])
                numbers.append(60 * value if found[2] == "min" else value)
    return numbers


@pytest.mark.skipif(not SOURCE.is_file(), reason=f"the paper's source, {SOURCE.name}, is not beside the checkout")
@pytest.mark.parametrize("name", PAPER)
def test_the_numbers_are_those_of_the_source(name):
    table = PAPER[name]
    rows = table.rows
    if name == "table3":
        expected = [row.numbers[index] for index in range(4) for row in rows]
    elif table.side_by_side:
        keys = dict.fromkeys((row.group, row.model) for row in rows)
        expected = [
            number for key in keys for row in rows if (row.group, row.model) == key for number in row.numbers
        ]
    else:
        expected = [number for row in sorted(rows, key=lambda row: row.data) for number in row.numbers]
    assert printed(table.label) == expected
    text = " ".join(SOURCE.read_text(encoding="utf-8").split())
    for row in rows:
        assert not row.citation or rf"\citep{{{row.citation}}}" in text
    if name not in ("table3", "table5"):  # those cite and emphasise in their captions
        assert table.caption in text


# The configurations


def test_full_scale_is_the_paper_to_the_letter():
    for name in TRAINED:
        jobs = [job for row in planned(Settings(name, "full", 3, None)) for job in row.jobs]
        assert len({job.name for job in jobs}) == len(jobs)
        assert scaled(Settings(name, "full", 3, None)) == []
        for job in jobs:
            method, _, size = job.config.model.rpartition("_")
            if method in ("gloro", "local", "local_maxmin"):
                loss = method.partition("_")[0]
                assert (job.config.loss, job.config.epochs, job.config.augment) == (loss, 1000, "sll")
                assert [stage.method for stage in job.stages] == ["", "local"][: 1 + (loss == "local")]
                assert (method == "local_maxmin") == (loss == "local" and job.config.data == "tiny_imagenet")
                assert size == {"cifar10": "6c2f", "tiny_imagenet": "8c2f"}[job.config.data]
                continue
            assert size in SIZES
            offset = job.config.offset if name == "offsets" else 1.5 * 2**0.5
            assert offset in OFFSETS.values()
            assert job.config == TrainConfig(
                model=f"{method}_{size}",
                data=job.config.data,
                epochs=1000,
                batch_size=256,
                learning_rate=0.01,
                schedule="triangular",
                beta1=0.5,
                beta2=0.9,
                offset=offset,
                temperature=0.25,
                augment="sll",
                evaluate_every=10**9,
                seed=job.config.seed,
            )
    counts = {name: sum(len(row.jobs) for row in planned(Settings(name, "full", 3, None))) for name in TRAINED}
    assert counts == {"table1": 12 + 6, "table2": 24 + 6, "table5": 24, "offsets": 72, "corrected": 72}


def test_full_scale_has_a_printed_number_for_every_row_of_ours_but_the_third_mode():
    for name in TRAINED:
        for row in planned(Settings(name, "full", 3, None)):
            assert row.paper is not None or (name == "corrected" and row.group.startswith("Shifted"))
    modes = [row for row in planned(Settings("corrected", "cpu", 1, None)) if row.jobs and row.data == "cifar10"]
    assert [row.jobs[0].config.model for row in modes] == ["sll_surrogate_tiny", "sll_tiny", "sll_shifted_tiny"]


def test_small_scales_say_everything_that_they_change():
    paper = planned(Settings("table1", "full", 3, None))[-1].jobs[0].config
    for name in ("cpu", "quick"):
        words = " ".join(scaled(Settings("table1", name, 1, None)))
        config = planned(Settings("table1", name, 1, None))[-1].jobs[0].config
        said = {
            "model": "size",
            "epochs": "epochs instead of 1000",
            "schedule": "schedule",
            "augment": "augmentation",
            "offset": "offset √2/2 instead of 3√2/2",
            "data": "digits instead of CIFAR10",
        }
        silent = {"threads", "evaluate_every"}  # no part of the experiment
        for field in TrainConfig.model_fields:
            if getattr(config, field) != getattr(paper, field) and field not in silent:
                assert said[field] in words, field
        assert "1 seed instead of 3" in words
        assert "orthonormal start" in words


def test_plans_need_no_torch():
    code = "import sys, lipcert.experiments.scales; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_parameters_without_numbers():
    ours = [round(parameters(model_spec(f"sll_{size}")) / 1e6, 1) for size in SIZES]
    assert ours == [41.4, 78.8, 118.3, 236.4]
    table = [int(row.numbers[5]) for row in PAPER["table1"].rows if row.model in SIZES.values()]
    assert [int(count) for count in ours] == table  # the paper cuts, it does not round
    as_printed = [int(parameters(model_spec(f"sll_table3_{size}")) / 1e6) for size in SIZES]
    assert [a == b for a, b in zip(as_printed, table, strict=True)] == [True, True, False, False]


def test_the_stated_time_counts_what_is_left(tmp_path):
    row = planned(Settings("table1", "quick", 2, None))[-1]
    costs = {("digits", "sll_nano"): Cost("digits", "sll_nano", 1.0, 0.01)}
    run = 4 + 90 * 1.0 + 4 + 1.3 * 397 * 0.01
    both = expected(tmp_path, row.jobs, costs, IMAGES, 1)
    assert both.startswith("2 trainings, certify: ")
    assert f"{2 * run / 60:.0f} minutes of CPU time, {2 * run / 60:.0f} minutes with 1 at a time" in both
    assert f"{run / 60:.0f} minutes with 2 at a time" in expected(tmp_path, row.jobs, costs, IMAGES, 2)
    folder = tmp_path / row.jobs[0].name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(RunRecord(step=90, steps=90).model_dump_json())
    (folder / "certified.json").write_text("{}")
    assert f"1 training, certify: about {run / 60:.0f} min" in expected(tmp_path, row.jobs, costs, IMAGES, 1)
    assert expected(tmp_path, row.jobs[:1], costs, IMAGES, 1) == "nothing left to run"
    jobs = [job for row in planned(Settings("table1", "full", 3, None)) for job in row.jobs]
    assert paper_seconds(jobs) == 3 * 1000 * (6 + 8 + 20 + 35 + 55 + 105)


# The layout


def fabricated(name):
    """A record of the full scale with the paper's own numbers as ours; TinyImageNet is not prepared."""
    settings, table, rows = Settings(name, "full", 3, None), PAPER[name], []
    for row in planned(settings):
        ours, note = None, ""
        if row.jobs and row.source == "tiny_imagenet":
            note = "not run: data not prepared (lipcert data get tiny_imagenet)"
        elif row.jobs:
            numbers = row.paper.numbers if row.paper else (50.0,) * len(table.columns)
            ours = {
                column: {"mean": number, "deviation": 0.25}
                for column, number in zip(table.columns, numbers, strict=True)
            }
        seeds = 3 if ours else 0
        rows.append(
            record_row(row.data, row.group, row.model, row.paper, table.columns, ours=ours, note=note, seeds=seeds)
        )
    return {
        "table": name,
        "scale": "full",
        "paper": {"number": table.number, "label": table.label, "caption": table.caption},
        "stubs": list(table.stubs),
        "columns": list(table.columns),
        "side_by_side": table.side_by_side,
        "rows": rows,
        "scaled": scaled(settings),
        "notes": ALL.notes_of(name),
    }


@pytest.mark.parametrize("name", TRAINED)
def test_terminal_tables_fit_in_80_columns_and_pair_paper_with_ours(name):
    from rich.console import Console

    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    record = fabricated(name)
    tables = rich_tables(record)
    assert len(tables) == len({row["data"] for row in record["rows"]})
    for table in tables:
        console.print(table)
    lines = [line.split() for line in console.export_text().splitlines()]
    lines = [line for line in lines if {"paper", "ours", "quoted", "±"} & set(line)]
    expected = sum(1 + 2 * (row["ours"] is not None) + bool(row["note"]) for row in record["rows"])
    expected -= sum(row["paper"] is None for row in record["rows"])
    assert len(lines) == expected  # none is broken in two
    for above, here in pairwise(lines):
        if here[0] == "ours" and "–" not in here:
            assert above[-len(here) + 1 :] == here[1:]
    console.file.close()


@pytest.mark.parametrize("name", TRAINED)
def test_latex_is_ascii_and_every_line_has_all_columns(name):
    text = latex_table(fabricated(name))
    text.encode("ascii")
    assert text.count("{") == text.count("}")
    for environment in ("table", "tabular", "minipage"):
        assert text.count(rf"\begin{{{environment}}}") == text.count(rf"\end{{{environment}}}") == 1
    width = len(re.search(r"\\begin\{tabular\}\{([lr]+)\}", text)[1])
    body = text.split(r"\toprule")[1].split(r"\bottomrule")[0]
    body = re.sub(r"\\makecell\{.*? \\\\ .*?\}\}", "", body)  # line breaks inside a cell
    for line in (line for line in body.splitlines() if line.rstrip().endswith(r"\\")):
        spans = sum(int(span) - 1 for span in re.findall(r"\\multicolumn\{(\d+)\}", line))
        assert line.count("&") + 1 + spans == width, line
    for first, last in re.findall(r"\\cmidrule(?:\(lr\))?\{(\d+)-(\d+)\}", body):
        assert 1 <= int(first) < int(last) <= width
    assert r"\_" not in text.split(r"\label")[1]


def test_names_over_several_lines_cover_exactly_their_lines():
    text = latex_table(fabricated("corrected"))
    body = text.split(r"\midrule", 1)[1].split(r"\bottomrule")[0]
    assert [int(count) for count in re.findall(r"\\multirow\{(\d+)\}\{\*\}\{CIFAR", body)] == [32, 32]
    assert [int(count) for count in re.findall(r"\\multirow\{(\d+)\}\{\*\}\{[SE]\w+ ", body)] == [12, 12, 8] * 2
    assert body.count(r"\midrule") == 1
    assert body.count(r"\cmidrule{2-9}") == 4


def test_markdown_puts_data_sets_side_by_side_as_the_paper_does():
    record = fabricated("offsets")
    lines = markdown(record).splitlines()
    (head,) = [line for line in lines if line.startswith("| Offset")]
    assert head.count("CIFAR10 ") == head.count("CIFAR100 ") == 5
    (row,) = [line for line in lines if line.startswith("| 2√2 | SLL Small | paper")]
    assert row.endswith("| 70.0 | 61.5 | 53.4 | 45.7 | 22.7 | 44.6 | 34.5 | 26.5 | 21.0 | 8.6 |")


def test_footnotes_warn_of_the_paper_s_traps():
    for name in ("table1", "table2", "table5", "offsets"):
        assert any("not 1-Lipschitz" in note for note in footnotes(fabricated(name))), name
    assert not any("prove nothing" in note for note in footnotes(fabricated("corrected")))
    assert any("L and XL" in note for note in footnotes(fabricated("table1")))
    notes = footnotes(fabricated("table2"))
    assert "TinyImageNet: not run: data not prepared (lipcert data get tiny_imagenet)." in notes
    assert "Ours: mean over 3 seeds, ± the standard deviation." in notes


# The command


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("reproduce") / "whole"
    result = command("table1", "--scale", "quick", "--seeds", "2", "--out", str(out))
    assert result.returncode == 0, result.stderr
    return out, result


def record_of(out):
    return json.loads((out / "table.json").read_text())


def without_seconds(record):
    for row in record["rows"]:
        if row["ours"]:
            row["ours"].pop("seconds", None)
    return record


def test_a_quick_table_runs_from_end_to_end(finished):
    out, result = finished
    assert "6 trainings" in result.stderr  # the stated time
    assert "CPU time" in result.stderr
    assert max(len(line) for line in result.stdout.splitlines()[:-1]) <= 80
    assert "\x1b" not in result.stdout
    record = record_of(out)
    *quoted, gloro, local, mine = record["rows"]
    assert [row["ours"] for row in quoted] == [None] * 11
    assert [bool(row["citation"]) for row in quoted] == [True] * 7 + [False] * 4
    assert (mine["model"], mine["paper"], mine["seeds"]) == ("nano, digits", None, 2)
    assert (gloro["model"], gloro["paper"], gloro["seeds"]) == ("GloRo nano, digits", None, 2)
    assert gloro["ours"]["natural"]["mean"] > gloro["ours"]["36/255"]["mean"] > 40
    assert any("GloRo" in note for note in record["notes"])
    assert (local["model"], local["paper"], local["seeds"]) == ("Local-Lip-B nano, digits", None, 2)
    by_constant = [RunFolder(out / run["folder"]).certified(36 / 255) for run in local["runs"]]
    assert local["ours"]["natural"]["mean"] > local["ours"]["36/255"]["mean"] >= 50 * sum(by_constant)
    assert local["runs"][0]["commands"][-1] == f"lipcert certify {local['runs'][0]['folder']} --method local"
    shares = [RunFolder(out / run["folder"]).by("local").certified(36 / 255) for run in local["runs"]]
    assert local["ours"]["36/255"]["mean"] == pytest.approx(50 * sum(shares))
    assert any("Local-Lip-B" in note for note in record["notes"])
    runs = [RunFolder(out / run["folder"]) for run in mine["runs"]]
    for column in RADII:
        mean = sum(run.certified(EPS[column]) for run in runs) / 2
        assert mine["ours"][column]["mean"] == pytest.approx(100 * mean)
        assert mine["ours"][column]["deviation"] is not None
    assert mine["ours"]["natural"]["mean"] > 60  # it learned
    assert mine["ours"]["parameters"]["mean"] == pytest.approx(0.221, abs=0.001)
    assert [run["config"]["seed"] for run in mine["runs"]] == [0, 1]
    for run in mine["runs"]:
        assert run["config"] == json.loads((out / run["folder"] / "config.json").read_text())
        train, certify = run["commands"]
        assert (out / train.split()[3]).is_file()
        assert certify == f"lipcert certify {run['folder']}"
    assert markdown(record) == (out / "table.md").read_text()
    assert latex_table(record) == (out / "table.tex").read_text()


def test_a_finished_table_is_not_run_again(finished):
    out, _ = finished
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*") if path.is_file()}
    text = (out / "table.json").read_text()
    again = command("table1", "--scale", "quick", "--seeds", "2", "--out", str(out), "--json")
    assert again.returncode == 0, again.stderr
    assert "nothing left to run" in again.stderr
    assert json.loads(again.stdout) == json.loads(text)
    assert (out / "table.json").read_text() == text
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_killed_table_continues_to_the_same_rows(finished, tmp_path):
    out = tmp_path / "killed"
    shutil.copytree(finished[0], out)  # the trainings of two rows are there, those of the last are not
    for path in [*out.glob("table.*"), *out.glob("**/digits-sll-nano-*")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    words = ["table1", "--scale", "quick", "--seeds", "2", "--jobs", "1", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "lipcert", "reproduce", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=processes.ENVIRONMENT,
    )
    halfway, second = (RunFolder(out / f"runs/digits-sll-nano-{seed}") for seed in range(2))
    deadline = time.monotonic() + 300
    while not halfway.frozen_file.is_file() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert halfway.unfinished is None
    assert not second.exists
    assert not (out / "table.json").exists()
    trained = (out / "runs/digits-sll-nano-0/state.pt").stat().st_mtime_ns
    result = command(*words)
    assert result.returncode == 0, result.stderr
    assert "1 training," in result.stderr
    assert (out / "runs/digits-sll-nano-0/state.pt").stat().st_mtime_ns == trained
    assert without_seconds(record_of(out)) == without_seconds(record_of(finished[0]))


def test_a_diverged_seed_is_left_out_and_said(finished, tmp_path):
    out = tmp_path / "diverged"
    shutil.copytree(finished[0], out)
    (out / "jobs/runs/digits-sll-nano-1.diverged.json").write_text("{}")
    result = command("table1", "--scale", "quick", "--seeds", "2", "--out", str(out))
    assert result.returncode == 0, result.stderr
    mine = record_of(out)["rows"][-1]
    assert (mine["seeds"], mine["diverged"]) == (1, 1)
    assert mine["ours"]["natural"]["deviation"] is None
    assert "the loss of 1 of 2 seeds" in " ".join(result.stdout.split())


@pytest.mark.slow
def test_attacked_accuracy_lies_between_certified_and_natural(tmp_path):
    out = tmp_path / "attacked"
    result = command("table5", "--scale", "quick", "--out", str(out))
    assert result.returncode == 0, result.stderr
    (mine,) = [row for row in record_of(out)["rows"] if row["ours"]]
    attack = RunFolder(out / mine["runs"][0]["folder"]).attacked
    rows = {row.eps: row for row in attack.rows}
    assert set(mine["ours"]) == set(RADII)
    for column, value in mine["ours"].items():
        shares = rows[column]
        assert shares.examples == 32
        assert shares.certified <= value["mean"] / 100 <= shares.natural
    assert mine["runs"][0]["commands"][2].startswith("lipcert attack runs/digits-sll-nano-0 --method quick")
    assert "first 32 test images" in " ".join(result.stdout.split())


def test_inference_is_timed_once(tmp_path):
    out = tmp_path / "inference"
    first = command("inference", "--scale", "quick", "--out", str(out))
    assert first.returncode == 0, first.stderr
    record = record_of(out)
    assert [row["paper"] and row["paper"]["inference"] for row in record["rows"]] == [2460, 8, None, None, None]
    forward, certificate, local = (row["ours"]["inference"]["mean"] for row in record["rows"][2:])
    assert 0 < forward < certificate
    assert record["rows"][-1]["model"] == "Local-Lip-B nano, digits"
    assert record["ratio"] == {"paper": 2460 / 8, "ours": local / certificate}
    assert "308 times as long as SLL in the paper" in " ".join(first.stdout.split())
    assert "41 min" in first.stdout
    assert "instead of 4 GPUs" in " ".join(first.stdout.split())
    assert command("inference", "--scale", "quick", "--out", str(out)).stdout == first.stdout


def test_data_that_is_not_prepared_leaves_a_note_and_no_error(tmp_path):
    result = command("table2", "--out", str(tmp_path / "out"), "--data-root", str(tmp_path))
    assert result.returncode == 0, result.stderr
    for data, name in (("CIFAR100", "cifar100"), ("TinyImageNet", "tiny_imagenet")):
        assert f"{data}: not run: data not prepared (lipcert data get {name})." in " ".join(result.stdout.split())
    rows = [row for row in record_of(tmp_path / "out")["rows"] if row["note"]]
    assert [row["model"] for row in rows] == ["SLL tiny", "GloRo tiny", "Local-Lip-B (+MaxMin) tiny", "SLL tiny"]
    assert not (tmp_path / "out/runs").exists()
    times = command("inference", "--out", str(tmp_path / "times"), "--data-root", str(tmp_path))
    assert times.returncode == 0
    assert "lipcert data get tiny_imagenet, or cifar10" in " ".join(times.stdout.split())


def test_architectures_need_no_training(tmp_path):
    result = command("table3", "--out", str(tmp_path / "sizes"))
    assert result.returncode == 0, result.stderr
    rows = {row["model"]: row for row in record_of(tmp_path / "sizes")["rows"]}
    assert rows["Conv-SLL"]["paper"] == {"S": 20, "M": 30, "L": 90, "XL": 120}
    assert [value["mean"] for value in rows["Conv-SLL"]["ours"].values()] == [20, 30, 50, 70]
    counted = rows["Parameters (M), Table 1"]
    for size, printed_count in counted["paper"].items():
        assert int(counted["ours"][size]["mean"]) == printed_count
    assert len((tmp_path / "sizes/table.tex").read_text().splitlines()) > 15


def test_bad_input_is_exit_code_2_and_one_line(finished, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    for words in (
        ["table9"],
        ["table1", "--scale", "huge"],
        ["table1", "--seeds", "0"],
        ["table1", "--jobs", "0"],
        ["table1", "--out", str(tmp_path / "full")],
        ["table1", "--scale", "quick", "--seeds", "1", "--out", str(finished[0])],
        ["table3", "--out", str(finished[0])],
    ):
        result = command(*words)
        assert result.returncode == 2, words
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
        assert result.stderr.startswith("lipcert: ")
        assert not result.stdout


def test_scales_of_a_cpu_keep_to_half_an_hour_on_two_cores():
    """By the cost of a step of sll_tiny on one thread, 0.5 s, eight times that for an epoch of TinyImageNet."""
    for name in TRAINED:
        settings = Settings(name, "cpu", scale_of(name, "cpu").seeds, None)
        jobs = [job for row in planned(settings) for job in row.jobs]
        steps = sum(job.config.epochs * 196 * (8 if job.config.data == "tiny_imagenet" else 1) for job in jobs)
        assert steps * 0.5 / 2 < 30 * 60, name
