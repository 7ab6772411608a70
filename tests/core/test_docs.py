"""README and docs/ against the code: links, commands, flags, names, keys, sizes."""

import contextlib
import faulthandler
import functools
import io
import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from pkgutil import resolve_name

import pytest
from torch.distributed.run import get_args_parser

import train
import verify
from plumbing.files import read_lines, write_lines
from plumbing.progress import PARTS
from sampler import FOLDER, SAMPLERS, find_sampler
from tests.helpers.models import ROOT
from tests.helpers.ranks import run
from tests.stress import mutation

PAGES = {"README.md": (ROOT / "README.md").read_text(encoding="utf-8")}
PAGES |= {f"docs/{path.name}": path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md")}
README, COMMANDS, MAP = (
    PAGES[f"{name}.md"] for name in ("README", "docs/commands", "docs/paper_map")
)
every_page = pytest.mark.parametrize("page", PAGES)

FOLDERS = "scripts|benchmarks|experiments|tests"
COMMAND = re.compile(rf"(?:-m ((?:{FOLDERS})(?:\.\w+)+)|(\btrain\.py\b))([^`|;&#>\n]*)")
FLAG = re.compile(r"(?<![\w-])--([a-z][\w-]*)")
OTHER_PROGRAMS = {"kill-on-bad-exit", "open-mode", "requeue", "signal"}  # Slurm
OTHER_PROGRAMS |= {"no-build-isolation", "logdir", "samples_per_plugin"}  # pip, tensorboard


def section(page: str, heading: str) -> str:
    """The text under a second-level heading."""
    text = PAGES[page].partition(f"\n## {heading}\n")[2]
    assert text, f"{page} has no section {heading!r}"
    return re.split(r"\n## ", text)[0]


def first_column(text: str) -> list[str]:
    """The names in backticks in the first cells of the tables of a text."""
    cells = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@functools.cache
def flags_of(command: str) -> frozenset[str]:
    """The flags in the --help of a module, or of train.py, which runs in this process."""
    out, argv = io.StringIO(), sys.argv
    sys.argv = [command, "--help"]
    try:
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a module that a test has imported already
            if command == "train.py":
                runpy.run_path(str(ROOT / command), run_name="__main__")
            else:
                runpy.run_module(command, run_name="__main__")
    except SystemExit as end:
        assert not end.code, command
    finally:
        sys.argv = argv
    options = out.getvalue().rpartition("\noptions:\n")[2]
    assert options, f"python -m {command} has no --help"
    lines = [line for line in options.splitlines() if line.startswith("  -")]
    names = frozenset(name for line in lines for name in FLAG.findall(line))
    return names | (flags_of("train.py") if "flags are train.py's" in options else frozenset())


def commands_of(text: str) -> list[tuple[str, list[str]]]:
    """Each of our commands in a text, with its flags."""
    text = text.replace("\\\n", " ")
    found = [(module or script, rest) for module, script, rest in COMMAND.findall(text)]
    return [(command, FLAG.findall(rest)) for command, rest in found]


def our_modules() -> list[str]:
    """Every module that is a command."""
    folders = ("scripts", "benchmarks", "experiments", "tests/stress")
    files = [path for folder in folders for path in sorted((ROOT / folder).glob("*.py"))]
    files = [path for path in files if 'if __name__ == "__main__"' in path.read_text("utf-8")]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]


# ---- every page


@every_page
def test_relative_links_lead_to_a_file_and_a_heading(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        name, _, anchor = target.partition("#")
        if "://" in name:
            continue
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), target
        headings = re.findall(r"^#+ (.+)", path.read_text("utf-8"), re.MULTILINE) if anchor else []
        slugs = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
        assert not anchor or anchor in slugs, target


@every_page
def test_files_named_in_backticks_exist(page):
    for name in re.findall(rf"`((?:plumbing|samplers|docs|{FOLDERS})/[\w/]+\.\w+)`", PAGES[page]):
        assert (ROOT / name).exists(), name


@every_page
def test_commands_exist_and_take_the_flags_they_are_given(page):
    for command, flags in commands_of(PAGES[page]):
        assert set(flags) <= flags_of(command), command


@every_page
def test_flags_presets_and_samplers_exist(page):
    known = set().union(OTHER_PROGRAMS, flags_of("train.py"), *map(flags_of, our_modules()))
    known |= {flag.lstrip("-") for flag in get_args_parser()._option_string_actions}
    known |= {"shutdown_timeout"}  # of torchrun, from torch 2.13 on
    assert set(FLAG.findall(PAGES[page])) <= known
    assert set(re.findall(r"--preset ([a-z][\w.-]*)", PAGES[page])) <= set(train.PRESETS)
    for name in re.findall(r"--sampler ([a-z_]+)(?![\w./:])", PAGES[page]):
        find_sampler(name)


@every_page
def test_dotted_names_of_the_code_resolve(page):
    modules = "grpo|plumbing|rollout|sampler|teacher|train|verify"
    for name in re.findall(rf"`((?:{modules})(?:\.\w+)+)`", PAGES[page]):
        if not name.endswith((".py", ".pt")):  # files
            resolve_name(name)


# ---- sizes


def test_readme_is_one_page_and_docs_stay_short():
    lines = README.splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 120
    words = {page: len(text.split()) for page, text in PAGES.items()}
    assert words["README.md"] <= 1_700
    assert sum(words.values()) <= 17_000
    assert words["docs/results.md"] <= 4_000
    assert len(PAGES["docs/results.md"].splitlines()) <= 400


# ---- README


def test_readme_has_both_commands_that_ci_runs():
    install = "    pip install -r requirements.txt && "
    demo = install + "torchrun --nproc_per_node 4 train.py --preset demo"
    assert {demo, install + "pytest"} <= set(README.splitlines())


def test_readme_prints_the_example_sampler_word_for_word():
    code = (FOLDER / "target.py").read_text(encoding="utf-8").splitlines()
    assert "\n".join(f"    {line}".rstrip() for line in code) in README


def test_names_in_the_code_map_and_reading_guide_occur_in_the_code():
    files = [*ROOT.glob("*.py"), *(ROOT / "plumbing").rglob("*.py")]
    words = set(re.findall(r"\w+", "".join(path.read_text("utf-8") for path in files)))
    text = section("README.md", "Code map") + section("README.md", "Reading guide")
    names = re.findall(r"`([\w.]+)`", text)
    names = [name for name in names if not name.endswith((".py", ".jsonl"))]
    assert len(names) > 20
    assert {name.rpartition(".")[2] for name in names} <= words


# ---- docs/commands.md, docs/extending.md, docs/troubleshooting.md


def test_every_command_and_preset_is_in_commands_md():
    named = {command for command, _ in commands_of(COMMANDS)}
    assert named == {"train.py", *our_modules()}
    assert all(f"{preset}`" in COMMANDS for preset in train.PRESETS if preset != "qwen2.5-1.5b")


def test_every_sampler_is_in_extending_md():
    table = PAGES["docs/extending.md"].partition("| `--sampler` |")[2].partition("\n## ")[0]
    assert sorted(first_column(table)) == sorted(
        [*SAMPLERS, *(p.stem for p in FOLDER.glob("*.py"))]
    )


def test_troubleshooting_has_the_advice_on_slow_steps():
    slow = section("docs/troubleshooting.md", "The run is slow").replace("`", "")
    for name, remedy in PARTS.values():
        assert f"| {name} | {remedy} |" in slow


# ---- docs/run_folder.md


@pytest.fixture(scope="module")
def runs(tmp_path_factory, halfway):
    """Two short runs that together log every key."""
    folder = tmp_path_factory.mktemp("keys")
    rated = [row | {"rate": 0.5} for row in read_lines(halfway / "train.jsonl")]
    write_lines(folder / "train.jsonl", rated)
    write_lines(folder / "val.jsonl", read_lines(halfway / "val.jsonl"))
    short = ("--steps", 2, "--eval_every", 2, "--noise_every", 1)
    rate = ("--sampler", "static", "--column", "rate", "--kl_coef", 0.1)
    run(folder / "goldilocks", *short, data=folder)
    run(folder / "static", *short, *rate, data=folder)
    return folder / "goldilocks", folder / "static"


def keys(*files) -> set[str]:
    return {key for file in files for row in read_lines(file) for key in row}


@pytest.mark.slow
def test_run_folder_md_names_exactly_the_keys_of_metrics_jsonl(runs):
    named = first_column(section("docs/run_folder.md", "metrics.jsonl"))
    assert len(named) == len(set(named))
    assert set(named) == keys(*(folder / "metrics.jsonl" for folder in runs))


@pytest.mark.slow
def test_run_folder_md_names_exactly_the_files_and_fields_of_a_run(runs):
    folder = runs[0]
    for name, file in (
        ("selections.jsonl", "selections.jsonl"),
        ("samples.jsonl", "samples.jsonl"),
        ("evals/step_N.jsonl", "evals/step_0.jsonl"),
    ):
        assert set(first_column(section("docs/run_folder.md", name))) == keys(folder / file)
    named = first_column(PAGES["docs/run_folder.md"].partition("\n## ")[0])
    written = {path.name + "/" * path.is_dir() for path in folder.iterdir()}
    assert set(named) == written | {"lock"}


def test_run_folder_md_names_every_status_of_a_verdict():
    text = section("docs/run_folder.md", "evals/step_N.jsonl")
    named = re.findall(r"`([a-z_]+)`", "".join(re.findall(r"^- ([^:]+):", text, re.MULTILINE)))
    assert sorted(named) == sorted([*verify.STATUSES, "bad_gold", "overlong_prompt"])


# ---- docs/paper_map.md and the list of mutations


def test_tests_named_in_paper_map_md_exist():
    names = set(re.findall(r"`(test_\w+\.py)`", MAP))
    assert len(names) > 8
    assert names <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}


def test_the_counts_of_rows_in_paper_map_md_are_right():
    part_1 = MAP[: MAP.index("## 2.")].splitlines()
    rows = [line for line in part_1 if line.startswith("| ") and not line.startswith("| paper")]
    not_run = [line for line in rows if "not run" in line]
    assert all("test_" in line for line in rows if line not in not_run)
    checked = f"{len(rows) - len(not_run)} are checked by tests"
    assert f"Of the {len(rows)} rows of part 1, {checked} and **{len(not_run)} are not" in MAP


def test_every_mutation_fits_the_code_and_names_a_test():
    """`faults` itself raises InputError where the text to be replaced is not in the file."""
    chosen = mutation.faults("")
    assert len(chosen) > 40
    for name, _, test, _, _ in chosen:
        file, _, function = test.partition("::")
        assert f"def {function}" in (ROOT / file).read_text(encoding="utf-8"), name


# ---- the first hour

FEWER_STEPS = ' HOUR="$HOUR --steps 12 --eval_every 6 --verify_workers 1"'


def first_hour() -> str:
    """The commands of docs/commands.md, First hour, on the demo and with few steps, as one script.
    The packages are installed already."""
    text = section("docs/commands.md", "First hour")
    lines = [line[4:] for line in text.splitlines() if not line.strip() or line[:4] == "    "]
    left_out = ('export HOUR="--preset one-gpu"', "pip install")
    lines = [line for line in lines if not line.startswith(left_out)]
    demo = [line.startswith('export HOUR="--preset demo"') for line in lines].index(True)
    return "\n".join([*lines[: demo + 1], FEWER_STEPS, *lines[demo + 1 :]])


@pytest.mark.slow
@pytest.mark.hour
@pytest.mark.timeout(1200)
def test_every_command_of_the_first_hour_works(tmp_path):
    faulthandler.cancel_dump_traceback_later()  # pytest's own limit is shorter
    for name in ("train.py", "demo"):
        (tmp_path / name).symlink_to(ROOT / name)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    bash = ["bash", "-euo", "pipefail", "-c", first_hour()]
    done = subprocess.run(bash, cwd=tmp_path, env=env, capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "stopped, and saved" in done.stdout  # then resumed, no step repeated or skipped:
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == 6
    for folder in folders:
        rows = read_lines(folder / "metrics.jsonl")
        assert [row["step"] for row in rows] == list(range(13))
    accuracy = read_lines(tmp_path / "runs/hour-0/metrics.jsonl")[-1]["val_accuracy"]
    assert f"| pass@1, greedy | {accuracy:.2%} |" in done.stdout
    assert re.search(r"\| pass@4 \| [\d.]+% \|", done.stdout)
    assert re.search(r"\| goldilocks \| [-+]\d", done.stdout)  # compare: minus uniform
    question = read_lines(tmp_path / "data/hour/val.jsonl")[0]["problem"]
    assert f"{question}\n\nSolution:" in done.stdout
    assert (tmp_path / "figures/report.html").stat().st_size > 10_000
