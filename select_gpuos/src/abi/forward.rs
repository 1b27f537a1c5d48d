//! The trampolines: every `select_p_*` function that gpuos does not change jumps straight into
//! cons_tres, with registers and stack as they came, so that no signature has to be known.

use std::arch::naked_asm;
use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// What a release's cons_tres lacks, that release never calls; should it be called all the same, the
/// answer is SLURM_ERROR.
extern "C" fn missing() -> c_int {
    -1
}

static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Loads cons_tres and points the trampolines at it.
pub fn open(path: &Path) -> Result<(), String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "path with NUL".to_owned())?;
    // SAFETY: a plain dlopen with Slurm's own flags; the constructors of a stock plugin do nothing.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) };
    if handle.is_null() {
        // SAFETY: dlerror gives null or a NUL-terminated message that lives to the next dl call of this thread.
        let why = unsafe {
            let message = libc::dlerror();
            if message.is_null() {
                "unknown error".into()
            } else {
                CStr::from_ptr(message).to_string_lossy()
            }
        };
        return Err(format!("{why}"));
    }
    HANDLE.store(handle, Ordering::Release);
    for (slot, name) in TABLE.iter().zip(NAMES) {
        slot.store(
            symbol(name).map_or(missing as *const () as usize, |address| address as usize),
            Ordering::Release,
        );
    }
    Ok(())
}

/// Address of a symbol of the loaded cons_tres.
pub fn symbol(name: &CStr) -> Option<*mut c_void> {
    let handle = HANDLE.load(Ordering::Acquire);
    if handle.is_null() {
        return None;
    }
    // SAFETY: a handle from dlopen that is never closed.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

macro_rules! forward {
    ($($index:literal $name:ident)*) => {
        const COUNT: usize = [$($index),*].len();

        static NAMES: [&CStr; COUNT] = [$(
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a symbol name"),
            }
        ),*];

        static TABLE: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

        $(
            /// Jumps to the function of the same name in cons_tres.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                naked_asm!(
                    "jmp qword ptr [rip + {table} + {offset}]",
                    table = sym TABLE, offset = const $index * 8,
                );
                #[cfg(target_arch = "aarch64")]
                naked_asm!(
                    "adrp x16, {table}",
                    "add x16, x16, :lo12:{table}",
                    "ldr x16, [x16, #{offset}]",
                    "br x16",
                    table = sym TABLE, offset = const $index * 8,
                );
            }
        )*
    };
}

forward! {
    0 select_p_get_info_from_plugin
    1 select_p_job_begin
    2 select_p_job_init
    3 select_p_job_mem_reduce
    4 select_p_job_ready
    5 select_p_job_resume
    6 select_p_job_signal
    7 select_p_job_suspend
    8 select_p_resv_test
    9 select_p_select_jobinfo_alloc
    10 select_p_select_jobinfo_copy
    11 select_p_select_jobinfo_free
    12 select_p_select_jobinfo_get
    13 select_p_select_jobinfo_pack
    14 select_p_select_jobinfo_set
    15 select_p_select_jobinfo_sprint
    16 select_p_select_jobinfo_unpack
    17 select_p_select_jobinfo_xstrdup
    18 select_p_select_nodeinfo_alloc
    19 select_p_select_nodeinfo_free
    20 select_p_select_nodeinfo_get
    21 select_p_select_nodeinfo_pack
    22 select_p_select_nodeinfo_set_all
    23 select_p_select_nodeinfo_unpack
    24 select_p_state_restore
    25 select_p_state_save
    26 select_p_step_finish
    27 select_p_step_pick_nodes
    28 select_p_step_start
    29 select_p_update_node_config
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handed over and given back in every way that a C ABI has: registers of both kinds, the stack, and a large
    /// answer by an address.
    type Call = unsafe extern "C" fn(
        u64,
        u64,
        u64,
        u64,
        u64,
        u64,
        u64,
        u64,
        u64,
        u64,
        f64,
        f64,
        f64,
        f64,
        f64,
        f64,
        f64,
        f64,
        f64,
        f64,
    ) -> Answer;

    #[repr(C)]
    #[derive(PartialEq, Debug)]
    struct Answer([u64; 10], [f64; 10]);

    #[allow(clippy::too_many_arguments, reason = "more than there are registers")]
    extern "C" fn callee(
        a: u64,
        b: u64,
        c: u64,
        d: u64,
        e: u64,
        f: u64,
        g: u64,
        h: u64,
        i: u64,
        j: u64,
        k: f64,
        l: f64,
        m: f64,
        n: f64,
        o: f64,
        p: f64,
        q: f64,
        r: f64,
        s: f64,
        t: f64,
    ) -> Answer {
        Answer(
            [a, b, c, d, e, f, g, h, i, j],
            [k, l, m, n, o, p, q, r, s, t],
        )
    }

    #[test]
    fn a_trampoline_hands_everything_on() {
        let last = &TABLE[COUNT - 1];
        last.store(callee as *const () as usize, Ordering::Release);
        let trampoline = select_p_update_node_config as *const ();
        // SAFETY: it jumps to `callee`, whose type this is.
        let answer = unsafe {
            std::mem::transmute::<*const (), Call>(trampoline)(
                1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, 10.5,
            )
        };
        last.store(0, Ordering::Release);
        let want = Answer(
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
            [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, 10.5],
        );
        assert_eq!(answer, want);
    }
}
