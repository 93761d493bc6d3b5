// SPDX-License-Identifier: Apache-2.0
//! `<lowkey/state.h>`.
use crate::*;
use std::os::raw::c_void;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_state {
    pub size: u32,
    pub memory: lk_memory_kind,
    pub data: *mut c_void,
    pub buffer: u64,
    pub offset_bytes: u64,
    pub bytes: u64,
}

extern "C" {
    pub fn lk_state_init(state: *mut lk_state, struct_bytes: usize) -> lk_status;
    pub fn lk_step_state(
        cache: *const lk_cache,
        sequence: u32,
        state: u32,
        out: *mut lk_state,
    ) -> lk_status;
    pub fn lk_step_read_state(
        cache: *mut lk_cache,
        sequence: u32,
        state: u32,
        to: *mut c_void,
        bytes: u64,
    ) -> lk_status;
    pub fn lk_step_write_state(
        cache: *mut lk_cache,
        sequence: u32,
        state: u32,
        from: *const c_void,
        bytes: u64,
    ) -> lk_status;
    pub fn lk_sequence_find_state(
        cache: *const lk_cache,
        id: lk_sequence,
        n_tokens: u64,
        found: *mut u64,
    ) -> lk_status;
    pub fn lk_sequence_rollback(
        cache: *mut lk_cache,
        id: lk_sequence,
        n_tokens: u64,
        kept: *mut u64,
    ) -> lk_status;
    pub fn lk_state_bytes(
        desc: *const lk_cache_desc,
        n_sequences: u32,
        bytes: *mut u64,
    ) -> lk_status;
}
