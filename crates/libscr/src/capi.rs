//! The functions of `include/scr.h`. No panic leaves them: it is an error as any other.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::session::{CHECKPOINT, Problem, Session};
use crate::settings::{Asked, Settings, read};
use crate::told::acts;

const SUCCESS: c_int = 0;
const FAILURE: c_int = 1;

/// `SCR_MAX_FILENAME`, with the NUL.
const LONGEST: usize = 1024;

const VERSION: &CStr = match CStr::from_bytes_with_nul(
    concat!("v3.1.0 (gpuos ", env!("CARGO_PKG_VERSION"), ")\0").as_bytes(),
) {
    Ok(version) => version,
    Err(_) => c"v3.1.0",
};

/// SCR's functions have no handle: there is one session in a process.
struct Library {
    settings: Option<Settings>,
    session: Option<Session>,
    /// Calls whose failure was told: each tells of it once.
    told: BTreeSet<&'static str>,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library {
    settings: None,
    session: None,
    told: BTreeSet::new(),
});

impl Library {
    fn tell(&mut self, call: &'static str, why: &str) {
        if self.told.insert(call) {
            eprintln!("libscr: {why}");
        }
    }
}

/// Runs a call that needs no session.
fn run(call: &'static str, what: impl FnOnce(&mut Library) -> Result<(), Problem>) -> c_int {
    let done = catch_unwind(AssertUnwindSafe(|| {
        let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
        match what(&mut library) {
            Ok(()) => SUCCESS,
            Err(why) => {
                if let Some(why) = why {
                    library.tell(call, &why);
                }
                FAILURE
            }
        }
    }));
    done.unwrap_or(FAILURE)
}

/// Runs a call between `SCR_Init` and `SCR_Finalize`.
fn within(call: &'static str, what: impl FnOnce(&mut Session) -> Result<(), Problem>) -> c_int {
    run(call, |library| match &mut library.session {
        Some(session) => what(session),
        None => Err(Some(format!(
            "{call} wants an SCR_Init before it that succeeds"
        ))),
    })
}

/// Begins; waits until all ranks have.
#[unsafe(no_mangle)]
pub extern "C" fn SCR_Init() -> c_int {
    run("SCR_Init", |library| {
        if library.session.is_some() {
            return Err(Some("SCR_Init was called before".into()));
        }
        let settings = library.settings.get_or_insert_default();
        library.session = Some(Session::begin(settings)?);
        Ok(())
    })
}

/// Ends.
#[unsafe(no_mangle)]
pub extern "C" fn SCR_Finalize() -> c_int {
    run("SCR_Finalize", |library| match library.session.take() {
        Some(_ended) => Ok(()),
        None => Err(Some(
            "SCR_Finalize wants an SCR_Init before it that succeeds".into(),
        )),
    })
}

/// Sets, takes back or gives a setting; what is given is the caller's to free.
///
/// # Safety
///
/// `config` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SCR_Config(config: *const c_char) -> *const c_char {
    // SAFETY: as this function's own.
    let text = unsafe { bytes(config) }.map(|text| String::from_utf8_lossy(text).into_owned());
    let mut value = None;
    run("SCR_Config", |library| {
        let text = text.ok_or_else(|| Some("SCR_Config: NULL is no text".into()))?;
        let running = library.session.is_some();
        let settings = library.settings.get_or_insert_default();
        match read(&text).map_err(Some)? {
            Asked::Get(parent, key) => {
                let set = settings.get(parent.as_ref(), &key).map(str::to_string);
                let variable = || std::env::var(&key).ok().filter(|_| parent.is_none());
                value = set.or_else(variable);
            }
            Asked::Set(..) if running => {
                return Err(Some(format!(
                    "SCR_Config({text:?}) comes after SCR_Init: too late"
                )));
            }
            Asked::Set(parent, values) => {
                let acts = parent.is_none() && values.iter().all(|(key, _)| acts(key));
                settings.set(parent, values);
                if !acts {
                    library.tell(
                        "setting",
                        &format!(
                            "{text:?} has no effect: how often checkpoints are made and where they are kept is what sbatch --gpuos-checkpoint says"
                        ),
                    );
                }
            }
        }
        Ok(())
    });
    value.map_or(ptr::null(), |value| given(value.as_bytes()).cast_const())
}

/// `SCR_Configf` of a program that was compiled with SCR's own header; ours has it in itself.
///
/// # Safety
///
/// `format` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SCR_Configf(format: *const c_char) -> *const c_char {
    // SAFETY: as this function's own.
    if unsafe { bytes(format) }.is_some_and(|text| text.contains(&b'%')) {
        run("SCR_Configf", |_| {
            Err(Some(
                "SCR_Configf with a % works in programs that are compiled with gpuos's scr.h alone"
                    .into(),
            ))
        });
        return ptr::null();
    }
    // SAFETY: as this function's own.
    unsafe { SCR_Config(format) }
}

/// Whether a checkpoint should be taken now; the same on all ranks.
///
/// # Safety
///
/// `flag` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SCR_Need_checkpoint(flag: *mut c_int) -> c_int {
    let mut need = false;
    let code = within("SCR_Need_checkpoint", |session| {
        need = session.need()?;
        Ok(())
    });
    // SAFETY: as this function's own.
    unsafe { set(flag, need, code) }
}

/// A checkpoint begins.
#[unsafe(no_mangle)]
pub extern "C" fn SCR_Start_checkpoint() -> c_int {
    within("SCR_Start_output", |session| {
        session.start(None, CHECKPOINT)
    })
}

/// A checkpoint is complete.
#[unsafe(no_mangle)]
pub extern "C" fn SCR_Complete_checkpoint(valid: c_int) -> c_int {
    SCR_Complete_output(valid)
}

/// A dataset begins.
///
/// # Safety
///
/// `name` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SCR_Start_output(name: *const c_char, flags: c_int) -> c_int {
    // SAFETY: as this function's own.
    let name = unsafe { bytes(name) };
    within("SCR_Start_output", |session| {
        if name.is_some_and(|name| name.len() >= LONGEST) {
            return Err(Some(format!(
                "SCR_Start_output: names have at most {} bytes",
                LONGEST - 1
            )));
        }
        session.start(name, flags)
    })
}

/// A dataset is complete.
#[unsafe(no_mangle)]
pub extern "C" fn SCR_Complete_output(valid: c_int) -> c_int {
    within("SCR_Complete_output", |session| {
        session.complete(valid != 0)
    })
}

/// Where to open a file. Not collective.
///
/// # Safety
///
/// `name` is NULL or a text; `file` is NULL or has room for `SCR_MAX_FILENAME` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SCR_Route_file(name: *const c_char, file: *mut c_char) -> c_int {
    // SAFETY: as this function's own.
    let name = unsafe { bytes(name) };
    within("SCR_Route_file", |session| {
        let name = name.ok_or_else(|| Some("SCR_Route_file: NULL is no name".into()))?;
        let routed = session.route(name)?;
        // SAFETY: as this function's own.
        match unsafe { text(&routed, file) } {
            true if !file.is_null() => Ok(()),
            _ => Err(Some(format!(
                "SCR_Route_file: the path has {} bytes, and SCR_MAX_FILENAME is {LONGEST}",
                routed.len()
            ))),
        }
    })
}

/// Whether there is a checkpoint to go on from.
///
/// # Safety
///
/// `flag` may be written; `name` is NULL or has room for `SCR_MAX_FILENAME` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SCR_Have_restart(flag: *mut c_int, name: *mut c_char) -> c_int {
    let mut have = false;
    let code = within("SCR_Have_restart", |session| {
        if let Some(known) = session.restart()? {
            have = true;
            // SAFETY: as this function's own; names are short enough where they are taken.
            unsafe { text(known, name) };
        }
        Ok(())
    });
    // SAFETY: as this function's own.
    unsafe { set(flag, have, code) }
}

/// Loading begins.
///
/// # Safety
///
/// `name` is NULL or has room for `SCR_MAX_FILENAME` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SCR_Start_restart(name: *mut c_char) -> c_int {
    within("SCR_Start_restart", |session| {
        let known = session.load()?;
        // SAFETY: as this function's own; names are short enough where they are taken.
        unsafe { text(&known, name) };
        Ok(())
    })
}

/// Loading has ended.
#[unsafe(no_mangle)]
pub extern "C" fn SCR_Complete_restart(valid: c_int) -> c_int {
    within("SCR_Complete_restart", |session| session.loaded(valid != 0))
}

/// Whether the program should end.
///
/// # Safety
///
/// `flag` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SCR_Should_exit(flag: *mut c_int) -> c_int {
    let mut ends = false;
    let code = within("SCR_Should_exit", |session| {
        ends = session.ends()?;
        Ok(())
    });
    // SAFETY: as this function's own.
    unsafe { set(flag, ends, code) }
}

/// The version of SCR whose functions these are, and ours; not to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn SCR_Get_version() -> *mut c_char {
    VERSION.as_ptr().cast_mut()
}

/// Takes a checkpoint to go on from: only the newest one can be had.
///
/// # Safety
///
/// `name` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SCR_Current(name: *const c_char) -> c_int {
    // SAFETY: as this function's own.
    let name = unsafe { bytes(name) };
    within("SCR_Current", |session| match session.restart()? {
        Some(known) if Some(known) == name => Ok(()),
        _ => Err(Some(
            "SCR_Current: gpuos offers its newest checkpoint alone, by SCR_Have_restart".into(),
        )),
    })
}

/// Not supported.
///
/// # Safety
///
/// None: the name is not read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SCR_Drop(_name: *const c_char) -> c_int {
    within("SCR_Drop", |_| {
        Err(Some("SCR_Drop: gpuos has no index of datasets".into()))
    })
}

/// Not supported.
///
/// # Safety
///
/// None: the name is not read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SCR_Delete(_name: *const c_char) -> c_int {
    within("SCR_Delete", |_| {
        Err(Some("SCR_Delete: gpuos removes older checkpoints itself; `gpuos ckpt prune` removes those of a job".into()))
    })
}

/// The bytes of a text; `None` for NULL.
///
/// # Safety
///
/// `text` is NULL or a text that stays for as long as the result is used.
unsafe fn bytes<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: by the contract, the text has its NUL.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Writes a flag after a call; a call without a place for it fails.
///
/// # Safety
///
/// `flag` is NULL or may be written.
unsafe fn set(flag: *mut c_int, value: bool, code: c_int) -> c_int {
    if flag.is_null() {
        return FAILURE;
    }
    // SAFETY: not null, and may be written by the contract.
    unsafe { flag.write(value.into()) };
    code
}

/// Writes a text and its NUL where there is a place for it; `false`: it is too long.
///
/// # Safety
///
/// `place` is NULL or has room for `SCR_MAX_FILENAME` bytes.
unsafe fn text(value: &[u8], place: *mut c_char) -> bool {
    if value.len() >= LONGEST {
        return false;
    }
    if !place.is_null() {
        // SAFETY: there is room for the text and its NUL; the caller's memory is none of ours.
        unsafe {
            ptr::copy_nonoverlapping(value.as_ptr().cast(), place, value.len());
            place.add(value.len()).write(0);
        }
    }
    true
}

/// A text for `free` of C; null without memory.
fn given(value: &[u8]) -> *mut c_char {
    // SAFETY: memory of that size, which is written up to its end before anybody reads it.
    unsafe {
        let place = libc::malloc(value.len() + 1).cast::<c_char>();
        if !place.is_null() {
            ptr::copy_nonoverlapping(value.as_ptr().cast(), place, value.len());
            place.add(value.len()).write(0);
        }
        place
    }
}
