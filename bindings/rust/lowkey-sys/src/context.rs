// SPDX-License-Identifier: Apache-2.0
//! `<lowkey/context.h>`.
use crate::*;
use std::os::raw::{c_char, c_void};

pub type lk_backend = u32;
constants!(lk_backend: LK_BACKEND_CPU = 1, LK_BACKEND_CUDA = 2, LK_BACKEND_VULKAN = 3);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_device_info {
    pub size: u32,
    pub backend: lk_backend,
    pub index: u32,
    pub n_threads: u32,
    pub memory_bytes: u64,
    pub free_bytes: u64,
    pub name: [c_char; 128],
    pub features: [c_char; 128],
}

pub type lk_alloc_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, bytes: usize, alignment: usize) -> *mut c_void>;
pub type lk_free_fn = Option<
    unsafe extern "C" fn(user: *mut c_void, pointer: *mut c_void, bytes: usize, alignment: usize),
>;

pub type lk_log_level = u32;
constants!(lk_log_level:
    LK_LOG_ERROR = 1,
    LK_LOG_WARNING = 2,
    LK_LOG_INFO = 3,
    LK_LOG_DEBUG = 4,
);
pub type lk_log_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, level: lk_log_level, message: *const c_char)>;

pub type lk_task_fn = Option<unsafe extern "C" fn(task_data: *mut c_void, index: u32)>;
pub type lk_parallel_for_fn = Option<
    unsafe extern "C" fn(user: *mut c_void, n_tasks: u32, task: lk_task_fn, task_data: *mut c_void),
>;

constants!(u32:
    LK_CPU_REFERENCE_ONLY = 0x1,
    LK_CPU_NO_AVX2 = 0x2,
    LK_CPU_NO_AVX512 = 0x4,
    LK_CPU_NO_NEON = 0x8,
);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_context_desc {
    pub size: u32,
    pub backend: lk_backend,
    pub device_index: u32,
    pub n_threads: u32,
    pub cpu_mask: u32,
    pub log_level: lk_log_level,
    pub log: lk_log_fn,
    pub log_user: *mut c_void,
    pub alloc: lk_alloc_fn,
    pub free: lk_free_fn,
    pub alloc_user: *mut c_void,
    pub vulkan: *const lk_vulkan_desc,
    pub parallel_for: lk_parallel_for_fn,
    pub parallel_for_user: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_capability {
    pub size: u32,
    pub head_dim: u32,
    pub group_size: u32,
    pub key_bits: u32,
    pub value_bits: u32,
    pub page_tokens: u32,
    pub memory: lk_memory_kind,
    pub dtype: lk_dtype,
    pub queue: lk_queue_kind,
    pub value_dim: u32,
    pub is_latent: u32,
}

extern "C" {
    pub fn lk_device_info_init(info: *mut lk_device_info, struct_bytes: usize) -> lk_status;
    pub fn lk_device_count(count: *mut u32) -> lk_status;
    pub fn lk_device_get(ordinal: u32, info: *mut lk_device_info) -> lk_status;
    pub fn lk_context_desc_init(desc: *mut lk_context_desc, struct_bytes: usize) -> lk_status;
    pub fn lk_context_open(
        desc: *const lk_context_desc,
        abi_version: u32,
        out: *mut *mut lk_context,
    ) -> lk_status;
    pub fn lk_context_close(context: *mut *mut lk_context) -> lk_status;
    pub fn lk_context_device(context: *const lk_context, info: *mut lk_device_info) -> lk_status;
    pub fn lk_capability_init(capability: *mut lk_capability, struct_bytes: usize) -> lk_status;
    pub fn lk_context_supports(
        context: *const lk_context,
        capability: *const lk_capability,
    ) -> lk_status;
}
