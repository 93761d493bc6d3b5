# SPDX-License-Identifier: Apache-2.0
"""lowkey under models of Hugging Face transformers.

::

    from lowkey.transformers import LowkeyCache
    with LowkeyCache(model.config, plan="kitty-pro", budget="2GiB") as cache:
        model.generate(**inputs, past_key_values=cache)

Needs torch and transformers 5.
"""

from .cache import LowkeyCache
from .calibration import calibrate
from .geometry import geometry_of, sink_logits_of

__all__ = ['LowkeyCache', 'calibrate', 'geometry_of', 'sink_logits_of']
