# SPDX-License-Identifier: Apache-2.0
"""``python -m lowkey.transformers``: plans, perplexity and token ids of models of transformers, without code."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path

from .._command import add_device, load_model, load_tokenizer, print_warning
from ..errors import Error, FileError
from .costs import MODES
from .evaluation import perplexity
from .ids import token_ids
from .planning import METHODS, plan


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    options = _parser().parse_args(arguments)
    warnings.showwarning = print_warning
    try:
        return int(options.run(options))
    except Error as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        kept = ': the costs measured so far are kept, the same command goes on' if options.run is _plan else ''
        print(f'interrupted{kept}', file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m lowkey.transformers', description=__doc__)
    commands = parser.add_subparsers(required=True, metavar='COMMAND')
    one = commands.add_parser('plan', help="a plan for a model, made from the model's own keys and predictions")
    one.set_defaults(run=_plan)
    _add_model(one)
    one.add_argument('--method', choices=METHODS, default='auto', help='default: %(default)s')
    one.add_argument('--bits', type=float, help='most bits of a packed value, metadata included; auto takes 2.25')
    one.add_argument('--budget', help='most bytes of a cache, for example 2GiB')
    one.add_argument('--tokens', type=int, default=8192, help='of each sequence in the budget; default: %(default)s')
    one.add_argument('--sequences', type=int, default=1, help='in the budget; default: %(default)s')
    one.add_argument('--text', action='append', help='a file that the model reads, several times for several; default: '
                     'a small text of the package. A text like those of your users is better')
    one.add_argument('--text-tokens', type=int, default=16384, help='most tokens of them; default: %(default)s')
    one.add_argument('--paper', action='store_true', help='the published settings of the method')
    one.add_argument('--costs', choices=MODES, default='auto', help='how auto learns what 2 bits cost each head; auto: '
                     'measured where that takes at most --cost-seconds, else the largest are measured and the others '
                     'estimated')
    one.add_argument('--cost-seconds', type=float, default=300, help='default: %(default)s')
    one.add_argument('--cost-tokens', type=int, default=2048, help='of a text that are packed; default: %(default)s')
    one.add_argument('--cost-documents', type=int, default=2, help='of each kind of text; default: %(default)s')
    one.add_argument('--statistics', metavar='FILE', help='write the statistics too, for lowkey plan')
    one.add_argument('-o', '--output', default='plan.json', help='default: %(default)s. Measured costs are kept in '
                     'OUTPUT.costs until the plan is written, so that an interrupted run goes on')
    two = commands.add_parser('perplexity', help='of a text under plans, scored in short passes')
    two.set_defaults(run=_perplexity)
    _add_model(two)
    two.add_argument('--text', required=True, help='the file that is scored')
    two.add_argument('--plan', action='append', help="a preset's name or a plan's file, several times for several; "
                     'default: fp16 and kitty-pro')
    two.add_argument('--chunk-tokens', type=int, default=128, help='of a pass; default: %(default)s')
    two.add_argument('--document-tokens', type=int, default=4096, help='the text is cut into documents of this length; '
                     'default: %(default)s')
    two.add_argument('--max-tokens', type=int, help='most tokens of the text')
    two.add_argument('--budget', help='of the cache; for plans with ladders')
    two.add_argument('--json', action='store_true', help='print JSON')
    three = commands.add_parser('ids', help='token ids of texts, for lowkey calibrate --token-ids')
    three.set_defaults(run=_ids)
    three.add_argument('model', help="the model's directory, or a name that transformers knows")
    three.add_argument('text', nargs='*', help='files that the model shall read; default: a small text of the package')
    three.add_argument('--text-tokens', type=int, default=16384, help='most tokens of them; default: %(default)s')
    three.add_argument('--cost-tokens', type=int, default=2048, help='of a document for costs that are packed, as '
                       '--costs-tokens of lowkey calibrate; default: %(default)s')
    three.add_argument('--cost-documents', type=int, default=2, help='of each kind of text, as --costs-documents of '
                       'lowkey calibrate; default: %(default)s')
    three.add_argument('-o', '--output', default='text.ids', help='default: %(default)s')
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('model', help="the model's directory, or a name that transformers knows")
    add_device(parser)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding='utf-8')
    except OSError as error:
        raise FileError(f'{path} cannot be read: {error.strerror}') from None
    except UnicodeDecodeError:
        raise FileError(f'{path} is no text in UTF-8') from None


def _plan(options: argparse.Namespace) -> int:
    texts = None if options.text is None else [_read(path) for path in options.text]
    model, tokenizer = load_model(options.model, options.device, options.dtype)
    journal = Path(f'{options.output}.costs')
    made = plan(model, tokenizer, options.method, bits=options.bits, budget=options.budget, tokens=options.tokens,
                sequences=options.sequences, texts=texts, text_tokens=options.text_tokens, paper=options.paper,
                costs=options.costs, cost_seconds=options.cost_seconds, cost_tokens=options.cost_tokens,
                cost_documents=options.cost_documents, resume=journal if options.method == 'auto' else None,
                statistics=options.statistics, out=options.output)
    journal.unlink(missing_ok=True)
    size = made.bytes(options.tokens, options.sequences)
    print(f'{options.output}: {made.name}, {size.bits_per_value:.3f} bits a value, {size.cache_bytes} bytes for '
          f'{options.sequences} x {options.tokens} tokens, {size.fp16_bytes} at 16 bits')
    return 0


def _ids(options: argparse.Namespace) -> int:
    texts = [_read(path) for path in options.text] or None
    found = token_ids(load_tokenizer(options.model), texts, text_tokens=options.text_tokens,
                      cost_tokens=options.cost_tokens, cost_documents=options.cost_documents)
    try:
        Path(options.output).write_text(found, encoding='ascii')
    except OSError as error:
        raise FileError(f'{options.output} cannot be written: {error.strerror}') from None
    return 0


def _perplexity(options: argparse.Namespace) -> int:
    text = _read(options.text)
    model, tokenizer = load_model(options.model, options.device, options.dtype)
    found = [perplexity(model, tokenizer, text, name, chunk_tokens=options.chunk_tokens,
                        document_tokens=options.document_tokens, max_tokens=options.max_tokens, budget=options.budget)
             for name in options.plan or ('fp16', 'kitty-pro')]
    if options.json:
        print(json.dumps([vars(one) for one in found]))
        return 0
    print(f'{"plan":24} {"perplexity":>12} {"bits a value":>14} {"cache bytes":>14}')
    for one in found:
        print(f'{one.plan:24} {one.perplexity:12.4f} {one.bits_per_value:14.3f} {one.cache_bytes:14}')
    print(f'\n{found[0].n_tokens} tokens, in passes of {options.chunk_tokens}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
