# SPDX-License-Identifier: Apache-2.0
"""The table of docs/models.md: each row's configuration has the geometry and the verdict that it states."""

from __future__ import annotations

import pathlib
import re

import pytest
from hf import transformers

import lowkey
from lowkey.transformers import geometry_of, layers_of, states_of

PAGE = pathlib.Path(__file__).parents[3] / 'docs/models.md'
ROWS = [[cell.strip() for cell in line.strip('|').split('|')] for line in PAGE.read_text().splitlines()
        if re.match(r'\| .* \| `\w+` \|', line)]
# What the sentence of a refusal must have for each reason of the table.
SENTENCES = {'latent keys': 'latent keys',
             'chunked attention': 'chunked_attention', 'states outside of any cache': 'in its modules, where no cache',
             'no attention over heads': 'no attention over heads'}

STATE, FULL = 'linear_attention', 'full_attention'


def mixed(n_layers, attention, others=(STATE,)):
    """The kinds of layers: those with attention at these numbers, the others in turn."""
    return [FULL if i in attention else others[i % len(others)] for i in range(n_layers)]


# What the configuration of a type has next to its heads.
LAYERS = {
    '`jamba`': dict(attn_layer_period=14, attn_layer_offset=7),
    '`lfm2`': dict(layer_types=mixed(16, (2, 5, 8, 10, 12, 14), ('conv',))),
    '`granitemoehybrid`': dict(layer_types=mixed(40, (5, 15, 25, 35)), mamba_n_heads=48, mamba_d_head=64),
    '`nemotron_h`': dict(layers_block_type=mixed(52, (5, 12, 19, 26, 33, 42), (STATE, 'moe'))),
}


def config_of(row):
    """The configuration of a row: the type's own where the row has no numbers."""
    _, kind, layers, _, heads, _, _ = row
    options = {}
    if heads:
        (n_query, n_kv, first_dim), *others = shapes_of(row)
        options = dict(num_hidden_layers=int(layers), num_attention_heads=n_query, num_key_value_heads=n_kv,
                       head_dim=first_dim, hidden_size=n_query * first_dim)
        if values_of(row):  # latents, or MiMo, whose windowed layers have twice the KV heads
            del options['hidden_size'], options['head_dim']
            options['num_key_value_heads'] = others[0][1] if others else n_query
            others = []
        for _, n_global, global_dim in others:
            options |= dict(global_head_dim=global_dim, num_kv_shared_layers=n_reading_of(row))
            if n_global != n_kv:  # Gemma 4 has fewer global KV heads where their values are keys
                options |= dict(num_global_key_value_heads=n_global, attention_k_eq_v=True)
    return transformers.AutoConfig.for_model(kind.strip('`'), **options, **LAYERS.get(kind, {}))


def shapes_of(row):
    """Query heads, KV heads and head_dim of the row's layers."""
    return [(*map(int, heads.split('/')), int(head_dim)) for heads, head_dim in zip(row[4].split(','),
                                                                                   row[5].split(','))]


def values_of(row):
    """Channels of values where they are not those of keys, else 0."""
    found = re.search(r'(?:latents|values) of (\d+)', row[6])
    return int(found[1]) if found else 0


def n_reading_of(row):
    """Layers that read other layers' keys and values."""
    found = re.search(r'(\d+) layers read', row[6])
    return int(found[1]) if found else 0


def test_the_table_is_read():
    verdicts = {row[6].split(':')[0].split(',')[0] for row in ROWS}
    assert len(ROWS) == 44 and verdicts == {'runs', 'refused'}


@pytest.mark.parametrize('row', ROWS, ids=lambda row: row[0])
def test_row(row):
    model, _, layers, attention, _, _, verdict = row
    config = config_of(row)
    if verdict.startswith('refused'):
        wanted = next(sentence for reason, sentence in SENTENCES.items() if reason in verdict)
        with pytest.raises((lowkey.UnsupportedError, lowkey.ArgumentError), match=re.escape(wanted)):
            lowkey.Plan.preset('kitty-pro', geometry_of(config))
        return
    geometry, found = geometry_of(config), layers_of(config)
    assert (found.n_layers, len(geometry.layers)) == (int(layers), int(attention)), model
    shapes = {(one.n_query_heads, one.n_kv_heads, one.head_dim) for one in geometry.layers}
    assert shapes == set(shapes_of(row))
    assert all(one.value_dim == values_of(row) for one in geometry.layers)
    assert all(one.latent == ('latents' in verdict) for one in geometry.layers)
    assert any(one.window_tokens for one in geometry.layers) == ('windows' in verdict)
    assert any(one.soft_cap for one in geometry.layers) == ('soft-cap' in verdict)
    assert bool(found.states) == ('states too' in verdict) == bool(states_of(config))
    assert len(geometry.layers) - len(geometry.kv_layers) == n_reading_of(row)
    assert lowkey.Plan.preset('kitty-pro', geometry).bytes(8192).bits_per_value < 3
