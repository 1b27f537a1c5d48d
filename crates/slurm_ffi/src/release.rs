//! Which Slurm release this process is, found without any header.
//!
//! Slurm loads a plugin only when the plugin's `plugin_version` equals its own, to the micro
//! release. A gpuos plugin takes that number from a stock plugin that Slurm ships beside it.

use std::ffi::{CStr, OsStr};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use gpuos_config::slurm_topology::SlurmRelease;
use object::{Object, ObjectSection, ObjectSymbol};

use crate::api;

/// A Slurm release, to the micro number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Release(pub u32);

impl Release {
    /// From the three numbers of a version.
    pub const fn new(major: u32, minor: u32, micro: u32) -> Release {
        Release(major << 16 | minor << 8 | micro)
    }

    /// The release as far as Slurm's topology goes.
    pub fn topology(self) -> SlurmRelease {
        SlurmRelease {
            major: self.0 >> 16,
            minor: self.0 >> 8 & 0xff,
        }
    }

    /// Parses `22.05.8`.
    pub fn parse(text: &str) -> Option<Release> {
        let mut parts = text.trim().split('.');
        let mut next = || parts.next()?.parse::<u32>().ok().filter(|n| *n < 256);
        let release = Release::new(next()?, next()?, next()?);
        parts.next().is_none().then_some(release)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:02}.{}",
            self.0 >> 16,
            self.0 >> 8 & 0xff,
            self.0 & 0xff
        )
    }
}

/// The folder of the file that holds `address`, as the dynamic loader knows it.
pub fn folder_of(address: usize) -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr only compares the address and fills `info`, which is as large as it expects; a
    // zeroed Dl_info is a valid one.
    let info = unsafe {
        if libc::dladdr(address as *const libc::c_void, info.as_mut_ptr()) == 0 {
            return None;
        }
        info.assume_init()
    };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dli_fname is a NUL-terminated path owned by the loader while the file is mapped, and
    // the caller's address keeps it mapped.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    path.parent().map(Path::to_path_buf)
}

/// Finds a stock plugin file: beside the plugin that holds `own`, else in the folder of
/// libslurmfull.so, which is Slurm's plugin folder in Debian's and in upstream's builds.
pub fn sibling(own: usize, file: &str) -> Option<PathBuf> {
    let full = api::symbol(c"slurm_bit_copy").or_else(|| api::symbol(c"slurm_info"));
    let folders = [
        folder_of(own),
        full.and_then(|address| folder_of(address as usize)),
    ];
    let mut candidates: Vec<PathBuf> = Vec::new();
    for folder in folders.into_iter().flatten() {
        candidates.push(folder.join(file));
        candidates.push(folder.join("slurm").join(file));
        candidates.push(folder.join("slurm-wlm").join(file));
    }
    candidates.into_iter().find(|path| path.is_file())
}

/// Reads the exported `u32` variable `plugin_version` of a plugin file without loading it.
pub fn version_in_file(path: &Path) -> Option<Release> {
    let bytes = std::fs::read(path).ok()?;
    let file = object::File::parse(bytes.as_slice()).ok()?;
    let symbol = file
        .dynamic_symbols()
        .find(|s| s.name() == Ok("plugin_version"))?;
    let section = file.section_by_index(symbol.section_index()?).ok()?;
    let data = section.data_range(symbol.address(), 4).ok()??;
    Some(Release(u32::from_ne_bytes(data.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_parse_and_print_as_slurm_writes_them() {
        for text in ["22.05.8", "24.11.5", "26.05.10"] {
            assert_eq!(
                Release::parse(text).map(|r| r.to_string()).as_deref(),
                Some(text)
            );
        }
        assert_eq!(Release::parse("22.05.8"), Some(Release(0x0016_0508)));
        for bad in ["", "22.05", "22.05.8.1", "22.5.x", "300.1.1"] {
            assert_eq!(Release::parse(bad), None, "{bad}");
        }
    }
}
