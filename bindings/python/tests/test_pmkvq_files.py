# SPDX-License-Identifier: Apache-2.0
"""Files of PM-KVQ's published code: what is read of them, what is refused, and that nothing in them is executed."""

import json
import pickle

import pytest

import lowkey
from lowkey import Geometry, Layer
from lowkey.pmkvq_files import pm_kvq_plan, read_budgets, read_key_scales, read_sensitivities

torch = pytest.importorskip('torch')
np = pytest.importorskip('numpy')

GEOMETRY = Geometry((Layer(4, 2, 64), Layer(4, 2, 64)))
MIB = 2 * 64 * 2 * 32768 / 8 / 2 ** 20  # of a layer at 1 bit


@pytest.fixture
def save(tmp_path):
    def put(found):
        path = tmp_path / 'file.pt'
        torch.save(found, path)
        return path
    return put


def sensitivities(n_layers=2):
    by_width = {bits: [1.0 / bits + layer for layer in range(n_layers)] for bits in (16, 8, 4, 2, 1)}
    return {'k_sensitivity': by_width, 'v_sensitivity': {bits: [2 * x for x in row] for bits, row in by_width.items()}}


def test_sensitivities(save):
    found = read_sensitivities(save(sensitivities()), GEOMETRY)
    assert found.keys[4] == (0.25, 1.25) and found.values[2] == (1.0, 3.0)


def test_budgets_are_numbers_of_either_kind(save):
    for number in (float, np.float64):
        found = read_budgets(save([number(4 * MIB), number(2 * MIB)]), GEOMETRY)
        assert [budget.bits for budget in found] == [4, 2]
        assert found[0].bytes == 2 * found[1].bytes == 2 * 2 * 64 * 2 * 2 * 32768 // 8
    assert [budget.bits for budget in read_budgets(save([8 * MIB / 2, 8 * MIB]), GEOMETRY, 16384)] == [8, 16]


def scales(n_layers=2):
    return [torch.full((1, 2, 1, 32), 0.5 + layer, dtype=torch.bfloat16) for layer in range(n_layers)]


def test_key_scales_are_of_pairs(save):
    made = scales()
    made[1][0, 1, 0, 5] = 7
    found = read_key_scales(save(made), GEOMETRY)
    assert found[0] == [(0.5,) * 64] * 2
    assert [c for c in range(64) if found[1][1][c] == 7] == [5, 37]
    made[0][0, 0, 0, 0] = 1e-4  # in BF16 a little more or less
    assert read_key_scales(save(made), GEOMETRY)[0][0][0] >= 1e-4


def test_a_plan_of_the_files(save):
    budgets = read_budgets(save([4 * MIB, 2 * MIB]), GEOMETRY)
    plan = pm_kvq_plan(GEOMETRY, budgets, read_key_scales(save(scales()), GEOMETRY))
    layers = json.loads(plan.to_json())['layers']
    assert [layer['ladder'] for layer in layers] == [[16, 8, 4], [16, 8, 4, 2]]
    assert [plan.layer_budget(layer) for layer in (0, 1)] == [budget.bytes for budget in budgets]
    assert plan.key(1, 0).scales == (1.5,) * 64 and plan.key(1, 0).axis == 'token'
    assert plan.rung(0, 3000) == plan.rung(1, 3000) == 16
    assert plan.rung(0, 20000) == 4 and plan.rung(1, 20000) == 2


class Evil:
    def __reduce__(self):
        return pytest.fail, ('the file was executed',)


@pytest.mark.parametrize('read, found, sentence', [
    (read_sensitivities, [1], 'k_sensitivity is missing'),
    (read_sensitivities, {'k_sensitivity': {4: [0, 0]}}, 'v_sensitivity is missing'),
    (read_sensitivities, sensitivities(3), r'k_sensitivity\[16\] has 3 layers, the model has 2'),
    (read_sensitivities, {'k_sensitivity': {3: [0, 0]}, 'v_sensitivity': {}}, r'k_sensitivity\[3\] is there'),
    (read_sensitivities, {'k_sensitivity': {4: [0, float('nan')]}, 'v_sensitivity': {}}, 'of layer 1 is nan'),
    (read_sensitivities, {'k_sensitivity': {4: [0, 'a']}, 'v_sensitivity': {}}, 'of layer 1 is a str'),
    (read_sensitivities, {'k_sensitivity': {}, 'v_sensitivity': {}}, 'k_sensitivity has no width'),
    (read_budgets, {'a': 1}, 'is a dict, must be a list'),
    (read_budgets, [1.0], 'has 1 layers'),
    (read_budgets, [4 * MIB, 3 * MIB], 'the budget of layer 1 is 3 MiB; 2 KV heads of 64 channels take 16 at 16 bits'),
    (read_budgets, [4 * MIB, -1.0], 'the budget of layer 1 is -1.0'),
    (read_key_scales, scales(3), 'has 3 layers'),
    (read_key_scales, [torch.ones(1, 2, 1, 32), torch.ones(1, 2, 1, 64)], r'of layer 1 have the shape \(1, 2, 1, 64\)'),
    (read_key_scales, [1.0, 2.0], r'of layer 0 have the shape \(\)'),
    (read_key_scales, [torch.ones(1, 2, 1, 32), torch.zeros(1, 2, 1, 32)], 'of layer 1, head 0 are not all'),
    (read_budgets, [Evil(), 1.0], 'without executing code'),
    (read_key_scales, [Evil()], 'without executing code'),
])
def test_refusals_name_file_and_layer(save, read, found, sentence):
    with pytest.raises(lowkey.CorruptError, match=sentence) as refused:
        read(save(found), GEOMETRY)
    assert 'file.pt' in str(refused.value)


def test_other_files(tmp_path):
    path = tmp_path / 'other.pt'
    for content in (b'', b'not a file of torch', pickle.dumps(Evil())):
        path.write_bytes(content)
        with pytest.raises(lowkey.CorruptError, match='other.pt is no file of tensors'):
            read_budgets(path, GEOMETRY)
    with pytest.raises(FileNotFoundError):
        read_budgets(tmp_path / 'none.pt', GEOMETRY)
