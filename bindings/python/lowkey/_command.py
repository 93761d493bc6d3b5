# SPDX-License-Identifier: Apache-2.0
"""What the commands of lowkey.transformers and lowkey.lm_eval share. Imports neither torch nor transformers."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .errors import FileError


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the options of load_model()."""
    parser.add_argument('--device', help='for example cuda or cpu; default: cuda where there is one')
    parser.add_argument('--dtype', default='auto', help='of the weights; default: as they are stored')


def _no_model(name: str, error: Exception) -> FileError:
    """The refusal of a name, with transformers' reason as one line."""
    return FileError(f'{name} is no model that transformers loads: {" ".join(str(error).split())}')


def load_model(name: str, device: str | None, dtype: str) -> tuple[Any, Any]:
    """A model in evaluation mode, and its tokenizer. Raises FileError."""
    import torch
    from transformers import AutoModelForCausalLM
    tokenizer = load_tokenizer(name)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    except (OSError, ValueError) as error:
        raise _no_model(name, error) from None
    return model.to(device or ('cuda' if torch.cuda.is_available() else 'cpu')).eval(), tokenizer


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model. Raises FileError."""
    from transformers import AutoTokenizer
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise _no_model(name, error) from None


def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """In place of warnings.showwarning()."""
    print(f'warning: {message}', file=sys.stderr)
