// SPDX-License-Identifier: Apache-2.0
//! Chunks of a context: scores, classes by score, and the chunks of a sequence.
//!
//! ```
//! use lowkey::*;
//! # fn main() -> Result<()> {
//! let document = [7, 8, 9, 10, 8, 8, 11, 12];
//! let options = chunks::Bm25 { chunk_tokens: 4, ..chunks::Bm25::default() };
//! let scores = chunks::score_bm25(options, &document, &[10])?;
//! let sorted = chunks::by_thresholds(&scores, 0.6, 0.1)?;
//! assert_eq!(sorted.classes, [ChunkClass::High, ChunkClass::Low]);
//! # Ok(())
//! # }
//! ```
use crate::cache::Sequence;
use crate::context::Context;
use crate::error::{check, initial, Error, Result};
use crate::rules::ChunkClass;
use crate::step::Queue;
use crate::tensor::{check_shape, Shape, Tensor, TensorMut};
use lowkey_sys as sys;
use std::ptr;

fn count(n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| Error::argument(format!("{} is beyond 32 bits", n)))
}

/// Classes of chunks that all have one.
fn classes_of(raw: &[sys::lk_chunk_class]) -> Vec<ChunkClass> {
    raw.iter().filter_map(|&class| ChunkClass::from_raw(class)).collect()
}

/// Check the shapes of embeddings and a query; the numbers of chunks and of channels.
fn check_embeddings(embeddings: &Tensor<'_>, query: &Tensor<'_>) -> Result<(u32, u32)> {
    let shape = embeddings.shape;
    check_shape("embeddings", shape, Shape { n_heads: 1, ..shape })?;
    check_shape("query", query.shape, Shape { n_tokens: 1, n_heads: 1, ..shape })?;
    Ok((count(shape.n_tokens)?, count(shape.head_dim)?))
}

/// Scores of embeddings `[n_chunks][1][n_channels]` by a query `[1][1][n_channels]` in host
/// memory; see `lk_chunks_cosine`.
pub fn cosine(embeddings: Tensor<'_>, query: Tensor<'_>) -> Result<Vec<f32>> {
    let (n_chunks, n_channels) = check_embeddings(&embeddings, &query)?;
    let mut scores = vec![0f32; n_chunks as usize];
    // SAFETY: the tensors have the checked shapes, and scores an element for each chunk.
    unsafe {
        check(sys::lk_chunks_cosine(
            &embeddings.raw,
            &query.raw,
            n_chunks,
            n_channels,
            scores.as_mut_ptr(),
        ))?
    };
    Ok(scores)
}

/// The same on a context's device, scores f32 `[n_chunks][1][1]`; see `lk_chunks_score_cosine`.
pub fn score_cosine(
    context: &Context,
    queue: Option<&Queue>,
    embeddings: Tensor<'_>,
    query: Tensor<'_>,
    scores: TensorMut<'_>,
) -> Result<()> {
    let (n_chunks, n_channels) = check_embeddings(&embeddings, &query)?;
    let needs = Shape { n_heads: 1, head_dim: 1, ..embeddings.shape };
    check_shape("scores", scores.shape, needs)?;
    // SAFETY: the tensors have the checked shapes; scores are borrowed mutably.
    unsafe {
        check(sys::lk_chunks_score_cosine(
            context.as_raw(),
            queue.map_or(ptr::null(), Queue::as_raw),
            &embeddings.raw,
            &query.raw,
            n_chunks,
            n_channels,
            &scores.raw,
        ))
    }
}

/// Parameters of BM25; see `lk_bm25`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bm25 {
    pub chunk_tokens: u32,
    pub k1: f64,
    pub b: f64,
}

impl Default for Bm25 {
    fn default() -> Self {
        Bm25 { chunk_tokens: 32, k1: 1.2, b: 0.75 }
    }
}

/// Scores of the whole chunks of `options.chunk_tokens` tokens by the query's tokens; see
/// `lk_chunks_score_bm25`.
pub fn score_bm25(options: Bm25, tokens: &[u32], query: &[u32]) -> Result<Vec<f32>> {
    let n_chunks = tokens.len().checked_div(options.chunk_tokens as usize).unwrap_or(0);
    score_bm25_raw(options, tokens, None, n_chunks, query)
}

/// The same of chunks of several lengths: chunk i is `tokens[starts[i]..starts[i + 1]]`.
pub fn score_bm25_of(
    options: Bm25,
    tokens: &[u32],
    starts: &[u64],
    query: &[u32],
) -> Result<Vec<f32>> {
    match starts.last() {
        None => Err(Error::argument("starts need the end of the last chunk too")),
        Some(&end) if end > tokens.len() as u64 => {
            Err(Error::argument(format!("chunks end at {} of {} tokens", end, tokens.len())))
        }
        Some(_) => score_bm25_raw(options, tokens, Some(starts), starts.len() - 1, query),
    }
}

fn score_bm25_raw(
    options: Bm25,
    tokens: &[u32],
    starts: Option<&[u64]>,
    n_chunks: usize,
    query: &[u32],
) -> Result<Vec<f32>> {
    let mut raw = initial(sys::lk_bm25_init)?;
    raw.chunk_tokens = options.chunk_tokens;
    raw.k1 = options.k1;
    raw.b = options.b;
    let mut scores = vec![0f32; n_chunks];
    // SAFETY: the chunks end within tokens, and scores have an element for each.
    unsafe {
        check(sys::lk_chunks_score_bm25(
            &raw,
            tokens.as_ptr(),
            starts.map_or(ptr::null(), <[u64]>::as_ptr),
            count(n_chunks)?,
            query.as_ptr(),
            count(query.len())?,
            scores.as_mut_ptr(),
        ))?
    };
    Ok(scores)
}

/// Classes by thresholds, and the thresholds.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ByThresholds {
    pub classes: Vec<ChunkClass>,
    pub low: f64,
    pub high: f64,
}

/// Classes by thresholds within the range of the scores; see `lk_chunks_by_thresholds`.
pub fn by_thresholds(scores: &[f32], alpha: f64, beta: f64) -> Result<ByThresholds> {
    let mut classes = vec![0; scores.len()];
    let (mut low, mut high) = (0.0, 0.0);
    // SAFETY: both lists have the passed number of elements.
    unsafe {
        check(sys::lk_chunks_by_thresholds(
            scores.as_ptr(),
            count(scores.len())?,
            alpha,
            beta,
            classes.as_mut_ptr(),
            &mut low,
            &mut high,
        ))?
    };
    Ok(ByThresholds { classes: classes_of(&classes), low, high })
}

/// How many chunks each class gets; see `lk_chunk_quota`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    /// Chunks of a block, at least 1.
    pub block_chunks: u32,
    /// Shares of all chunks; the low one counts only without a budget.
    pub low_share: f64,
    pub high_share: f64,
    pub budget: Option<QuotaBudget>,
}

/// Bytes of all chunks, and of one chunk of each class in all layers and heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaBudget {
    pub budget_bytes: u64,
    pub low_bytes: u64,
    pub middle_bytes: u64,
    pub high_bytes: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Quota { block_chunks: 4, low_share: 0.6, high_share: 0.1, budget: None }
    }
}

/// Classes by rank, and the bytes of these chunks; see `lk_chunks_by_quota`.
pub fn by_quota(scores: &[f32], quota: Quota) -> Result<(Vec<ChunkClass>, u64)> {
    let mut raw = initial(sys::lk_chunk_quota_init)?;
    raw.block_chunks = quota.block_chunks;
    raw.low_share = quota.low_share;
    raw.high_share = quota.high_share;
    if let Some(budget) = quota.budget {
        raw.budget_bytes = budget.budget_bytes;
        raw.low_bytes = budget.low_bytes;
        raw.middle_bytes = budget.middle_bytes;
        raw.high_bytes = budget.high_bytes;
    }
    let mut classes = vec![0; scores.len()];
    let mut n_bytes = 0;
    // SAFETY: as above.
    unsafe {
        check(sys::lk_chunks_by_quota(
            scores.as_ptr(),
            count(scores.len())?,
            &raw,
            classes.as_mut_ptr(),
            &mut n_bytes,
        ))?
    };
    Ok((classes_of(&classes), n_bytes))
}

/// The attention that [`Sequence::score_attention`] scores chunks by; see `lk_chunk_attention`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention<'a> {
    /// How many of the step's last tokens are the query.
    pub n_query_tokens: u32,
    pub chunk_tokens: u32,
    pub n_chunks: u32,
    /// Ascending; empty = all layers without a sliding window.
    pub layers: &'a [u32],
}

impl Attention<'_> {
    pub fn new(n_query_tokens: u32, n_chunks: u32) -> Self {
        Attention { n_query_tokens, chunk_tokens: 32, n_chunks, layers: &[] }
    }
}

/// How a sequence is kept until its chunks have classes; see `lk_defer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Defer {
    /// Pages are packed by the plan's rules.
    Off,
    /// Tokens stay at 16 bits; on a shortfall the step is refused.
    Refuse,
    /// On a shortfall the oldest chunks are packed as middle ones.
    Pack,
}

impl Defer {
    fn raw(self) -> sys::lk_defer {
        match self {
            Defer::Off => sys::LK_DEFER_OFF,
            Defer::Refuse => sys::LK_DEFER_REFUSE,
            Defer::Pack => sys::LK_DEFER_PACK,
        }
    }
}

/// The chunks of a sequence; see `lk_chunks_info`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chunks {
    pub chunk_tokens: u32,
    pub first_token: u64,
    pub is_assigned: bool,
    pub deferral: Defer,
    /// Chunks that are kept wider than assigned, to fill pages or after a truncation.
    pub n_wider: u32,
    /// Chunks that are kept narrower than assigned, because their 16-bit values are gone.
    pub n_narrower: u32,
    pub retained_bytes: u64,
    /// Chunks of a context that is still to come whose classes are not laid out yet.
    pub n_pending: u32,
    /// The class of each chunk that [`Sequence::assign_chunks`] got.
    pub assigned: Vec<Option<ChunkClass>>,
    /// The class at whose width each chunk is kept.
    pub stored: Vec<Option<ChunkClass>>,
    /// The chunk at each position: a permutation.
    pub order: Vec<u32>,
}

/// Chunks of the context; the plan must have chunks. Like [`truncate`](Sequence::truncate), a call
/// that changes the sequence does not compile while a step borrows it:
/// ```compile_fail
/// use lowkey::*;
/// fn hurries(cache: &Cache<'_>) -> Result<()> {
///     let mut sequence = cache.add_sequence()?;
///     let step = cache.step(&[(&sequence, 1)])?;
///     sequence.assign_chunks(64, &[ChunkClass::Low], None)?;
///     step.commit()
/// }
/// ```
impl Sequence<'_> {
    /// Hold the sequence's tokens at 16 bits until its chunks have classes; see
    /// `lk_sequence_defer`.
    pub fn defer(&mut self, mode: Defer) -> Result<()> {
        // SAFETY: this thread alone has the cache.
        unsafe { check(sys::lk_sequence_defer(self.state.raw(), self.id, mode.raw())) }
    }

    /// Give the chunks of the first `n_context_tokens` tokens their classes, and end a deferral;
    /// see `lk_chunks_assign`. Tokens of the context may be still to come: its chunks are packed as
    /// they come. To fill pages, chunks with higher scores are widened first; None:
    /// later chunks are.
    pub fn assign_chunks(
        &mut self,
        n_context_tokens: u64,
        classes: &[ChunkClass],
        scores: Option<&[f32]>,
    ) -> Result<()> {
        if let Some(scores) = scores {
            if scores.len() != classes.len() {
                return Err(Error::argument(format!(
                    "{} scores for {} chunks",
                    scores.len(),
                    classes.len()
                )));
            }
        }
        let raw: Vec<_> = classes.iter().map(|&class| ChunkClass::raw(Some(class))).collect();
        // SAFETY: a class, and a score or none, for each chunk.
        unsafe {
            check(sys::lk_chunks_assign(
                self.state.raw(),
                self.id,
                n_context_tokens,
                count(raw.len())?,
                raw.as_ptr(),
                scores.map_or(ptr::null(), <[f32]>::as_ptr),
            ))
        }
    }

    /// Keep the originals of the context in host memory, at most `budget_bytes`, for later classes;
    /// 0 frees them. See `lk_chunks_retain`.
    pub fn retain_originals(&mut self, budget_bytes: u64) -> Result<()> {
        // SAFETY: as above.
        unsafe { check(sys::lk_chunks_retain(self.state.raw(), self.id, budget_bytes)) }
    }

    /// The classes, widths and order of the chunks.
    pub fn chunks(&self) -> Result<Chunks> {
        let mut info = initial(sys::lk_chunks_info_init)?;
        let none = ptr::null_mut();
        // SAFETY: the lists are null, then have the passed number of elements.
        let [assigned, stored, order] = unsafe {
            let (cache, id) = (self.state.raw(), self.id);
            check(sys::lk_chunks_get(cache, id, &mut info, 0, none, none, none))?;
            let mut lists = [(); 3].map(|()| vec![0u32; info.n_chunks as usize]);
            let [a, s, o] = &mut lists;
            let (a, s, o) = (a.as_mut_ptr(), s.as_mut_ptr(), o.as_mut_ptr());
            check(sys::lk_chunks_get(cache, id, &mut info, info.n_chunks, a, s, o))?;
            lists
        };
        let classes = |raw: &[u32]| raw.iter().map(|&class| ChunkClass::from_raw(class)).collect();
        Ok(Chunks {
            chunk_tokens: info.chunk_tokens,
            first_token: info.first_token,
            is_assigned: info.is_assigned != 0,
            deferral: match info.deferral {
                sys::LK_DEFER_REFUSE => Defer::Refuse,
                sys::LK_DEFER_PACK => Defer::Pack,
                _ => Defer::Off,
            },
            n_wider: info.n_wider,
            n_narrower: info.n_narrower,
            retained_bytes: info.retained_bytes,
            n_pending: info.n_pending,
            assigned: classes(&assigned),
            stored: classes(&stored),
            order,
        })
    }

    /// Score the context's chunks by attention in the next step; None cancels that. See
    /// `lk_chunks_score_attention`.
    pub fn score_attention(&mut self, attention: Option<Attention<'_>>) -> Result<()> {
        let mut raw = initial(sys::lk_chunk_attention_init)?;
        if let Some(attention) = attention {
            raw.n_query_tokens = attention.n_query_tokens;
            raw.chunk_tokens = attention.chunk_tokens;
            raw.n_chunks = attention.n_chunks;
            raw.n_layers = count(attention.layers.len())?;
            raw.layers = attention.layers.as_ptr();
        }
        let raw = attention.map_or(ptr::null(), |_| &raw as *const _);
        // SAFETY: the layers have the passed number, and are read during the call.
        unsafe { check(sys::lk_chunks_score_attention(self.state.raw(), self.id, raw)) }
    }

    /// The attention scores of the chunks, after the step was committed; `n_chunks` is that of
    /// [`score_attention`](Sequence::score_attention).
    pub fn attention_scores(&self, n_chunks: u32) -> Result<Vec<f32>> {
        let mut scores = vec![0f32; n_chunks as usize];
        // SAFETY: scores have the passed number of elements.
        unsafe {
            check(sys::lk_chunks_attention_scores(
                self.state.raw(),
                self.id,
                n_chunks,
                scores.as_mut_ptr(),
            ))?
        };
        Ok(scores)
    }
}
