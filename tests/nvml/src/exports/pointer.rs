//! Arguments that are pointers. These types have C's layout and private fields: only a C caller can
//! make one, and by NVML's contract it is null or leads to what its type says. That contract is all
//! that the unsafe code here relies on, and no other file of the exports needs any.

use std::ffi::{CStr, c_char, c_uint};

use super::call::{Answer, code};

/// A pointer to one value that the function writes (and may read first).
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Whether the caller gave none.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Writes the value.
    pub(crate) fn set(&self, value: T) -> Answer<()> {
        if self.0.is_null() {
            return Err(code::INVALID);
        }
        // SAFETY: not null, and a C caller's pointer to a T (see the module).
        unsafe { self.0.write_unaligned(value) };
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

/// A structure that says in its first word which version of it the caller has.
#[repr(transparent)]
pub struct Versioned<T>(*mut T);

impl<T> Versioned<T> {
    /// The word: size and number, as `NVML_STRUCT_VERSION` makes it.
    pub(crate) fn version(&self) -> Answer<c_uint> {
        if self.0.is_null() {
            return Err(code::INVALID);
        }
        // SAFETY: not null, and every structure of this kind begins with its version.
        Ok(unsafe { self.0.cast::<c_uint>().read_unaligned() })
    }

    /// Fails unless the caller has version `number` of `T`.
    pub(crate) fn check(&self, number: u32) -> Answer<()> {
        match self.version()? == version_of::<T>(number) {
            true => Ok(()),
            false => Err(code::VERSION),
        }
    }

    /// Writes the structure; its version is the caller's.
    pub(crate) fn set(&self, value: T) -> Answer<()> {
        let version = self.version()?;
        // SAFETY: not null, and the version that the caller named was checked to be T's.
        unsafe {
            self.0.write_unaligned(value);
            self.0.cast::<c_uint>().write_unaligned(version);
        }
        Ok(())
    }

    /// The same pointer as one to another version of the structure.
    pub(crate) fn cast<U>(&self) -> Versioned<U> {
        Versioned(self.0.cast())
    }
}

impl<T: Copy> Versioned<T> {
    /// What the caller put there.
    pub(crate) fn get(&self) -> Answer<T> {
        self.version()?;
        // SAFETY: not null, and the version was checked by the caller of this function.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

/// `NVML_STRUCT_VERSION`: the size in the low bytes, the number in the highest.
pub(crate) const fn version_of<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | (number << 24)
}

/// A buffer of values, whose length comes in another argument.
#[repr(transparent)]
pub struct Block<T>(*mut T);

impl<T: Copy> Block<T> {
    /// Whether the caller gave none.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Writes value `index`; the buffer must be longer than that.
    pub(crate) fn put(&self, index: usize, value: T) -> Answer<()> {
        if self.0.is_null() {
            return Err(code::INVALID);
        }
        // SAFETY: not null; callers compare with the length that C gave.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }

    /// Reads value `index`; the buffer must be longer than that.
    pub(crate) fn at(&self, index: usize) -> Answer<T> {
        if self.0.is_null() {
            return Err(code::INVALID);
        }
        // SAFETY: as in `put`.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// Answers a query of NVML's usual form: `count` holds the room and gets the number of values;
    /// with too little room only the number is given.
    pub(crate) fn list(&self, count: &Out<c_uint>, values: &[T]) -> Answer<()> {
        let room = count.get()? as usize;
        count.set(values.len() as c_uint)?;
        if values.is_empty() {
            return Ok(());
        }
        if room < values.len() {
            return Err(code::TOO_SMALL);
        }
        for (index, value) in values.iter().enumerate() {
            self.put(index, *value)?;
        }
        Ok(())
    }

    /// The same, where the caller asks for the number with a null buffer, and may take fewer values
    /// than there are.
    pub(crate) fn list_or_count(&self, count: &Out<c_uint>, values: &[T]) -> Answer<()> {
        match self.is_null() {
            true => count.set(values.len() as c_uint),
            false => self.list(count, values),
        }
    }
}

/// A buffer for text.
#[repr(transparent)]
pub struct Chars(*mut c_char);

impl Chars {
    /// Writes the text with its zero byte, where `room` bytes are.
    pub(crate) fn set(&self, room: c_uint, text: &str) -> Answer<()> {
        if self.0.is_null() {
            return Err(code::INVALID);
        }
        if (room as usize) <= text.len() {
            return Err(code::TOO_SMALL);
        }
        // SAFETY: not null, and C says that there is room for this many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), self.0, text.len());
            self.0.add(text.len()).write(0);
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
