// SPDX-License-Identifier: Apache-2.0
//! `<lowkey/base.h>`.
use std::os::raw::{c_char, c_void};

pub const LK_ABI_MAJOR: u32 = 0;
pub const LK_ABI_MINOR: u32 = 2;
pub const LK_MAX_STRUCT_BYTES: u32 = 4096;
pub const LK_ABI_VERSION: u32 = LK_ABI_MAJOR << 16 | LK_ABI_MINOR;

pub type lk_status = i32;
constants!(lk_status:
    LK_OK = 0,
    LK_E_ARGUMENT = -1,
    LK_E_STATE = -2,
    LK_E_NOT_FOUND = -3,
    LK_E_UNSUPPORTED = -4,
    LK_E_NOMEM = -5,
    LK_E_BUDGET = -6,
    LK_E_CORRUPT = -7,
    LK_E_MISMATCH = -8,
    LK_E_DATA = -9,
    LK_E_BUSY = -10,
    LK_E_IO = -11,
    LK_E_DEVICE = -12,
    LK_E_INTERNAL = -13,
);

pub type lk_dtype = u32;
constants!(lk_dtype: LK_F16 = 1, LK_BF16 = 2, LK_F32 = 3);

pub type lk_memory_kind = u32;
constants!(lk_memory_kind: LK_MEMORY_HOST = 1, LK_MEMORY_CUDA = 2, LK_MEMORY_VULKAN = 3);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_tensor {
    pub size: u32,
    pub dtype: lk_dtype,
    pub memory: lk_memory_kind,
    pub flags: u32,
    pub data: *mut c_void,
    pub buffer: u64,
    pub offset_bytes: u64,
    pub token_stride: i64,
    pub head_stride: i64,
}

pub type lk_queue_kind = u32;
constants!(lk_queue_kind:
    LK_QUEUE_CUDA_STREAM = 1,
    LK_QUEUE_VULKAN_SUBMIT = 2,
    LK_QUEUE_VULKAN_RECORD = 3,
);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_queue {
    pub size: u32,
    pub kind: lk_queue_kind,
    pub handle: *mut c_void,
    pub wait_semaphore: u64,
    pub wait_value: u64,
    pub signal_semaphore: u64,
    pub signal_value: u64,
}

extern "C" {
    pub fn lk_status_name(status: lk_status) -> *const c_char;
    pub fn lk_status_text(status: lk_status) -> *const c_char;
    pub fn lk_last_error(
        buffer: *mut c_char,
        capacity_bytes: usize,
        needed_bytes: *mut usize,
    ) -> lk_status;
    pub fn lk_version() -> *const c_char;
    pub fn lk_abi_version() -> u32;
    pub fn lk_build_info() -> *const c_char;
    pub fn lk_tensor_init(tensor: *mut lk_tensor, struct_bytes: usize) -> lk_status;
    pub fn lk_queue_init(queue: *mut lk_queue, struct_bytes: usize) -> lk_status;
}
