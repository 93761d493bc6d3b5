#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Statistics of the proving model as lowkey.transformers.plan() takes them from a model of transformers: those of an
`auto` plan with measured costs, and those of a PM-KVQ plan with gradients.

usage: transformers_statistics.py TEXT AUTO GRADIENTS

TEXT is calibrated on; AUTO and GRADIENTS are the files of statistics. The search path has the package and its tests.
"""

import pathlib
import sys

from hf import own_model
from lowkey.transformers import plan

TEXT_TOKENS, DOCUMENT_TOKENS = 8192, 2048
BOS = 0


def tokenize(text: str) -> dict[str, list[int]]:
    """The model's tokens are bytes, after a BOS."""
    return {'input_ids': [BOS, *text.encode()]}


def main() -> int:
    text, auto, gradients = map(pathlib.Path, sys.argv[1:])
    model = own_model()
    options = {'texts': text.read_text(encoding='utf-8'), 'text_tokens': TEXT_TOKENS,
               'document_tokens': DOCUMENT_TOKENS}
    plan(model, tokenize, 'auto', bits=2.25, costs='measured', statistics=auto, **options)
    plan(model, tokenize, 'pm-kvq', budget='64MiB', gradients=True, statistics=gradients, **options)
    return 0


if __name__ == '__main__':
    sys.exit(main())
