// SPDX-License-Identifier: Apache-2.0
//! Chunks: scores, classes, originals.
mod common;

use common::*;
use lowkey::*;

/// A deferred prompt.
fn deferred<'c>(cache: &'c Cache<'_>) -> Sequence<'c> {
    let mut sequence = cache.add_sequence().unwrap();
    sequence.defer(Defer::Refuse).unwrap();
    step(cache, &sequence, 0..CONTEXT).unwrap();
    sequence
}

#[test]
fn chunks_are_scored_by_attention_and_kept_by_class() {
    let rig = Rig::new("cocktail");
    let cache = rig.cache();
    let mut sequence = cache.add_sequence().unwrap();
    sequence.defer(Defer::Pack).unwrap();
    sequence.score_attention(Some(chunks::Attention::new(4, CHUNKS as u32))).unwrap();
    assert_eq!(sequence.attention_scores(12).unwrap_err().kind, ErrorKind::State);
    step(&cache, &sequence, 0..CONTEXT + 4).unwrap();
    let scores = sequence.attention_scores(CHUNKS as u32).unwrap();
    assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-3, "{:?}", scores);
    let (classes, _) = chunks::by_quota(&scores, chunks::Quota::default()).unwrap();
    let before = sequence.chunks().unwrap();
    assert_eq!((before.is_assigned, before.deferral), (false, Defer::Pack));
    sequence.assign_chunks(CONTEXT as u64, &classes, Some(&scores)).unwrap();
    let kept = sequence.chunks().unwrap();
    assert_eq!((kept.is_assigned, kept.deferral), (true, Defer::Off));
    assert_eq!((kept.chunk_tokens, kept.first_token, kept.n_narrower), (32, 32, 0));
    assert!(kept.assigned.iter().flatten().eq(&classes));
    assert!(kept.stored.iter().zip(&kept.assigned).all(|(stored, assigned)| stored >= assigned));
    let mut order = kept.order.clone();
    order.sort_unstable();
    assert!(order.into_iter().eq(0..CHUNKS as u32));
    sequence.score_attention(None).unwrap();
    step(&cache, &sequence, CONTEXT + 4..CONTEXT + 5).unwrap();
}

#[test]
fn retained_originals_give_chunks_their_width_back() {
    let (rig, plain) = (Rig::new("cocktail"), Rig::new("fp16"));
    let (cache, wide) = (rig.cache(), plain.cache());
    let same = wide.add_sequence().unwrap();
    step(&wide, &same, 0..CONTEXT).unwrap();
    let wanted = step(&wide, &same, CONTEXT..CONTEXT + 1).unwrap();
    for budget in [0, 16 << 20] {
        let mut sequence = deferred(&cache);
        sequence.retain_originals(budget).unwrap();
        sequence.assign_chunks(CONTEXT as u64, &[ChunkClass::Low; CHUNKS], None).unwrap();
        sequence.assign_chunks(CONTEXT as u64, &[ChunkClass::High; CHUNKS], None).unwrap();
        let kept = sequence.chunks().unwrap();
        assert_eq!(kept.n_narrower as usize, if budget == 0 { CHUNKS } else { 0 });
        assert_eq!(kept.retained_bytes > 0, budget != 0);
        let out = step(&cache, &sequence, CONTEXT..CONTEXT + 1).unwrap();
        assert_eq!(apart(&out, &wanted) < 1e-3, budget != 0);
    }
}

#[test]
fn classes_come_before_the_context() {
    let rig = Rig::new("cocktail");
    let cache = rig.cache();
    let mut sequence = cache.add_sequence().unwrap();
    sequence.assign_chunks(CONTEXT as u64, &[ChunkClass::Low; CHUNKS], None).unwrap();
    let before = sequence.chunks().unwrap();
    assert_eq!((before.is_assigned, before.n_pending), (true, CHUNKS as u32));
    step(&cache, &sequence, 0..CONTEXT / 2).unwrap();
    step(&cache, &sequence, CONTEXT / 2..CONTEXT).unwrap();
    let half = sequence.chunks().unwrap().n_pending;
    assert!(0 < half && half < CHUNKS as u32, "{}", half);
    step(&cache, &sequence, CONTEXT..CONTEXT + 1).unwrap();
    let kept = sequence.chunks().unwrap();
    assert_eq!(kept.n_pending, 0);
    assert!(kept.stored.iter().all(|&class| class == Some(ChunkClass::Low)));
}

#[test]
fn misuse_of_chunks_is_refused() {
    let (rig, plain) = (Rig::new("cocktail"), Rig::new("fp16"));
    let (cache, without) = (rig.cache(), plain.cache());
    let mut chunkless = without.add_sequence().unwrap();
    assert_eq!(chunkless.defer(Defer::Refuse).unwrap_err().kind, ErrorKind::Unsupported);
    assert_eq!(chunkless.chunks().unwrap_err().kind, ErrorKind::Unsupported);
    assert_eq!(chunkless.retain_originals(1).unwrap_err().kind, ErrorKind::Unsupported);
    let mut sequence = deferred(&cache);
    let low = [ChunkClass::Low; CHUNKS];
    let error = sequence.assign_chunks(CONTEXT as u64, &low, Some(&[1.0])).unwrap_err();
    assert!(error.sentence.contains("1 scores for 12 chunks"), "{}", error);
    let error = sequence.assign_chunks(CONTEXT as u64 + 32, &low, None).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Argument);
    let error = sequence.assign_chunks(CONTEXT as u64 - 1, &low, None).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Argument);
    let error = sequence.assign_chunks(CONTEXT as u64, &low, Some(&[f32::NAN; 12])).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Data);
    let far = chunks::Attention { layers: &[9], ..chunks::Attention::new(1, 1) };
    assert_eq!(sequence.score_attention(Some(far)).unwrap_err().kind, ErrorKind::NotFound);
    assert!(!sequence.chunks().unwrap().is_assigned);
}

#[test]
fn chunks_are_scored_without_a_cache() {
    let embeddings = [1f32, 0.0, 0.0, 2.0, 3.0, 3.0];
    let of = |data| Tensor::new(data, 1, 2).unwrap();
    let scores = chunks::cosine(of(&embeddings), of(&[5.0, 0.0])).unwrap();
    assert!(apart(&scores, &[1.0, 0.0, 0.5f32.sqrt()]) < 1e-6, "{:?}", scores);
    let context = Context::cpu().unwrap();
    let mut on_device = [0f32; 3];
    let out = TensorMut::new(&mut on_device, 1, 1).unwrap();
    chunks::score_cosine(&context, None, of(&embeddings), of(&[5.0, 0.0]), out).unwrap();
    assert!(apart(&on_device, &scores) < 1e-6);
    let mut short = [0f32; 2];
    let out = TensorMut::new(&mut short, 1, 1).unwrap();
    let refused = chunks::score_cosine(&context, None, of(&embeddings), of(&[5.0, 0.0]), out);
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Argument);
    let zeros = chunks::cosine(of(&embeddings), of(&[0.0, 0.0])).unwrap_err();
    assert_eq!(zeros.kind, ErrorKind::Data);
    assert!(chunks::cosine(of(&embeddings), Tensor::new(&[1f32], 1, 1).unwrap()).is_err());

    let bm25 = chunks::Bm25::default();
    let scores = chunks::score_bm25_of(bm25, &[1, 2, 3, 3], &[0, 2, 4], &[3]).unwrap();
    assert!(scores[1] > scores[0] && scores[0] == 0.0);
    let scores =
        chunks::score_bm25(chunks::Bm25 { chunk_tokens: 3, ..bm25 }, &[1; 8], &[1]).unwrap();
    assert_eq!(scores.len(), 2);
    for starts in [&[0u64, 5][..], &[0, 3, 2], &[]] {
        let error = chunks::score_bm25_of(bm25, &[1, 2, 3, 4], starts, &[3]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Argument);
    }
    let whole = chunks::Bm25 { chunk_tokens: 0, ..bm25 };
    assert_eq!(chunks::score_bm25(whole, &[1; 8], &[1]).unwrap_err().kind, ErrorKind::Argument);

    let sorted = chunks::by_thresholds(&[0.0, 0.5, 1.0], 0.25, 0.25).unwrap();
    assert_eq!(sorted.classes, [ChunkClass::Low, ChunkClass::Middle, ChunkClass::High]);
    assert_eq!((sorted.low, sorted.high), (0.25, 0.75));
    let error = chunks::by_thresholds(&[0.0, f32::NAN], 0.25, 0.25).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Data);
    let budget =
        chunks::QuotaBudget { budget_bytes: 12, low_bytes: 2, middle_bytes: 4, high_bytes: 8 };
    let quota = chunks::Quota { block_chunks: 1, budget: Some(budget), ..Default::default() };
    let (classes, n_bytes) = chunks::by_quota(&[0.0, 1.0, 0.5], quota).unwrap();
    assert_eq!((classes[1], n_bytes), (ChunkClass::High, 12));
    let error = chunks::by_quota(&[0.0; 9], quota).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Budget);
}
