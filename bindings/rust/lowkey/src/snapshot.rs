// SPDX-License-Identifier: Apache-2.0
use crate::cache::{Cache, Sequence};
use crate::error::{check, initial, Error, ErrorKind, Result};
use lowkey_sys as sys;
use std::ffi::CString;
use std::io::{Read, Write};
use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::ptr;

/// Options of a save or a load; see `<lowkey/snapshot.h>`.
#[derive(Clone, Copy, Default)]
pub struct SnapshotOptions<'a> {
    /// The host's name of the model, at most 256 bytes. A load needs that of the save.
    pub fingerprint: &'a [u8],
}

impl SnapshotOptions<'_> {
    fn with_raw<R>(
        &self,
        use_it: impl FnOnce(*const sys::lk_snapshot_desc) -> Result<R>,
    ) -> Result<R> {
        let mut raw = initial(sys::lk_snapshot_desc_init)?;
        raw.fingerprint_bytes = u32::try_from(self.fingerprint.len()).unwrap_or(u32::MAX);
        if !self.fingerprint.is_empty() {
            raw.fingerprint = self.fingerprint.as_ptr() as *const c_void;
        }
        use_it(&raw)
    }
}

fn c_path(path: &Path) -> Result<CString> {
    let text = path.to_str().map(CString::new);
    match text {
        Some(Ok(text)) => Ok(text),
        _ => Err(Error::argument(format!("{} is no path for C", path.display()))),
    }
}

fn ids(sequences: &[&Sequence<'_>]) -> Vec<sys::lk_sequence> {
    sequences.iter().map(|sequence| sequence.id).collect()
}

/// A writer or reader that C calls, and its first error.
struct Stream<T> {
    inner: T,
    error: Option<std::io::Error>,
}

unsafe extern "C" fn write_bytes<W: Write>(
    user: *mut c_void,
    data: *const c_void,
    n_bytes: usize,
) -> i32 {
    let stream = &mut *(user as *mut Stream<W>);
    let bytes = std::slice::from_raw_parts(data as *const u8, n_bytes);
    // A panic must not unwind into C.
    match catch_unwind(AssertUnwindSafe(|| stream.inner.write_all(bytes))) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => stream.error = Some(error),
        Err(_) => {
            stream.error =
                Some(std::io::Error::new(std::io::ErrorKind::Other, "the writer panicked"))
        }
    }
    1
}

unsafe extern "C" fn read_bytes<R: Read>(
    user: *mut c_void,
    data: *mut c_void,
    n_bytes: usize,
) -> i64 {
    let stream = &mut *(user as *mut Stream<R>);
    // A reader may read its buffer, so it gets no uninitialised bytes.
    ptr::write_bytes(data as *mut u8, 0, n_bytes);
    let bytes = std::slice::from_raw_parts_mut(data as *mut u8, n_bytes);
    loop {
        match catch_unwind(AssertUnwindSafe(|| stream.inner.read(bytes))) {
            Ok(Ok(n)) => return n.min(n_bytes) as i64,
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Ok(Err(error)) => stream.error = Some(error),
            Err(_) => {
                stream.error =
                    Some(std::io::Error::new(std::io::ErrorKind::Other, "the reader panicked"))
            }
        }
        return -1;
    }
}

/// The refusal, with the error of the stream itself.
fn with_cause<T>(result: Result<T>, cause: Option<std::io::Error>) -> Result<T> {
    match (result, cause) {
        (Err(error), Some(cause)) if error.kind == ErrorKind::Io => {
            Err(Error { kind: error.kind, sentence: format!("{}: {}", error.sentence, cause) })
        }
        (result, _) => result,
    }
}

impl Cache<'_> {
    /// Save sequences to a writer; an empty list is all sequences of the cache.
    pub fn save<W: Write>(
        &self,
        sequences: &[&Sequence<'_>],
        options: SnapshotOptions<'_>,
        writer: W,
    ) -> Result<()> {
        let mut stream = Stream { inner: writer, error: None };
        let user = &mut stream as *mut Stream<W> as *mut c_void;
        let ids = ids(sequences);
        let list = if ids.is_empty() { ptr::null() } else { ids.as_ptr() };
        let result = options.with_raw(|desc| {
            // SAFETY: the list has the passed number of ids; the stream stays for the call.
            unsafe {
                check(sys::lk_snapshot_save(
                    self.as_raw(),
                    ids.len() as u32,
                    list,
                    desc,
                    Some(write_bytes::<W>),
                    user,
                ))
            }
        });
        with_cause(result, stream.error)
    }

    /// The same to a file, which replaces a file of its name; after a crash it is the whole old one
    /// or the whole new one.
    pub fn save_file(
        &self,
        sequences: &[&Sequence<'_>],
        options: SnapshotOptions<'_>,
        path: impl AsRef<Path>,
    ) -> Result<()> {
        let path = c_path(path.as_ref())?;
        let ids = ids(sequences);
        let list = if ids.is_empty() { ptr::null() } else { ids.as_ptr() };
        options.with_raw(|desc| {
            // SAFETY: as above.
            unsafe {
                check(sys::lk_snapshot_save_file(
                    self.as_raw(),
                    ids.len() as u32,
                    list,
                    desc,
                    path.as_ptr(),
                ))
            }
        })
    }

    /// Load all sequences of a snapshot, at most `most` of them. Its bytes need not be trusted.
    pub fn load<R: Read>(
        &self,
        options: SnapshotOptions<'_>,
        reader: R,
        most: u32,
    ) -> Result<Vec<Sequence<'_>>> {
        let mut stream = Stream { inner: reader, error: None };
        let user = &mut stream as *mut Stream<R> as *mut c_void;
        let read = Some(read_bytes::<R> as _);
        let result = self.load_with(most, |ids, n| {
            options.with_raw(|desc| {
                // SAFETY: ids has `most` elements; the stream stays for the call.
                unsafe {
                    check(sys::lk_snapshot_load(self.as_raw(), desc, read, user, most, ids, n))
                }
            })
        });
        with_cause(result, stream.error)
    }

    /// The same from a file.
    pub fn load_file(
        &self,
        options: SnapshotOptions<'_>,
        path: impl AsRef<Path>,
        most: u32,
    ) -> Result<Vec<Sequence<'_>>> {
        let path = c_path(path.as_ref())?;
        self.load_with(most, |ids, n| {
            options.with_raw(|desc| {
                // SAFETY: as above.
                unsafe {
                    check(sys::lk_snapshot_load_file(
                        self.as_raw(),
                        desc,
                        path.as_ptr(),
                        most,
                        ids,
                        n,
                    ))
                }
            })
        })
    }

    fn load_with(
        &self,
        most: u32,
        call: impl FnOnce(*mut sys::lk_sequence, *mut u32) -> Result<()>,
    ) -> Result<Vec<Sequence<'_>>> {
        let mut ids = vec![0; most as usize];
        let mut n = 0;
        call(ids.as_mut_ptr(), &mut n)?;
        ids.truncate(n as usize);
        Ok(ids.into_iter().map(|id| self.own(id)).collect())
    }
}
