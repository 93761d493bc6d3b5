#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Are the weights of a proving model those of models.json? Their greedy answers to the prompts of golden.safetensors
have the hash that was recorded.

usage: check_answers.py ANSWERS_TOOL [NAME]     without NAME: of all models whose weights are here"""
import hashlib
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def recorded() -> dict[str, dict]:
    return json.loads((HERE / 'models.json').read_text())


def weights_of(name: str) -> pathlib.Path:
    return HERE / f'{name}.safetensors'


def fault(name: str, answers: list[bytes]) -> str:
    """What is wrong with the answers of a model, or nothing."""
    found = hashlib.sha256(b''.join(answer + b'\n' for answer in answers)).hexdigest()
    want = recorded()[name]['answers']
    return '' if found == want else f'{name} answers {answers}, whose SHA-256 is {found}, not {want}'


def main() -> int:
    chosen = sys.argv[2:] or [name for name in recorded() if weights_of(name).exists()]
    faults = []
    for name in chosen:
        if name not in recorded():
            print(f'{name} is none of the models {", ".join(recorded())}')
            return 1
        if not weights_of(name).exists():
            print(f'{weights_of(name)} is not there: python3 tests/model/make.py {name} makes it on a GPU')
            return 1
        said = subprocess.run([sys.argv[1], weights_of(name), HERE / 'golden.safetensors'], check=True,
                              capture_output=True)
        faults.append(fault(name, said.stdout.splitlines()))
        print(faults[-1] or f'{name} answers as recorded')
    return any(faults)


if __name__ == '__main__':
    sys.exit(main())
