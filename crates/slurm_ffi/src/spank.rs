//! SPANK's public interface (slurm/spank.h), found in the process at run time.
//!
//! The interface is the same from 22.05 to 26.05: an opaque handle, functions
//! of libslurmfull.so, and `struct spank_option`. Nothing here depends on a
//! layout that changes between releases.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;

use crate::api;

/// `spank_t`: what Slurm hands to every hook.
pub type RawHandle = *mut c_void;

/// `spank_opt_cb_f`: value of the option's `val`, argument, non-zero on the node.
pub type OptionCallback = unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int;

/// `struct spank_option`. Slurm copies it when it is registered.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SpankOption {
    name: *const c_char,
    arginfo: *const c_char,
    usage: *const c_char,
    has_arg: c_int,
    val: c_int,
    cb: Option<OptionCallback>,
}

impl SpankOption {
    /// An option that takes a value. `name` without dashes, `arginfo` as `--help` shows it after `=`.
    pub const fn with_value(
        name: &'static CStr,
        arginfo: &'static CStr,
        usage: &'static CStr,
        val: c_int,
        cb: OptionCallback,
    ) -> SpankOption {
        SpankOption {
            name: name.as_ptr(),
            arginfo: arginfo.as_ptr(),
            usage: usage.as_ptr(),
            has_arg: 1,
            val,
            cb: Some(cb),
        }
    }
}

/// Where a plugin runs (`spank_context_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Context {
    /// srun.
    Local,
    /// slurmstepd.
    Remote,
    /// sbatch, salloc.
    Allocator,
    /// slurmd, prolog and epilog, or not known: gpuos has nothing to do there.
    Other,
}

/// The longest value read from a job's environment, in bytes.
const MAX_VALUE: usize = 1 << 20;

/// `S_JOB_UID`, `S_JOB_GID`, `S_JOB_ID`, `S_JOB_STEPID`, `S_JOB_NODEID`, `S_JOB_LOCAL_TASK_COUNT` and `S_TASK_ID` of
/// `enum spank_item`.
const S_JOB_UID: c_int = 0;
const S_JOB_GID: c_int = 1;
const S_JOB_ID: c_int = 2;
const S_JOB_STEPID: c_int = 3;
const S_JOB_NODEID: c_int = 5;
const S_JOB_LOCAL_TASK_COUNT: c_int = 6;
const S_TASK_ID: c_int = 11;

/// A hook's handle, valid while the hook runs.
#[derive(Clone, Copy, Debug)]
pub struct Spank<'a> {
    raw: RawHandle,
    hook: PhantomData<&'a ()>,
}

impl<'a> Spank<'a> {
    /// Wraps the handle of the hook that is running.
    ///
    /// # Safety
    /// `raw` is the `spank_t` that Slurm passed to the hook, and `'a` ends with the hook.
    pub unsafe fn new(raw: RawHandle) -> Spank<'a> {
        Spank {
            raw,
            hook: PhantomData,
        }
    }

    /// Where the plugin runs.
    pub fn context(self) -> Context {
        let Some(address) = api::symbol(c"spank_context") else {
            return Context::Other;
        };
        // SAFETY: spank_context() takes nothing and returns an enum, in every release.
        let context = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(address)()
        };
        match context {
            1 => Context::Local,
            2 => Context::Remote,
            3 => Context::Allocator,
            _ => Context::Other,
        }
    }

    /// Registers an option; only from `slurm_spank_init`. Returns whether Slurm took it.
    pub fn register(self, option: &SpankOption) -> bool {
        type Register = unsafe extern "C" fn(RawHandle, *const SpankOption) -> c_int;
        let Some(address) = api::symbol(c"spank_option_register") else {
            return false;
        };
        // SAFETY: signature of spank.h; the handle is live (Spank::new) and Slurm copies the option,
        // whose strings are 'static.
        unsafe { std::mem::transmute::<*mut c_void, Register>(address)(self.raw, option) == 0 }
    }

    /// A variable of the job's environment (slurmstepd only). `None` when it is absent, not UTF-8 or
    /// longer than a MiB.
    pub fn getenv(self, name: &CStr) -> Option<String> {
        type Getenv = unsafe extern "C" fn(RawHandle, *const c_char, *mut c_char, c_int) -> c_int;
        let address = api::symbol(c"spank_getenv")?;
        // SAFETY: signature of spank.h.
        let getenv = unsafe { std::mem::transmute::<*mut c_void, Getenv>(address) };
        let mut size = 4096;
        while size <= MAX_VALUE {
            let mut buffer = vec![0u8; size];
            // SAFETY: the handle is live, the name NUL-terminated, and the buffer has `size` bytes.
            let rc = unsafe {
                getenv(
                    self.raw,
                    name.as_ptr(),
                    buffer.as_mut_ptr().cast(),
                    size as c_int,
                )
            };
            let len = buffer.iter().position(|b| *b == 0)?;
            if rc == 0 {
                buffer.truncate(len);
                return String::from_utf8(buffer).ok();
            }
            // The code for "buffer too small" moved between releases: a full buffer says the same.
            if len + 1 < size {
                return None;
            }
            size *= 16;
        }
        None
    }

    /// Sets a variable of the job's environment (slurmstepd only), over an old value.
    pub fn setenv(self, name: &CStr, value: &str) -> bool {
        type Setenv = unsafe extern "C" fn(RawHandle, *const c_char, *const c_char, c_int) -> c_int;
        self.set(
            c"spank_setenv",
            name,
            value,
            |address, handle, name, value| {
                // SAFETY: signature of spank.h; arguments as `set` promises.
                unsafe {
                    std::mem::transmute::<*mut c_void, Setenv>(address)(handle, name, value, 1)
                }
            },
        )
    }

    /// Removes a variable from the job's environment (slurmstepd only).
    pub fn unsetenv(self, name: &CStr) -> bool {
        self.unset(c"spank_unsetenv", name)
    }

    /// Sets an entry of the job's `spank_job_env` (sbatch, salloc, srun), over an old value.
    pub fn job_control_setenv(self, name: &CStr, value: &str) -> bool {
        type Setenv = unsafe extern "C" fn(RawHandle, *const c_char, *const c_char, c_int) -> c_int;
        self.set(
            c"spank_job_control_setenv",
            name,
            value,
            |address, handle, name, value| {
                // SAFETY: signature of spank.h; arguments as `set` promises.
                unsafe {
                    std::mem::transmute::<*mut c_void, Setenv>(address)(handle, name, value, 1)
                }
            },
        )
    }

    /// Removes an entry of the job's `spank_job_env` (sbatch, salloc, srun).
    pub fn job_control_unsetenv(self, name: &CStr) -> bool {
        self.unset(c"spank_job_control_unsetenv", name)
    }

    /// User of the job (slurmstepd).
    pub fn job_uid(self) -> Option<u32> {
        self.item_u32(S_JOB_UID)
    }

    /// Group of the job (slurmstepd).
    pub fn job_gid(self) -> Option<u32> {
        self.item_u32(S_JOB_GID)
    }

    /// Id of the job (slurmstepd).
    pub fn job_id(self) -> Option<u32> {
        self.item_u32(S_JOB_ID)
    }

    /// Step id of the running step (slurmstepd): an ordinary number, or one of `SLURM_BATCH_SCRIPT`,
    /// `SLURM_EXTERN_CONT`, `SLURM_INTERACTIVE_STEP`.
    pub fn step_id(self) -> Option<u32> {
        self.item_u32(S_JOB_STEPID)
    }

    /// Index of this node among the nodes of the step (slurmstepd).
    pub fn node_index(self) -> Option<u32> {
        self.item_u32(S_JOB_NODEID)
    }

    /// Tasks of the step on this node (slurmstepd).
    pub fn local_tasks(self) -> Option<u32> {
        self.item_u32(S_JOB_LOCAL_TASK_COUNT)
    }

    /// Number of the task on this node, from 0 on (slurmstepd, in the hooks of a task).
    pub fn local_task(self) -> Option<u32> {
        self.item_u32(S_TASK_ID)
    }

    fn item_u32(self, item: c_int) -> Option<u32> {
        type GetItem = unsafe extern "C" fn(RawHandle, c_int, ...) -> c_int;
        let address = api::symbol(c"spank_get_item")?;
        let mut value = 0u32;
        // SAFETY: signature of spank.h; all items used here take one `uint32_t *`, or a `uid_t *` or `int *` of that size.
        let rc = unsafe {
            std::mem::transmute::<*mut c_void, GetItem>(address)(self.raw, item, &raw mut value)
        };
        (rc == 0).then_some(value)
    }

    fn set(
        self,
        function: &CStr,
        name: &CStr,
        value: &str,
        call: impl FnOnce(*mut c_void, RawHandle, *const c_char, *const c_char) -> c_int,
    ) -> bool {
        let (Some(address), Ok(value)) = (api::symbol(function), CString::new(value)) else {
            return false;
        };
        // The handle is live and both strings are NUL-terminated for the length of the call.
        call(address, self.raw, name.as_ptr(), value.as_ptr()) == 0
    }

    fn unset(self, function: &CStr, name: &CStr) -> bool {
        type Unset = unsafe extern "C" fn(RawHandle, *const c_char) -> c_int;
        let Some(address) = api::symbol(function) else {
            return false;
        };
        // SAFETY: both functions passed here have this signature in spank.h; the handle is live and the
        // name NUL-terminated.
        unsafe { std::mem::transmute::<*mut c_void, Unset>(address)(self.raw, name.as_ptr()) == 0 }
    }
}

/// Says what is wrong to the person at the terminal: `sbatch: error: TEXT`.
pub fn print_error(text: &str) {
    print(c"slurm_error", text);
}

/// Says something to the user of a step on its standard error: `slurmstepd: TEXT`. From `slurm_spank_user_init`
/// on: before it only slurmd's log is there.
pub fn print_note(text: &str) {
    print(c"slurm_spank_log", text);
}

fn print(function: &CStr, text: &str) {
    type Log = unsafe extern "C" fn(*const c_char, ...);
    let Ok(line) = CString::new(text.replace('\0', "?")) else {
        return;
    };
    match api::symbol(function) {
        // SAFETY: slurm_error and slurm_spank_log of spank.h are printf-like; the format has one %s and its argument is
        // NUL-terminated and lives over the call.
        Some(address) => unsafe {
            std::mem::transmute::<*mut c_void, Log>(address)(c"%s".as_ptr(), line.as_ptr());
        },
        None => eprintln!("error: {text}"),
    }
}
