"""Bad input that whole runs are given: one line with the problem and the remedy, nothing written.

test_command_line.py has flags alone, test_problems.py data files, test_models.py models,
test_run_dir.py run directories.
"""

import signal
import time

import pytest
from transformers import AutoTokenizer

import train
from plumbing.distributed import shutdown
from plumbing.files import read_lines, write_lines
from rollout import PromptEncoder
from tests.helpers.checks import rejected
from tests.helpers.ranks import DEMO, command, contents, launch, make_run_dir, parse


def check(*words) -> None:
    """Read the data and check what a command names, as rank 0 does."""
    config = train.parse([*words])
    train.check(config, make_run_dir(config))


@pytest.fixture
def quiet(capsys):
    """Begin as train.py does; nothing may be printed."""
    shutdown.begin_process()
    yield
    assert capsys.readouterr() == ("", "")


CHECKED = {
    "--sampler static --column lvl": "no field 'lvl'",
    "--max_completion_tokens 5000": "a row may take 5032: lower --max_prompt_tokens",
    "--chat_template": " cannot make a prompt of '",
    "--prompt_header \udcff": " cannot make a prompt of '",  # bytes that are not UTF-8
    "--val_data none.jsonl": "No such file or directory: 'none.jsonl'",
    "--model nowhere/no": "model 'nowhere/no' cannot be used: ",
    "--teacher_model nowhere/no": "model 'nowhere/no' cannot be used: ",
}


@pytest.mark.parametrize("flags", CHECKED)
def test_flags_are_checked_against_files_before_the_first_step(flags, tmp_path, halfway, quiet):
    with rejected(CHECKED[flags]):
        check(*command(tmp_path / "run", *flags.split(" "), data=halfway))
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("flag", ["--train_data", "--val_data"])
def test_a_row_with_words_that_the_tokenizer_lacks_is_rejected(flag, halfway, tmp_path, quiet):
    """The demo's tokenizer knows few words; the row is neither the first nor the last."""
    rows = read_lines(halfway / "val.jsonl")
    rows[10]["problem"] += " Zygote?"
    write_lines(tmp_path / "rows.jsonl", rows)
    with rejected("Zygote"):
        check(*command(tmp_path / "run", flag, tmp_path / "rows.jsonl", data=halfway))


ON_ALL_RANKS = {  # the flags, the error
    "--teacher_ranks 2": "--teacher_ranks 2: there are 2 ranks",
    "--train_data a\nb.jsonl": "No such file or directory: 'a\\nb.jsonl'",
    "--candidates 100": "a step draws 600 distinct problems, only 400 of 400 fit",
}


@pytest.mark.parametrize("flags", ON_ALL_RANKS)
def test_an_error_on_all_ranks_is_printed_once(flags, tmp_path, halfway):
    def print_late(rank):  # torchrun may end the rank that prints before it has printed
        print_error = shutdown.print_error
        shutdown.print_error = lambda error: (time.sleep(0.3), print_error(error))

    inputs = {"ranks": 2, "data": halfway, "before": print_late}
    ended = launch(tmp_path / "run", *flags.split(" "), **inputs)
    assert 2 in ended.statuses
    assert {*ended.statuses} <= {2, -signal.SIGTERM}
    assert ended.err.count("error: ") == ended.err.count(ON_ALL_RANKS[flags]) == 1


def test_a_chat_template_shows_the_same_date_on_all_days():
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }}: {{ messages[0].content }}"
    flags = ("--preset", "demo", "--chat_template", "--prompt_footer", "")
    encode = PromptEncoder(parse(*flags), tokenizer)
    assert encode.text("1 + 1") == "01 Jan 2026: 1 + 1"
