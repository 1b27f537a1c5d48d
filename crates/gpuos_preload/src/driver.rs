//! The driver's own functions: `libcuda.so.1` is opened when the first of them is wanted.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::table::{COUNT, ROWS};

pub(crate) use gpuos_driver::{Code, call, code};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

static REAL: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

/// The opened driver.
struct Opened {
    handle: usize,
    /// The lowest and the highest address of its code and data.
    span: (usize, usize),
    /// Rows by the address of their function; one that has a wrapper goes before one that has none.
    by_address: BTreeMap<usize, usize>,
}

thread_local! {
    /// This thread opens the driver: what that looks up is not ours.
    static OPENING: Cell<bool> = const { Cell::new(false) };
}

/// libc's function of a name that this library has itself.
///
/// glibc has them under two versions: of before and since 2.34. Both do the same.
pub(crate) fn libc_function(name: &CStr) -> usize {
    let versions: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"];
    let found = versions.iter().map(|version| {
        // SAFETY: C strings; the loader looks in the libraries after this one.
        let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) };
        found as usize
    });
    found.into_iter().find(|address| *address != 0).unwrap_or(0)
}

/// libc's `dlsym`; zero where there is none.
pub(crate) fn real_dlsym() -> usize {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    match FOUND.load(Ordering::Acquire) {
        0 => {
            let found = libc_function(c"dlsym");
            FOUND.store(found, Ordering::Release);
            found
        }
        found => found,
    }
}

/// What the loader finds under a name.
pub(crate) fn look(handle: usize, name: *const c_char) -> usize {
    let dlsym = real_dlsym();
    if dlsym == 0 {
        return 0;
    }
    // SAFETY: the address is dlsym's, and the arguments are those of a call of it.
    unsafe { std::mem::transmute::<usize, Dlsym>(dlsym)(handle as *mut c_void, name) as usize }
}

/// Whether this thread is opening the driver.
pub(crate) fn is_opening() -> bool {
    OPENING.get()
}

fn opened() -> Option<&'static Opened> {
    static OPENED: OnceLock<Option<Opened>> = OnceLock::new();
    if is_opening() {
        return None;
    }
    let open = || {
        OPENING.set(true);
        let opened = open();
        OPENING.set(false);
        opened
    };
    OPENED.get_or_init(open).as_ref()
}

fn open() -> Option<Opened> {
    // SAFETY: a C string. Its initialisers are the driver's, which the program is about to run anyway.
    let handle =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return None;
    }
    let mut by_address = BTreeMap::new();
    let mut first = 0;
    for (index, row) in ROWS.iter().enumerate() {
        let address = look(handle as usize, row.export.as_ptr());
        REAL[index].store(address, Ordering::Release);
        if address != 0 {
            first = address;
            let known = by_address.entry(address).or_insert(index);
            if ROWS[*known].wrapper.address() == 0 {
                *known = index;
            }
        }
    }
    Some(Opened {
        handle: handle as usize,
        span: span_of(first),
        by_address,
    })
}

/// Whether this library itself is at this address.
pub(crate) fn is_own(address: usize) -> bool {
    static SPAN: OnceLock<(usize, usize)> = OnceLock::new();
    // Not exported, so it is nobody else's.
    let span = *SPAN.get_or_init(|| span_of(is_own as *const () as usize));
    (span.0..span.1).contains(&address)
}

/// The path of the library that has something at this address.
pub(crate) fn library_of(address: usize) -> String {
    // SAFETY: a structure of pointers and numbers, for which zero is a value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address, which is only compared, and the structure.
    let found = unsafe { libc::dladdr(address as *const c_void, &raw mut info) } != 0;
    if !found || info.dli_fname.is_null() {
        return "another library".to_string();
    }
    // SAFETY: the loader's text, which stays as long as the library does.
    unsafe { CStr::from_ptr(info.dli_fname) }
        .to_string_lossy()
        .into_owned()
}

/// The addresses that a library takes which has something at `inside`.
fn span_of(inside: usize) -> (usize, usize) {
    struct Search {
        inside: usize,
        span: (usize, usize),
    }
    unsafe extern "C" fn each(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader gives a description of a library that is loaded, with so many headers, and the pointer of below.
        let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
        // SAFETY: as above.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let loaded = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD);
        let spans = loaded.map(|header| {
            let start = info.dlpi_addr as usize + header.p_vaddr as usize;
            (start, start + header.p_memsz as usize)
        });
        let Some(span) = spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))) else {
            return 0;
        };
        let found = (span.0..span.1).contains(&search.inside);
        if found {
            search.span = span;
        }
        found.into()
    }
    let mut search = Search {
        inside,
        span: (0, 0),
    };
    // SAFETY: the function is called before this returns only, with the pointer.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut search).cast()) };
    search.span
}

/// The driver's function of a row; zero where there is none.
#[inline]
pub(crate) fn real(index: usize) -> usize {
    match REAL[index].load(Ordering::Acquire) {
        0 => slow(index),
        address => address,
    }
}

#[cold]
fn slow(index: usize) -> usize {
    if opened().is_none() {
        return 0;
    }
    REAL[index].load(Ordering::Acquire)
}

/// Notes a function that the driver gave and does not export.
pub(crate) fn learn(index: usize, address: usize) {
    let _ = REAL[index].compare_exchange(0, address, Ordering::AcqRel, Ordering::Acquire);
}

/// The row whose function this is.
pub(crate) fn row_at(address: usize) -> Option<usize> {
    opened()?.by_address.get(&address).copied()
}

/// Whether the driver exports this under this name.
pub(crate) fn exports(name: *const c_char, address: usize) -> bool {
    opened().is_some_and(|opened| look(opened.handle, name) == address)
}

/// Whether the driver itself is at this address.
pub(crate) fn is_at(address: usize) -> bool {
    opened().is_some_and(|opened| (opened.span.0..opened.span.1).contains(&address))
}
