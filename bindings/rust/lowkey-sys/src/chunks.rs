// SPDX-License-Identifier: Apache-2.0
//! `<lowkey/chunks.h>`.
use crate::*;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_bm25 {
    pub size: u32,
    pub chunk_tokens: u32,
    pub k1: f64,
    pub b: f64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_chunk_quota {
    pub size: u32,
    pub block_chunks: u32,
    pub low_share: f64,
    pub high_share: f64,
    pub budget_bytes: u64,
    pub low_bytes: u64,
    pub middle_bytes: u64,
    pub high_bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_chunk_attention {
    pub size: u32,
    pub n_query_tokens: u32,
    pub chunk_tokens: u32,
    pub n_chunks: u32,
    pub n_layers: u32,
    pub reserved: u32,
    pub layers: *const u32,
}

pub type lk_defer = u32;
constants!(lk_defer: LK_DEFER_OFF = 0, LK_DEFER_REFUSE = 1, LK_DEFER_PACK = 2);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_chunks_info {
    pub size: u32,
    pub n_chunks: u32,
    pub chunk_tokens: u32,
    pub is_assigned: u32,
    pub deferral: lk_defer,
    pub n_low: u32,
    pub n_middle: u32,
    pub n_high: u32,
    pub n_wider: u32,
    pub n_narrower: u32,
    pub first_token: u64,
    pub retained_bytes: u64,
    pub n_pending: u32,
    pub reserved: u32,
}

extern "C" {
    pub fn lk_chunks_cosine(
        embeddings: *const lk_tensor,
        query: *const lk_tensor,
        n_chunks: u32,
        n_channels: u32,
        scores: *mut f32,
    ) -> lk_status;
    pub fn lk_chunks_score_cosine(
        context: *const lk_context,
        queue: *const lk_queue,
        embeddings: *const lk_tensor,
        query: *const lk_tensor,
        n_chunks: u32,
        n_channels: u32,
        scores: *const lk_tensor,
    ) -> lk_status;
    pub fn lk_bm25_init(options: *mut lk_bm25, struct_bytes: usize) -> lk_status;
    pub fn lk_chunks_score_bm25(
        options: *const lk_bm25,
        tokens: *const u32,
        starts: *const u64,
        n_chunks: u32,
        query: *const u32,
        n_query_tokens: u32,
        scores: *mut f32,
    ) -> lk_status;
    pub fn lk_chunks_by_thresholds(
        scores: *const f32,
        n_chunks: u32,
        alpha: f64,
        beta: f64,
        classes: *mut lk_chunk_class,
        low: *mut f64,
        high: *mut f64,
    ) -> lk_status;
    pub fn lk_chunk_quota_init(quota: *mut lk_chunk_quota, struct_bytes: usize) -> lk_status;
    pub fn lk_chunks_by_quota(
        scores: *const f32,
        n_chunks: u32,
        quota: *const lk_chunk_quota,
        classes: *mut lk_chunk_class,
        n_bytes: *mut u64,
    ) -> lk_status;
    pub fn lk_chunk_attention_init(
        attention: *mut lk_chunk_attention,
        struct_bytes: usize,
    ) -> lk_status;
    pub fn lk_chunks_score_attention(
        cache: *mut lk_cache,
        id: lk_sequence,
        attention: *const lk_chunk_attention,
    ) -> lk_status;
    pub fn lk_chunks_attention_scores(
        cache: *mut lk_cache,
        id: lk_sequence,
        n_chunks: u32,
        scores: *mut f32,
    ) -> lk_status;
    pub fn lk_sequence_defer(cache: *mut lk_cache, id: lk_sequence, mode: lk_defer) -> lk_status;
    pub fn lk_chunks_assign(
        cache: *mut lk_cache,
        id: lk_sequence,
        n_context_tokens: u64,
        n_chunks: u32,
        classes: *const lk_chunk_class,
        scores: *const f32,
    ) -> lk_status;
    pub fn lk_chunks_retain(cache: *mut lk_cache, id: lk_sequence, budget_bytes: u64) -> lk_status;
    pub fn lk_chunks_info_init(info: *mut lk_chunks_info, struct_bytes: usize) -> lk_status;
    pub fn lk_chunks_get(
        cache: *const lk_cache,
        id: lk_sequence,
        info: *mut lk_chunks_info,
        capacity: u32,
        assigned: *mut lk_chunk_class,
        stored: *mut lk_chunk_class,
        order: *mut u32,
    ) -> lk_status;
}
