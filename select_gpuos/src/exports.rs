//! Everything that Slurm sees of this plugin, on one screen; the rest is forwarded ([`crate::abi::forward`]).
//! SAFETY.md has a row for each symbol: caller, locks held, fallback on panic.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU32;

use slurm_ffi::guard::guard;

use crate::abi::call::{self, Call, Entry};
use crate::events;
use crate::job_test;
use crate::start::{self, Identity};
use crate::tell::keeper;

/// The kind and name under which Slurm finds the plugin.
#[unsafe(no_mangle)]
pub static plugin_type: [u8; 13] = *b"select/gpuos\0";
/// The name for people.
#[unsafe(no_mangle)]
pub static plugin_name: [u8; 59] = *b"gpuos: GPUs placed by topology, on top of select/cons_tres\0";
/// cons_tres's release, taken over before Slurm looks; a plugin of another release is not loaded.
#[unsafe(no_mangle)]
pub static plugin_version: AtomicU32 = AtomicU32::new(0);
/// The id in job state and messages: cons_tres's own, so that going back to stock loses nothing.
#[unsafe(no_mangle)]
pub static plugin_id: AtomicU32 = AtomicU32::new(start::OTHER_ID);

static IDENTITY: Identity = Identity {
    version: &plugin_version,
    id: &plugin_id,
};

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    // Without these few steps slurmctld would not start at all: they are tried again after a panic.
    guard(
        "constructor",
        || quietly(|| start::constructor(&IDENTITY)),
        || start::constructor(&IDENTITY),
    );
}

fn quietly(work: fn()) {
    let _ = std::panic::catch_unwind(work);
}

/// Called by Slurm when it has loaded the plugin.
#[unsafe(no_mangle)]
pub extern "C" fn init() -> c_int {
    // Up to 24.11 slurmctld and the commands load every select plugin they find. Beside a selected
    // cons_tres this one must not initialise it a second time.
    if start::another_is_selected() {
        return 0;
    }
    // cons_tres has to be initialised whatever happens to gpuos; only its own answer counts.
    let code = call::forward_plain(Entry::Init, std::ptr::null_mut(), std::ptr::null_mut());
    if code == 0 {
        // The ids decide whether job state can be read later: settled also without steering.
        guard(
            "init",
            || quietly(|| start::assign_plugin_ids(&IDENTITY)),
            || start::init(&IDENTITY),
        );
    }
    code
}

/// Called by Slurm before it unloads the plugin.
#[unsafe(no_mangle)]
pub extern "C" fn fini() -> c_int {
    if start::another_is_selected() {
        return 0;
    }
    keeper::stop();
    call::forward_plain(Entry::Fini, std::ptr::null_mut(), std::ptr::null_mut())
}

/// Can this job run, where and when: the call that gpuos steers. Releases before 23.11 pass nine
/// arguments; the tenth is then whatever the stack holds and is only handed on to a callee that does not read it.
#[unsafe(no_mangle)]
pub extern "C" fn select_p_job_test(
    job: *mut c_void,
    nodes: *mut c_void,
    min_nodes: u32,
    max_nodes: u32,
    req_nodes: u32,
    mode: u16,
    preemptable: *mut c_void,
    preempted: *mut *mut c_void,
    excluded: *mut c_void,
    will_run: *mut c_void,
) -> c_int {
    let call = Call::new(
        job,
        nodes,
        min_nodes,
        max_nodes,
        req_nodes,
        mode,
        preemptable,
        preempted,
        excluded,
        will_run,
    );
    if !call.may_be_steered() {
        return call.forward();
    }
    guard(
        "select_p_job_test",
        || call.forward_once(),
        || job_test::job_test(&call),
    )
}

/// A job has got its nodes.
#[unsafe(no_mangle)]
pub extern "C" fn select_p_select_nodeinfo_set(job: *mut c_void) -> c_int {
    // Before cons_tres turns its selection into an allocation.
    guard(
        "select_p_select_nodeinfo_set",
        || (),
        || events::job_starts(job),
    );
    let code = call::forward_plain(Entry::NodeinfoSet, job, std::ptr::null_mut());
    guard(
        "select_p_select_nodeinfo_set",
        || (),
        || events::job_holds(job),
    );
    code
}

/// A job ends.
#[unsafe(no_mangle)]
pub extern "C" fn select_p_job_fini(job: *mut c_void) -> c_int {
    guard("select_p_job_fini", || (), || events::job_ends(job));
    call::forward_plain(Entry::JobFini, job, std::ptr::null_mut())
}

/// A job gives up a node.
#[unsafe(no_mangle)]
pub extern "C" fn select_p_job_resized(job: *mut c_void, node: *mut c_void) -> c_int {
    let code = call::forward_plain(Entry::JobResized, job, node);
    guard("select_p_job_resized", || (), || events::job_holds(job));
    code
}

/// A job takes over another one's nodes.
#[unsafe(no_mangle)]
pub extern "C" fn select_p_job_expand(from: *mut c_void, to: *mut c_void) -> c_int {
    let code = call::forward_plain(Entry::JobExpand, from, to);
    guard(
        "select_p_job_expand",
        || (),
        || {
            events::job_holds(from);
            events::job_holds(to);
        },
    );
    code
}

/// The node table is new.
#[unsafe(no_mangle)]
pub extern "C" fn select_p_node_init(a: *mut c_void, b: *mut c_void) -> c_int {
    guard("select_p_node_init", || (), events::forget_nodes);
    call::forward_plain(Entry::NodeInit, a, b)
}

/// The configuration was read again.
#[unsafe(no_mangle)]
pub extern "C" fn select_p_reconfigure() -> c_int {
    guard("select_p_reconfigure", || (), events::reload);
    call::forward_plain(
        Entry::Reconfigure,
        std::ptr::null_mut(),
        std::ptr::null_mut(),
    )
}
