// SPDX-License-Identifier: Apache-2.0
//! `<lowkey/step.h>`.
use crate::*;

pub const LK_DRAFT_TOKENS: u32 = 64;
pub const LK_SPANS_WINDOWED: u32 = 1;

extern "C" {
    pub fn lk_step_begin(
        cache: *mut lk_cache,
        queue: *const lk_queue,
        n_sequences: u32,
        ids: *const lk_sequence,
        n_tokens: *const u32,
        parent: *const i32,
    ) -> lk_status;
    pub fn lk_step_begin_spans(
        cache: *mut lk_cache,
        queue: *const lk_queue,
        n_sequences: u32,
        ids: *const lk_sequence,
        n_tokens: *const u32,
        spans: *const u32,
        n_spans: u32,
        flags: u32,
    ) -> lk_status;
    pub fn lk_append(
        cache: *mut lk_cache,
        layer: u32,
        k: *const lk_tensor,
        v: *const lk_tensor,
    ) -> lk_status;
    pub fn lk_attend(
        cache: *mut lk_cache,
        layer: u32,
        q: *const lk_tensor,
        out: *const lk_tensor,
        lse: *const lk_tensor,
    ) -> lk_status;
    pub fn lk_step_set_queue(cache: *mut lk_cache, queue: *const lk_queue) -> lk_status;
    pub fn lk_step_replay(cache: *mut lk_cache) -> lk_status;
    pub fn lk_step_commit(cache: *mut lk_cache, keep: *const u32) -> lk_status;
    pub fn lk_step_commit_tokens(
        cache: *mut lk_cache,
        n_kept: *const u32,
        kept: *const u32,
    ) -> lk_status;
    pub fn lk_step_discard(cache: *mut lk_cache) -> lk_status;
}
