// SPDX-License-Identifier: Apache-2.0
//! `<lowkey/vulkan.h>`.
use crate::*;
use std::os::raw::{c_char, c_void};

constants!(u32:
    LK_VULKAN_NO_FLOAT16 = 0x1,
    LK_VULKAN_NO_SUBGROUP = 0x2,
    LK_VULKAN_NO_INTEGER_DOT = 0x4,
    LK_VULKAN_NO_COOPERATIVE_MATRIX = 0x8,
    LK_VULKAN_NO_TIMELINE = 0x10,
);
pub type lk_vulkan_function = Option<unsafe extern "C" fn()>;
pub type lk_vulkan_lock_fn = Option<unsafe extern "C" fn(user: *mut c_void)>;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_vulkan_desc {
    pub size: u32,
    pub mask: u32,
    pub validation: u32,
    pub api_version: u32,
    pub get_instance_proc_addr: lk_vulkan_function,
    pub instance: *mut c_void,
    pub physical_device: *mut c_void,
    pub device: *mut c_void,
    pub queue: *mut c_void,
    pub queue_family: u32,
    pub n_extensions: u32,
    pub extensions: *const *const c_char,
    pub features: *const c_void,
    pub lock_queue: lk_vulkan_lock_fn,
    pub unlock_queue: lk_vulkan_lock_fn,
    pub lock_user: *mut c_void,
    pub pipeline_cache: *const c_void,
    pub pipeline_cache_bytes: u64,
}

extern "C" {
    pub fn lk_vulkan_desc_init(desc: *mut lk_vulkan_desc, struct_bytes: usize) -> lk_status;
    pub fn lk_vulkan_buffer_add(
        context: *mut lk_context,
        buffer: u64,
        bytes: u64,
        usage: u32,
    ) -> lk_status;
    pub fn lk_vulkan_buffer_remove(context: *mut lk_context, buffer: u64) -> lk_status;
    pub fn lk_vulkan_pipeline_cache(
        context: *const lk_context,
        buffer: *mut c_void,
        capacity_bytes: u64,
        needed_bytes: *mut u64,
    ) -> lk_status;
}
