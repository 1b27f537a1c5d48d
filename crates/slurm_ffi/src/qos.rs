//! Names of QOS: Slurm's job record has the number alone.

use std::ffi::{CStr, c_char, c_void};

use crate::api::symbol;

/// Why no name can be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unknown {
    /// slurmctld has no list of QOS: it runs without slurmdbd, where jobs have none.
    NoList,
    /// This daemon lacks one of the functions.
    NoFunction,
}

/// `lock_level_t`: NO_LOCK, READ_LOCK, WRITE_LOCK.
const READ_LOCK: u32 = 1;

/// The name of the QOS with this number. Takes the read lock of Slurm's QOS for it, as slurmctld does
/// for every job before it asks for a place: callers keep the name, so that this happens once for each QOS.
///
/// # Errors
/// No name can be had at all; `Ok(None)`: there is no such QOS.
///
/// # Safety
/// Called in slurmctld without any lock of its association manager held for writing.
pub unsafe fn name(number: u32) -> Result<Option<String>, Unknown> {
    type Lock = unsafe extern "C" fn(*mut u32);
    type Name = unsafe extern "C" fn(*mut c_void, u32) -> *const c_char;
    let list = symbol(c"assoc_mgr_qos_list").ok_or(Unknown::NoFunction)?;
    let find = |name: &CStr| symbol(name).ok_or(Unknown::NoFunction);
    let (lock, unlock) = (find(c"assoc_mgr_lock")?, find(c"assoc_mgr_unlock")?);
    let name = find(c"slurmdb_qos_str")?;
    // assoc_mgr_lock_t is a level for each kind of record, of which that of QOS is the third in every
    // release; there are seven or eight, so this is room enough.
    let mut locks = [0u32; 16];
    locks[2] = READ_LOCK;
    // SAFETY: Slurm's functions with the signatures of src/common/assoc_mgr.h and slurmdb_defs.h; the list
    // is a global pointer that is read, and the name copied, under its lock.
    unsafe {
        let lock: Lock = std::mem::transmute::<*mut c_void, Lock>(lock);
        let unlock: Lock = std::mem::transmute::<*mut c_void, Lock>(unlock);
        let name: Name = std::mem::transmute::<*mut c_void, Name>(name);
        lock(locks.as_mut_ptr());
        let list = list.cast::<*mut c_void>().read();
        let found = match list.is_null() || number == 0 {
            true => std::ptr::null(),
            false => name(list, number),
        };
        let found =
            (!found.is_null()).then(|| CStr::from_ptr(found).to_string_lossy().into_owned());
        unlock(locks.as_mut_ptr());
        match list.is_null() {
            true => Err(Unknown::NoList),
            false => Ok(found),
        }
    }
}
