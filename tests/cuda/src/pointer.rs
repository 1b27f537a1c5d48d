//! Arguments that are pointers. These types have C's layout and private fields: only a C caller can
//! make one, and by CUDA's contract it is null or leads to what its type says. That contract is all
//! that the unsafe code here relies on.

use std::ffi::{CStr, c_char, c_void};

use crate::abi::{Answer, code};

/// A pointer to one value, or to the first of several, that the function writes.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Whether the caller gave none.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Writes the value.
    pub(crate) fn set(&self, value: T) -> Answer<()> {
        self.put(0, value)
    }

    /// Writes the value unless the caller wants none.
    pub(crate) fn offer(&self, value: T) {
        if !self.is_null() {
            let _ = self.put(0, value);
        }
    }

    /// Writes value `index`; C's contract says that there is room for it.
    pub(crate) fn put(&self, index: usize, value: T) -> Answer<()> {
        if self.0.is_null() {
            return Err(code::INVALID);
        }
        // SAFETY: not null, and a C caller's pointer to that many T (see the module).
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }
}

impl<T: Copy> Out<T> {
    /// What the caller put there.
    pub(crate) fn get(&self) -> Answer<T> {
        if self.0.is_null() {
            return Err(code::INVALID);
        }
        // SAFETY: not null, and a C caller's pointer to an initialised T (see the module).
        Ok(unsafe { self.0.read_unaligned() })
    }
}

/// A pointer to one value, or to the first of several, that the function reads.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The value.
    pub(crate) fn get(&self) -> Answer<T> {
        self.at(0)
    }

    /// Value `index`; C's contract says that there are more than that.
    pub(crate) fn at(&self, index: usize) -> Answer<T> {
        if self.0.is_null() {
            return Err(code::INVALID);
        }
        // SAFETY: not null, and a C caller's pointer to that many initialised T (see the module).
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// The first values.
    pub(crate) fn list(&self, count: usize) -> Answer<Vec<T>> {
        (0..count).map(|index| self.at(index)).collect()
    }
}

/// A buffer for text.
#[repr(transparent)]
pub struct Chars(*mut c_char);

impl Chars {
    /// Writes as much of the text as has room, with a zero byte.
    pub(crate) fn set(&self, room: i32, text: &str) -> Answer<()> {
        let room = usize::try_from(room).unwrap_or(0);
        if self.0.is_null() || room == 0 {
            return Err(code::INVALID);
        }
        let length = text.len().min(room - 1);
        // SAFETY: not null, and C says that there is room for this many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), self.0, length);
            self.0.add(length).write(0);
        }
        Ok(())
    }
}

/// A text that C gives.
#[repr(transparent)]
pub struct Name(*const c_char);

impl Name {
    /// The text.
    pub(crate) fn get(&self) -> Answer<String> {
        if self.0.is_null() {
            return Err(code::INVALID);
        }
        // SAFETY: not null, and a C caller's text ends in a zero byte.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// The bytes at an address that C gave.
pub(crate) fn bytes(from: *const c_void, length: usize) -> Vec<u8> {
    let mut copy = vec![0; length];
    // SAFETY: C's contract says that so many bytes lie there; `copy` has room for them.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), copy.as_mut_ptr(), length) };
    copy
}

/// Writes bytes to an address that C gave.
pub(crate) fn give(to: *mut c_void, bytes: &[u8]) -> Answer<()> {
    if to.is_null() {
        return Err(code::INVALID);
    }
    // SAFETY: not null, and C's contract says that there is room for so many bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    Ok(())
}
