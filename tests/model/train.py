# SPDX-License-Identifier: Apache-2.0
"""Trains a proving model on one GPU and writes its weights (command lines: README.md)."""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import pathlib
import time
from typing import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader

import model as M
import weights
from attention import Attend
from data import HERE, RECIPES, Batches, Corpus

REPORT = 100
SAVE_SECONDS = 45
WORSE = 1.5  # times the loss of the report before


@dataclasses.dataclass(frozen=True)
class Phase:
    """`steps` of one length; `share` of the run, which the learning rate follows. Without steps the share is one of the time."""

    length: int
    steps: int
    share: float

    def __str__(self) -> str:
        return f"{self.length}:{self.steps}@{self.share:.4g}"


@dataclasses.dataclass
class Run:
    name: str
    phases: list[Phase]
    seed: int
    rate: float
    warmup: int
    tokens: int
    workers: int
    recipe: str
    seconds: float
    device: str
    compiled: bool
    kernel_options: dict | None
    window_share: float


def parse_phases(text: str) -> list[Phase]:
    """length:steps (its share is one of all steps), length@share (for --seconds), or length:steps@share."""
    parts = [(p.partition("@")[0].split(":"), p.partition("@")[2]) for p in text.split(",")]
    found = [Phase(int(own[0]), int(own[1]) if len(own) > 1 else 0, float(share or 0)) for own, share in parts]
    total = sum(p.steps for p in found)
    return [dataclasses.replace(p, share=p.share or p.steps / total) for p in found]


def groups(model: M.Prover) -> list[dict]:
    """What sets how sharply heads look learns four times as fast: biases of q and k, their norms, sinks."""
    named = list(model.named_parameters())
    sharp = ("q_proj.bias", "k_proj.bias", "q_norm.weight", "k_norm.weight", "sinks")
    return [
        {"params": [p for _, p in named if p.ndim == 2], "weight_decay": 0.1, "scale": 1.0},
        {"params": [p for n, p in named if p.ndim == 1 and not n.endswith(sharp)], "weight_decay": 0.0, "scale": 1.0},
        {"params": [p for n, p in named if n.endswith(sharp)], "weight_decay": 0.0, "scale": 4.0},
    ]


class Trainer:
    def __init__(self, run: Run) -> None:
        torch.manual_seed(run.seed)
        self.run, self.shape = run, M.SHAPES[run.name]
        self.model = M.Prover(self.shape)
        M.initialise(self.model)
        self.model.to(run.device)
        s, wrap = self.shape, (lambda f: torch.compile(f, dynamic=False)) if run.compiled else (lambda f: f)
        self.before = wrap(lambda x, w, cos, sin: M.before_attention(s, x, w, cos, sin, torch.bfloat16))
        self.after = wrap(lambda x, heads, w: M.after_attention(s, x, heads, w))
        self.head_loss = wrap(self.weighted_loss)
        self.attend = Attend(s, run.compiled, run.kernel_options, run.window_share)
        self.layers = self.model.layer_weights()
        fused = {"fused": True} if run.device == "cuda" else {}
        self.optimizer = torch.optim.AdamW(groups(self.model), lr=run.rate, betas=(0.9, 0.95), **fused)
        self.tables: dict[tuple[int, float], tuple[Tensor, Tensor]] = {}

    def weighted_loss(self, x: Tensor, ln: Tensor, head: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        losses = F.cross_entropy(M.logits(self.shape, x, ln, head, torch.bfloat16).float(), target, reduction="none")
        return (losses * weight).sum() / weight.sum()

    def table(self, rows: int, length: int, theta: float) -> tuple[Tensor, Tensor]:
        if (length, theta) not in self.tables:
            positions = torch.arange(length, device=self.run.device).repeat(rows)
            self.tables = {k: v for k, v in self.tables.items() if k[0] == length} | {(length, theta): M.rope_table(positions, self.shape, theta)}
        return self.tables[length, theta]

    def loss(self, data: Tensor, weight: Tensor) -> Tensor:
        rows, length = data.shape[0], data.shape[1] - 1
        x = self.model.embed(data[:, :-1].reshape(-1))
        for i, own in enumerate(self.layers):
            q, k, v = self.before(x, own, *self.table(rows, length, self.shape.theta_of(i)))
            x = self.after(x, self.attend(i, length, q, k, v, own.get("self_attn.sinks")), own)
        return self.head_loss(x, self.model.model.norm.weight, self.model.head, data[:, 1:].reshape(-1), weight[:, 1:].reshape(-1))

    def gradient(self, data: Tensor, weight: Tensor) -> Tensor:
        loss = self.loss(data.long(), weight.float())
        loss.backward()
        return loss.detach()

    def compile(self, length: int) -> None:
        """Builds all kernels; the model stays as it is."""
        shape = (self.run.tokens // length, length + 1)
        self.gradient(*(torch.ones(shape, dtype=torch.uint8, device=self.run.device) for _ in range(2)))
        self.optimizer.zero_grad(set_to_none=True)
        if self.run.device == "cuda":
            torch.cuda.synchronize()

    def step(self, rate: float, data: Tensor, weight: Tensor) -> Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        loss = self.gradient(data, weight)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


def batches(run: Run, corpus: Corpus, phase: Phase, first: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batch numbers from `first` on; without steps more than any run takes."""
    steps = range(first, first + (phase.steps or 1_000_000))
    made = Batches(corpus, run.seed, phase.length, run.tokens, steps, RECIPES[run.recipe])
    more = {"prefetch_factor": 8} if run.workers else {}
    return iter(DataLoader(made, batch_size=None, shuffle=False, num_workers=run.workers, pin_memory=run.device == "cuda", **more))


class Journal:
    """Lines of progress, and the weights as they are, now and then."""

    def __init__(self, trainer: Trainer, out: pathlib.Path, start: float) -> None:
        self.trainer, self.out, self.start = trainer, out, start
        self.done: list[Phase] = []
        self.sum: Tensor | float = 0.0
        self.loss = float("inf")
        self.waited, self.mark, self.saved = 0.0, time.time(), time.time()

    def add(self, step: int, length: int, loss: Tensor, progress: float, inside: Phase) -> None:
        self.sum = self.sum + loss
        if (step + 1) % REPORT:
            return
        run, now, before, self.loss = self.trainer.run, time.time(), self.loss, float(self.sum) / REPORT
        print(f"step {step + 1} length {length} loss {self.loss:.4f} {REPORT * run.tokens / (now - self.mark) / 1e6:.2f} MB/s "
              f"waited {self.waited:.1f} s, {100 * progress:.0f} %, {now - self.start:.0f} s", flush=True)
        if not self.loss < WORSE * before:
            raise SystemExit(f"seed {run.seed} has failed: the loss rose from {before:.4f} to {self.loss:.4f} at rows of {length} tokens")
        self.sum, self.waited, self.mark = 0.0, 0.0, now
        if now - self.saved > SAVE_SECONDS:
            self.save([*self.done, inside], "stopped before the end; ")
            self.saved = now

    def save(self, phases: list[Phase], remark: str = "") -> None:
        run = self.trainer.run
        training = (f"{remark}phases {','.join(map(str, phases))}; {run.tokens} bytes a step; lr {run.rate}, warm-up {run.warmup}; "
                    f"recipe {run.recipe}; PyTorch {torch.__version__}")
        weights.save(self.trainer.model, run.name, self.out, run.seed, training, max(p.length for p in phases))


def train(run: Run, out: pathlib.Path, corpus: Corpus) -> None:
    start = time.time()
    trainer = Trainer(run)
    trainer.compile(run.phases[0].length)
    begin, step, progress_before = time.time(), 0, 0.0
    budget = run.seconds - (begin - start)
    print(f"kernels after {begin - start:.0f} s", flush=True)
    journal = Journal(trainer, out, start)
    for phase in run.phases:
        entered, waiting = time.time(), time.time()
        source = batches(run, corpus, phase, step)
        for index in itertools.count():
            inside = index / phase.steps if phase.steps else (time.time() - entered) / (phase.share * budget)
            if inside >= 1:
                break
            data, weight = next(source)
            journal.waited += time.time() - waiting
            progress = progress_before + inside * phase.share
            rate = run.rate * min((step + 1) / run.warmup, 1 - progress)
            loss = trainer.step(rate, *(t.to(run.device, non_blocking=True) for t in (data, weight)))
            journal.add(step, phase.length, loss, progress, dataclasses.replace(phase, steps=index + 1))
            step, waiting = step + 1, time.time()
        del source
        journal.done.append(dataclasses.replace(phase, steps=index))
        progress_before += phase.share
    journal.save(journal.done)
    print(f"saved {out} {out.stat().st_size} bytes after {time.time() - start:.0f} s: {','.join(map(str, journal.done))}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", choices=M.SHAPES, default="prover")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phases", type=parse_phases, required=True, help=parse_phases.__doc__)
    parser.add_argument("--seconds", type=float, default=0, help="length of the run, compilation included, for phases without steps")
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=65536, help="bytes a step")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--recipe", choices=RECIPES, default="direct")
    parser.add_argument("--attention", choices=("flash", "cudnn"), default="cudnn", help="of models that need no FlexAttention")
    parser.add_argument("--kernel-options", type=json.loads, help="of FlexAttention, as JSON; default: PyTorch chooses")
    parser.add_argument("--window-share", type=float, default=1.0, help="of a row, which a window is at most")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--plain", action="store_true", help="without torch.compile")
    parser.add_argument("--corpus", type=pathlib.Path, default=HERE / "corpus.zip")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    if not args.seconds and not all(p.steps for p in args.phases):
        parser.error("phases without steps need --seconds")
    run = Run(args.name, args.phases, args.seed, args.rate, args.warmup, args.tokens, args.workers, args.recipe, args.seconds, args.device,
              not args.plain, args.kernel_options, args.window_share)
    backend = SDPBackend.CUDNN_ATTENTION if args.attention == "cudnn" else SDPBackend.FLASH_ATTENTION
    with sdpa_kernel(backend) if args.device == "cuda" else contextlib.nullcontext():
        train(run, args.out, Corpus(args.corpus, "train"))


if __name__ == "__main__":
    main()
