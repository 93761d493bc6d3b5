// SPDX-License-Identifier: Apache-2.0
use crate::cache::{LayerShape, Sequence, State};
use crate::error::{check, initial, Error, Result};
use crate::tensor::{check_shape, Shape, Tensor, TensorMut};
use lowkey_sys as sys;
use std::marker::PhantomData;
use std::os::raw::c_void;
use std::ptr;

/// Orders the work of a step on a device.
pub struct Queue {
    raw: sys::lk_queue,
}

impl Queue {
    /// A `cudaStream_t`.
    ///
    /// # Safety
    /// The stream is of the context's device and lives until the cache has another or ends.
    pub unsafe fn cuda_stream(stream: *mut c_void) -> Result<Self> {
        let mut raw = initial(sys::lk_queue_init)?;
        raw.kind = sys::LK_QUEUE_CUDA_STREAM;
        raw.handle = stream;
        Ok(Queue { raw })
    }

    /// A `VkCommandBuffer` in the recording state: `LK_QUEUE_VULKAN_RECORD`.
    ///
    /// # Safety
    /// As `lk_queue` says.
    pub unsafe fn vulkan_record(command_buffer: *mut c_void) -> Result<Self> {
        let mut raw = initial(sys::lk_queue_init)?;
        raw.kind = sys::LK_QUEUE_VULKAN_RECORD;
        raw.handle = command_buffer;
        Ok(Queue { raw })
    }

    /// Any `lk_queue`, with its semaphores.
    ///
    /// # Safety
    /// As `lk_queue` says.
    pub unsafe fn from_raw(raw: sys::lk_queue) -> Self {
        Queue { raw }
    }

    pub(crate) fn as_raw(&self) -> *const sys::lk_queue {
        &self.raw
    }
}

/// Options of a step.
#[derive(Clone, Copy, Default)]
pub struct StepOptions<'a> {
    /// Needed on CUDA; the CPU has none.
    pub queue: Option<&'a Queue>,
    /// A draft tree: for each new token the index of its parent among its sequence's new tokens,
    /// or -1 for the last committed one.
    pub parents: Option<&'a [i32]>,
    /// Spans of new tokens that see each other both ways, without a draft tree: the index of the
    /// sequence in the step, the first token and the end; see `lk_step_begin_spans`.
    pub spans: &'a [[u32; 3]],
    /// Only layers with a sliding window have the spans.
    pub spans_in_windows: bool,
}

/// An open step. Dropping it discards it, unless it was committed.
///
/// Its sequences stay while it is open:
/// ```compile_fail
/// fn removes(cache: &lowkey::Cache<'_>) -> lowkey::Result<()> {
///     let sequence = cache.add_sequence()?;
///     let step = cache.step(&[(&sequence, 1)])?;
///     drop(sequence);
///     step.commit()
/// }
/// ```
pub struct Step<'s> {
    state: &'s State,
    n_new: Vec<u32>,
    n_tokens: usize,
    is_open: bool,
}

impl<'s> Step<'s> {
    pub(crate) fn begin(
        state: &'s State,
        sequences: &[(&'s Sequence<'s>, u32)],
        options: StepOptions<'_>,
    ) -> Result<Self> {
        let ids: Vec<_> = sequences.iter().map(|(sequence, _)| sequence.id).collect();
        let n_new: Vec<_> = sequences.iter().map(|&(_, n)| n).collect();
        let n_tokens = n_new.iter().map(|&n| n as usize).sum();
        if let Some(parents) = options.parents {
            if parents.len() != n_tokens {
                return Err(Error::argument(format!(
                    "{} parents for {} new tokens",
                    parents.len(),
                    n_tokens
                )));
            }
        }
        let queue = options.queue.map_or(ptr::null(), Queue::as_raw);
        let parents = options.parents.map_or(ptr::null(), <[i32]>::as_ptr);
        let n = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        if options.spans.is_empty() {
            // SAFETY: the arrays have the passed numbers of elements, and are copied.
            unsafe {
                check(sys::lk_step_begin(
                    state.raw(),
                    queue,
                    n,
                    ids.as_ptr(),
                    n_new.as_ptr(),
                    parents,
                ))?
            };
        } else if options.parents.is_some() {
            return Err(Error::argument("a step has a draft tree or spans, not both"));
        } else {
            // SAFETY: as above.
            unsafe {
                check(sys::lk_step_begin_spans(
                    state.raw(),
                    queue,
                    n,
                    ids.as_ptr(),
                    n_new.as_ptr(),
                    options.spans.as_ptr() as *const u32,
                    u32::try_from(options.spans.len()).unwrap_or(u32::MAX),
                    if options.spans_in_windows { sys::LK_SPANS_WINDOWED } else { 0 },
                ))?
            };
        }
        Ok(Step { state, n_new, n_tokens, is_open: true })
    }

    pub(crate) fn raw(&self) -> *mut sys::lk_cache {
        self.state.raw()
    }

    /// New tokens of the step, over all its sequences: the first dimension of its tensors.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    fn layer(&self, layer: u32) -> Result<LayerShape> {
        let layers = &self.state.layers;
        layers.get(layer as usize).copied().ok_or_else(|| {
            Error::argument(format!("layer is {}, the model has {}", layer, layers.len()))
        })
    }

    /// Give a layer its new keys (after RoPE), `[n_tokens][n_kv_heads][head_dim]`, and values,
    /// `[n_tokens][n_kv_heads][value_dim]`. They are borrowed until the layer was attended:
    /// ```compile_fail
    /// fn dangles(step: &mut lowkey::Step<'_>, mut k: Vec<f32>) -> lowkey::Result<()> {
    ///     let keys = lowkey::Tensor::new(&k, 1, 128)?;
    ///     let appended = step.append(0, keys, keys)?;
    ///     k[0] = 1.0;
    ///     drop(appended);
    ///     Ok(())
    /// }
    /// ```
    pub fn append<'a>(
        &'a mut self,
        layer: u32,
        k: Tensor<'a>,
        v: Tensor<'a>,
    ) -> Result<Appended<'a, 's>> {
        let shape = self.check_keys(layer, &k)?;
        let needs =
            Shape { n_tokens: self.n_tokens, n_heads: shape.n_kv_heads, head_dim: shape.value_dim };
        check_shape("v", v.shape, needs)?;
        // SAFETY: the tensors have the shapes that the call reads, and are borrowed by Appended.
        unsafe { check(sys::lk_append(self.state.raw(), layer, &k.raw, &v.raw))? };
        Ok(Appended { step: self, layer, _keys: PhantomData })
    }

    /// Give a latent layer (`Layer::is_latent`) its new keys, of which its values are channels.
    pub fn append_latent<'a>(&'a mut self, layer: u32, k: Tensor<'a>) -> Result<Appended<'a, 's>> {
        self.check_keys(layer, &k)?;
        // SAFETY: the tensor has the shape that the call reads, and is borrowed by Appended.
        unsafe { check(sys::lk_append(self.state.raw(), layer, &k.raw, ptr::null()))? };
        Ok(Appended { step: self, layer, _keys: PhantomData })
    }

    fn check_keys(&self, layer: u32, k: &Tensor<'_>) -> Result<LayerShape> {
        let shape = self.layer(layer)?;
        let needs =
            Shape { n_tokens: self.n_tokens, n_heads: shape.n_kv_heads, head_dim: shape.head_dim };
        check_shape("k", k.shape, needs)?;
        Ok(shape)
    }

    /// Attention of a layer that reads the keys and values of another one (`Layer::kv_layer`), after
    /// that one's append: q `[n_tokens][n_query_heads][head_dim]`, out of `value_dim` channels.
    pub fn attend_reading(&mut self, layer: u32, q: Tensor<'_>, out: TensorMut<'_>) -> Result<()> {
        self.attend_layer(layer, q, out, None)
    }

    /// The same with the LSEs, f32 `[n_tokens][n_query_heads][1]`.
    pub fn attend_reading_lse(
        &mut self,
        layer: u32,
        q: Tensor<'_>,
        out: TensorMut<'_>,
        lse: TensorMut<'_>,
    ) -> Result<()> {
        self.attend_layer(layer, q, out, Some(lse))
    }

    fn attend_layer(
        &mut self,
        layer: u32,
        q: Tensor<'_>,
        out: TensorMut<'_>,
        lse: Option<TensorMut<'_>>,
    ) -> Result<()> {
        let shape = self.layer(layer)?;
        let needs = Shape {
            n_tokens: self.n_tokens,
            n_heads: shape.n_query_heads,
            head_dim: shape.head_dim,
        };
        check_shape("q", q.shape, needs)?;
        check_shape("out", out.shape, Shape { head_dim: shape.value_dim, ..needs })?;
        if let Some(lse) = &lse {
            check_shape("lse", lse.shape, Shape { head_dim: 1, ..needs })?;
        }
        let raw_lse = lse.as_ref().map_or(ptr::null(), |lse| &lse.raw as *const _);
        // SAFETY: the tensors have the shapes that the call reads and writes; outputs are borrowed
        // mutably, so they overlap nothing.
        unsafe { check(sys::lk_attend(self.state.raw(), layer, &q.raw, &out.raw, raw_lse)) }
    }

    /// The layers of this step, or some of them, run from captured graphs; see `lk_step_replay`.
    pub fn replay(&mut self) -> Result<()> {
        // SAFETY: the step is open.
        unsafe { check(sys::lk_step_replay(self.state.raw())) }
    }

    /// Make all new tokens part of their sequences. When it fails the step is discarded.
    pub fn commit(self) -> Result<()> {
        self.end(ptr::null())
    }

    /// Keep the first `keep[i]` new tokens of sequence i.
    pub fn commit_kept(self, keep: &[u32]) -> Result<()> {
        if keep.len() != self.n_new.len() {
            return Err(Error::argument(format!(
                "keep has {} counts for {} sequences",
                keep.len(),
                self.n_new.len()
            )));
        }
        self.end(keep.as_ptr())
    }

    /// Keep chosen tokens of draft trees: of sequence i the path `paths[i]` from the root, as
    /// indices of its new tokens; see `lk_step_commit_tokens`.
    pub fn commit_paths(mut self, paths: &[&[u32]]) -> Result<()> {
        if paths.len() != self.n_new.len() {
            return Err(Error::argument(format!(
                "{} paths for {} sequences",
                paths.len(),
                self.n_new.len()
            )));
        }
        let counts: Vec<_> =
            paths.iter().map(|path| u32::try_from(path.len()).unwrap_or(u32::MAX)).collect();
        let kept = paths.concat();
        // SAFETY: a count for each sequence, and as many indices as they add up to.
        unsafe {
            check(sys::lk_step_commit_tokens(self.state.raw(), counts.as_ptr(), kept.as_ptr()))?
        };
        self.is_open = false;
        Ok(())
    }

    fn end(mut self, keep: *const u32) -> Result<()> {
        // SAFETY: keep is null or has a count for each sequence.
        unsafe { check(sys::lk_step_commit(self.state.raw(), keep))? };
        self.is_open = false;
        Ok(())
    }

    /// Drop the new tokens.
    pub fn discard(self) {}
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // SAFETY: the step is open, so this cannot be refused.
            unsafe { sys::lk_step_discard(self.state.raw()) };
        }
        self.state.remove_orphans();
    }
}

/// A layer with its new keys and values, before its queries.
#[must_use = "a layer is attended after its keys were appended"]
pub struct Appended<'a, 's> {
    step: &'a mut Step<'s>,
    layer: u32,
    _keys: PhantomData<&'a [u8]>,
}

impl Appended<'_, '_> {
    /// Attention of the new tokens over their sequences: q and out
    /// `[n_tokens][n_query_heads][head_dim]`.
    pub fn attend(self, q: Tensor<'_>, out: TensorMut<'_>) -> Result<()> {
        self.step.attend_layer(self.layer, q, out, None)
    }

    /// The same with the LSEs, f32 `[n_tokens][n_query_heads][1]`.
    pub fn attend_lse(self, q: Tensor<'_>, out: TensorMut<'_>, lse: TensorMut<'_>) -> Result<()> {
        self.step.attend_layer(self.layer, q, out, Some(lse))
    }
}
