// SPDX-License-Identifier: Apache-2.0
//! The time of calls through the crate: `lowkey bench --bindings` runs this with a number of steps.
//! Each step has one token of one head of 32 channels in an empty sequence, where the library has
//! almost no work.
use lowkey::*;
use std::time::Instant;

const HEAD_DIM: usize = 32;

fn median_us(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2] * 1e6
}

fn main() -> Result<()> {
    let n_steps: usize =
        std::env::args().nth(1).map_or(2000, |text| text.parse().expect("a number of steps"));
    let context = Context::open(ContextOptions::new(Backend::Cpu).threads(1))?;
    let geometry = Geometry::uniform(1, Layer::new(1, 1, HEAD_DIM as u32));
    let plan = Plan::preset("fp16", &geometry)?;
    let cache = Cache::new(&context, &geometry, &plan, CacheOptions::new(64 << 20))?;
    let sequence = cache.add_sequence()?;
    let zeros = [0f32; HEAD_DIM];
    let mut out = [0f32; HEAD_DIM];
    let (mut append, mut attend) = (Vec::new(), Vec::new());
    for _ in 0..n_steps {
        let mut step = cache.step(&[(&sequence, 1)])?;
        let begin = Instant::now();
        let appended =
            step.append(0, Tensor::new(&zeros, 1, HEAD_DIM)?, Tensor::new(&zeros, 1, HEAD_DIM)?)?;
        let appended_at = Instant::now();
        appended
            .attend(Tensor::new(&zeros, 1, HEAD_DIM)?, TensorMut::new(&mut out, 1, HEAD_DIM)?)?;
        attend.push(appended_at.elapsed().as_secs_f64());
        append.push((appended_at - begin).as_secs_f64());
        step.discard();
    }
    println!(
        r#"{{"rows": {{"slices": {{"append_us": {}, "attend_us": {}}}}}}}"#,
        median_us(append),
        median_us(attend)
    );
    Ok(())
}
