use lowkey_sys as sys;
use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// What a cache lacks when its ladders have ended; see `lk_pressure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pressure {
    /// To what the step needs.
    pub shortfall_bytes: u64,
    pub reserved_bytes: u64,
    pub budget_bytes: u64,
    /// The most sequences that may be removed at once.
    pub capacity: u32,
}

/// What a cache is given in answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relief {
    /// Nothing: the step returns [`ErrorKind::Budget`](crate::ErrorKind::Budget).
    Refuse,
    /// A budget above the one before, at most [`CacheOptions::max_budget_bytes`](crate::CacheOptions).
    Budget(u64),
    /// Sequences by their ids, none of the step's. A [`Sequence`](crate::Sequence) that goes so says
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) from then on.
    Remove(Vec<u64>),
}

pub(crate) type PressureFn = Box<dyn FnMut(Pressure) -> Relief + Send>;

/// # Safety
/// `user` is a `PressureFn` that nobody else uses now, `raw` is what the library gives.
pub(crate) unsafe extern "C" fn ask(
    user: *mut c_void,
    raw: *mut sys::lk_pressure,
) -> sys::lk_pressure_action {
    let (ask, raw) = (&mut *(user as *mut PressureFn), &mut *raw);
    let question = Pressure {
        shortfall_bytes: raw.shortfall_bytes,
        reserved_bytes: raw.reserved_bytes,
        budget_bytes: raw.budget_bytes,
        capacity: raw.capacity,
    };
    // A panic must not unwind into C: it refuses.
    match catch_unwind(AssertUnwindSafe(|| ask(question))) {
        Ok(Relief::Budget(bytes)) => {
            raw.budget_bytes = bytes;
            sys::LK_PRESSURE_BUDGET
        }
        Ok(Relief::Remove(ids)) if ids.len() <= raw.capacity as usize => {
            std::slice::from_raw_parts_mut(raw.ids, ids.len()).copy_from_slice(&ids);
            raw.n_ids = ids.len() as u32;
            sys::LK_PRESSURE_REMOVE
        }
        _ => sys::LK_PRESSURE_REFUSE,
    }
}
