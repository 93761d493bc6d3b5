// SPDX-License-Identifier: Apache-2.0
//! A small model and steps of it for the tests of the crate.
#![allow(dead_code)] // no test program uses all of it
use lowkey::*;

pub const LAYERS: usize = 2;
pub const QUERY_HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const HEAD_DIM: usize = 64;

/// Of the plan `cocktail`: 32 sinks, then chunks of 32.
pub const CHUNKS: usize = 12;
pub const CONTEXT: usize = 32 + CHUNKS * 32;

pub fn geometry() -> Geometry {
    Geometry::uniform(LAYERS, Layer::new(QUERY_HEADS as u32, KV_HEADS as u32, HEAD_DIM as u32))
}

/// Values that depend only on their position.
pub fn values(tokens: std::ops::Range<usize>, heads: usize, salt: u64) -> Vec<f32> {
    let width = heads * HEAD_DIM;
    tokens
        .flat_map(|token| (0..width).map(move |i| (token * width + i) as u64))
        .map(|at| {
            let mixed = (at ^ salt << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

pub struct Rig {
    pub context: Context,
    pub geometry: Geometry,
    pub plan: Plan,
}

impl Rig {
    pub fn new(preset: &str) -> Self {
        let context = Context::open(ContextOptions::new(Backend::Cpu).threads(1)).unwrap();
        let geometry = geometry();
        let plan = Plan::preset(preset, &geometry).unwrap();
        Rig { context, geometry, plan }
    }

    pub fn cache(&self) -> Cache<'_> {
        let options = CacheOptions::new(64 << 20).max_sequences(4).max_step_tokens(512);
        Cache::new(&self.context, &self.geometry, &self.plan, options).unwrap()
    }
}

/// One step of one sequence; the outputs of the last layer.
pub fn step(
    cache: &Cache<'_>,
    sequence: &Sequence<'_>,
    tokens: std::ops::Range<usize>,
) -> Result<Vec<f32>> {
    let mut open = cache.step(&[(sequence, tokens.len() as u32)])?;
    let out = layers(&mut open, tokens)?;
    open.commit()?;
    Ok(out)
}

pub fn layers(open: &mut Step<'_>, tokens: std::ops::Range<usize>) -> Result<Vec<f32>> {
    let mut out = vec![0f32; tokens.len() * QUERY_HEADS * HEAD_DIM];
    for layer in 0..LAYERS as u32 {
        let salt = u64::from(layer) * 3;
        let k = values(tokens.clone(), KV_HEADS, salt);
        let v = values(tokens.clone(), KV_HEADS, salt + 1);
        let q = values(tokens.clone(), QUERY_HEADS, salt + 2);
        let (k, v) = (Tensor::new(&k, KV_HEADS, HEAD_DIM)?, Tensor::new(&v, KV_HEADS, HEAD_DIM)?);
        open.append(layer, k, v)?.attend(
            Tensor::new(&q, QUERY_HEADS, HEAD_DIM)?,
            TensorMut::new(&mut out, QUERY_HEADS, HEAD_DIM)?,
        )?;
    }
    Ok(out)
}

pub fn apart(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
