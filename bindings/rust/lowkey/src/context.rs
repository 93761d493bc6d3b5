// SPDX-License-Identifier: Apache-2.0
use crate::error::{check, initial, Result};
use crate::tensor::Element;
use lowkey_sys as sys;
use std::ffi::CStr;
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;

/// The kind of device that runs the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    Cpu,
    Cuda,
    Vulkan,
}

impl Backend {
    fn raw(self) -> sys::lk_backend {
        match self {
            Backend::Cpu => sys::LK_BACKEND_CPU,
            Backend::Cuda => sys::LK_BACKEND_CUDA,
            Backend::Vulkan => sys::LK_BACKEND_VULKAN,
        }
    }
    fn of(raw: sys::lk_backend) -> Self {
        match raw {
            sys::LK_BACKEND_CUDA => Backend::Cuda,
            sys::LK_BACKEND_VULKAN => Backend::Vulkan,
            _ => Backend::Cpu,
        }
    }
}

/// A device that a context can be opened on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    pub backend: Backend,
    /// Among the devices of its backend.
    pub index: u32,
    /// Hardware threads of a CPU, else 0.
    pub n_threads: u32,
    pub memory_bytes: u64,
    pub free_bytes: u64,
    pub name: String,
    /// For example "avx2 fma f16c" or "sm_90 132 SMs".
    pub features: String,
}

impl DeviceInfo {
    fn of(raw: &sys::lk_device_info) -> Self {
        let text = |field: &[c_char]| {
            // SAFETY: the library ends both texts with a zero.
            unsafe { CStr::from_ptr(field.as_ptr()) }.to_string_lossy().into_owned()
        };
        DeviceInfo {
            backend: Backend::of(raw.backend),
            index: raw.index,
            n_threads: raw.n_threads,
            memory_bytes: raw.memory_bytes,
            free_bytes: raw.free_bytes,
            name: text(&raw.name),
            features: text(&raw.features),
        }
    }
}

/// The devices of this machine that this build of the library has a backend for.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    let mut count = 0;
    // SAFETY: count is there for the call, and info was initialised.
    unsafe { check(sys::lk_device_count(&mut count))? };
    (0..count)
        .map(|ordinal| {
            let mut info = initial(sys::lk_device_info_init)?;
            unsafe { check(sys::lk_device_get(ordinal, &mut info))? };
            Ok(DeviceInfo::of(&info))
        })
        .collect()
}

/// The levels of log messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LogLevel {
    Error = 1,
    Warning = 2,
    Info = 3,
    Debug = 4,
}

type LogFn = Box<dyn Fn(LogLevel, &str) + Send + Sync>;
type ParallelForFn = Box<dyn Fn(u32, &(dyn Fn(u32) + Sync)) + Send + Sync>;

/// How to open a [`Context`].
pub struct ContextOptions {
    backend: Backend,
    device_index: u32,
    n_threads: u32,
    cpu_mask: u32,
    log: Option<(LogLevel, LogFn)>,
    parallel_for: Option<ParallelForFn>,
}

impl ContextOptions {
    pub fn new(backend: Backend) -> Self {
        ContextOptions {
            backend,
            device_index: 0,
            n_threads: 0,
            cpu_mask: 0,
            log: None,
            parallel_for: None,
        }
    }
    /// [`DeviceInfo::index`].
    pub fn device_index(mut self, index: u32) -> Self {
        self.device_index = index;
        self
    }
    /// Worker threads of the CPU, the caller's included; 0 = all that the machine has.
    pub fn threads(mut self, n_threads: u32) -> Self {
        self.n_threads = n_threads;
        self
    }
    /// `LK_CPU_*` bits of instruction sets that are not used.
    pub fn cpu_mask(mut self, mask: u32) -> Self {
        self.cpu_mask = mask;
        self
    }
    /// Call `log` with each message up to a level, from any thread that calls lowkey. The callback
    /// may not call lowkey; a panic in it is caught and dropped.
    pub fn log(
        mut self,
        level: LogLevel,
        log: impl Fn(LogLevel, &str) + Send + Sync + 'static,
    ) -> Self {
        self.log = Some((level, Box::new(log)));
        self
    }
    /// Run the work of calls on the CPU on threads of the host: `run(n, task)` calls `task(i)` once
    /// for each `i` below `n`, on any threads, and returns when all have returned. lowkey starts no
    /// thread then, and [`threads`](Self::threads) is the largest `n`. `run` may not use the context
    /// or its caches. A panic in it is caught; tasks that it left out make the call, and all later
    /// ones, return a device error. See `lk_parallel_for_fn`.
    pub fn parallel_for(
        mut self,
        run: impl Fn(u32, &(dyn Fn(u32) + Sync)) + Send + Sync + 'static,
    ) -> Self {
        self.parallel_for = Some(Box::new(run));
        self
    }
}

/// A task of lowkey, which any thread may run while its callback does.
struct Task(unsafe extern "C" fn(*mut c_void, u32), *mut c_void);
// SAFETY: the header allows calls from any threads at once.
unsafe impl Sync for Task {}

impl Task {
    fn run(&self, index: u32) {
        // SAFETY: the callback has not returned yet: run_tasks() lends the task for its call alone.
        unsafe { (self.0)(self.1, index) }
    }
}

unsafe extern "C" fn run_tasks(
    user: *mut c_void,
    n_tasks: u32,
    task: sys::lk_task_fn,
    task_data: *mut c_void,
) {
    let run = &*(user as *const ParallelForFn);
    if let Some(task) = task.map(|task| Task(task, task_data)) {
        // A panic must not unwind into C; lowkey finds the tasks that it left out.
        let _ = catch_unwind(AssertUnwindSafe(|| run(n_tasks, &|index| task.run(index))));
    }
}

unsafe extern "C" fn log_line(user: *mut c_void, level: sys::lk_log_level, message: *const c_char) {
    let log = &*(user as *const LogFn);
    let level = match level {
        sys::LK_LOG_ERROR => LogLevel::Error,
        sys::LK_LOG_WARNING => LogLevel::Warning,
        sys::LK_LOG_INFO => LogLevel::Info,
        _ => LogLevel::Debug,
    };
    let message = CStr::from_ptr(message).to_string_lossy();
    // A panic must not unwind into C, and this thread has no call to return it from.
    let _ = catch_unwind(AssertUnwindSafe(|| log(level, &message)));
}

/// An open device. Any threads may use it at once.
pub struct Context {
    raw: *mut sys::lk_context,
    device: DeviceInfo,
    _log: Option<Box<LogFn>>,
    _parallel_for: Option<Box<ParallelForFn>>,
}

// SAFETY: the header allows calls from any threads at once: the context is locked inside.
unsafe impl Send for Context {}
unsafe impl Sync for Context {}

impl Context {
    /// The CPU with all its threads.
    pub fn cpu() -> Result<Self> {
        Self::open(ContextOptions::new(Backend::Cpu))
    }

    pub fn open(options: ContextOptions) -> Result<Self> {
        let mut desc = initial(sys::lk_context_desc_init)?;
        desc.backend = options.backend.raw();
        desc.device_index = options.device_index;
        desc.n_threads = options.n_threads;
        desc.cpu_mask = options.cpu_mask;
        let log = options.log.map(|(level, log)| {
            desc.log_level = level as sys::lk_log_level;
            Box::new(log)
        });
        if let Some(log) = &log {
            desc.log = Some(log_line);
            desc.log_user = &**log as *const LogFn as *mut c_void;
        }
        let parallel_for = options.parallel_for.map(Box::new);
        if let Some(run) = &parallel_for {
            desc.parallel_for = Some(run_tasks);
            desc.parallel_for_user = &**run as *const ParallelForFn as *mut c_void;
        }
        let mut raw = ptr::null_mut();
        // SAFETY: desc is whole; the callbacks stay in their boxes until the context is closed.
        unsafe { check(sys::lk_context_open(&desc, sys::LK_ABI_VERSION, &mut raw))? };
        let mut context = Context {
            raw,
            device: DeviceInfo {
                backend: options.backend,
                index: 0,
                n_threads: 0,
                memory_bytes: 0,
                free_bytes: 0,
                name: String::new(),
                features: String::new(),
            },
            _log: log,
            _parallel_for: parallel_for,
        };
        context.device = context.query_device()?;
        Ok(context)
    }

    fn query_device(&self) -> Result<DeviceInfo> {
        let mut info = initial(sys::lk_device_info_init)?;
        // SAFETY: both are there for the call.
        unsafe { check(sys::lk_context_device(self.raw, &mut info))? };
        Ok(DeviceInfo::of(&info))
    }

    /// The device of the context, as it was when the context was opened.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// Ok if this context can pack and attend such pages, or else the refusal that a cache would
    /// give.
    pub fn supports(&self, capability: &Capability) -> Result<()> {
        let mut raw = initial(sys::lk_capability_init)?;
        raw.head_dim = capability.head_dim;
        raw.group_size = capability.group_size;
        raw.key_bits = capability.key_bits;
        raw.value_bits = capability.value_bits;
        raw.page_tokens = capability.page_tokens;
        raw.value_dim = capability.value_dim;
        raw.is_latent = capability.is_latent.into();
        raw.dtype = capability.dtype;
        raw.memory = match self.device.backend {
            Backend::Cuda => sys::LK_MEMORY_CUDA,
            _ => sys::LK_MEMORY_HOST,
        };
        // SAFETY: both are there for the call.
        unsafe { check(sys::lk_context_supports(self.raw, &raw)) }
    }

    /// The handle of the C interface, for calls that this crate does not wrap. The context keeps
    /// it.
    pub fn as_raw(&self) -> *mut sys::lk_context {
        self.raw
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: caches borrow the context, so none is alive, and this cannot be refused.
        unsafe { sys::lk_context_close(&mut self.raw) };
    }
}

/// The pages and tensors that [`Context::supports`] checks; tensors are f32 by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    head_dim: u32,
    group_size: u32,
    key_bits: u32,
    value_bits: u32,
    page_tokens: u32,
    dtype: sys::lk_dtype,
    value_dim: u32,
    is_latent: bool,
}

impl Capability {
    /// Pages of 128 tokens; `group_size` is query heads per KV head.
    pub fn new(head_dim: u32, group_size: u32, key_bits: u32, value_bits: u32) -> Self {
        Capability {
            head_dim,
            group_size,
            key_bits,
            value_bits,
            page_tokens: 128,
            dtype: sys::LK_F32,
            value_dim: 0,
            is_latent: false,
        }
    }
    /// Channels of a head's values; `head_dim` by default.
    pub fn value_dim(mut self, value_dim: u32) -> Self {
        self.value_dim = value_dim;
        self
    }
    /// A latent layer, whose values are channels of its keys.
    pub fn latent(mut self) -> Self {
        self.is_latent = true;
        self
    }
    pub fn page_tokens(mut self, n: u32) -> Self {
        self.page_tokens = n;
        self
    }
    /// The element type of the tensors.
    pub fn element<E: Element>(mut self) -> Self {
        self.dtype = E::DTYPE;
        self
    }
}
