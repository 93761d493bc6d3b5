# SPDX-License-Identifier: Apache-2.0
"""The table of docs/models.md: each row's configuration has the geometry and the verdict that it states."""

from __future__ import annotations

import pathlib
import re

import pytest
from hf import transformers

import lowkey
from lowkey.transformers import geometry_of, layers_of

PAGE = pathlib.Path(__file__).parents[3] / 'docs/models.md'
ROWS = [[cell.strip() for cell in line.strip('|').split('|')] for line in PAGE.read_text().splitlines()
        if re.match(r'\| .* \| `\w+` \|', line)]
# What the sentence of a refusal must have for each reason of the table.
SENTENCES = {'24 query heads for each KV head': 'must be 1 to 16 times the 2 KV heads',
             'head_dim above 256': 'head_dim of 512', 'latent keys': 'latent keys', 'keys of 192 channels': 'keys of 192 channels and values of 128',
             'chunked attention': 'chunked_attention', 'states outside of any cache': 'in its modules, where no cache',
             'no attention over heads': 'no attention over heads'}


def config_of(row):
    """The configuration of a row: the type's own where the row has no numbers."""
    _, kind, layers, _, heads, head_dim, _ = row
    options = {}
    if heads:
        n_query, n_kv = map(int, heads.split('/'))
        options = dict(num_hidden_layers=int(layers), num_attention_heads=n_query, num_key_value_heads=n_kv,
                       head_dim=int(head_dim), hidden_size=n_query * int(head_dim))
    return transformers.AutoConfig.for_model(kind.strip('`'), **options)


def test_the_table_is_read():
    assert len(ROWS) == 34 and {row[6].split(':')[0].split(',')[0] for row in ROWS} == {'runs', 'refused'}


@pytest.mark.parametrize('row', ROWS, ids=lambda row: row[0])
def test_row(row):
    model, _, layers, attention, heads, head_dim, verdict = row
    config = config_of(row)
    if verdict.startswith('refused'):
        wanted = next(sentence for reason, sentence in SENTENCES.items() if reason in verdict)
        with pytest.raises((lowkey.UnsupportedError, lowkey.ArgumentError), match=re.escape(wanted)):
            lowkey.Plan.preset('kitty-pro', geometry_of(config))
        return
    geometry, found = geometry_of(config), layers_of(config)
    assert (found.n_layers, len(geometry.layers)) == (int(layers), int(attention)), model
    shapes = {(f'{one.n_query_heads} / {one.n_kv_heads}', str(one.head_dim)) for one in geometry.layers}
    assert shapes == {(heads, head_dim)}
    assert any(one.window_tokens for one in geometry.layers) == ('windows' in verdict)
    assert any(one.soft_cap for one in geometry.layers) == ('soft-cap' in verdict)
    assert bool(found.states) == ('states' in verdict)
    n_reading = len(geometry.layers) - len(geometry.kv_layers)
    assert n_reading == (int(re.search(r'(\d+) layers read', verdict)[1]) if 'layers read' in verdict else 0)
    assert lowkey.Plan.preset('kitty-pro', geometry).bytes(8192).bits_per_value < 3
