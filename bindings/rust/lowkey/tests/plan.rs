// SPDX-License-Identifier: Apache-2.0
//! Plans, their rules, centers and scales.
mod common;

use common::*;
use lowkey::*;

#[test]
fn the_default_plan_keeps_its_limit() {
    let geometry = geometry();
    let plan = Plan::default_within(&geometry, 0.0).unwrap();
    assert_eq!(plan.name(), "default");
    let named = Plan::preset("default", &geometry).unwrap();
    assert_eq!(plan.to_json().unwrap(), named.to_json().unwrap());
    let narrow = Plan::default_within(&geometry, 3.0).unwrap();
    assert!(narrow.bytes(8192, 1, 512).unwrap().bits_per_value <= 3.0);
    assert_eq!(Plan::default_within(&geometry, 1.0).err().unwrap().kind, ErrorKind::Budget);
    assert_eq!(Plan::default_within(&geometry, -1.0).err().unwrap().kind, ErrorKind::Argument);
}

#[test]
fn plans_are_built_and_read_back() {
    let geometry = geometry();
    assert!(Plan::preset_names().contains(&"kitty-pro"));
    assert_eq!(Plan::preset("no such", &geometry).err().unwrap().kind, ErrorKind::NotFound);
    assert_eq!(Plan::preset("a\0b", &geometry).err().unwrap().kind, ErrorKind::Argument);
    let mut plan = Plan::preset("fp16", &geometry).unwrap();
    let key = KeyRule {
        boost: Some(Boost { channels: 16, bits: 4, ranking: Ranking::Key }),
        ..KeyRule::new(2)
    };
    plan.set_name("mine")
        .and_then(|plan| plan.set_key(Which::All, Which::All, &key))
        .and_then(|plan| {
            plan.set_value(
                Which::Only(1),
                Which::Only(0),
                ValueRule { group: 32, ..ValueRule::new(4) },
            )
        })
        .and_then(|plan| plan.set_metadata(Which::All, Metadata::F8))
        .and_then(|plan| plan.set_pages(64))
        .and_then(|plan| plan.set_recent(16, 64))
        .unwrap();
    plan.validate(Some(&geometry)).unwrap();
    assert_eq!(plan.width(0, 0, false, 5, 0, None).unwrap(), (2, 4));
    assert_eq!(plan.width(1, 0, true, 5, 0, None).unwrap(), (4, 4));
    assert_eq!(plan.width(9, 0, true, 5, 0, None).unwrap_err().kind, ErrorKind::NotFound);
    let again = Plan::from_json(&plan.to_json().unwrap()).unwrap();
    assert_eq!(again.to_json().unwrap(), plan.try_clone().unwrap().to_json().unwrap());
    let other = Geometry::uniform(3, Layer::new(4, 2, 64));
    assert_eq!(plan.validate(Some(&other)).unwrap_err().kind, ErrorKind::Mismatch);
    assert_eq!(Plan::from_json("{").err().unwrap().kind, ErrorKind::Corrupt);
    let short = KeyRule { channel_bits: Some(vec![2; 3]), ..KeyRule::new(2) };
    assert!(plan.set_key(Which::Only(0), Which::Only(0), &short).is_err());
    let mut with_sinks = geometry;
    with_sinks.layers[0].sink_logits = Some(vec![0.0; 3]);
    assert_eq!(Plan::preset("fp16", &with_sinks).err().unwrap().kind, ErrorKind::Argument);
}

#[test]
fn a_layer_reads_the_keys_of_another() {
    let mut geometry = geometry();
    geometry.layers.push(Layer { kv_layer: Some(0), ..Layer::new(16, 2, 64) });
    let mut plan = Plan::preset("fp16", &geometry).unwrap();
    let error = plan.set_key(Which::Only(2), Which::All, &KeyRule::new(4)).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Argument);
    let context = Context::open(ContextOptions::new(Backend::Cpu).threads(1)).unwrap();
    let cache = Cache::new(&context, &geometry, &plan, CacheOptions::new(64 << 20)).unwrap();
    let sequence = cache.add_sequence().unwrap();
    let mut open = cache.step(&[(&sequence, 3)]).unwrap();
    layers(&mut open, 0..3).unwrap();
    let q = values(0..3, 16, 9);
    let mut out = vec![0.0f32; q.len()];
    let queries = Tensor::new(&q, 16, HEAD_DIM).unwrap();
    open.attend_reading(2, queries, TensorMut::new(&mut out, 16, HEAD_DIM).unwrap()).unwrap();
    open.commit().unwrap();
    // The first token attends to its own value alone.
    let first = out.chunks(HEAD_DIM).next().unwrap();
    assert!(first.iter().any(|&x| x != 0.0) && first == &out[HEAD_DIM..2 * HEAD_DIM]);
    geometry.layers[2].kv_layer = Some(2);
    assert_eq!(plan.validate(Some(&geometry)).unwrap_err().kind, ErrorKind::Mismatch);
}

#[test]
fn layers_have_budgets() {
    let geometry = geometry();
    let mut plan = Plan::preset("pm-kvq", &geometry).unwrap();
    assert_eq!(plan.layer_budget(1).unwrap(), 0);
    plan.set_layer_budget(Which::Only(1), 1 << 20).unwrap();
    assert_eq!(plan.layer_budget(0).unwrap(), 0);
    assert_eq!(plan.layer_budget(1).unwrap(), 1 << 20);
    assert_eq!(plan.rung(0, 100_000, 1, 512).unwrap(), 16);
    assert_eq!(plan.rung(1, 100, 1, 100).unwrap(), 16);
    assert_eq!(plan.rung(1, 100_000, 1, 512).unwrap(), 2);
    plan.set_ladder(Which::Only(0), &[], 0).unwrap();
    let error = plan.set_layer_budget(Which::Only(0), 1).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Argument);
    assert_eq!(plan.layer_budget(9).unwrap_err().kind, ErrorKind::NotFound);
}

#[test]
fn capabilities_answer_before_anything_is_made() {
    let context = Context::cpu().unwrap();
    context.supports(&Capability::new(128, 4, 2, 2)).unwrap();
    context.supports(&Capability::new(64, 1, 4, 8).page_tokens(64).element::<F16>()).unwrap();
    let error = context.supports(&Capability::new(100, 4, 2, 2)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Argument);
}

#[test]
fn changed_keys_leave_attention_as_it_is() {
    let mut rig = Rig::new("fp16");
    let plain = {
        let cache = rig.cache();
        let sequence = cache.add_sequence().unwrap();
        step(&cache, &sequence, 0..20).unwrap()
    };
    rig.plan.set_key_centers(Which::All, Which::All, Some(&[0.25; HEAD_DIM])).unwrap();
    rig.plan.set_key_rotation(Which::All, Rotation::Hadamard).unwrap();
    assert_eq!(rig.plan.key_rotation(0).unwrap(), Rotation::Hadamard);
    assert!(rig.plan.key_rotation(9).is_err());
    let cache = rig.cache();
    let sequence = cache.add_sequence().unwrap();
    let centered = step(&cache, &sequence, 0..20).unwrap();
    let apart = centered.iter().zip(&plain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 1e-3, "{}", apart);
    drop(sequence);
    drop(cache);
    assert!(rig.plan.set_key_centers(Which::All, Which::All, Some(&[0.0; 3])).is_err());
    rig.plan.set_key_centers(Which::All, Which::All, None).unwrap();
}

#[test]
fn plans_have_chunks_and_key_scales() {
    let geometry = geometry();
    let mut plan = Plan::preset("cocktail", &geometry).unwrap();
    assert_eq!(plan.chunks().unwrap(), Some(ChunkRule::default()));
    assert_eq!(plan.width(0, 0, false, 0, 0, Some(ChunkClass::Low)).unwrap(), (2, 2));
    assert_eq!(plan.width(0, 0, false, 0, 0, Some(ChunkClass::High)).unwrap(), (16, 16));
    let mix = ChunkMix { n_low: 8, n_middle: 4, n_high: 0 };
    let size = plan.chunk_bytes(CONTEXT as u64, 1, 256, mix).unwrap();
    assert_eq!((size.n_blocks, size.recent_bytes), (3, 32 * 2 * 2 * 2 * 64 * 2));
    let budget_bytes = plan.chunk_prefill_bytes(CONTEXT as u64, 1, 256, mix).unwrap();
    assert!(budget_bytes > size.cache_bytes, "{}", budget_bytes);
    assert!(plan.chunk_prefill_bytes(CONTEXT as u64 - 1, 1, 256, mix).is_err());
    let error = plan.chunk_bytes(CONTEXT as u64 - 1, 1, 256, mix).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Argument);
    let narrow = ChunkRule { low_bits: 3, ..ChunkRule::default() };
    assert_eq!(plan.set_chunks(Some(narrow)).err().unwrap().kind, ErrorKind::Argument);
    plan.set_chunks(None).unwrap();
    assert_eq!(plan.chunks().unwrap(), None);

    let mut rig = Rig::new("fp16");
    rig.plan.set_key_scales(Which::All, Which::All, Some(&[4.0; HEAD_DIM])).unwrap();
    let (plain, cache) = (Rig::new("fp16"), rig.cache());
    let plain = plain.cache();
    let (a, b) = (cache.add_sequence().unwrap(), plain.add_sequence().unwrap());
    let scaled = step(&cache, &a, 0..20).unwrap();
    assert!(apart(&scaled, &step(&plain, &b, 0..20).unwrap()) < 1e-3);
    drop(a);
    drop(cache);
    for wrong in [&[0.0; HEAD_DIM][..], &[1.0; 3]] {
        let error = rig.plan.set_key_scales(Which::All, Which::All, Some(wrong)).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Argument);
    }
    rig.plan.set_key_scales(Which::All, Which::All, None).unwrap();
}

#[test]
fn values_have_a_dim_of_their_own() {
    let latent = Layer { value_dim: 64, is_latent: true, ..Layer::new(16, 1, 96) };
    let geometry =
        Geometry { layers: vec![Layer { value_dim: 32, ..Layer::new(4, 2, 64) }, latent] };
    let mut plan = Plan::preset("fp16", &geometry).unwrap();
    let error = plan.set_value(Which::Only(1), Which::All, ValueRule::new(4)).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Argument);
    let context = Context::open(ContextOptions::new(Backend::Cpu).threads(1)).unwrap();
    context.supports(&Capability::new(576, 16, 4, 4).value_dim(512).latent()).unwrap();
    assert!(context.supports(&Capability::new(576, 16, 4, 4).value_dim(512)).is_err());
    let cache = Cache::new(&context, &geometry, &plan, CacheOptions::new(64 << 20)).unwrap();
    let sequence = cache.add_sequence().unwrap();
    let mut open = cache.step(&[(&sequence, 1)]).unwrap();
    let (k, v, q) = ([0.5f32; 2 * 64], [0.25f32; 2 * 32], [0.5f32; 4 * 64]);
    let mut out = [0.0f32; 4 * 32];
    let keys = Tensor::new(&k, 2, 64).unwrap();
    assert!(open.append(0, keys, keys).is_err());
    let appended = open.append(0, keys, Tensor::new(&v, 2, 32).unwrap()).unwrap();
    let queries = Tensor::new(&q, 4, 64).unwrap();
    appended.attend(queries, TensorMut::new(&mut out, 4, 32).unwrap()).unwrap();
    assert_eq!(out, [0.25f32; 4 * 32]);
    // A token that attends to itself alone has the first channels of its key for an output.
    let k: Vec<f32> = (0..96).map(|c| c as f32).collect();
    let (q, mut out) = ([0.0f32; 16 * 96], [0.0f32; 16 * 64]);
    let appended = open.append_latent(1, Tensor::new(&k, 1, 96).unwrap()).unwrap();
    let queries = Tensor::new(&q, 16, 96).unwrap();
    appended.attend(queries, TensorMut::new(&mut out, 16, 64).unwrap()).unwrap();
    assert!(out.chunks(64).all(|head| head == &k[..64]));
    open.commit().unwrap();
}
