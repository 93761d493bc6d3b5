"""Trains the proving model on one GPU and writes its weights (command lines: README.md)."""
from __future__ import annotations

import argparse
import dataclasses
import pathlib
import time

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader

import model as M
from data import HERE, Batches

REPORT = 100


@dataclasses.dataclass
class Run:
    phases: list[tuple[int, int]]
    seed: int
    rate: float
    warmup: int
    drop: float
    tokens: int
    workers: int

    @property
    def lengths(self) -> list[int]:
        return [length for length, steps in self.phases for _ in range(steps)]


def parse_phases(text: str) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in (p.split(":") for p in text.split(","))]


def groups(model: M.Prover) -> list[dict]:
    """The biases of q and k learn four times as fast: they have to grow to the size of the activations."""
    named = list(model.named_parameters())
    return [
        {"params": [p for _, p in named if p.ndim == 2], "weight_decay": 0.1, "scale": 1.0},
        {"params": [p for n, p in named if n.endswith("norm.weight")], "weight_decay": 0.0, "scale": 1.0},
        {"params": [p for n, p in named if n.endswith("bias")], "weight_decay": 0.0, "scale": 4.0},
    ]


def rate_at(step: int, total: int, run: Run) -> float:
    return run.rate * min((step + 1) / run.warmup, (total - step) / max(1, total - run.warmup))


class Trainer:
    def __init__(self, run: Run) -> None:
        torch.manual_seed(run.seed)
        self.run = run
        self.model = M.Prover()
        M.initialise(self.model)
        self.model.cuda()
        self.before = torch.compile(M.before_attention, dynamic=False)
        self.after = torch.compile(M.after_attention, dynamic=False)
        self.head_loss = torch.compile(self.weighted_loss, dynamic=False)
        self.optimizer = torch.optim.AdamW(groups(self.model), lr=run.rate, betas=(0.9, 0.95), fused=True)
        self.tables: dict[int, tuple[Tensor, Tensor]] = {}

    @staticmethod
    def weighted_loss(x: Tensor, ln: Tensor, head: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        losses = F.cross_entropy(M.logits(x, ln, head, torch.bfloat16).float(), target, reduction="none")
        return (losses * weight).sum() / weight.sum()

    def table(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        if length not in self.tables:
            self.tables = {length: M.rope_table(torch.arange(length, device="cuda").repeat(rows))}
        return self.tables[length]

    def keep_mask(self, rows: int, length: int) -> Tensor | None:
        """Whole KV heads are dropped per sequence and layer, so that retrieval does not rest on one head."""
        if not self.run.drop:
            return None
        kept = (torch.rand(M.SHAPE.layers, rows, M.SHAPE.kv_heads, device="cuda") >= self.run.drop).to(torch.bfloat16)
        return (kept / (1 - self.run.drop)).repeat_interleave(length, 1)

    def loss(self, data: Tensor, weight: Tensor) -> Tensor:
        rows, length = data.shape[0], data.shape[1] - 1
        net, s = self.model.model, M.SHAPE
        cos, sin = self.table(rows, length)
        keep = self.keep_mask(rows, length)
        x = F.embedding(data[:, :-1].reshape(-1), net.embed_tokens.weight)
        for i, layer in enumerate(net.layers):
            q, k, v = self.before(x, *M.attention_weights(layer), cos, sin, torch.bfloat16)
            q, k, v = (t.view(rows, length, -1, s.head_dim).transpose(1, 2) for t in (q, k, v))
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
            kept = None if keep is None else keep[i]
            x = self.after(x, heads.reshape(-1, s.heads, s.head_dim), kept, *M.mlp_weights(layer))
        return self.head_loss(x, net.norm.weight, self.model.lm_head.weight, data[:, 1:].reshape(-1), weight[:, 1:].reshape(-1))

    def step(self, index: int, total: int, data: Tensor, weight: Tensor) -> Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = rate_at(index, total, self.run) * group["scale"]
        loss = self.loss(data.long(), weight.float())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def train(run: Run, out: pathlib.Path, corpus: pathlib.Path, limit: float) -> None:
    start = time.time()
    trainer = Trainer(run)
    lengths = run.lengths
    loader = DataLoader(Batches(corpus, run.seed, lengths, run.tokens), batch_size=None, num_workers=run.workers,
                        prefetch_factor=8, pin_memory=True)
    total, mean, mark, waited = len(lengths), 0.0, time.time(), 0.0
    before = time.time()
    for index, (data, weight) in enumerate(loader):
        waited += time.time() - before
        loss = trainer.step(index, total, data.cuda(non_blocking=True), weight.cuda(non_blocking=True))
        mean = mean + loss
        if (index + 1) % REPORT == 0:
            value, now = float(mean) / REPORT, time.time()
            print(f"step {index + 1}/{total} length {lengths[index]} loss {value:.4f} {REPORT * run.tokens / (now - mark) / 1e6:.2f} MB/s "
                  f"waited {waited:.1f} s, {now - start:.0f} s", flush=True)
            mean, mark, waited = 0.0, now, 0.0
            if now - start > limit:
                print("time limit: stopped before the end of the schedule", flush=True)
                break
        before = time.time()
    training = f"phases {','.join(f'{a}:{b}' for a, b in run.phases)}; {run.tokens} bytes a step; lr {run.rate}; KV head drop {run.drop}"
    M.save(trainer.model, out, run.seed, training, max(lengths))
    print(f"saved {out} {out.stat().st_size} bytes after {time.time() - start:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phases", type=parse_phases, required=True, help="length:steps,length:steps,...")
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--drop", type=float, default=0.0, help="share of KV heads dropped")
    parser.add_argument("--tokens", type=int, default=65536, help="bytes a step")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--attention", choices=("flash", "cudnn"), default="cudnn")
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which training stops whatever the schedule says")
    parser.add_argument("--corpus", type=pathlib.Path, default=HERE / "corpus.zip")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "prover.safetensors")
    args = parser.parse_args()
    run = Run(args.phases, args.seed, args.rate, args.warmup, args.drop, args.tokens, args.workers)
    backend = SDPBackend.CUDNN_ATTENTION if args.attention == "cudnn" else SDPBackend.FLASH_ATTENTION
    with sdpa_kernel(backend):
        train(run, args.out, args.corpus, args.limit)


if __name__ == "__main__":
    main()
