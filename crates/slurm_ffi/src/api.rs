//! Functions of Slurm that gpuos calls, found in the daemon at run time.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// Address of an exported symbol of the running program or its libraries.
pub fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is NUL-terminated; dlsym has no other precondition.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// slurmctld's record of a job, null where it has none; `None` in a program without jobs.
pub fn find_job_record(id: u32) -> Option<*mut c_void> {
    static FOUND: OnceLock<Option<unsafe extern "C" fn(u32) -> *mut c_void>> = OnceLock::new();
    let find = (*FOUND.get_or_init(|| {
        // SAFETY: slurmctld's job_record_t *find_job_record(uint32_t), the same in every known release.
        symbol(c"find_job_record").map(|address| unsafe { std::mem::transmute(address) })
    }))?;
    // SAFETY: it only looks the number up in its table of jobs.
    Some(unsafe { find(id) })
}

/// slurmctld's record of a partition, null where it has none; `None` in a program without partitions, and for a text
/// that can be no name.
pub fn find_part_record(name: &str) -> Option<*mut c_void> {
    let name = std::ffi::CString::new(name).ok()?;
    type Find = unsafe extern "C" fn(*const c_char) -> *mut c_void;
    let address = symbol(c"find_part_record")?;
    // SAFETY: slurmctld's part_record_t *find_part_record(char *), the same in every known release, which only looks
    // the name up in its list of partitions.
    unsafe {
        Some(std::mem::transmute::<*mut c_void, Find>(address)(
            name.as_ptr(),
        ))
    }
}

/// Has slurmctld's main scheduler look for work as soon as it can, as slurmctld does itself after each epilog. `false`: this is no slurmctld,
/// or one of another make.
///
/// It may be called under any of slurmctld's locks: the function counts a request under a lock of its own, which is held for moments only
/// and under which nobody takes another one, and wakes the thread that does the work.
pub fn schedule() -> bool {
    static FOUND: OnceLock<Option<unsafe extern "C" fn(bool)>> = OnceLock::new();
    let found = *FOUND.get_or_init(|| {
        // So plain a name may be another library's.
        let address = symbol(c"schedule")
            .filter(|own| object_of(*own) == symbol(c"find_job_record").and_then(object_of))?;
        // SAFETY: slurmctld's void schedule(bool full_queue), the same, body and all, in each release from 22.05.0 to 26.05.3 and in the
        // branches after them (read). No plugin of gpuos acts on a release that is not known.
        Some(unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(bool)>(address) })
    });
    let Some(schedule) = found else {
        return false;
    };
    // SAFETY: as above. `false`: as many jobs as slurmctld looks at when something has ended, not all.
    unsafe { schedule(false) };
    true
}

/// Where the program or library begins that has an address in it.
fn object_of(address: *mut c_void) -> Option<usize> {
    // SAFETY: Dl_info is plain data, for which zeros are a value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr only looks the address up, and writes to the record that is handed to it.
    let found = unsafe { libc::dladdr(address, &raw mut info) };
    (found != 0).then_some(info.dli_fbase as usize)
}

macro_rules! api {
    ($(#[$about:meta])* $name:ident { $(#[$doc:meta] $field:ident = $symbol:literal : fn($($arg:ty),*) $(-> $ret:ty)?;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        pub struct $name { $(#[$doc] pub $field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)* }

        impl $name {
            fn find() -> Result<$name, &'static str> {
                Ok($name { $($field: {
                    let address = $crate::api::symbol($symbol).ok_or($symbol.to_str().unwrap_or("?"))?;
                    // SAFETY: the symbol is Slurm's function of that name, whose signature is the same
                    // in all releases of data/versions.txt (checked by reading them).
                    unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(address)
                    }
                },)* })
            }

            /// The functions, looked up once; the error names the first one that this daemon lacks.
            pub fn get() -> Result<&'static $name, &'static str> {
                static FOUND: std::sync::OnceLock<Result<$name, &'static str>> = std::sync::OnceLock::new();
                FOUND.get_or_init($name::find)
                    .as_ref()
                    .map_err(|missing| *missing)
            }
        }
    };
}
pub(crate) use api;

/// Callback of `slurm_list_for_each`: item, argument; negative stops.
pub type ForEach = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

api! {
    /// The functions of Slurm that the plugins call, with the signature that every known release
    /// gives them. Only `slurm_`-prefixed exports and a few that never had a prefix.
    Api {
        /// `bitstr_t *bit_copy(bitstr_t *)`
        bit_copy = c"slurm_bit_copy": fn(*mut c_void) -> *mut c_void;
        /// `void bit_copybits(bitstr_t *dest, bitstr_t *src)`
        bit_copybits = c"slurm_bit_copybits": fn(*mut c_void, *mut c_void);
        /// `bitstr_t *bit_alloc(bitoff_t)`
        bit_alloc = c"slurm_bit_alloc": fn(i64) -> *mut c_void;
        /// `void bit_free(bitstr_t **)`
        bit_free = c"slurm_bit_free": fn(*mut *mut c_void);
        /// `int list_for_each(List, ListForF, void *)`
        list_for_each = c"slurm_list_for_each": fn(*mut c_void, ForEach, *mut c_void) -> c_int;
        /// `void list_destroy(List)`
        list_destroy = c"slurm_list_destroy": fn(*mut c_void);
        /// `void free_job_resources(job_resources_t **)`
        free_job_resources = c"free_job_resources": fn(*mut *mut c_void);
        /// `void *slurm_xcalloc(count, size, clear, try, file, line, func)`
        xcalloc = c"slurm_xcalloc": fn(usize, usize, bool, bool, *const c_char, c_int, *const c_char) -> *mut c_void;
        /// `void slurm_xfree(void **)`
        xfree = c"slurm_xfree": fn(*mut *mut c_void);
        /// `node_record_t *find_node_record(char *)`
        find_node_record = c"find_node_record": fn(*const c_char) -> *mut c_void;
        /// `uint32_t gres_build_id(char *)`
        gres_build_id = c"gres_build_id": fn(*const c_char) -> u32;
    }
}

impl Api {
    /// A copy of `text` on Slurm's heap, to be freed by Slurm (`xfree`). NUL bytes end it early.
    pub fn xstrdup(&self, text: &str) -> *mut c_char {
        let bytes = text.as_bytes();
        let len = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        // SAFETY: xcalloc in "try" mode returns zeroed memory of len + 1 bytes or null; `bytes` has `len` bytes.
        unsafe {
            let copy = (self.xcalloc)(
                1,
                len + 1,
                true,
                true,
                c"gpuos".as_ptr(),
                0,
                c"xstrdup".as_ptr(),
            );
            if !copy.is_null() {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy.cast(), len);
            }
            copy.cast()
        }
    }

    /// An array of so many null pointers on Slurm's heap, to be freed by Slurm (`xfree`); null where there is no memory.
    pub fn xcalloc_pointers(&self, count: usize) -> *mut *mut c_char {
        // SAFETY: xcalloc in "try" mode returns zeroed memory or null.
        let array = unsafe {
            (self.xcalloc)(
                count,
                size_of::<*mut c_char>(),
                true,
                true,
                c"gpuos".as_ptr(),
                0,
                c"xcalloc_pointers".as_ptr(),
            )
        };
        array.cast()
    }
}
