"""The pages against the code: links, anchors, commands, flags, names, keys, sizes."""

import faulthandler
import functools
import io
import json
import os
import re
import runpy
import subprocess
import sys
import textwrap
import unicodedata
from contextlib import redirect_stdout, suppress
from pathlib import Path
from pkgutil import resolve_name
from unittest.mock import patch

import pytest
from torch.distributed.run import get_args_parser

from plumbing.config import PRESETS
from plumbing.files import read_lines
from sampler import FOLDER, SAMPLERS, find_sampler
from scripts import line_anchors
from tests.helpers.models import ROOT
from tests.helpers.ranks import run, torchrun
from tests.stress import mutation

FILES = *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in FILES}
every_page = pytest.mark.parametrize("page", PAGES)
# The changelog also names code that has left.
every_page_of_today = pytest.mark.parametrize(
    "page", [page for page in PAGES if page != "CHANGELOG.md"]
)

FOLDERS = "|".join(sorted({path.parent.name for path in ROOT.glob("*/*.py")}))
MODULES = "|".join(path.stem for path in ROOT.glob("*.py"))
COMMAND = re.compile(rf"(?:-m ((?:{FOLDERS})(?:\.\w+)+)|\b(train)\.py\b)([^`|;&#>\n]*)")
FLAG = re.compile(r"(?<![\w-])--([a-z][\w-]*)")
# Slurm's; pip's and tensorboard's; torchrun's, from torch 2.13 on.
OTHER_PROGRAMS = {
    "open-mode",
    "requeue",
    "signal",
    "no-build-isolation",
    "logdir",
    "samples_per_plugin",
    "shutdown_timeout",
}


def section(page: str, heading: str) -> str:
    """The text under a second-level heading."""
    text = PAGES[page].partition(f"\n## {heading}\n")[2]
    assert text, f"{page} has no section {heading!r}"
    return text.partition("\n## ")[0]


def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page: lower case, hyphens for spaces, and
    otherwise only letters, marks (as of p̂), digits, hyphens and underscores."""
    anchors = set()
    for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        kept = [c for c in title.lower() if unicodedata.category(c)[0] in "LMN" or c in "-_ "]
        anchors.add("".join(kept).replace(" ", "-"))
    return anchors


def names_in(text: str) -> list[str]:
    """The names in backticks that begin the items of lists and the rows of tables in a text."""
    cells = re.findall(r"^(?:\| (`[^|]*`) \||- (`[^:]*`): )", text, re.MULTILINE)
    cells = ["".join(pair) for pair in cells]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@functools.cache
def flags_of(module: str) -> set[str]:
    """The flags in the --help of a command."""
    out = io.StringIO()
    with patch.object(sys, "argv", [module, "--help"]), redirect_stdout(out), suppress(SystemExit):
        runpy.run_module(module, run_name="__main__")
    _, heading, options = out.getvalue().rpartition("\noptions:\n")
    assert heading, f"python -m {module} has no --help"
    lines = [line for line in options.splitlines() if line.startswith("  -")]
    names = {name for line in lines for name in FLAG.findall(line)}
    return names | (flags_of("train") if "flags are train.py's" in options else set())


def commands_of(page: str) -> list[tuple[str, set[str]]]:
    """The module of each of our commands on a page, with its flags."""
    commands = COMMAND.findall(PAGES[page].replace("\\\n", " "))
    return [(module or script, {*FLAG.findall(rest)}) for module, script, rest in commands]


def our_modules() -> set[str]:
    """Every module that is a command."""
    folders = ("scripts", "benchmarks", "studies", "tests/stress")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    files = [path for path in files if 'if __name__ == "__main__"' in path.read_text("utf-8")]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files}
    return {"train"} | {module.removesuffix(".__main__") for module in modules}


@every_page
def test_files_named_in_links_and_backticks_exist(page):
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", PAGES[page])
    for name in [*links, *re.findall(r'(?:src|srcset)="([^"]+)"', PAGES[page])]:
        assert "://" in name or ((ROOT / page).parent / name).exists(), name
    for name in re.findall(rf"`((?:{FOLDERS}|docs)/[\w/]+\.\w+)`", PAGES[page]):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`(test_\w+\.py)`", PAGES[page]):
        assert [*(ROOT / "tests").rglob(name)], name


@every_page
def test_anchors_in_links_are_headings(page):
    for file, anchor in re.findall(r"\]\(([^)\s#]*\.md|)#([^)\s]+)\)", PAGES[page]):
        text = ((ROOT / page).parent / file).read_text("utf-8") if file else PAGES[page]
        assert anchor in anchors_of(text), f"{file}#{anchor}"


def test_ten_samplers_run_in_trl_as_readme_says():
    """Without a Teacher, further rounds, or groups of unlike sizes, as knapsack's."""
    names = {*SAMPLERS, *(path.stem for path in FOLDER.glob("*.py"))} - {"knapsack"}
    classes = [find_sampler(name) for name in names]
    fit = [cls for cls in classes if not cls.uses_teacher and not cls.has_own_rounds()]
    assert len(fit) == 10 and len(names) == 17
    assert "Ten of the 18 samplers also run in TRL 1.16" in PAGES["README.md"]


@every_page_of_today
@pytest.mark.filterwarnings("ignore:.* found in sys.modules")
def test_commands_flags_presets_and_samplers_exist(page):
    for module, flags in commands_of(page):
        assert flags <= flags_of(module), module
    torchruns = {flag.lstrip("-") for flag in get_args_parser()._option_string_actions}
    known = OTHER_PROGRAMS.union(torchruns, *map(flags_of, our_modules()))
    assert set(FLAG.findall(PAGES[page])) <= known
    assert set(re.findall(r"--preset ([a-z][\w.-]*)", PAGES[page])) <= set(PRESETS)
    for name in re.findall(r"--sampler ([a-z_]+)(?![\w./:])", PAGES[page]):
        find_sampler(name)


@every_page_of_today
def test_dotted_names_of_the_code_resolve(page):
    for name in re.findall(rf"`((?:{FOLDERS}|{MODULES})(?:\.\w+)+)`", PAGES[page]):
        if not name.endswith((".py", ".pt")):  # files
            resolve_name(name)


def test_the_paper_map_links_to_the_lines_of_the_names():
    page = PAGES["docs/paper_map.md"]
    assert line_anchors.anchored(page) == page, "run python -m scripts.line_anchors"


def test_readme_prints_the_example_sampler_word_for_word():
    code = (FOLDER / "target.py").read_text(encoding="utf-8").splitlines()
    assert "\n".join(f"    {line}".rstrip() for line in code) in PAGES["README.md"]


def test_extending_md_prints_the_example_reward_word_for_word():
    code = (ROOT / "rewards/exact.py").read_text(encoding="utf-8").partition("\n\n\n")[2]
    assert textwrap.indent(code, "    ") in PAGES["docs/extending.md"]


def test_every_command_preset_and_sampler_has_its_line():
    assert {module for module, _ in commands_of("docs/commands.md")} == our_modules()
    presets = {*PRESETS} - {"qwen2.5-1.5b"}  # the default
    assert all(f"{preset}`" in PAGES["docs/commands.md"] for preset in presets)
    table = PAGES["docs/samplers.md"].partition("| `--sampler` |")[2].partition("\n## ")[0]
    names = [*SAMPLERS, *(path.stem for path in FOLDER.glob("*.py"))]
    assert sorted(names_in(table)) == sorted(names)


@pytest.mark.slow
def test_run_folder_md_names_exactly_the_files_of_a_run_and_their_keys(halfway, tmp_path):
    """Two samplers, static and frontier, have a key of their own."""
    folder = tmp_path / "run"
    run(folder, "--steps", 2, "--kl_coef", 0.1, "--mismatch", "mask", data=halfway)
    for name in ("metrics.jsonl", "selections.jsonl", "samples.jsonl", "evals/step_N.jsonl"):
        named = names_in(section("docs/run_folder.md", name))
        rows = read_lines(folder / name.replace("N", "0"))
        own = {"unrated", "uniform_share"} if name == "metrics.jsonl" else set()
        assert sorted(named) == sorted(own.union(*rows))
    files = names_in(PAGES["docs/run_folder.md"].partition("\n## ")[0])
    written = {path.name + "/" * path.is_dir() for path in folder.iterdir()}
    assert set(files) == written | {"lock"}


def test_every_mutation_fits_the_code_and_names_a_test():
    """`faults` raises InputError for one whose old text is not in the file, or without a test."""
    assert len(mutation.faults("")) > 40


@pytest.mark.slow
@pytest.mark.hour
@pytest.mark.timeout(1200)
def test_every_command_of_the_tutorial_works(tmp_path):
    """Those of docs/tutorial.md, on the demo and with few steps, as one script."""
    faulthandler.cancel_dump_traceback_later()  # pytest's own limit is shorter
    text = PAGES["docs/tutorial.md"]
    lines = [line[4:] for line in text.splitlines() if not line.strip() or line[:4] == "    "]
    left_out = ('export FLAGS="--preset one-gpu"', "pip install")
    script = "\n".join(line for line in lines if not line.startswith(left_out))
    fewer_steps = " --steps 12 --eval_every 6 --verify_workers 1"
    script = script.replace(demo := 'export FLAGS="--preset demo', demo + fewer_steps)
    for name in ("train.py", "demo"):
        (tmp_path / name).symlink_to(ROOT / name)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    bash = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(bash, cwd=tmp_path, env=env, capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "stopped: run" in done.stdout  # then resumed, no step repeated or skipped:
    rows = read_lines(tmp_path / "runs/mine/metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(13))
    assert "goldilocks − uniform: " in done.stdout
    question = read_lines(tmp_path / "data/mine/val.jsonl")[0]["problem"]
    assert f"{question}\n\nSolution:" in done.stdout  # the last command's answer


@pytest.mark.slow
def test_the_code_of_the_lesson_runs(tmp_path):
    """With two steps where it has 50, in a fork of this process, and showing nothing."""
    cells = json.loads((ROOT / "docs/lesson.ipynb").read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for name in ("grpo.py", "demo"):
        (tmp_path / name).symlink_to(ROOT / name)

    def run_cells():
        os.chdir(tmp_path)
        os.environ["MPLBACKEND"] = "agg"
        exec("\n".join(code).replace(", 50)", ", 2)"), {"display": lambda *_, **__: None})
        return 0

    ended = torchrun(1, tmp_path, run_cells)
    assert ended.statuses == [0], ended
