// SPDX-License-Identifier: Apache-2.0
//! The time that one new token takes to attend to a filled cache, under several plans, on one thread. `cargo bench`
//! measures 4096 tokens; `cargo test --benches` runs a short case, which only has to pass.
use lowkey::*;
use std::time::Instant;

const QUERY_HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 128;
const STEP_TOKENS: usize = 512;

/// Pseudorandom numbers in [-0.5, 0.5], equal in each run.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as f32 / u32::MAX as f32 - 0.5
        })
        .collect()
}

/// Append tokens and attend with them; the answer is the time of attention in seconds.
fn take(cache: &Cache<'_>, sequence: &Sequence<'_>, n_tokens: usize, seed: u32) -> Result<f64> {
    let k = numbers(n_tokens * KV_HEADS * HEAD_DIM, seed);
    let v = numbers(k.len(), seed + 1);
    let q = numbers(n_tokens * QUERY_HEADS * HEAD_DIM, seed + 2);
    let mut out = vec![0f32; q.len()];
    let mut step = cache.step(&[(sequence, n_tokens as u32)])?;
    let appended =
        step.append(0, Tensor::new(&k, KV_HEADS, HEAD_DIM)?, Tensor::new(&v, KV_HEADS, HEAD_DIM)?)?;
    let begin = Instant::now();
    appended.attend(
        Tensor::new(&q, QUERY_HEADS, HEAD_DIM)?,
        TensorMut::new(&mut out, QUERY_HEADS, HEAD_DIM)?,
    )?;
    let seconds = begin.elapsed().as_secs_f64();
    step.commit()?;
    Ok(seconds)
}

fn measure(context: &Context, name: &str, prompt: usize, repeats: usize) -> Result<()> {
    let geometry =
        Geometry::uniform(1, Layer::new(QUERY_HEADS as u32, KV_HEADS as u32, HEAD_DIM as u32));
    let plan = Plan::preset(name, &geometry)?;
    let size = plan.bytes((prompt + repeats) as u64, 1, STEP_TOKENS as u32)?;
    let options = CacheOptions::new(size.cache_bytes).max_step_tokens(STEP_TOKENS as u32);
    let cache = Cache::new(context, &geometry, &plan, options)?;
    let sequence = cache.add_sequence()?;
    for first in (0..prompt).step_by(STEP_TOKENS) {
        take(&cache, &sequence, STEP_TOKENS, first as u32)?;
    }
    let mut samples = (0..repeats)
        .map(|i| take(&cache, &sequence, 1, (prompt + i) as u32))
        .collect::<Result<Vec<_>>>()?;
    samples.sort_by(f64::total_cmp);
    let stats = cache.stats()?;
    println!(
        "{:<10} {:>6} tokens {:>9} bytes {:>9.1} us",
        name,
        stats.n_tokens,
        stats.payload_bytes + stats.metadata_bytes + stats.recent_bytes,
        samples[repeats / 2] * 1e6
    );
    Ok(())
}

fn main() -> Result<()> {
    let is_bench = std::env::args().any(|word| word == "--bench");
    let (prompt, repeats) = if is_bench { (4096, 200) } else { (512, 3) };
    let context = Context::open(ContextOptions::new(Backend::Cpu).threads(1))?;
    for name in ["fp16", "int8", "kivi4", "kivi2", "kitty-pro"] {
        measure(&context, name, prompt, repeats)?;
    }
    Ok(())
}
