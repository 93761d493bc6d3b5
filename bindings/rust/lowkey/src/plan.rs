// SPDX-License-Identifier: Apache-2.0
use crate::error::{check, initial, static_text, Error, Result};
use crate::geometry::Geometry;
use crate::rules::{
    Axis, ChunkClass, ChunkMix, ChunkRule, KeyRule, Metadata, Ranking, Rotation, ValueRule, Which,
};
use lowkey_sys as sys;
use std::ffi::CString;
use std::os::raw::c_char;
use std::ptr;

/// The exact bytes of a plan; see `lk_plan_size`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct PlanSize {
    pub n_blocks: u32,
    pub bits_per_value: f64,
    pub bytes_per_token: f64,
    pub fp16_bytes: u64,
    pub payload_bytes: u64,
    pub metadata_bytes: u64,
    pub recent_bytes: u64,
    pub table_bytes: u64,
    pub cache_bytes: u64,
}

impl PlanSize {
    fn of(raw: &sys::lk_plan_size) -> Self {
        PlanSize {
            n_blocks: raw.n_blocks,
            bits_per_value: raw.bits_per_value,
            bytes_per_token: raw.bytes_per_token,
            fp16_bytes: raw.fp16_bytes,
            payload_bytes: raw.payload_bytes,
            metadata_bytes: raw.metadata_bytes,
            recent_bytes: raw.recent_bytes,
            table_bytes: raw.table_bytes,
            cache_bytes: raw.cache_bytes,
        }
    }
}

/// A quantization plan for one geometry.
pub struct Plan {
    raw: *mut sys::lk_plan,
}

// SAFETY: handles may move between threads; const calls may run at the same time, and the other
// calls take &mut self here.
unsafe impl Send for Plan {}
unsafe impl Sync for Plan {}

fn c_text(text: &str, name: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::argument(format!("{} has a zero byte inside", name)))
}

/// C reads head_dim numbers, at most 576; missing numbers become NaNs, which it refuses.
fn padded(numbers: Option<&[f32]>) -> Option<Vec<f32>> {
    numbers.map(|numbers| {
        let mut padded = numbers.to_vec();
        padded.resize(numbers.len().max(576), f32::NAN);
        padded
    })
}

impl Plan {
    /// Names of the presets.
    pub fn preset_names() -> Vec<&'static str> {
        (0..)
            // SAFETY: static text, or null past the last.
            .map_while(|index| unsafe { static_text(sys::lk_plan_preset_name(index)) })
            .collect()
    }

    pub fn preset(name: &str, geometry: &Geometry) -> Result<Self> {
        let name = c_text(name, "name")?;
        geometry.with_raw(|raw_geometry| {
            let mut raw = ptr::null_mut();
            // SAFETY: all are there for the call.
            unsafe { check(sys::lk_plan_preset(name.as_ptr(), raw_geometry, &mut raw))? };
            Ok(Plan { raw })
        })
    }

    /// The plan that, without statistics, answers best within so many bits of a packed value, ranges
    /// and minima included; 0: the narrowest plan with the answers of FP16 on all proving models.
    /// `preset("default")` is that plan too.
    pub fn default_within(geometry: &Geometry, bits_per_value: f64) -> Result<Self> {
        geometry.with_raw(|raw_geometry| {
            let mut raw = ptr::null_mut();
            // SAFETY: all are there for the call.
            unsafe { check(sys::lk_plan_default(raw_geometry, bits_per_value, &mut raw))? };
            Ok(Plan { raw })
        })
    }

    /// Read a plan from untrusted text (docs/PLAN.md).
    pub fn from_json(text: &str) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the text has the passed length.
        unsafe {
            check(sys::lk_plan_from_json(text.as_ptr() as *const c_char, text.len(), &mut raw))?
        };
        Ok(Plan { raw })
    }

    pub fn to_json(&self) -> Result<String> {
        let mut needed = 0;
        // SAFETY: the buffers have the passed capacities.
        unsafe {
            check(sys::lk_plan_to_json(self.raw, ptr::null_mut(), 0, &mut needed))?;
            let mut text = vec![0u8; needed];
            check(sys::lk_plan_to_json(
                self.raw,
                text.as_mut_ptr() as *mut c_char,
                text.len(),
                &mut needed,
            ))?;
            text.pop(); // its zero
            Ok(String::from_utf8_lossy(&text).into_owned())
        }
    }

    pub fn try_clone(&self) -> Result<Self> {
        // SAFETY: the handle is alive.
        unsafe { Self::copy_of(self.raw) }
    }

    /// # Safety
    /// `plan` is alive.
    pub(crate) unsafe fn copy_of(plan: *const sys::lk_plan) -> Result<Self> {
        let mut raw = ptr::null_mut();
        check(sys::lk_plan_copy(plan, &mut raw))?;
        Ok(Plan { raw })
    }

    pub fn name(&self) -> String {
        // SAFETY: the text lives until the plan changes, and is copied at once.
        unsafe { static_text(sys::lk_plan_name(self.raw)) }.unwrap_or("").to_owned()
    }

    pub fn set_name(&mut self, name: &str) -> Result<&mut Self> {
        let name = c_text(name, "name")?;
        // SAFETY: as everywhere below, the handle is alive and arguments outlive the call.
        unsafe { check(sys::lk_plan_set_name(self.raw, name.as_ptr()))? };
        Ok(self)
    }

    pub fn set_key(&mut self, layer: Which, kv_head: Which, rule: &KeyRule) -> Result<&mut Self> {
        let mut raw = initial(sys::lk_key_rule_init)?;
        raw.bits = rule.bits;
        raw.axis = match rule.axis {
            Axis::Channel => sys::LK_AXIS_CHANNEL,
            Axis::Token => sys::LK_AXIS_TOKEN,
        };
        raw.group = rule.group;
        raw.one_bit = rule.one_bit.raw();
        raw.clip = rule.clip;
        if let Some(boost) = &rule.boost {
            raw.boost_channels = boost.channels;
            raw.boost_bits = boost.bits;
            raw.boost_ranking = match boost.ranking {
                Ranking::Key => sys::LK_RANKING_KEY,
                Ranking::QueryRange => sys::LK_RANKING_QUERY_RANGE,
            };
        }
        // The library reads head_dim bytes, at most 576; missing bytes are widths of 0, which it refuses.
        let padded;
        if let Some(bits) = &rule.channel_bits {
            let mut bytes = bits.clone();
            bytes.resize(bits.len().max(576), 0);
            padded = bytes;
            raw.channel_bits = padded.as_ptr();
        }
        unsafe { check(sys::lk_plan_set_key(self.raw, layer.raw(), kv_head.raw(), &raw))? };
        Ok(self)
    }

    pub fn set_value(
        &mut self,
        layer: Which,
        kv_head: Which,
        rule: ValueRule,
    ) -> Result<&mut Self> {
        let mut raw = initial(sys::lk_value_rule_init)?;
        raw.bits = rule.bits;
        raw.group = rule.group;
        raw.one_bit = rule.one_bit.raw();
        raw.clip = rule.clip;
        unsafe { check(sys::lk_plan_set_value(self.raw, layer.raw(), kv_head.raw(), &raw))? };
        Ok(self)
    }

    /// Constants that are subtracted from the key channels before they are stored, `[head_dim]`;
    /// None removes them. See `lk_plan_set_key_centers`.
    pub fn set_key_centers(
        &mut self,
        layer: Which,
        kv_head: Which,
        centers: Option<&[f32]>,
    ) -> Result<&mut Self> {
        let padded = padded(centers);
        let raw = padded.as_ref().map_or(ptr::null(), |numbers| numbers.as_ptr());
        unsafe { check(sys::lk_plan_set_key_centers(self.raw, layer.raw(), kv_head.raw(), raw))? };
        Ok(self)
    }

    /// Divisors of the key channels before they are stored, `[head_dim]`; None removes them. See
    /// `lk_plan_set_key_scales`.
    pub fn set_key_scales(
        &mut self,
        layer: Which,
        kv_head: Which,
        scales: Option<&[f32]>,
    ) -> Result<&mut Self> {
        let padded = padded(scales);
        let raw = padded.as_ref().map_or(ptr::null(), |numbers| numbers.as_ptr());
        unsafe { check(sys::lk_plan_set_key_scales(self.raw, layer.raw(), kv_head.raw(), raw))? };
        Ok(self)
    }

    /// The rotation of a layer's keys, one for all KV heads. See `lk_plan_set_key_rotation`.
    pub fn set_key_rotation(&mut self, layer: Which, rotation: Rotation) -> Result<&mut Self> {
        let raw = match rotation {
            Rotation::None => sys::LK_ROTATION_NONE,
            Rotation::Hadamard => sys::LK_ROTATION_HADAMARD,
        };
        unsafe { check(sys::lk_plan_set_key_rotation(self.raw, layer.raw(), raw))? };
        Ok(self)
    }

    pub fn key_rotation(&self, layer: u32) -> Result<Rotation> {
        let mut raw = sys::LK_ROTATION_NONE;
        unsafe { check(sys::lk_plan_get_key_rotation(self.raw, layer, &mut raw))? };
        Ok(if raw == sys::LK_ROTATION_HADAMARD { Rotation::Hadamard } else { Rotation::None })
    }

    /// Classes of a context's chunks; None = no chunks.
    pub fn set_chunks(&mut self, rule: Option<ChunkRule>) -> Result<&mut Self> {
        let mut raw = initial(sys::lk_chunk_rule_init)?;
        match rule {
            None => raw.chunk_tokens = 0,
            Some(rule) => {
                raw.chunk_tokens = rule.chunk_tokens;
                raw.low_bits = rule.low_bits;
                raw.middle_bits = rule.middle_bits;
                raw.high_bits = rule.high_bits;
                raw.alpha = rule.alpha;
                raw.beta = rule.beta;
                raw.reorder = rule.reorder.into();
                raw.hold = rule.hold.into();
            }
        }
        unsafe { check(sys::lk_plan_set_chunks(self.raw, &raw))? };
        Ok(self)
    }

    /// The plan's chunks; None = no chunks.
    pub fn chunks(&self) -> Result<Option<ChunkRule>> {
        let mut raw = initial(sys::lk_chunk_rule_init)?;
        unsafe { check(sys::lk_plan_get_chunks(self.raw, &mut raw))? };
        Ok((raw.chunk_tokens != 0).then(|| ChunkRule {
            chunk_tokens: raw.chunk_tokens,
            low_bits: raw.low_bits,
            middle_bits: raw.middle_bits,
            high_bits: raw.high_bits,
            alpha: raw.alpha,
            beta: raw.beta,
            reorder: raw.reorder != 0,
            hold: raw.hold != 0,
        }))
    }

    pub fn set_metadata(&mut self, layer: Which, metadata: Metadata) -> Result<&mut Self> {
        let raw = match metadata {
            Metadata::F16 => sys::LK_METADATA_F16,
            Metadata::F8 => sys::LK_METADATA_F8,
        };
        unsafe { check(sys::lk_plan_set_metadata(self.raw, layer.raw(), raw))? };
        Ok(self)
    }

    /// Tokens of a page: 32, 64 or 128.
    pub fn set_pages(&mut self, page_tokens: u32) -> Result<&mut Self> {
        unsafe { check(sys::lk_plan_set_pages(self.raw, page_tokens))? };
        Ok(self)
    }

    /// The first and at least the last tokens of a sequence that stay at 16 bits.
    pub fn set_recent(&mut self, sink_tokens: u32, recent_tokens: u32) -> Result<&mut Self> {
        unsafe { check(sys::lk_plan_set_recent(self.raw, sink_tokens, recent_tokens))? };
        Ok(self)
    }

    /// The ladder of a layer, widest rung first, and the rung at which it packs new pages.
    pub fn set_ladder(&mut self, layer: Which, rungs: &[u8], rung: u32) -> Result<&mut Self> {
        let n_rungs = u32::try_from(rungs.len()).unwrap_or(u32::MAX);
        unsafe {
            check(sys::lk_plan_set_ladder(self.raw, layer.raw(), rungs.as_ptr(), n_rungs, rung))?
        };
        Ok(self)
    }

    /// Bytes that the pages of a layer with a ladder may take in the whole cache; 0 = no budget. See
    /// `lk_plan_set_layer_budget`.
    pub fn set_layer_budget(&mut self, layer: Which, budget_bytes: u64) -> Result<&mut Self> {
        unsafe { check(sys::lk_plan_set_layer_budget(self.raw, layer.raw(), budget_bytes))? };
        Ok(self)
    }

    /// The budget of a layer in bytes; 0 = none.
    pub fn layer_budget(&self, layer: u32) -> Result<u64> {
        let mut raw = 0;
        unsafe { check(sys::lk_plan_get_layer_budget(self.raw, layer, &mut raw))? };
        Ok(raw)
    }

    /// The width of the rung at which budgets of layers leave a layer with so many tokens; arguments
    /// as for `bytes`.
    pub fn rung(
        &self,
        layer: u32,
        n_tokens: u64,
        n_sequences: u32,
        step_tokens: u32,
    ) -> Result<u32> {
        let mut raw = 0;
        unsafe {
            check(sys::lk_plan_rung(self.raw, layer, n_tokens, n_sequences, step_tokens, &mut raw))?
        };
        Ok(raw)
    }

    /// Width in bits of one channel in a packed page at a rung of the layer's ladder (0 = the
    /// layer's own) and of a chunk class, and its width where the page boosts it.
    pub fn width(
        &self,
        layer: u32,
        kv_head: u32,
        is_value: bool,
        channel: u32,
        rung: u32,
        class: Option<ChunkClass>,
    ) -> Result<(u32, u32)> {
        let (mut bits, mut boosted) = (0, 0);
        unsafe {
            check(sys::lk_plan_width(
                self.raw,
                layer,
                kv_head,
                is_value.into(),
                channel,
                rung,
                ChunkClass::raw(class),
                &mut bits,
                &mut boosted,
            ))?
        };
        Ok((bits, boosted))
    }

    /// Check that the plan is complete, and made for this geometry.
    pub fn validate(&self, geometry: Option<&Geometry>) -> Result<()> {
        match geometry {
            None => unsafe { check(sys::lk_plan_validate(self.raw, ptr::null())) },
            Some(geometry) => {
                geometry.with_raw(|raw| unsafe { check(sys::lk_plan_validate(self.raw, raw)) })
            }
        }
    }

    /// Bytes for `n_sequences` sequences of `n_tokens` tokens each, filled together in steps of
    /// `step_tokens`.
    pub fn bytes(&self, n_tokens: u64, n_sequences: u32, step_tokens: u32) -> Result<PlanSize> {
        let mut raw = initial(sys::lk_plan_size_init)?;
        unsafe {
            check(sys::lk_plan_bytes(self.raw, n_tokens, n_sequences, step_tokens, &mut raw))?
        };
        Ok(PlanSize::of(&raw))
    }

    /// The same for a cache that keeps the pages that windows have left; see
    /// [`CacheOptions::keeps_windowed`](crate::CacheOptions::keeps_windowed).
    pub fn bytes_with_windowed(
        &self,
        n_tokens: u64,
        n_sequences: u32,
        step_tokens: u32,
    ) -> Result<PlanSize> {
        let mut raw = initial(sys::lk_plan_size_init)?;
        let flags = sys::LK_CACHE_KEEP_WINDOWED;
        unsafe {
            check(sys::lk_cache_bytes(
                self.raw,
                flags,
                n_tokens,
                n_sequences,
                step_tokens,
                &mut raw,
            ))?
        };
        Ok(PlanSize::of(&raw))
    }

    /// The same as [`bytes`](Self::bytes) after the chunks of all contexts got their first classes; see
    /// `lk_plan_chunk_bytes`.
    pub fn chunk_bytes(
        &self,
        n_tokens: u64,
        n_sequences: u32,
        step_tokens: u32,
        mix: ChunkMix,
    ) -> Result<PlanSize> {
        let raw_mix = mix.raw()?;
        let mut raw = initial(sys::lk_plan_size_init)?;
        unsafe {
            check(sys::lk_plan_chunk_bytes(
                self.raw,
                n_tokens,
                n_sequences,
                step_tokens,
                &raw_mix,
                &mut raw,
            ))?
        };
        Ok(PlanSize::of(&raw))
    }

    /// The budget with which sequences reach the state of [`chunk_bytes`](Self::chunk_bytes) if
    /// their classes are assigned before the prefill; see `lk_plan_chunk_prefill_bytes`.
    pub fn chunk_prefill_bytes(
        &self,
        n_tokens: u64,
        n_sequences: u32,
        step_tokens: u32,
        mix: ChunkMix,
    ) -> Result<u64> {
        let raw_mix = mix.raw()?;
        let mut budget_bytes = 0;
        unsafe {
            check(sys::lk_plan_chunk_prefill_bytes(
                self.raw,
                n_tokens,
                n_sequences,
                step_tokens,
                &raw_mix,
                &mut budget_bytes,
            ))?
        };
        Ok(budget_bytes)
    }

    /// The handle of the C interface. The plan keeps it.
    pub fn as_raw(&self) -> *mut sys::lk_plan {
        self.raw
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle.
        unsafe { sys::lk_plan_destroy(&mut self.raw) };
    }
}
