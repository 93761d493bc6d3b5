# SPDX-License-Identifier: Apache-2.0
"""Makes a proving model again: trains it on a GPU as models.json has recorded it, and checks its answers.

python3 make.py NAME [OPTION...] writes NAME.safetensors. Without corpus.zip the options of corpus.py are needed too, which makes it."""
from __future__ import annotations

import argparse
import subprocess
import sys

import torch
from safetensors.torch import load_file

import weights
from check_answers import HERE, fault, recorded, weights_of
from golden import greedy


def run(script: str, *arguments: str) -> None:
    subprocess.run([sys.executable, str(HERE / script), *arguments], check=True)


def train(name: str) -> None:
    own = recorded()[name]
    options = [part for key in ("seed", "tokens", "recipe", "phases") for part in (f"--{key}", str(own[key]))]
    run("train.py", "--name", name, *options, "--out", str(weights_of(name)))


def answers(name: str) -> list[bytes]:
    """Greedy answers to the prompts of golden.safetensors, in float32 on the CPU."""
    model, tensors = weights.load(weights_of(name), "cpu"), load_file(HERE / "golden.safetensors")
    prompts = [tensors[f"prompt.{i}"] for i in range(sum(key.startswith("prompt.") for key in tensors))]
    with torch.inference_mode():
        return [greedy(model, bytes(prompt.tolist())) for prompt in prompts]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(recorded()))
    parser.add_argument("--check", action="store_true", help="only check the weights that are there")
    args, corpus = parser.parse_known_args()
    if not args.check:
        if corpus or not (HERE / "corpus.zip").exists():
            run("corpus.py", *corpus)
        train(args.name)
    said = fault(args.name, answers(args.name))
    print(said or f"{args.name} answers as recorded")
    return bool(said)


if __name__ == "__main__":
    sys.exit(main())
