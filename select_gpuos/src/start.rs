//! Loading: before Slurm looks at the plugin, and when it initialises it.

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
    // SAFETY: every select plugin exports `const uint32_t plugin_id`. It lies in a private mapping of
    // the file, so making its page writable and storing to it changes this process only.
    unsafe {
        if id.read() != CONS_TRES_ID {
            return;
        }
        let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let start = id as usize & !(page - 1);
        if libc::mprotect(
            start as *mut libc::c_void,
            page,
            libc::PROT_READ | libc::PROT_WRITE,
        ) != 0
        {
            identity.id.store(OTHER_ID, Ordering::Release);
            log::error(&messages::own_id());
            return;
        }
        id.write_volatile(OTHER_ID);
        libc::mprotect(start as *mut libc::c_void, page, libc::PROT_READ);
    }
}
