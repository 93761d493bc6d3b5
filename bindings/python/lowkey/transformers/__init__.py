# SPDX-License-Identifier: Apache-2.0
"""lowkey under models of Hugging Face transformers.

::

    from lowkey.transformers import LowkeyCache, plan
    made = plan(model, tokenizer, bits=2.25)
    with LowkeyCache(model.config, plan=made, budget="2GiB") as cache:
        model.generate(**inputs, past_key_values=cache)

``python -m lowkey.transformers plan MODEL_DIR`` does the first line without code. Needs torch and transformers 5.
"""

from .cache import LowkeyCache
from .calibration import calibrate
from .evaluation import Perplexity, perplexity
from .geometry import ModelLayers, geometry_of, layers_of, sink_logits_of
from .ids import token_ids
from .planning import plan
from .state_shapes import states_of

__all__ = ['LowkeyCache', 'ModelLayers', 'Perplexity', 'calibrate', 'geometry_of', 'layers_of', 'perplexity', 'plan',
           'sink_logits_of', 'states_of', 'token_ids']
