// SPDX-License-Identifier: Apache-2.0
//! Spans: what their tokens see, and misuse.
mod common;

use common::*;
use lowkey::*;

fn outputs(cache: &Cache<'_>, sequence: &Sequence<'_>, spans: &[[u32; 3]]) -> Vec<f32> {
    let options = StepOptions { spans, ..StepOptions::default() };
    let mut open = cache.step_with(&[(sequence, 12)], options).unwrap();
    let out = layers(&mut open, 0..12).unwrap();
    open.discard();
    out
}

#[test]
fn tokens_of_a_span_see_later_ones() {
    let rig = Rig::new("fp16");
    let cache = rig.cache();
    let sequence = cache.add_sequence().unwrap();
    let causal = outputs(&cache, &sequence, &[]);
    let options = StepOptions {
        spans: &[[0, 3, 9]],
        spans_in_windows: true, // the model has none
        ..StepOptions::default()
    };
    let mut open = cache.step_with(&[(&sequence, 12)], options).unwrap();
    assert!(apart(&layers(&mut open, 0..12).unwrap(), &causal) < 1e-3);
    drop(open);
    let spanned = outputs(&cache, &sequence, &[[0, 3, 9]]);
    let width = QUERY_HEADS * HEAD_DIM;
    let differs = |t: usize| {
        apart(&causal[t * width..(t + 1) * width], &spanned[t * width..(t + 1) * width]) > 1e-3
    };
    for token in 0..12 {
        assert_eq!(differs(token), (3..8).contains(&token), "token {}", token);
    }
}

#[test]
fn wrong_spans_are_refused() {
    let rig = Rig::new("fp16");
    let cache = rig.cache();
    let sequence = cache.add_sequence().unwrap();
    let begin = |options| cache.step_with(&[(&sequence, 4)], options).err().unwrap().kind;
    let spans = StepOptions { spans: &[[0, 2, 5]], ..StepOptions::default() };
    assert_eq!(begin(spans), ErrorKind::Argument);
    let parents = Some(&[-1, 0, 1, 2][..]);
    let both = StepOptions { parents, spans: &[[0, 2, 4]], ..StepOptions::default() };
    assert_eq!(begin(both), ErrorKind::Argument);
}
