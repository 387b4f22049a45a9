"""Break the engine on purpose, one place at a time; some test must fail each time.

    python tests/mutations.py
    python tests/mutations.py optim/rounding.py optim/row_options.py --tests tests/optim

Works on a copy of the checkout, with a cache of compiled kernels of its own, in a temporary folder. Exit code 1 when a
mutant survives.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
ENGINE = ["tests/optim", "tests/table", "tests/transport"]
SINGLE = ["bags", "clip_norm", "embedding", "lazy_decay", "lookup", "optimizer", "quantized", "row_options"]
ENGINE += [f"tests/test_{name}.py" for name in SINGLE]
ENGINE += ["tests/test_state_dtype.py", "tests/graph/test_partition_book.py"]

MUTANTS: list[tuple[str, str, str]] = [
    # file, text, replacement
    ("optim/rules.py", "weight - self.lr * grad", "weight + self.lr * grad"),
    ("optim/rules.py", "self.momentum * state", "state"),
    ("optim/rules.py", 'state["sum"] + grad.square()', "grad.square()"),
    ("optim/rules.py", "(total.sqrt() + self.eps)", "(total + self.eps).sqrt()"),
    ("optim/rules.py", 'state["sum"] + mean_square(grad)', 'state["sum"] + grad.square().sum(dim=1)'),
    ("optim/rules.py", "grad[:, -1]", "mean_square(grad[:, :-1])"),
    ("optim/rules.py", "(1.0 - self.beta1) * grad", "self.beta1 * grad"),
    ("optim/rules.py", "bias_correction(self.beta2, step", "bias_correction(self.beta1, step"),
    ("optim/rules.py", 'if self.eps_placement == "raw" else self.eps', 'if self.eps_placement != "raw" else self.eps'),
    ("optim/rule.py", "1.0 - self.rate(state) * self.weight_decay", "1.0 - self.weight_decay"),
    ("optim/rule.py", "own = own + added * weight", "own = own + added"),
    ("optim/rule.py", "at_most(moved, self.max_norm)", "moved"),
    ("optim/rule.py", "torch.maximum(state[DECAYED], new[DECAY])", "state[DECAYED]"),
    ("optim/rule.py", "(moved - weight) * self", "moved * self"),
    ("table/lazy_decay.py", "x = before - max(before, decay)", "x = max(before, decay) - before"),
    ("table/lazy_decay.py", "weight[r, d] * factor", "weight[r, d] / factor"),
    ("table/lazy_decay.py", "x / 2.0", "x / 3.0"),
    ("table/lazy_decay.py", "= max(decayed[rows[k]], decay)", "= decayed[rows[k]]"),
    ("table/places.py", "self._norms[rows.numpy()] = 0.0", "pass"),
    ("table/selection.py", "last[k] > since", "last[k] > since + 1"),
    ("table/selection.py", "to[end] = stop - 1", "to[end] = stop"),
    ("table/selection.py", "changed[end] = k", "changed[end] = start"),
    ("optim/row_numbers.py", "counts[r] += 1", "counts[r] += 2"),
    ("optim/row_numbers.py", "last[r] = step", "last[r] = step + 1"),
    ("transport/local.py", "groups if told is ids else None", "groups"),
    ("graph/partition_book.py", "max(high, ids[i])", "high"),
    ("table/lazy_decay.py", "values.to(wide) * factor", "values.to(wide) / factor"),
    ("transport/collective.py", "merge(*settle(came)[:2])[1]", "came.grads"),
    ("optimizer.py", "max_norm / (norm + 1e-6)", "max_norm / (norm * norm)"),
    ("optim/apply.py", "chance[0] + number", "chance[0]"),
    ("transport/base.py", "math.fsum([*rows, -total])", "0.0 * math.fsum([*rows, -total])"),
    ("quantized.py", "steps.round()", "steps.floor()"),
    ("optim/rules.py", "(norm > 0) & (divisor > 0)", "divisor > 0"),
    ("optim/rules.py", 'state["step"] + 1', 'state["step"] + 2'),
    ("optim/rule.py", "torch.pow(beta, ", "0.5 * torch.pow(beta, "),
    ("optim/rule.py", "step.double()))", "step.double().cpu()))"),
    ("optim/apply.py", "stable=True", "stable=True, descending=True"),
    ("optim/apply.py", "merged / counts.unsqueeze(1)", "merged"),
    ("optim/apply.py", 'if how == "mean":', 'if how == "sum":'),
    ("optim/rounding.py", "number_at(row, d) - scale * g[d])", "number_at(row, d) + scale * g[d])"),
    ("optim/rounding.py", "if nothing != 0.0 or", "if"),
    ("optim/rounding.py", "g[d + np.uint64(1)]", "g[d]"),
    ("optim/rounding.py", "(pair & UPPER) - scale", "(pair | UPPER) - scale"),
    ("optim/kernels.py", "b = momentum * kept[d] + g[d]", "b = momentum * g[d] + kept[d]"),
    ("optim/kernels.py", "s = sums[d] + g[d] * g[d]", "s = g[d] * g[d]"),
    ("optim/kernels.py", "lr * g[d] / (np.sqrt(s) + eps)", "lr * g[d] / np.sqrt(s + eps)"),
    ("optim/kernels.py", "scale = lr / (np.sqrt(s) + eps)", "scale = lr / np.sqrt(s + eps)"),
    ("optim/kernels.py", "s = sums[0] + square / np.float32(g.shape[0])", "s = sums[0] + square"),
    ("optim/kernels.py", "c1 = 1.0 - beta1**step", "c1 = 1.0 - beta2**step"),
    ("optim/kernels.py", "e = eps / root2 if raw else eps", "e = eps if raw else eps / root2"),
    ("optim/kernels.py", "step[r] += 1", "step[r] += 2"),
    ("optim/fused.py", 'state["step"] += 1', 'state["step"] += 2'),
    ("optim/kernels.py", "v = b2 * second_of[d] + a2 * g[d] * g[d]", "v = b2 * second_of[d] + a2 * g[d]"),
    ("optim/kernels.py", "v = b2 * second_of[0] + a2 * (square / np.float32(width))", "v = a2 * square"),
    ("optim/kernels.py", "subtract(row, first_of, scale, None)", "subtract(row, g, scale, None)"),
    ("optim/kernels.py", "subtract(row, g, ratio, None)", "subtract(row, g, lr, None)"),
    ("optim/fused.py", "alone = not optional and weight", "alone = weight"),
    ("optim/row_options.py", "g[d] += added * row[d]", "g[d] += added"),
    ("optim/row_options.py", "row[d] *= factor", "row[d] -= factor"),
    ("optim/row_options.py", "-clip if x < -clip", "clip if x < -clip"),
    ("optim/kernels.py", "lr * (np.sqrt(of_row) / np.sqrt(of_step))", "lr * (of_row / of_step)"),
    ("optim/kernels.py", "np.sqrt(of_gradient) + decay * norm", "np.sqrt(of_gradient)"),
    ("optim/merging.py", "count > 0)", "count < 0)"),
    ("optim/merging.py", "if mean and count > 1:", "if not mean and count > 1:"),
    ("optim/merging.py", "NOTHING) + f * rows[s, d]", "NOTHING) + rows[s, d]"),
    ("optim/merging.py", "i = following[i]", "i = -1"),
    ("optim/merging.py", "NOTHING) + widened(grads[i, d])", "NOTHING) - widened(grads[i, d])"),
    ("optim/row_options.py", "row[d] *= scale", "row[d] /= scale"),
    ("core/addresses.py", "max(low, before) - before", "max(low, before)"),
    ("core/addresses.py", "min(high, before + rows[j]) - before", "high - before"),
    ("core/addresses.py", "before += rows[j]", "before += start"),
    ("optim/fused.py", "setdefault((job.kernel, job.kind)", "setdefault((job.kernel, kind_of(job.arrays[:1]))"),
    ("core/addresses.py", "types.voidptr if chosen", "types.voidptr if not chosen"),
    ("core/addresses.py", "number(count)), number(place)", "number(count)), number(0)"),
    ("core/addresses.py", "[builder.mul(width, item), item]", "[item, item]"),
    ("core/compiled.py", "following[low:high] = group(rows[low:high])", "following[low:high] = group(rows[low:])"),
    ("transport/kvstore/client.py", "self._exchange.check()\n        self._send_waiting()", "self._exchange.check()"),
    ("core/addresses.py", "shape[0], shape[-1]", "shape[0], shape[0]"),
    ("optim/row_options.py", "max(ratio * np.sqrt(_square(row)), least)", "least"),
    ("optim/row_options.py", "row[d] *= factor\n    _keep", "row[d] /= factor\n    _keep"),
    ("optim/row_options.py", "old[d] + taken *", "old[d] - taken *"),
    ("optim/row_options.py", "_square(row), options[6])", "_square(row), options[1])"),
    ("optim/rounding.py", "np.uint32(word) << np.uint32(16)", "np.uint32(word) << np.uint32(15)"),
    ("optim/rounding.py", "np.float32(2.0**112)", "np.float32(2.0**111)"),
    ("optim/rounding.py", "np.uint64(d + 1) * GOLDEN", "np.uint64(d) * GOLDEN"),
    ("core/compiled.py", "(x >> np.uint64(27))", "(x >> np.uint64(26))"),
    ("table/bags.py", "total[d] += row[d]\n", "total[d] = row[d]\n"),
    ("table/row_sums.py", "total[d] += factor * own[d]", "total[d] += own[d]"),
    ("table/row_sums.py", "every[r, low:high] = 0.0", "pass"),
    ("table/row_sums.py", "columns_at(above, last)", "columns_at(above, last * 0)"),
    ("table/row_sums.py", "min((part + 1) * lines // parts * LINE_NUMBERS, width)", "low + LINE_NUMBERS"),
    ("table/shard.py", "number_at(job[1], k - job[5])", "number_at(job[1], k)"),
    ("table/shard.py", "if k < job[5]:", "if k <= job[5]:"),
    ("table/shard.py", "max(low - starts[j], 0)", "max(low - starts[j], 1)"),
    ("table/shard.py", "copy_at(job[2] + k * job[6]", "copy_at(job[2]"),
    ("transport/pieces.py", "at += room_for(size)", "at += size"),
    ("transport/shm_all_to_all.py", "begin += room_for(len(piece))", "begin += len(piece)"),
    ("table/bags.py", "total[d] += row[d] * factor[i]", "total[d] += row[d] * factor[k]"),
    ("table/bags.py", "total[d] /= size", "total[d] /= size + 1"),
    ("table/bags.py", "grads / self.sizes.clamp(min=1)", "grads / self.sizes.clamp(min=2)"),
    ("table/bags.py", "row[d] * grads[source[i], d]", "row[d] * grads[source[0], d]"),
    ("optim/rounding.py", "rest << (np.uint64(32) - shift)", "rest << (np.uint64(31) - shift)"),
    ("optim/rounding.py", "row_key(seed, step, ids[k])", "row_key(seed, step, k)"),
    ("optim/rounding.py", "flipped) < rest", "flipped) <= rest + rest"),
    ("optim/rounding.py", "np.uint32(0x7FFF) +", "np.uint32(0x8000) +"),
    ("core/compiled.py", "following[before] = position", "following[position] = before"),
    ("core/compiled.py", "following[last[k]] = i", "following[i] = last[k]"),
    ("core/compiled.py", "(word >> shift) & mask", "(word >> POSITION) & mask"),
    ("core/compiled.py", "last, before = row, position", "last, before = row, i"),
    ("table/row_memory.py", "block[start : start + num_bytes]", "block[:num_bytes]"),
    ("core/addresses.py", "(part + 1) * num // parts", "(part + 1) * num // parts - 1"),
    ("optimizer.py", 'Convention("mean", "row", "corrected")', 'Convention("sum", "row", "corrected")'),
    ("table/shard.py", "gather(self.weight, rows, out)", "gather(self.weight, rows.sort()[0], out)"),
    ("table/shard.py", "tensor.clone() if", "tensor if"),
    ("table/tier/moves.py", "counts[events[n, 0]] = events[n, 2]", "counts[n] = events[n, 2]"),
    ("table/tier/frames.py", "self._words &= FLAGS", "self._words |= FLAGS"),
    ("table/tier/frames.py", "(word & (COUNT | DIRTY | LOADING)) | written", "(word & (COUNT | LOADING)) | written"),
    ("embedding.py", "transport.pull(*wanted[0])", "transport.pull(wanted[0][0], wanted[0][1].flip(0))"),
    ("embedding.py", "ctx.trace.add(ctx.ids, grad.", "ctx.trace.add(ctx.ids.flip(0), grad."),
    ("sparse_optimizer.py", "self._tables[push.table].clear_gradients()", "pass"),
    ("graph/partition_book.py", "right=True", "right=False"),
    ("graph/partition_book.py", "low < 0 or high >= num_rows", "low < 0 or high > num_rows"),
]  # fmt: skip


def survives(folder: Path, mutant: tuple[str, str, str], tests: list[str]) -> bool:
    """Whether all tests pass with one text replaced; kernels that hold it are compiled again (``compiled.njit``)."""
    name, text, replacement = mutant
    path = folder / "graph_emb" / name
    original = path.read_text(encoding="utf-8")
    if text not in original:
        raise SystemExit(f"{name} no longer holds {text!r}; mend tests/mutations.py")
    path.write_text(original.replace(text, replacement, 1), encoding="utf-8")
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        environment = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "compiled")}
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if result.returncode in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise SystemExit(f"the tests did not run: {result.stdout[-500:]}{result.stderr[-500:]}")
        return result.returncode == 0
    finally:
        path.write_text(original, encoding="utf-8")


def main() -> None:
    """Run the mutants and name the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="mutants of these files, as in MUTANTS; without: all")
    parser.add_argument("--tests", nargs="*", default=ENGINE, help="what may kill them")
    args = parser.parse_args()
    mutants = [mutant for mutant in MUTANTS if not args.files or mutant[0] in args.files]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "copy"
        ignore = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", "_build")
        shutil.copytree(CHECKOUT, folder, ignore=ignore)
        alive = []
        for mutant in mutants:
            lives = survives(folder, mutant, args.tests)
            print(f"{'SURVIVED' if lives else 'killed':9} {mutant[0]}: {mutant[1]!r} -> {mutant[2]!r}", flush=True)
            alive += [mutant] if lives else []
    print(f"{len(mutants) - len(alive)} of {len(mutants)} mutants killed")
    sys.exit(bool(alive))


if __name__ == "__main__":
    main()
