//! The C functions of libmunge. All unsafe code of the adapter is here; it relies on this:
//!
//! - The signatures are those of `munge.h`, the same since `libmunge.so.2` is that.
//! - A context is made, used and destroyed within one call, so no two threads share one.
//! - What munge hands out was allocated with malloc, and is freed once, also after an error.

#![allow(unsafe_code, reason = "C functions of a library opened at run time")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

use libloading::Library;

use super::{Credentials, Error, MAX_CREDENTIAL, MAX_PAYLOAD, Opened};

type Context = *mut c_void;
type Encode = unsafe extern "C" fn(*mut *mut c_char, Context, *const c_void, c_int) -> c_int;
type Decode = unsafe extern "C" fn(
    *const c_char,
    Context,
    *mut *mut c_void,
    *mut c_int,
    *mut libc::uid_t,
    *mut libc::gid_t,
) -> c_int;

// Numbers of munge.h.
const OPT_SOCKET: c_int = 8;
const OPT_UID_RESTRICTION: c_int = 9;
const SUCCESS: c_int = 0;
const SNAFU: c_int = 1;
const NO_MEMORY: c_int = 5;
const SOCKET: c_int = 6;
const TIMEOUT: c_int = 7;
const EXPIRED: c_int = 15;
const REWOUND: c_int = 16;
const REPLAYED: c_int = 17;

/// The library on this node's munged.
pub struct Munge {
    encode: Encode,
    decode: Decode,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn() -> Context,
    destroy: unsafe extern "C" fn(Context),
    set: unsafe extern "C" fn(Context, c_int, ...) -> c_int,
    socket: Option<CString>,
    own: u32,
    // The functions above are its.
    _library: Library,
}

impl Munge {
    /// Opens [`super::LIBRARY`], or the file that `library` names. `socket` is munged's, where it is not munge's usual one.
    ///
    /// # Errors
    /// The library is not there, lacks a function, or the path cannot be one.
    pub fn open(library: Option<&str>, socket: Option<&Path>) -> Result<Munge, Error> {
        let path = library.unwrap_or(super::LIBRARY);
        let missing = |reason: String| Error::Missing {
            path: path.into(),
            reason,
        };
        let socket = socket.map(|path| CString::new(path.as_os_str().as_bytes()));
        let socket = socket.transpose().map_err(|e| missing(e.to_string()))?;
        // SAFETY: what runs when libmunge is loaded or unloaded touches nothing of this process's.
        let library = unsafe { Library::new(path) }.map_err(|e| missing(e.to_string()))?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: see the top of the file; the pointer is used only while `_library` is open.
                *unsafe { library.get($name) }.map_err(|e| missing(e.to_string()))?
            };
        }
        Ok(Munge {
            encode: function!(b"munge_encode\0"),
            decode: function!(b"munge_decode\0"),
            error: function!(b"munge_strerror\0"),
            create: function!(b"munge_ctx_create\0"),
            destroy: function!(b"munge_ctx_destroy\0"),
            set: function!(b"munge_ctx_set\0"),
            socket,
            own: rustix::process::geteuid().as_raw(),
            _library: library,
        })
    }

    /// Runs a call with a context of its own.
    fn with<T>(&self, call: impl FnOnce(Context) -> Result<T, Error>) -> Result<T, Error> {
        // SAFETY: no arguments.
        let context = unsafe { (self.create)() };
        if context.is_null() {
            return Err(Error::NoAnswer("no memory".into()));
        }
        let done = self.prepare(context).and_then(|()| call(context));
        // SAFETY: made above, and used by nobody any more.
        unsafe { (self.destroy)(context) };
        done
    }

    fn prepare(&self, context: Context) -> Result<(), Error> {
        if let Some(socket) = &self.socket {
            // SAFETY: this option takes a string, which munge copies.
            self.answer(unsafe { (self.set)(context, OPT_SOCKET, socket.as_ptr()) })?;
        }
        Ok(())
    }

    fn answer(&self, code: c_int) -> Result<(), Error> {
        // SAFETY: munge takes every number, and its strings live as long as the library.
        let words = || unsafe {
            let words = (self.error)(code);
            match words.is_null() {
                true => format!("error {code}"),
                false => CStr::from_ptr(words).to_string_lossy().into_owned(),
            }
        };
        match code {
            SUCCESS => Ok(()),
            SNAFU | NO_MEMORY | SOCKET | TIMEOUT => Err(Error::NoAnswer(words())),
            REPLAYED => Err(Error::Replayed),
            EXPIRED | REWOUND => Err(Error::OtherTime(words())),
            _ => Err(Error::Refused(words())),
        }
    }
}

impl Credentials for Munge {
    fn seal(&self, payload: &[u8]) -> Result<String, Error> {
        if payload.len() > MAX_PAYLOAD {
            return Err(Error::TooLong(payload.len()));
        }
        self.with(|context| {
            // SAFETY: this option takes a uid_t.
            self.answer(unsafe { (self.set)(context, OPT_UID_RESTRICTION, self.own) })?;
            let mut credential: *mut c_char = null_mut();
            let bytes = payload.as_ptr().cast();
            // SAFETY: `payload` has that many bytes, fewer than a c_int counts.
            let code = unsafe {
                (self.encode)(&raw mut credential, context, bytes, payload.len() as c_int)
            };
            let text = match credential.is_null() {
                true => String::new(),
                // SAFETY: a C string of munge's.
                false => unsafe { CStr::from_ptr(credential) }
                    .to_string_lossy()
                    .into_owned(),
            };
            // SAFETY: munge's own allocation, or null.
            unsafe { libc::free(credential.cast()) };
            self.answer(code).map(|()| text)
        })
    }

    fn open(&self, credential: &[u8]) -> Result<Opened, Error> {
        if credential.len() > MAX_CREDENTIAL {
            return Err(Error::Refused(format!("{} bytes", credential.len())));
        }
        let text = CString::new(credential).map_err(|e| Error::Refused(e.to_string()))?;
        self.with(|context| {
            let mut bytes: *mut c_void = null_mut();
            let mut length: c_int = 0;
            let mut uid: libc::uid_t = u32::MAX;
            let mut gid: libc::gid_t = u32::MAX;
            // SAFETY: a C string, and locals that live through the call.
            let code = unsafe {
                (self.decode)(
                    text.as_ptr(),
                    context,
                    &raw mut bytes,
                    &raw mut length,
                    &raw mut uid,
                    &raw mut gid,
                )
            };
            let length = usize::try_from(length).unwrap_or(0);
            let payload = match bytes.is_null() {
                true => Vec::new(),
                // SAFETY: munge's buffer of that length.
                false => unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) }.to_vec(),
            };
            // SAFETY: munge's own allocation, or null.
            unsafe { libc::free(bytes) };
            // For one that is replayed or too old munge hands out the payload all the same.
            self.answer(code)?;
            Ok(Opened { payload, uid, gid })
        })
    }
}
