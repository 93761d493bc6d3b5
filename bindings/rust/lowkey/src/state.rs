// SPDX-License-Identifier: Apache-2.0
use crate::cache::Sequence;
use crate::error::{check, initial, Result};
use crate::step::Step;
use lowkey_sys as sys;
use std::os::raw::c_void;

/// The recurrent states of each sequence of a cache; see `<lowkey/state.h>`.
#[derive(Clone, Copy, Debug, Default)]
pub struct StateOptions<'a> {
    /// Bytes of each state, multiples of 16; none is a cache without states.
    pub bytes: &'a [u64],
    /// Versions of earlier steps that a sequence keeps.
    pub versions: u32,
    /// Tokens between kept versions; 0 = 64.
    pub interval_tokens: u32,
}

impl StateOptions<'_> {
    pub(crate) fn fill(&self, desc: &mut sys::lk_cache_desc) {
        desc.n_states = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        if !self.bytes.is_empty() {
            desc.state_bytes = self.bytes.as_ptr();
        }
        desc.state_versions = self.versions;
        if self.interval_tokens != 0 {
            desc.state_interval_tokens = self.interval_tokens;
        }
    }

    /// Bytes that the states of sequences take in a cache's budget, at most.
    pub fn budget_bytes(&self, n_sequences: u32) -> Result<u64> {
        let mut desc = initial(sys::lk_cache_desc_init)?;
        self.fill(&mut desc);
        let mut bytes = 0;
        // SAFETY: the description's list is alive for the call.
        unsafe { check(sys::lk_state_bytes(&desc, n_sequences, &mut bytes))? };
        Ok(bytes)
    }
}

/// Where the bytes of a state are in the open step; see `lk_state`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StateMemory {
    /// First byte, in memory of the host or of the CUDA device; null on Vulkan.
    pub data: *mut c_void,
    /// A `VkBuffer`, or 0.
    pub buffer: u64,
    pub offset_bytes: u64,
    pub bytes: u64,
}

fn index(sequence: usize) -> u32 {
    u32::try_from(sequence).unwrap_or(u32::MAX)
}

impl Step<'_> {
    /// The place of a state of the sequence at an index of the step. The host reads and writes it
    /// until the commit; the place stays the same for the cache's life.
    pub fn state(&self, sequence: usize, state: u32) -> Result<StateMemory> {
        let mut raw = initial(sys::lk_state_init)?;
        // SAFETY: the cache is alive.
        unsafe { check(sys::lk_step_state(self.raw(), index(sequence), state, &mut raw))? };
        Ok(StateMemory {
            data: raw.data,
            buffer: raw.buffer,
            offset_bytes: raw.offset_bytes,
            bytes: raw.bytes,
        })
    }

    /// Copy a state to host memory of its length, after the queue's work.
    pub fn read_state(&mut self, sequence: usize, state: u32, to: &mut [u8]) -> Result<()> {
        let (data, bytes) = (to.as_mut_ptr() as *mut c_void, to.len() as u64);
        // SAFETY: the slice has the passed length.
        unsafe { check(sys::lk_step_read_state(self.raw(), index(sequence), state, data, bytes)) }
    }

    /// Copy host memory of its length to a state, after the queue's work.
    pub fn write_state(&mut self, sequence: usize, state: u32, from: &[u8]) -> Result<()> {
        let (data, bytes) = (from.as_ptr() as *const c_void, from.len() as u64);
        // SAFETY: as above.
        unsafe { check(sys::lk_step_write_state(self.raw(), index(sequence), state, data, bytes)) }
    }
}

impl Sequence<'_> {
    /// The tokens of the newest version of the states at or before `n_tokens`.
    pub fn find_state(&self, n_tokens: u64) -> Result<u64> {
        let mut found = 0;
        // SAFETY: the cache is alive.
        unsafe {
            check(sys::lk_sequence_find_state(self.state.raw(), self.id, n_tokens, &mut found))?
        };
        Ok(found)
    }

    /// Truncate to the newest version at or before `n_tokens`; the new length.
    pub fn rollback(&mut self, n_tokens: u64) -> Result<u64> {
        let mut kept = 0;
        // SAFETY: this thread alone has the cache.
        unsafe {
            check(sys::lk_sequence_rollback(self.state.raw(), self.id, n_tokens, &mut kept))?
        };
        Ok(kept)
    }
}
