// SPDX-License-Identifier: Apache-2.0
//! An agent with a prompt, two continuations that share its pages, a draft of which the first tokens
//! are kept, and a rollback to an earlier turn. The numbers are synthetic; a host has a model.
use lowkey::*;

const LAYERS: u32 = 4;
const QUERY_HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 128;

/// Stands for a model's numbers for the new tokens of a layer.
fn activations(layer: u32, first: u64, n_tokens: usize, heads: usize) -> Vec<f32> {
    (0..n_tokens * heads * HEAD_DIM)
        .map(|i| ((first as f32 + i as f32) * 0.37 + layer as f32).sin())
        .collect()
}

/// Take new tokens through all layers of an open step.
fn forward(step: &mut Step<'_>, first: u64) -> Result<Vec<f32>> {
    let n = step.n_tokens();
    let mut out = vec![0f32; n * QUERY_HEADS * HEAD_DIM];
    for layer in 0..LAYERS {
        let k = activations(layer, first, n, KV_HEADS);
        let v = activations(layer + 1, first, n, KV_HEADS);
        let q = activations(layer + 2, first, n, QUERY_HEADS);
        step.append(
            layer,
            Tensor::new(&k, KV_HEADS, HEAD_DIM)?,
            Tensor::new(&v, KV_HEADS, HEAD_DIM)?,
        )?
        .attend(
            Tensor::new(&q, QUERY_HEADS, HEAD_DIM)?,
            TensorMut::new(&mut out, QUERY_HEADS, HEAD_DIM)?,
        )?;
    }
    Ok(out)
}

/// Append tokens for good.
fn take(cache: &Cache<'_>, sequence: &Sequence<'_>, n_tokens: u32) -> Result<()> {
    let first = sequence.len()?;
    let mut step = cache.step(&[(sequence, n_tokens)])?;
    forward(&mut step, first)?;
    step.commit()
}

fn main() -> Result<()> {
    println!("{}", build_info());
    let context = Context::cpu()?;
    let layer = Layer::new(QUERY_HEADS as u32, KV_HEADS as u32, HEAD_DIM as u32);
    let geometry = Geometry::uniform(LAYERS as usize, layer);
    let plan = Plan::preset("kitty-pro", &geometry)?;
    let size = plan.bytes(4096, 1, 512)?;
    let cache = Cache::new(
        &context,
        &geometry,
        &plan,
        CacheOptions::new(size.cache_bytes).max_sequences(2).max_step_tokens(512),
    )?;

    let mut sequence = cache.add_sequence()?;
    for _ in 0..4 {
        take(&cache, &sequence, 512)?;
    }
    let turn = sequence.len()?;
    println!("prompt: {} tokens", turn);

    // A second continuation shares the prompt's pages; in the end it is dropped.
    let other = sequence.fork()?;
    for _ in 0..32 {
        take(&cache, &sequence, 1)?;
        take(&cache, &other, 1)?;
    }
    println!("{} bytes are shared", cache.stats()?.shared_bytes);
    drop(other);

    // A draft of eight tokens, of which the model accepts three.
    let first = sequence.len()?;
    let mut draft = cache.step(&[(&sequence, 8)])?;
    forward(&mut draft, first)?;
    draft.commit_kept(&[3])?;
    println!("after a draft: {} tokens", sequence.len()?);

    // A tool call failed: back to the end of the prompt.
    sequence.truncate(turn)?;
    take(&cache, &sequence, 16)?;

    let stats = cache.stats()?;
    println!(
        "{} tokens in {} bytes of packed pages and {} at 16 bits, of a budget of {}",
        stats.n_tokens,
        stats.payload_bytes + stats.metadata_bytes,
        stats.recent_bytes,
        stats.budget_bytes
    );
    Ok(())
}
