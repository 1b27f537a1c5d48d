//! Loading: before Slurm looks at the plugin, and when it initialises it.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use slurm_ffi::release::{self, Release};
use slurm_ffi::{check, log};

use crate::abi::call;
use crate::abi::forward;
use crate::engine;
use crate::messages;

/// cons_tres's plugin id, which gpuos carries in its place.
pub const CONS_TRES_ID: u32 = 109;
/// The id of the one of the two that is not in use.
pub const OTHER_ID: u32 = 110;

/// From this release on plugin ids need not be unique and stand in no state.
const IDS_FREE_FROM: Release = Release::new(25, 5, 0);

/// What Slurm reads in a plugin's symbols, and this one settles when it is loaded.
pub struct Identity {
    /// `plugin_version`
    pub version: &'static AtomicU32,
    /// `plugin_id`
    pub id: &'static AtomicU32,
}

impl Identity {
    fn release(&self) -> Release {
        Release(self.version.load(Ordering::Acquire))
    }
}

slurm_ffi::mark!();

static SELECTED: AtomicBool = AtomicBool::new(false);

/// Whether this process runs with `SelectType=select/gpuos`.
pub fn selected() -> bool {
    SELECTED.load(Ordering::Relaxed)
}

/// Whether Slurm's configuration names another select plugin. Where it cannot be read, this one may be
/// the selected one, and has to do its work.
pub fn another_is_selected() -> bool {
    !selected() && check::select_type().is_some_and(|name| name != "select/gpuos")
}

/// Runs when the dynamic loader maps the plugin: opens cons_tres and takes over its release.
pub fn constructor(identity: &Identity) {
    log::set_prefix("select/gpuos");
    std::hint::black_box(GPUOS_MARK);
    let Some(path) = release::sibling(constructor as *const () as usize, "select_cons_tres.so")
    else {
        // plugin_version stays 0, so Slurm itself refuses the plugin and names it.
        log::error(&messages::no_cons_tres());
        return;
    };
    if let Err(why) = forward::open(&path) {
        log::error(&messages::cannot_load(path.display(), why));
        return;
    }
    call::bind();
    if let Some(version) = forward::symbol(c"plugin_version") {
        // SAFETY: every Slurm plugin exports `const uint32_t plugin_version`.
        let version = unsafe { version.cast::<u32>().read() };
        identity.version.store(version, Ordering::Release);
    }
    let selected = check::select_type().as_deref() == Some("select/gpuos");
    SELECTED.store(selected, Ordering::Release);
    let version = identity.release();
    if selected || version >= IDS_FREE_FROM {
        identity.id.store(CONS_TRES_ID, Ordering::Release);
    }
}

/// Runs after cons_tres's own `init`.
pub fn init(identity: &Identity) {
    assign_plugin_ids(identity);
    if selected() {
        engine::start(identity.release());
    }
}

/// Settles which of the two plugins carries which id. Safe to run again.
pub fn assign_plugin_ids(identity: &Identity) {
    // The configuration may have been read only after the constructor ran.
    if !selected() && check::select_type().as_deref() == Some("select/gpuos") {
        SELECTED.store(true, Ordering::Release);
        identity.id.store(CONS_TRES_ID, Ordering::Release);
    }
    if selected() && identity.release() < IDS_FREE_FROM {
        swap_ids(identity);
    }
}

/// Gives cons_tres the spare id in this process' memory. Job state and messages then carry 109 from
/// gpuos, which stock Slurm reads as its own; see docs/decisions for the rules that lose state.
fn swap_ids(identity: &Identity) {
    let Some(id) = forward::symbol(c"plugin_id") else {
        return;
    };
    let id = id.cast::<u32>();
    // SAFETY: every select plugin exports `const uint32_t plugin_id`.
    if unsafe { id.read_volatile() } != CONS_TRES_ID {
        return;
    }
    if let Err(why) = overwrite(id as usize, CONS_TRES_ID, OTHER_ID) {
        identity.id.store(OTHER_ID, Ordering::Release);
        log::error(&messages::own_id(why));
    }
}

/// Stores to a constant of a loaded plugin. It lies in a private mapping of the file, so this process alone sees it.
///
/// The page stays as it is protected: linkers put constants beside code, and with pages of 64 KiB, as many kernels for
/// aarch64 have them, the functions of cons_tres are on the same page, where other threads may run. So the kernel
/// stores, as it does for debuggers.
fn overwrite(at: usize, from: u32, to: u32) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let memory = options.read(true).write(true).open("/proc/self/mem")?;
    let mut found = [0; 4];
    memory.read_exact_at(&mut found, at as u64)?;
    if u32::from_ne_bytes(found) != from {
        return Err(io::Error::other("/proc/self/mem is not its memory"));
    }
    memory.write_all_at(&to.to_ne_bytes(), at as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Among the code, as cons_tres's id is where the linker makes one segment of code and constants.
    #[unsafe(link_section = ".text.gpuos_test")]
    static ID: u32 = CONS_TRES_ID;

    /// How the page at an address is protected.
    fn protection(at: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("reads");
        let line = maps.lines().find(|line| {
            let (range, _) = line.split_once(' ').expect("a range");
            let (start, end) = range.split_once('-').expect("two addresses");
            let number = |text| usize::from_str_radix(text, 16).expect("an address");
            (number(start)..number(end)).contains(&at)
        });
        let line = line.expect("a mapping");
        line.split(' ').nth(1).expect("a protection").to_owned()
    }

    #[test]
    fn an_id_among_code_is_changed_and_the_code_runs_on() {
        let at = &raw const ID;
        // SAFETY: a static of this test.
        let read = || unsafe { at.read_volatile() };
        assert_eq!(protection(at as usize), "r-xp");
        assert!(overwrite(at as usize, OTHER_ID, 7).is_err());
        assert_eq!(read(), CONS_TRES_ID);
        overwrite(at as usize, CONS_TRES_ID, OTHER_ID).expect("stores");
        assert_eq!((read(), protection(at as usize)), (OTHER_ID, "r-xp".into()));
        assert!(overwrite(8, 0, 1).is_err());
    }
}
