r"""Are the tests able to fail? Puts one fault at a time into a copy of the tree and runs its test.

    python -m scripts.mutate [--only WORD] [-j JOBS]

Most faults below have been seen in well-known GRPO code. Prints a table; the exit status is 1 if a
fault survives that is not expected to, and 2 where a fault or its test no longer fits the code.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A fault is two lines: its name, file and tests (apart by |; a fourth part says why it may survive),
# then the old text, which the file has exactly once, and the new.
FAULTS = r"""
ddof 1 in the advantage | grpo.py | grpo::one_right_of_four
    correction=0 if std == "population" else 1 => correction=1
epsilon in the advantage | grpo.py | grpo::one_right_of_four
    centred_P_G / scale_P_1 => centred_P_G / (scale_P_1 + 1e-4)
a dead group is not exactly 0 | grpo.py | grpo::dead_groups_get_exactly_zero
    torch.where(dead_P_1, torch.zeros_like(centred_P_G), centred_P_G) => centred_P_G.nan_to_num()
dead rows stay in the denominators | grpo.py | grpo::leaving_out_dead_groups_by_hand
    live.clamp(min=1) => len(advantage_P_G)
`grpo`: one mean over all tokens | grpo.py | grpo::row_weights_by_hand
    1 / (P * G * lengths) => torch.ones_like(lengths) / lengths.sum()
`dapo`: the batch's tokens, not the group's | grpo.py | grpo::row_weights_by_hand
    lengths.sum(dim=1, keepdim=True) => lengths.sum(dim=0, keepdim=True).sum() / P
`sum`: divided by the longest row | grpo.py | grpo::row_weights_by_hand
    torch.full_like(lengths, 1 / (P * G)) => torch.full_like(lengths, 1 / (P * G)) / lengths.max()
temperature dropped from log-probs | grpo.py | grpo::logprob_and_entropy_by_hand
    .div_(temperature) => .div_(1)
temperature dropped in backward | grpo.py | grpo::values_and_gradients_equal_plain_log_softmax
    grad_z.div_(ctx.temperature) => grad_z
clip reversed for A < 0 | grpo.py | grpo::clipping_two_by_two
    (ratio_N * advantage_N, clipped_N * advantage_N) => (ratio_N, clipped_N) * advantage_N
clip-higher ignored | grpo.py | grpo::clipping_two_by_two
    ratio_N.clamp(1 - clip_low, 1 + clip_high) => ratio_N.clamp(1 - clip_low, 1 + clip_low)
k1 KL as a loss | grpo.py | grpo::kl_by_hand
    torch.exp(log_ratio_N) - log_ratio_N - 1 => -log_ratio_N
entropy lowered, not raised | grpo.py | grpo::a_step_on_the_entropy_term_raises_the_entropy
    loss - entropy_coef * => loss + entropy_coef *
EOS masked | rollout.py | rollout::collate_by_hand
    t >= len(rollouts.prompt_ids[b]) => (t >= len(rollouts.prompt_ids[b])) & (t < t[-1])
pad = EOS masks every EOS | rollout.py | rollout::collate_by_hand
    response_B_T.to(device) => (response_B_T & (ids_B_T != pad_id)).to(device)
EOS left out of the completion | rollout.py | rollout::greedy_is_what_plain_generate_gives
    ids[:end], end is not None => ids[: end and end - 1], end is not None
only the first of several stop tokens | rollout.py | rollout::stop_tokens_are_the_checkpoints_and_the_tokenizers
    *(eos if => *(eos[:1] if
a token's own hidden state | rollout.py | rollout::recomputed_logprobs_are_those_of_the_generator
    hidden_B_T_D[:, :-1] => hidden_B_T_D[:, 1:]
positions count the padding | rollout.py | rollout::sampling_is_what_a_naive_loop_does
    cache.slot - pad, => cache.slot.expand_as(pad),
padding is attended to | rollout.py | rollout::sampling_is_what_a_naive_loop_does
    (slots >= pad) & (slots <= cache.slot) => slots <= cache.slot + 0 * pad
prompts padded on the right | rollout.py | rollout::sampling_is_what_a_naive_loop_does
    [pad_id] * (T - len(row)) + row => row + [pad_id] * (T - len(row))
sampled at 1, learned at 0.7 | rollout.py | rollout::sampling_is_what_a_naive_loop_does
    {"temperature": temperature, => {"temperature": 1.0,
top-k left on | rollout.py | rollout::sampling_is_what_a_naive_loop_does
    "top_k": 0 => "top_k": 50
repetition penalty left to the checkpoint | rollout.py | rollout::the_checkpoints_own_settings_do_not_leak
    repetition_penalty=1.0, =>
a seed per batch, not per row | rollout.py | rollout::a_row_draws_the_same_whatever_is_beside_it
    key=[seed, first_row + b] => key=[seed, list(rows).index(b)]
packed rows see each other | rollout.py | rollout::packing_and_padding_change_nothing
    ids_B_T, position_ids=position_1_T, use_cache=False => ids_B_T, use_cache=False
pooling counts padding | teacher.py | teacher::mean_pool_leaves_padding_out
    (hidden_B_T_D * mask_B_T_1).sum(dim=1) / mask_B_T_1.sum(dim=1) => hidden_B_T_D.mean(dim=1)
shuffled anew in each epoch | teacher.py | teacher::algorithm_2_shuffles_once_an_update
    self._step(batch) for batch in batches => self._step(rows[i:] + rows[:i]) for i in [len(losses)]
an update for each sample | teacher.py | teacher::algorithm_2_triggers_inside_the_stream_and_carries_the_rest
    % self.config.teacher_update_every == 0 => >= self.config.teacher_update_every
teacher loss over a rank's own rows | teacher.py | ranks::teacher_batch_is_shared_out_over_its_ranks
    / len(batch) => / max(1, len(mine))
an idle teacher rank learns too | teacher.py | ranks::teacher_batch_is_shared_out_over_its_ranks
    * (len(mine) > 0) => * 1
teacher gradient averaged | teacher.py | ranks::teacher_batch_is_shared_out_over_its_ranks
    (loss * self.shares) => loss
the head computes in bf16 | teacher.py | teacher::the_head_computes_in_float32
    float32=[self.model.head] => float32=[]
LoRA merged without its scale | teacher.py | teacher::export_predicts_the_same_elsewhere
    LORA_ALPHA / LORA_RANK * B @ A => B @ A
target p(1-p), not its root | sampler.py | sampler::utility_target_by_hand
    np.sqrt(p_hat * (1 - p_hat)) => p_hat * (1 - p_hat)
drawn again in a pass | sampler.py | sampler::goldilocks_takes_the_best_of_each_pool_and_never_twice
    if not self.revisits: => if self.revisits:
epsilon's branches swapped | sampler.py | sampler::epsilon_greedy_extremes_and_rate
    rng.random(N) < epsilon => rng.random(N) >= epsilon
the lowest utility is chosen | sampler.py | sampler::epsilon_greedy_extremes_and_rate
    utilities_N_K.argmax(axis=1)) => utilities_N_K.argmin(axis=1))
over-long prompts are not dropped | sampler.py | sampler::overlong_problems_are_counted
    if self.fits(int(self.order[last])): => if True:
noise floor of p, not of y | sampler.py | sampler::noise_floor_by_hand
    np.abs(utility_target(p) - utility_target(k / G)) => np.abs(p - k / G)
lag 1 learns before it answers | sampler.py | sampler::lag_fixes_what_each_proposal_has_learned
    if self.lag == 0: => if True:
rng not restored | sampler.py | sampler::state_dict_continues_bit_for_bit
    self.rng.bit_generator.state = state["rng"] => pass
loss not multiplied by the ranks | train.py | ranks::same_gradient_on_any_number_of_ranks
    (loss * n).backward() => loss.backward()
normaliser of a micro-batch | train.py | ranks::batches_order_and_dead_rows_change_nothing
    weight_B[rows_N].to(logp_N) => torch.full_like(logp_N, 1 / len(rows_N))
normaliser of a rank's own rows | train.py | ranks::same_gradient_on_any_number_of_ranks
    weight_B[rows_N].to(logp_N) => weight_B[rows_N].to(logp_N) * n * len(mine) / len(live)
metric of the last micro-batch only | train.py | ranks::same_gradient_on_any_number_of_ranks
    mine += torch.stack => mine = torch.stack
the generator keeps its old weights | train.py | train::one_process_leaves_what_the_design_promises
    self.generator.refresh(self.policy) => pass
NaN silently skipped | train.py | faults::a_gradient_that_is_not_finite_stops_before_the_update
    if not (norm.isfinite() and sums.isfinite().all()): => if False:
golds tiled, prompts repeated | train.py | train::one_process_leaves_what_the_design_promises
    [a for _, a in asked for _ in range(G)] => [a for _ in range(G) for _, a in asked]
checkpoints written under their final name | train.py | faults::a_run_with_a_damaged_checkpoint_and_torn_logs_is_the_same_run
    temporary = final.with_suffix(".tmp") => temporary = final
checkpoints not on disk before they count | train.py | faults::a_run_with_a_damaged_checkpoint_and_torn_logs_is_the_same_run
    sync(temporary / "sampler.pt") => pass
logs not cut on resume | train.py | train::four_ranks_repeat_and_resume_bit_for_bit
    if step and row["step"] <= step => if step
SIGTERM ignored | train.py | faults::sigterm_at_one_rank_stops_all_after_the_step_and_saves
    self.store.set("stop", "") => pass
the first box, not the last | verify.py | verify::extract_boxed
    start = max(( => start = min((
equality too generous | verify.py | verify::wrong_answers_and_guesses_are_not_paid
    if sizes and others and not sizes & others: => if False:
"""


@dataclass
class Fault:
    """One fault: what is wrong, where, and the tests that must notice."""

    name: str
    file: str
    tests: list[str]
    old: str
    new: str
    excuse: str = ""  # why it may survive


def faults() -> list[Fault]:
    """The faults of the table."""
    lines = FAULTS.strip("\n").splitlines()
    found = []
    for head, patch in zip(lines[::2], lines[1::2], strict=True):
        name, file, tests, *excuse = head.split(" | ")
        old, _, new = patch.partition(" =>")
        tests = [f"tests/{test}" for test in tests.split()]
        found.append(Fault(name, file, tests, old.strip(), new.strip(), *excuse))
    return found


def run(tests: list[str], fault: Fault | None = None) -> int:
    """pytest's exit status in a copy of the tree with the fault: 0 all passed, 1 a test failed."""
    names = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT)
    with tempfile.TemporaryDirectory() as folder:
        for name in names.decode().splitlines():
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, Path(folder) / name)
        if fault:
            path = Path(folder) / fault.file
            path.write_text(path.read_text().replace(fault.old, fault.new))
        line = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *tests]
        return subprocess.run(line, cwd=folder, capture_output=True, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="faults whose name or file has this in it")
    parser.add_argument("-j", type=int, default=1, help="how many to try at a time")
    options = parser.parse_args()
    chosen = [f for f in faults() if options.only in f.name or options.only in f.file]
    for fault in chosen:
        if (count := (ROOT / fault.file).read_text().count(fault.old)) != 1:
            print(f"{fault.name}: {fault.file} has {fault.old!r} {count} times", file=sys.stderr)
            return 2
    if run(sorted({test for fault in chosen for test in fault.tests})):
        print("the tests fail, or are not there, without any fault", file=sys.stderr)
        return 2
    print("| fault | test | |\n|---|---|---|")
    unexpected = 0
    with ThreadPoolExecutor(options.j) as pool:
        codes = pool.map(lambda fault: run(fault.tests, fault), chosen)
        for fault, code in zip(chosen, codes, strict=True):
            verdict = {0: "SURVIVED", 1: "caught"}.get(code, f"pytest's exit status {code}")
            if code == 0 and fault.excuse:
                verdict = f"survives, as expected: {fault.excuse}"
            unexpected += code != 1 and not verdict.startswith("survives")
            tests = ", ".join(f"`{test.removeprefix('tests/')}`" for test in fault.tests)
            print(f"| {fault.name} | {tests} | {verdict} |", flush=True)
    return min(1, unexpected)


if __name__ == "__main__":
    sys.exit(main())
