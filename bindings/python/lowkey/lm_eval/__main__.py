# SPDX-License-Identifier: Apache-2.0
"""``python -m lowkey.lm_eval``: tasks of lm-evaluation-harness under plans, without code."""

from __future__ import annotations

import argparse
import json
import sys
import warnings

from .._command import add_device, load_model, print_warning
from ..errors import Error, LibraryError


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except Error as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        kept = '' if options.output is None else f': the plans that were done are in {options.output}'
        print(f'interrupted{kept}', file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m lowkey.lm_eval', description=__doc__)
    parser.add_argument('--model', required=True, help="the model's directory, or a name that transformers knows")
    parser.add_argument('--tasks', required=True, type=_names, help='of the harness, separated by commas')
    parser.add_argument('--plans', default=['fp16', 'kitty-pro'], type=_names,
                        help="presets' names or plans' files, separated by commas; default: fp16,kitty-pro")
    parser.add_argument('--include-path', metavar='DIR', help='a folder with task files of your own')
    parser.add_argument('--limit', type=float, help='most documents of a task, or below 1 their share')
    parser.add_argument('--num-fewshot', type=int, help="examples before each question; default: the task's")
    parser.add_argument('--chunk-tokens', type=int, default=128, help='of a pass; default: %(default)s. A pass attends '
                        'to its own tokens at 16 bits, so longer ones hide what packing does')
    parser.add_argument('--max-length', type=int, help="most tokens of a request; default: the model's")
    parser.add_argument('--budget', help='of each cache, for example 2GiB; for plans with ladders')
    parser.add_argument('--apply-chat-template', action='store_true', help='prompts are messages of a chat')
    add_device(parser)
    parser.add_argument('--json', action='store_true', help='print JSON')
    parser.add_argument('-o', '--output', metavar='DIR', help='write records: table.json, and a file of each plan with '
                        'each request and answer when its tasks are done')
    return parser


def _names(text: str) -> list[str]:
    return [name for name in text.split(',') if name]


def _run(options: argparse.Namespace) -> int:
    try:
        from .evaluation import evaluate, table
    except ModuleNotFoundError as error:
        raise LibraryError(f'{error.name} is not installed: install this package with its extra lm-eval, for example '
                           "pip install 'bindings/python[lm-eval]'") from None
    warnings.showwarning = print_warning
    model, tokenizer = load_model(options.model, options.device, options.dtype)
    found = evaluate(model, tokenizer, options.tasks, options.plans, include_path=options.include_path,
                     limit=options.limit, num_fewshot=options.num_fewshot, chunk_tokens=options.chunk_tokens,
                     budget=options.budget, max_length=options.max_length,
                     apply_chat_template=options.apply_chat_template, record=options.output)
    if options.json:
        print(json.dumps([one.summary() for one in found]))
    else:
        print(table(found))
        print(f'\nin passes of at most {options.chunk_tokens} tokens')
    return 0


if __name__ == '__main__':
    sys.exit(main())
