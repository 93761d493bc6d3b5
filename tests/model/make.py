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


SEEDS = 3  # from the recorded one on: a training may end in a bad place


def run(script: str, *arguments: str) -> bool:
    return not subprocess.run([sys.executable, str(HERE / script), *arguments]).returncode


def train(name: str, seed: int) -> bool:
    options = [part for key, value in recorded()[name].items() if key not in ("seed", "answers")
               for part in (f"--{key.replace('_', '-')}", str(value))]
    return run("train.py", "--name", name, "--seed", str(seed), *options, "--out", str(weights_of(name)))


def answers(name: str) -> list[bytes]:
    """Greedy answers to the prompts of golden.safetensors, in float32 on the CPU."""
    model, tensors = weights.load(weights_of(name), "cpu"), load_file(HERE / "golden.safetensors")
    prompts = [tensors[f"prompt.{i}"] for i in range(sum(key.startswith("prompt.") for key in tensors))]
    with torch.inference_mode():
        return [greedy(model, bytes(prompt.tolist())) for prompt in prompts]


def checked(name: str) -> bool:
    said = fault(name, answers(name))
    print(said or f"{name} answers as recorded", flush=True)
    return not said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(recorded()))
    parser.add_argument("--check", action="store_true", help="only check the weights that are there")
    args, corpus = parser.parse_known_args()
    if args.check:
        return not checked(args.name)
    if (corpus or not (HERE / "corpus.zip").exists()) and not run("corpus.py", *corpus):
        return 1
    seed = recorded()[args.name]["seed"]
    return not any(train(args.name, own) and checked(args.name) for own in range(seed, seed + SEEDS))


if __name__ == "__main__":
    sys.exit(main())
