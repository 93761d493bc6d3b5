# SPDX-License-Identifier: Apache-2.0
"""Tasks of lm-evaluation-harness on models of transformers under lowkey's plans.

::

    python -m lowkey.lm_eval --model MODEL_DIR --tasks TASK,TASK --plans fp16,kitty-pro,plan.json

``evaluate()`` is the same as a call. ``LowkeyLM`` is the harness's model "lowkey", registered by its import. Needs
torch, transformers 5 and lm_eval: the extra "lm-eval" of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .evaluation import Evaluation, evaluate
    from .model import LowkeyLM

__all__ = ['Evaluation', 'LowkeyLM', 'evaluate']


# The command says in a sentence which package is missing, so importing it may not need any.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from . import evaluation, model
    return getattr(model if name == 'LowkeyLM' else evaluation, name)
