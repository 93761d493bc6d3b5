// SPDX-License-Identifier: Apache-2.0
//! `<lowkey/snapshot.h>`.
use crate::*;
use std::os::raw::{c_char, c_void};

pub type lk_write_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, data: *const c_void, n_bytes: usize) -> i32>;
pub type lk_read_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, data: *mut c_void, n_bytes: usize) -> i64>;
pub type lk_progress_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, done_bytes: u64, total_bytes: u64) -> i32>;
pub const LK_FINGERPRINT_BYTES: u32 = 256;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_snapshot_desc {
    pub size: u32,
    pub fingerprint_bytes: u32,
    pub fingerprint: *const c_void,
    pub progress: lk_progress_fn,
    pub progress_user: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_snapshot_info {
    pub size: u32,
    pub version: u32,
    pub n_sequences: u32,
    pub n_formats: u32,
    pub total_bytes: u64,
    pub n_tokens: u64,
    pub n_blocks: u64,
    pub geometry_hash: u64,
    pub plan_hash: u64,
    pub fingerprint_bytes: u32,
    pub fingerprint: [u8; 256],
    pub reserved: u32,
    pub n_state_versions: u64,
    pub version_bytes: u64,
    pub n_states: u32,
    pub reserved2: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_snapshot_sequence {
    pub size: u32,
    pub flags: u32,
    pub id: lk_sequence,
    pub n_tokens: u64,
    pub n_blocks: u64,
    pub n_shared_blocks: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_snapshot_format {
    pub size: u32,
    pub is_value: u32,
    pub head_dim: u32,
    pub page_tokens: u32,
    pub channels: [u32; 6],
    pub n_pages: u64,
    pub payload_bytes: u64,
    pub metadata_bytes: u64,
}

extern "C" {
    pub fn lk_snapshot_desc_init(desc: *mut lk_snapshot_desc, struct_bytes: usize) -> lk_status;
    pub fn lk_snapshot_save(
        cache: *mut lk_cache,
        n_sequences: u32,
        ids: *const lk_sequence,
        desc: *const lk_snapshot_desc,
        write: lk_write_fn,
        user: *mut c_void,
    ) -> lk_status;
    pub fn lk_snapshot_save_memory(
        cache: *mut lk_cache,
        n_sequences: u32,
        ids: *const lk_sequence,
        desc: *const lk_snapshot_desc,
        buffer: *mut c_void,
        capacity_bytes: u64,
        needed_bytes: *mut u64,
    ) -> lk_status;
    pub fn lk_snapshot_save_file(
        cache: *mut lk_cache,
        n_sequences: u32,
        ids: *const lk_sequence,
        desc: *const lk_snapshot_desc,
        path: *const c_char,
    ) -> lk_status;
    pub fn lk_snapshot_load(
        cache: *mut lk_cache,
        desc: *const lk_snapshot_desc,
        read: lk_read_fn,
        user: *mut c_void,
        capacity: u32,
        ids: *mut lk_sequence,
        n_sequences: *mut u32,
    ) -> lk_status;
    pub fn lk_snapshot_load_memory(
        cache: *mut lk_cache,
        desc: *const lk_snapshot_desc,
        data: *const c_void,
        n_bytes: u64,
        capacity: u32,
        ids: *mut lk_sequence,
        n_sequences: *mut u32,
    ) -> lk_status;
    pub fn lk_snapshot_load_file(
        cache: *mut lk_cache,
        desc: *const lk_snapshot_desc,
        path: *const c_char,
        capacity: u32,
        ids: *mut lk_sequence,
        n_sequences: *mut u32,
    ) -> lk_status;
    pub fn lk_snapshot_open(
        desc: *const lk_snapshot_desc,
        read: lk_read_fn,
        user: *mut c_void,
        out: *mut *mut lk_snapshot,
    ) -> lk_status;
    pub fn lk_snapshot_open_memory(
        data: *const c_void,
        n_bytes: u64,
        out: *mut *mut lk_snapshot,
    ) -> lk_status;
    pub fn lk_snapshot_open_file(path: *const c_char, out: *mut *mut lk_snapshot) -> lk_status;
    pub fn lk_snapshot_close(snapshot: *mut *mut lk_snapshot);
    pub fn lk_snapshot_info_init(info: *mut lk_snapshot_info, struct_bytes: usize) -> lk_status;
    pub fn lk_snapshot_get_info(
        snapshot: *const lk_snapshot,
        info: *mut lk_snapshot_info,
    ) -> lk_status;
    pub fn lk_snapshot_plan(snapshot: *const lk_snapshot) -> *const lk_plan;
    pub fn lk_snapshot_sequence_init(
        sequence: *mut lk_snapshot_sequence,
        struct_bytes: usize,
    ) -> lk_status;
    pub fn lk_snapshot_get_sequence(
        snapshot: *const lk_snapshot,
        index: u32,
        sequence: *mut lk_snapshot_sequence,
    ) -> lk_status;
    pub fn lk_snapshot_format_init(kind: *mut lk_snapshot_format, struct_bytes: usize)
        -> lk_status;
    pub fn lk_snapshot_get_format(
        snapshot: *const lk_snapshot,
        index: u32,
        kind: *mut lk_snapshot_format,
    ) -> lk_status;
}
