// SPDX-License-Identifier: Apache-2.0
use lowkey_sys as sys;
use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Why a step does not fit when the ladders have ended; see `lk_pressure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pressure {
    /// Bytes that the reservation needs beyond the budget.
    pub shortfall_bytes: u64,
    pub reserved_bytes: u64,
    pub budget_bytes: u64,
    /// The most sequences that may be removed at once.
    pub capacity: u32,
}

/// The answer of the pressure callback; see `lk_pressure_action`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PressureAction {
    /// The step returns [`ErrorKind::Budget`](crate::ErrorKind::Budget).
    Refuse,
    /// The new budget, above the old one and at most [`CacheOptions::max_budget_bytes`](crate::CacheOptions).
    Budget(u64),
    /// Ids of sequences to remove, none of the step's. Calls on a removed
    /// [`Sequence`](crate::Sequence) return [`ErrorKind::NotFound`](crate::ErrorKind::NotFound).
    Remove(Vec<u64>),
}

pub(crate) type PressureFn = Box<dyn FnMut(Pressure) -> PressureAction + Send>;

/// # Safety
/// `user` is a `PressureFn` that nothing else uses now, `raw` the struct of the library.
pub(crate) unsafe extern "C" fn call(
    user: *mut c_void,
    raw: *mut sys::lk_pressure,
) -> sys::lk_pressure_action {
    let (callback, raw) = (&mut *(user as *mut PressureFn), &mut *raw);
    let pressure = Pressure {
        shortfall_bytes: raw.shortfall_bytes,
        reserved_bytes: raw.reserved_bytes,
        budget_bytes: raw.budget_bytes,
        capacity: raw.capacity,
    };
    // A panic must not unwind into C; it counts as a refusal.
    match catch_unwind(AssertUnwindSafe(|| callback(pressure))) {
        Ok(PressureAction::Budget(bytes)) => {
            raw.budget_bytes = bytes;
            sys::LK_PRESSURE_BUDGET
        }
        Ok(PressureAction::Remove(ids)) if ids.len() <= raw.capacity as usize => {
            std::slice::from_raw_parts_mut(raw.ids, ids.len()).copy_from_slice(&ids);
            raw.n_ids = ids.len() as u32;
            sys::LK_PRESSURE_REMOVE
        }
        _ => sys::LK_PRESSURE_REFUSE,
    }
}
