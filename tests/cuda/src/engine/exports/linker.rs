//! The linker: texts of PTX, one behind the other, become a module. libgomp loads what it has by it.

use std::ffi::{CString, c_char, c_uint, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::cuda;
use crate::abi::{Answer, code};
use crate::engine::context::current;
use crate::engine::driver::driver;
use crate::engine::image::Image;
use crate::pointer::{Name, Out};

/// `CU_JIT_INPUT_PTX`: no other input is simulated.
const PTX: c_uint = 1;

/// What one linker has so far.
pub(crate) struct Link {
    text: Mutex<Vec<u8>>,
    /// The module. It lasts as long as the linker.
    made: OnceLock<CString>,
}

fn add(state: u64, kind: c_uint, text: &[u8]) -> Answer<()> {
    let link = driver()?.links.get(state)?;
    if kind != PTX || link.made.get().is_some() {
        return Err(code::INVALID);
    }
    // The size of a text may count the zero byte at its end.
    let end = text.iter().position(|byte| *byte == 0);
    let text = &text[..end.unwrap_or(text.len())];
    Image::parse(text)?;
    let mut all = link.text.lock().unwrap_or_else(PoisonError::into_inner);
    all.extend_from_slice(text);
    all.push(b'\n');
    Ok(())
}

cuda! {
    fn cuLinkCreate_v2(
        _count: c_uint,
        _options: *const c_uint,
        _values: *const *const c_void,
        out: Out<u64>,
    ) {
        current()?;
        out.set(driver()?.links.add(Link {
            text: Mutex::new(Vec::new()),
            made: OnceLock::new(),
        }))
    }
    fn cuLinkAddData_v2(
        state: u64,
        kind: c_uint,
        data: *const c_void,
        size: usize,
        _name: *const c_char,
        _count: c_uint,
        _options: *const c_uint,
        _values: *const *const c_void,
    ) {
        if data.is_null() {
            return Err(code::INVALID);
        }
        // SAFETY: not null, and by CUDA's contract so many bytes.
        add(state, kind, unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) })
    }
    fn cuLinkAddFile_v2(
        state: u64,
        kind: c_uint,
        file: Name,
        _count: c_uint,
        _options: *const c_uint,
        _values: *const *const c_void,
    ) {
        let text = std::fs::read(file.get()?).map_err(|_| code::FILE_NOT_FOUND)?;
        add(state, kind, &text)
    }
    fn cuLinkComplete(state: u64, out: Out<u64>, size: Out<usize>) {
        let link = driver()?.links.get(state)?;
        let text = link.text.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let text = CString::new(text).map_err(|_| code::INVALID_IMAGE)?;
        let made = link.made.get_or_init(|| text);
        size.offer(made.as_bytes_with_nul().len());
        out.set(made.as_ptr() as u64)
    }
    fn cuLinkDestroy(state: u64) {
        driver()?.links.remove(state).map(|_| ())
    }
}
