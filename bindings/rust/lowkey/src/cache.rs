// SPDX-License-Identifier: Apache-2.0
use crate::context::Context;
use crate::error::{check, initial, Error, Result};
use crate::geometry::Geometry;
use crate::plan::Plan;
use crate::pressure::{self, Pressure, PressureAction, PressureFn};
use crate::rules::Which;
use crate::state::StateOptions;
use crate::step::{Step, StepOptions};
use lowkey_sys as sys;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::os::raw::c_void;
use std::ptr;
use std::sync::Arc;

/// How to make a [`Cache`]; see `lk_cache_desc`.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions<'a> {
    max_sequences: u32,
    max_step_tokens: u32,
    budget_bytes: u64,
    slab_bytes: u64,
    max_budget_bytes: u64,
    sequence_limit_bytes: u64,
    evicts: bool,
    keeps_windowed: bool,
    states: StateOptions<'a>,
}

impl<'a> CacheOptions<'a> {
    /// The hard limit of all bytes that the cache holds; [`Plan::bytes`] computes the bytes of a
    /// length.
    pub fn new(budget_bytes: u64) -> Self {
        CacheOptions {
            max_sequences: 1,
            max_step_tokens: 512,
            budget_bytes,
            slab_bytes: 0,
            max_budget_bytes: 0,
            sequence_limit_bytes: 0,
            evicts: false,
            keeps_windowed: false,
            states: StateOptions::default(),
        }
    }
    pub fn max_sequences(mut self, n: u32) -> Self {
        self.max_sequences = n;
        self
    }
    pub fn max_step_tokens(mut self, n: u32) -> Self {
        self.max_step_tokens = n;
        self
    }
    /// The highest budget that [`Cache::set_budget`] accepts; 0 = the initial one.
    pub fn max_budget_bytes(mut self, bytes: u64) -> Self {
        self.max_budget_bytes = bytes;
        self
    }
    /// Most bytes of pages and tables that only one sequence uses; 0 = no limit.
    pub fn sequence_limit_bytes(mut self, bytes: u64) -> Self {
        self.sequence_limit_bytes = bytes;
        self
    }
    /// On a shortfall, remove the sequence that a step named least recently.
    pub fn evicts(mut self, evicts: bool) -> Self {
        self.evicts = evicts;
        self
    }
    /// Layers with a sliding window keep the pages that it has left, so that sequences can be cut at
    /// any token; [`Plan::bytes_with_windowed`] counts them.
    pub fn keeps_windowed(mut self, keeps: bool) -> Self {
        self.keeps_windowed = keeps;
        self
    }
    /// The recurrent states of a sequence.
    pub fn states(mut self, states: StateOptions<'a>) -> Self {
        self.states = states;
        self
    }
    /// Size of a slab, a multiple of 256 KiB; 0 = 64 MiB.
    pub fn slab_bytes(mut self, bytes: u64) -> Self {
        self.slab_bytes = bytes;
        self
    }
}

/// The contents of a cache in numbers; see `lk_cache_stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
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
    /// Bytes of pages with several sequences, counted once.
    pub shared_bytes: u64,
    pub pages_copied: u64,
    pub pages_shrunk: u64,
    pub sequences_evicted: u64,
    pub fragmented_bytes: u64,
    /// Codes of all pages by width: 16, 8, 4, 3, 2 and 1 bits.
    pub plane_bytes: [u64; 6],
    /// Recurrent states, those of steps included.
    pub state_bytes: u64,
}

/// The C cache, alive while a [`Cache`] or a [`Monitor`] is.
pub(crate) struct Handle {
    pub raw: *mut sys::lk_cache,
    _pressure: Option<Box<PressureFn>>, // as long as the C cache
}
// SAFETY: a shared handle calls only statistics and poll, which may run at the same time as any
// call; all other calls, and with them the pressure callback, go through Cache, which one thread
// has at a time.
unsafe impl Send for Handle {}
unsafe impl Sync for Handle {}

impl Handle {
    fn stats(&self) -> Result<Stats> {
        let mut raw = initial(sys::lk_cache_stats_init)?;
        // SAFETY: both are alive for the call.
        unsafe { check(sys::lk_cache_get_stats(self.raw, &mut raw))? };
        Ok(Stats {
            n_sequences: raw.n_sequences,
            n_tokens: raw.n_tokens,
            budget_bytes: raw.budget_bytes,
            reserved_bytes: raw.reserved_bytes,
            payload_bytes: raw.payload_bytes,
            metadata_bytes: raw.metadata_bytes,
            recent_bytes: raw.recent_bytes,
            table_bytes: raw.table_bytes,
            workspace_bytes: raw.workspace_bytes,
            free_bytes: raw.free_bytes,
            pages_packed: raw.pages_packed,
            pages_dequantized: raw.pages_dequantized,
            values_saturated: raw.values_saturated,
            device_bytes: raw.device_bytes,
            shared_bytes: raw.shared_bytes,
            pages_copied: raw.pages_copied,
            pages_shrunk: raw.pages_shrunk,
            sequences_evicted: raw.sequences_evicted,
            fragmented_bytes: raw.fragmented_bytes,
            plane_bytes: raw.plane_bytes,
            state_bytes: raw.state_bytes,
        })
    }
    fn poll(&self) -> Result<()> {
        // SAFETY: the handle is alive.
        unsafe { check(sys::lk_cache_poll(self.raw)) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the last owner.
        unsafe { sys::lk_cache_destroy(&mut self.raw) };
    }
}

#[derive(Clone, Copy)]
pub(crate) struct LayerShape {
    pub n_query_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub value_dim: usize,
}

/// The state that sequences and steps borrow. Not Sync: their calls need the cache alone.
pub(crate) struct State {
    pub handle: Arc<Handle>,
    pub layers: Vec<LayerShape>,
    // Sequences that were dropped while a step was open.
    orphans: RefCell<Vec<sys::lk_sequence>>,
}

impl State {
    pub fn raw(&self) -> *mut sys::lk_cache {
        self.handle.raw
    }

    pub fn remove(&self, id: sys::lk_sequence) {
        // SAFETY: the handle is alive, and this thread alone has the cache.
        if unsafe { sys::lk_sequence_remove(self.raw(), id) } == sys::LK_E_BUSY {
            self.orphans.borrow_mut().push(id);
        }
    }

    pub fn remove_orphans(&self) {
        for id in self.orphans.take() {
            self.remove(id);
        }
    }
}

/// The key/value cache of one model: many sequences, one plan, one byte budget. It may move
/// between threads, and one thread at a time uses it; a [`Monitor`] reads it from any thread.
///
/// A sequence lives no longer than its cache:
/// ```compile_fail
/// use lowkey::*;
/// fn dangles(context: &Context, geometry: &Geometry, plan: &Plan) -> Result<()> {
///     let cache = Cache::new(context, geometry, plan, CacheOptions::new(1 << 26))?;
///     let sequence = cache.add_sequence()?;
///     drop(cache);
///     sequence.len()?;
///     Ok(())
/// }
/// ```
/// A cache lives no longer than its context:
/// ```compile_fail
/// use lowkey::*;
/// fn dangles(geometry: &Geometry, plan: &Plan) -> Result<()> {
///     let context = Context::cpu()?;
///     let cache = Cache::new(&context, geometry, plan, CacheOptions::new(1 << 26))?;
///     drop(context);
///     cache.stats()?;
///     Ok(())
/// }
/// ```
/// Two threads do not share one:
/// ```compile_fail
/// fn is_sync<T: Sync>() {}
/// is_sync::<lowkey::Cache<'static>>();
/// ```
pub struct Cache<'ctx> {
    state: State,
    _context: PhantomData<&'ctx Context>,
}

impl<'ctx> Cache<'ctx> {
    pub fn new(
        context: &'ctx Context,
        geometry: &Geometry,
        plan: &Plan,
        options: CacheOptions<'_>,
    ) -> Result<Self> {
        Self::create(context, geometry, plan, options, None)
    }

    /// The same with a callback that [`step`](Cache::step) calls on each shortfall when the ladders
    /// have ended. It may not call lowkey; a panic in it is caught and counts as a refusal.
    pub fn with_pressure(
        context: &'ctx Context,
        geometry: &Geometry,
        plan: &Plan,
        options: CacheOptions<'_>,
        pressure: impl FnMut(Pressure) -> PressureAction + Send + 'static,
    ) -> Result<Self> {
        Self::create(context, geometry, plan, options, Some(Box::new(Box::new(pressure))))
    }

    fn create(
        context: &'ctx Context,
        geometry: &Geometry,
        plan: &Plan,
        options: CacheOptions<'_>,
        mut pressure: Option<Box<PressureFn>>,
    ) -> Result<Self> {
        let mut desc = initial(sys::lk_cache_desc_init)?;
        desc.max_sequences = options.max_sequences;
        desc.max_step_tokens = options.max_step_tokens;
        desc.budget_bytes = options.budget_bytes;
        desc.slab_bytes = options.slab_bytes;
        desc.max_budget_bytes = options.max_budget_bytes;
        desc.sequence_limit_bytes = options.sequence_limit_bytes;
        options.states.fill(&mut desc);
        for (is_set, flag) in [
            (options.evicts, sys::LK_CACHE_EVICT),
            (options.keeps_windowed, sys::LK_CACHE_KEEP_WINDOWED),
        ] {
            desc.flags |= if is_set { flag } else { 0 };
        }
        if let Some(pressure) = &mut pressure {
            desc.pressure = Some(pressure::call);
            desc.pressure_user = &mut **pressure as *mut PressureFn as *mut c_void;
        }
        let raw = geometry.with_raw(|raw_geometry| {
            let mut raw = ptr::null_mut();
            // SAFETY: all are alive for the call; the callback's box lives as long as the C cache,
            // and the context outlives the cache by 'ctx.
            unsafe {
                check(sys::lk_cache_create(
                    context.as_raw(),
                    raw_geometry,
                    plan.as_raw(),
                    &desc,
                    &mut raw,
                ))?
            };
            Ok(raw)
        })?;
        let layers = geometry.layers.iter().map(|layer| LayerShape {
            n_query_heads: layer.n_query_heads as usize,
            n_kv_heads: layer.n_kv_heads as usize,
            head_dim: layer.head_dim as usize,
            value_dim: layer.output_dim() as usize,
        });
        Ok(Cache {
            state: State {
                handle: Arc::new(Handle { raw, _pressure: pressure }),
                layers: layers.collect(),
                orphans: RefCell::new(Vec::new()),
            },
            _context: PhantomData,
        })
    }

    pub fn stats(&self) -> Result<Stats> {
        self.state.handle.stats()
    }

    /// Checks the open step and committed ones for faults.
    pub fn poll(&self) -> Result<()> {
        self.state.handle.poll()
    }

    /// Change the byte budget and shrink pages to fit it; see `lk_cache_set_budget`.
    pub fn set_budget(&self, bytes: u64) -> Result<()> {
        // SAFETY: this thread alone has the cache.
        unsafe { check(sys::lk_cache_set_budget(self.state.raw(), bytes)) }
    }

    /// Shrink a layer to a rung of its ladder; see `lk_cache_shrink`.
    pub fn shrink(&self, layer: Which, bits: u32) -> Result<()> {
        // SAFETY: as above.
        unsafe { check(sys::lk_cache_shrink(self.state.raw(), layer.raw(), bits)) }
    }

    /// Statistics and poll for other threads. The cache's memory stays until the last monitor is
    /// dropped.
    pub fn monitor(&self) -> Monitor<'ctx> {
        Monitor { handle: Arc::clone(&self.state.handle), _context: PhantomData }
    }

    /// A copy of the plan that the cache runs.
    pub fn plan(&self) -> Result<Plan> {
        // SAFETY: the plan lives as long as the cache.
        unsafe { Plan::copy_of(sys::lk_cache_plan(self.state.raw())) }
    }

    /// Add an empty sequence. Dropping it removes it.
    pub fn add_sequence(&self) -> Result<Sequence<'_>> {
        let mut id = 0;
        // SAFETY: this thread alone has the cache.
        unsafe { check(sys::lk_sequence_add(self.state.raw(), &mut id))? };
        Ok(Sequence { state: &self.state, id })
    }

    /// The sequence of an id from [`Sequence::into_id`].
    pub fn adopt_sequence(&self, id: u64) -> Result<Sequence<'_>> {
        let mut n_tokens = 0;
        // SAFETY: as above.
        unsafe { check(sys::lk_sequence_length(self.state.raw(), id, &mut n_tokens))? };
        Ok(Sequence { state: &self.state, id })
    }

    /// A sequence that a load has made.
    pub(crate) fn own(&self, id: sys::lk_sequence) -> Sequence<'_> {
        Sequence { state: &self.state, id }
    }

    /// Open a step of sequences and the number of new tokens of each. A cache has one open step at a
    /// time.
    pub fn step<'s>(&'s self, sequences: &[(&'s Sequence<'s>, u32)]) -> Result<Step<'s>> {
        self.step_with(sequences, StepOptions::default())
    }

    /// The same with a queue or a draft tree.
    pub fn step_with<'s>(
        &'s self,
        sequences: &[(&'s Sequence<'s>, u32)],
        options: StepOptions<'_>,
    ) -> Result<Step<'s>> {
        for (sequence, _) in sequences {
            if !ptr::eq(sequence.state, &self.state) {
                return Err(Error::argument(format!(
                    "sequence {} belongs to another cache",
                    sequence.id
                )));
            }
        }
        Step::begin(&self.state, sequences, options)
    }

    /// The handle of the C interface. It stays this cache's.
    pub fn as_raw(&self) -> *mut sys::lk_cache {
        self.state.raw()
    }
}

/// Reads a cache from any thread, at the same time as the calls of its owner.
#[derive(Clone)]
pub struct Monitor<'ctx> {
    handle: Arc<Handle>,
    _context: PhantomData<&'ctx Context>,
}

impl Monitor<'_> {
    pub fn stats(&self) -> Result<Stats> {
        self.handle.stats()
    }
    pub fn poll(&self) -> Result<()> {
        self.handle.poll()
    }
}

/// A sequence of a cache. Dropping it removes it, after the step that is open then.
pub struct Sequence<'c> {
    pub(crate) state: &'c State,
    pub(crate) id: sys::lk_sequence,
}

impl<'c> Sequence<'c> {
    /// A sequence that begins with all tokens of this one and shares its pages; see
    /// `lk_sequence_fork`.
    pub fn fork(&self) -> Result<Sequence<'c>> {
        self.fork_at(sys::LK_ALL_TOKENS)
    }

    /// The same with its first `n_tokens` tokens.
    pub fn fork_at(&self, n_tokens: u64) -> Result<Sequence<'c>> {
        let mut id = 0;
        // SAFETY: this thread alone has the cache.
        unsafe { check(sys::lk_sequence_fork(self.state.raw(), self.id, n_tokens, &mut id))? };
        Ok(Sequence { state: self.state, id })
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// Leave the sequence in the cache without an owner; [`Cache::adopt_sequence`] owns it again.
    pub fn into_id(self) -> u64 {
        let id = self.id;
        std::mem::forget(self);
        id
    }

    /// Committed tokens.
    pub fn len(&self) -> Result<u64> {
        let mut n_tokens = 0;
        // SAFETY: the cache is alive by 'c.
        unsafe { check(sys::lk_sequence_length(self.state.raw(), self.id, &mut n_tokens))? };
        Ok(n_tokens)
    }

    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Keep the first `n_tokens` tokens; see `lk_sequence_truncate`.
    pub fn truncate(&mut self, n_tokens: u64) -> Result<()> {
        // SAFETY: this thread alone has the cache.
        unsafe { check(sys::lk_sequence_truncate(self.state.raw(), self.id, n_tokens)) }
    }
}

impl Drop for Sequence<'_> {
    fn drop(&mut self) {
        self.state.remove(self.id);
    }
}
