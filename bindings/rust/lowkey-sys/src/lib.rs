//! Raw declarations of liblowkey, as its headers have them (`<lowkey/*.h>`, which are the
//! documentation). `tests/layout.rs` compares every struct and constant with the headers.
//! Most programs want the crate `lowkey` instead.
#![allow(non_camel_case_types)]

mod functions;

pub use functions::*;
use std::marker::{PhantomData, PhantomPinned};
use std::os::raw::{c_char, c_void};

macro_rules! opaque {
    ($($name:ident),*) => {$(
        /// Opaque; only pointers to it exist.
        #[repr(C)]
        pub struct $name {
            _data: [u8; 0],
            _marker: PhantomData<(*mut u8, PhantomPinned)>,
        }
    )*};
}
opaque!(lk_context, lk_plan, lk_cache, lk_snapshot, lk_calibrator);

/// Constants of one C type.
macro_rules! constants {
    ($type:ty: $($name:ident = $value:expr),* $(,)?) => {$(
        pub const $name: $type = $value;
    )*};
}

// base.h
pub const LK_ABI_MAJOR: u32 = 0;
pub const LK_ABI_MINOR: u32 = 1;
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

// context.h
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
}

// vulkan.h
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

// plan.h
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_layer {
    pub size: u32,
    pub n_query_heads: u32,
    pub n_kv_heads: u32,
    pub head_dim: u32,
    pub window_tokens: u32,
    pub window_sink_tokens: u32,
    pub scale: f32,
    pub soft_cap: f32,
    pub sink_logits: *const f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_geometry {
    pub size: u32,
    pub n_layers: u32,
    pub layers: *const lk_layer,
}

pub const LK_ALL: u32 = u32::MAX;

pub type lk_axis = u32;
constants!(lk_axis: LK_AXIS_CHANNEL = 1, LK_AXIS_TOKEN = 2);
pub type lk_ranking = u32;
constants!(lk_ranking: LK_RANKING_KEY = 1, LK_RANKING_QUERY_RANGE = 2);

pub type lk_one_bit = u32;
constants!(lk_one_bit: LK_ONE_BIT_DEVIATION = 1, LK_ONE_BIT_RANGE = 2);

pub type lk_chunk_class = u32;
constants!(lk_chunk_class: LK_CHUNK_NONE = 0, LK_CHUNK_LOW = 1, LK_CHUNK_MIDDLE = 2,
           LK_CHUNK_HIGH = 3);
pub type lk_metadata = u32;
constants!(lk_metadata: LK_METADATA_F16 = 1, LK_METADATA_F8 = 2);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_key_rule {
    pub size: u32,
    pub bits: u32,
    pub axis: lk_axis,
    pub group: u32,
    pub boost_channels: u32,
    pub boost_bits: u32,
    pub boost_ranking: lk_ranking,
    pub channel_bits: *const u8,
    pub one_bit: lk_one_bit,
    pub clip: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_value_rule {
    pub size: u32,
    pub bits: u32,
    pub group: u32,
    pub one_bit: lk_one_bit,
    pub clip: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_chunk_rule {
    pub size: u32,
    pub chunk_tokens: u32,
    pub low_bits: u32,
    pub middle_bits: u32,
    pub high_bits: u32,
    pub alpha: f32,
    pub beta: f32,
    pub reorder: u32,
    pub hold: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_chunk_mix {
    pub size: u32,
    pub n_low: u32,
    pub n_middle: u32,
    pub n_high: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_plan_size {
    pub size: u32,
    pub n_pages: u32,
    pub bits_per_value: f64,
    pub bytes_per_token: f64,
    pub fp16_bytes: u64,
    pub payload_bytes: u64,
    pub metadata_bytes: u64,
    pub recent_bytes: u64,
    pub table_bytes: u64,
    pub cache_bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_chanmix_layout {
    pub size: u32,
    pub head_dim: u32,
    pub token_bytes: u32,
    pub reserved: u32,
    pub channel: [u8; 256],
    pub bits: [u8; 256],
    pub byte: [u8; 256],
    pub shift: [u8; 256],
}

// cache.h
pub type lk_sequence = u64;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_cache_desc {
    pub size: u32,
    pub max_sequences: u32,
    pub max_step_tokens: u32,
    pub flags: u32,
    pub budget_bytes: u64,
    pub slab_bytes: u64,
    pub max_budget_bytes: u64,
    pub sequence_limit_bytes: u64,
    pub pressure: lk_pressure_fn,
    pub pressure_user: *mut c_void,
}
pub const LK_CACHE_EVICT: u32 = 1;

pub type lk_pressure_action = u32;
constants!(lk_pressure_action:
    LK_PRESSURE_REFUSE = 0,
    LK_PRESSURE_BUDGET = 1,
    LK_PRESSURE_REMOVE = 2,
);
pub type lk_pressure_fn = Option<
    unsafe extern "C" fn(user: *mut c_void, pressure: *mut lk_pressure) -> lk_pressure_action,
>;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_pressure {
    pub size: u32,
    pub capacity: u32,
    pub shortfall_bytes: u64,
    pub reserved_bytes: u64,
    pub budget_bytes: u64,
    pub ids: *mut lk_sequence,
    pub n_ids: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_cache_stats {
    pub size: u32,
    pub n_sequences: u32,
    pub n_tokens: u64,
    pub budget_bytes: u64,
    pub reserved_bytes: u64,
    pub payload_bytes: u64,
    pub metadata_bytes: u64,
    pub recent_bytes: u64,
    pub table_bytes: u64,
    pub workspace_bytes: u64,
    pub free_bytes: u64,
    pub pages_packed: u64,
    pub pages_dequantized: u64,
    pub values_saturated: u64,
    pub device_bytes: u64,
    pub shared_bytes: u64,
    pub pages_copied: u64,
    pub pages_shrunk: u64,
    pub sequences_evicted: u64,
    pub fragmented_bytes: u64,
    pub plane_bytes: [u64; 6],
}
pub const LK_ALL_TOKENS: u64 = u64::MAX;

// chunks.h
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
}

// snapshot.h
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

// calibrate.h
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_probe {
    pub size: u32,
    pub prefix_tokens: u32,
    pub period_tokens: u32,
    pub sink_tokens: u32,
    pub local_tokens: u32,
}

pub type lk_statistic = u32;
constants!(lk_statistic:
    LK_STATISTIC_KEY_MIN = 1,
    LK_STATISTIC_KEY_MAX = 2,
    LK_STATISTIC_KEY_RANGE = 3,
    LK_STATISTIC_KEY_MEAN = 4,
    LK_STATISTIC_KEY_MAGNITUDE = 5,
    LK_STATISTIC_QUERY_MAGNITUDE = 6,
);
constants!(u8: LK_CHANNEL_SUBNORMAL = 1, LK_CHANNEL_NORMAL = 2, LK_CHANNEL_OUTLIER = 3);
pub type lk_sensitivity = u32;
constants!(lk_sensitivity: LK_SENSITIVITY_GRADIENT = 1, LK_SENSITIVITY_OUTPUT = 2);
pub type lk_scope = u32;
constants!(lk_scope: LK_SCOPE_HEAD = 1, LK_SCOPE_LAYER = 2);
pub type lk_retrieval = u32;
constants!(lk_retrieval:
    LK_RETRIEVAL_NONE = 1,
    LK_RETRIEVAL_KEY = 2,
    LK_RETRIEVAL_KEY_VALUE = 3,
);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_chanmix {
    pub size: u32,
    pub retrieval: lk_retrieval,
    pub scope: lk_scope,
    pub outliers: u32,
    pub centers: u32,
    pub metadata: lk_metadata,
    pub group: u32,
    pub sink_tokens: u32,
    pub recent_tokens: u32,
    pub retrieval_share: f64,
    pub budget_bytes: u64,
    pub budget_tokens: u64,
    pub budget_sequences: u32,
    pub budget_step_tokens: u32,
    pub one_bit: lk_one_bit,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_auto {
    pub size: u32,
    pub centers: u32,
    pub sink_tokens: u32,
    pub recent_tokens: u32,
    pub bits_per_value: f64,
    pub budget_bytes: u64,
    pub budget_tokens: u64,
    pub budget_sequences: u32,
    pub budget_step_tokens: u32,
}

pub type lk_rope_pairing = u32;
constants!(lk_rope_pairing: LK_ROPE_HALVES = 1, LK_ROPE_INTERLEAVED = 2);
pub const LK_POSITION_SCALE: u32 = 4;
pub const LK_SCALE_EXPONENTS: u32 = 21;
pub const LK_COST_CLIPS: u32 = 2;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_rope {
    pub size: u32,
    pub pairing: lk_rope_pairing,
    pub channels: u32,
    pub reserved: u32,
    pub base: f64,
    pub frequencies: *const f64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_scale_search {
    pub size: u32,
    pub pairing: lk_rope_pairing,
    pub channels: u32,
    pub key_bits: u32,
    pub value_bits: u32,
    pub query_step: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct lk_pmkvq {
    pub size: u32,
    pub n_widths: u32,
    pub widths: [u32; 4],
    pub sensitivity: lk_sensitivity,
    pub scope: lk_scope,
    pub split: u32,
    pub key_axis: lk_axis,
    pub group: u32,
    pub key_scales: u32,
    pub sink_tokens: u32,
    pub recent_tokens: u32,
    pub budget_bytes: u64,
    pub budget_tokens: u64,
    pub budget_sequences: u32,
    pub budget_step_tokens: u32,
}

// step.h, merge.h
pub const LK_DRAFT_TOKENS: u32 = 64;
pub const LK_MERGE_SPLITS: u32 = 16;
