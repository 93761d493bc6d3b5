// SPDX-License-Identifier: Apache-2.0
use lowkey_sys as sys;
use std::ffi::CStr;
use std::fmt;

/// The kind of a refusal, as `lk_status`; `<lowkey/base.h>` has the remedy for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A stated precondition does not hold.
    Argument,
    /// The call came in the wrong order.
    State,
    /// No such id, preset or field.
    NotFound,
    /// A valid request that this build or device cannot run.
    Unsupported,
    /// Host or device memory is exhausted.
    NoMemory,
    /// The cache's byte budget is too small for the call.
    Budget,
    /// Untrusted bytes fail validation.
    Corrupt,
    /// Made for another geometry or version.
    Mismatch,
    /// Keys or values hold an infinity or a NaN.
    Data,
    /// In use.
    Busy,
    /// A file could not be read or written.
    Io,
    /// The device is lost.
    Device,
    /// A defect of lowkey itself, or a status that this crate does not know.
    Internal,
}

/// A refusal with the library's sentence, which names the value at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Error {
    pub kind: ErrorKind,
    pub sentence: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn argument(sentence: impl Into<String>) -> Self {
        Error { kind: ErrorKind::Argument, sentence: sentence.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}
impl std::error::Error for Error {}

fn kind_of(status: sys::lk_status) -> ErrorKind {
    match status {
        sys::LK_E_ARGUMENT => ErrorKind::Argument,
        sys::LK_E_STATE => ErrorKind::State,
        sys::LK_E_NOT_FOUND => ErrorKind::NotFound,
        sys::LK_E_UNSUPPORTED => ErrorKind::Unsupported,
        sys::LK_E_NOMEM => ErrorKind::NoMemory,
        sys::LK_E_BUDGET => ErrorKind::Budget,
        sys::LK_E_CORRUPT => ErrorKind::Corrupt,
        sys::LK_E_MISMATCH => ErrorKind::Mismatch,
        sys::LK_E_DATA => ErrorKind::Data,
        sys::LK_E_BUSY => ErrorKind::Busy,
        sys::LK_E_IO => ErrorKind::Io,
        sys::LK_E_DEVICE => ErrorKind::Device,
        _ => ErrorKind::Internal,
    }
}

/// The last sentence of this thread.
fn last_sentence() -> String {
    let mut needed = 0;
    let mut bytes = vec![0u8; 512];
    loop {
        // SAFETY: the buffer has the passed length.
        let status =
            unsafe { sys::lk_last_error(bytes.as_mut_ptr().cast(), bytes.len(), &mut needed) };
        if status != sys::LK_OK || needed <= bytes.len() {
            break;
        }
        bytes.resize(needed, 0);
    }
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

pub(crate) fn check(status: sys::lk_status) -> Result<()> {
    if status == sys::LK_OK {
        return Ok(());
    }
    Err(Error { kind: kind_of(status), sentence: last_sentence() })
}

/// Text of the library that lives for good.
///
/// # Safety
/// `text` is null or ends in a zero and is never freed.
pub(crate) unsafe fn static_text(text: *const std::os::raw::c_char) -> Option<&'static str> {
    if text.is_null() {
        return None;
    }
    CStr::from_ptr(text).to_str().ok()
}

/// A struct of the library after its `lk_*_init()`.
pub(crate) fn initial<T>(init: unsafe extern "C" fn(*mut T, usize) -> sys::lk_status) -> Result<T> {
    let mut value = std::mem::MaybeUninit::uninit();
    // SAFETY: init fills the whole struct, whose size is passed.
    unsafe {
        check(init(value.as_mut_ptr(), std::mem::size_of::<T>()))?;
        Ok(value.assume_init())
    }
}
