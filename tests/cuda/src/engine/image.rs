//! Modules: texts that name kernels. A module of ours is
//!
//! ```text
//! gpuos-cubin 1
//! kernel saxpy
//! ```
//!
//! and PTX is read for its entries and their arguments: those that are a kernel of ours by name and
//! arguments run, others fail when they are launched.

use std::ffi::CString;
use std::sync::Arc;

use crate::abi::{Answer, code};
use crate::engine::kernel::{KERNELS, Kernel};

/// A kernel in a module.
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The same for C.
    pub(crate) c_name: CString,
    /// Bytes of each argument.
    pub(crate) params: Vec<u32>,
    pub(crate) kernel: Option<&'static Kernel>,
}

/// A module, library or what the linker made.
pub(crate) struct Image {
    pub(crate) entries: Vec<Arc<Entry>>,
}

impl Entry {
    /// Where each argument lies in a buffer of all: each is aligned to its size.
    pub(crate) fn offsets(&self) -> Vec<(u32, u32)> {
        let mut next = 0_u32;
        let place = |size: &u32| {
            let offset = next.next_multiple_of((*size).clamp(1, 16).next_power_of_two());
            next = offset + size;
            (offset, *size)
        };
        self.params.iter().map(place).collect()
    }
}

impl Image {
    /// The kernel of this name.
    pub(crate) fn entry(&self, name: &str) -> Answer<Arc<Entry>> {
        let found = self.entries.iter().find(|entry| entry.name == name);
        found.cloned().ok_or(code::NOT_FOUND)
    }

    /// Reads a module. What it is not is said on standard error.
    pub(crate) fn parse(text: &[u8]) -> Answer<Image> {
        let refuse = |why: &str| {
            eprintln!("simulated libcuda: the module is refused: {why}");
            code::INVALID_IMAGE
        };
        let form = "give PTX, or 'gpuos-cubin 1' and lines 'kernel NAME'";
        let text =
            std::str::from_utf8(text).map_err(|_| refuse(&format!("it is no text; {form}")))?;
        if text.contains(".version") && text.contains(".target") {
            return Ok(Image { entries: ptx(text) });
        }
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        if lines.next() != Some("gpuos-cubin 1") {
            return Err(refuse(&format!("its form is not known; {form}")));
        }
        let mut entries = Vec::new();
        for line in lines {
            let name = line.strip_prefix("kernel ");
            let kernel = name.and_then(|name| KERNELS.iter().find(|k| k.name == name.trim()));
            let Some(kernel) = kernel else {
                let names: Vec<&str> = KERNELS.iter().map(|kernel| kernel.name).collect();
                return Err(refuse(&format!(
                    "'{line}': the kernels are {}",
                    names.join(", ")
                )));
            };
            entries.push(Arc::new(Entry {
                name: kernel.name.to_string(),
                c_name: CString::new(kernel.name).unwrap_or_default(),
                params: kernel.params.to_vec(),
                kernel: Some(kernel),
            }));
        }
        Ok(Image { entries })
    }
}

/// The entries of PTX: `.entry NAME ( .param .u64 a, .param .align 8 .b8 b[16] )`.
fn ptx(text: &str) -> Vec<Arc<Entry>> {
    let mut entries = Vec::new();
    for part in text.split(".entry").skip(1) {
        let end = part.find(['(', '{', '\n']).unwrap_or(part.len());
        let name = part[..end].trim().to_string();
        let list = match part[end..].trim_start().strip_prefix('(') {
            Some(rest) => &rest[..rest.find(')').unwrap_or(rest.len())],
            None => "",
        };
        let params: Vec<u32> = list.split(".param").skip(1).map(param).collect();
        let known = |kernel: &&Kernel| kernel.name == name && kernel.params == params;
        let kernel = KERNELS.iter().find(known);
        entries.push(Arc::new(Entry {
            c_name: CString::new(name.as_str()).unwrap_or_default(),
            name,
            params,
            kernel,
        }));
    }
    entries
}

/// Bytes of an argument of PTX.
fn param(text: &str) -> u32 {
    let words = text
        .split([' ', '\t', '\n', ','])
        .filter(|word| !word.is_empty());
    let mut size = 0;
    let mut align = false;
    for word in words {
        if std::mem::take(&mut align) {
            continue;
        }
        match word {
            ".align" => align = true,
            ".u8" | ".s8" | ".b8" => size = 1,
            ".u16" | ".s16" | ".b16" | ".f16" => size = 2,
            ".u32" | ".s32" | ".b32" | ".f32" => size = 4,
            ".u64" | ".s64" | ".b64" | ".f64" => size = 8,
            name => {
                let count = name
                    .split_once('[')
                    .and_then(|(_, rest)| rest.split_once(']'));
                let count = count.and_then(|(count, _)| count.parse::<u32>().ok());
                size *= count.unwrap_or(1);
            }
        }
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_is_read_for_entries_and_their_arguments() {
        let text = ".version 8.0\n.target sm_90\n.visible .entry saxpy(\n\t.param .u64 saxpy_param_0,\n\t.param .u64 p1,\n\
                    .param .f32 p2,\n.param .u64 p3\n)\n{ ret; }\n.entry other(.param .align 8 .b8 s[24], .param .u32 n) { }\n.entry none\n{ }";
        let image = Image::parse(text.as_bytes()).unwrap();
        let saxpy = image.entry("saxpy").unwrap();
        assert_eq!(saxpy.params, [8, 8, 4, 8]);
        assert_eq!(saxpy.offsets(), [(0, 8), (8, 8), (16, 4), (24, 8)]);
        assert!(saxpy.kernel.is_some());
        let other = image.entry("other").unwrap();
        assert_eq!(other.params, [24, 4]);
        assert!(other.kernel.is_none());
        assert!(image.entry("none").unwrap().params.is_empty());
        assert_eq!(image.entry("more").err(), Some(code::NOT_FOUND));
    }

    #[test]
    fn a_module_of_ours_names_kernels_that_there_are() {
        assert!(Image::parse(b"gpuos-cubin 1\nkernel fill\nkernel walk\n").is_ok());
        for wrong in [
            &b"gpuos-cubin 1\nkernel gemm\n"[..],
            b"",
            b"\x7fELF",
            b"\xff\xfe",
        ] {
            assert_eq!(Image::parse(wrong).err(), Some(code::INVALID_IMAGE));
        }
    }
}
