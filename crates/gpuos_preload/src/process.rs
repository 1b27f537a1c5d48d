//! The process: what its environment grants it, what stops all moving, `fork` and the end.

use std::fmt;
use std::io::Write;
use std::sync::Once;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{driver, gate, memory, mover, mutant};

/// What the process may use of each GPU, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    /// In all: what the program sees as the GPU's memory.
    pub(crate) bytes: u64,
    /// Of these, of the GPU's own memory; what the GPU has, where nothing is said.
    pub(crate) hbm: Option<u64>,
}

/// Bytes that the process is granted, in all and of the GPU's own memory.
pub(crate) const GRANT: &str = "GPUOS_MEM_GRANT";
const HBM: &str = "GPUOS_MEM_HBM";

fn read(name: &str, value: Option<String>) -> Result<Option<u64>, String> {
    let Some(value) = value else { return Ok(None) };
    match value.parse::<u64>() {
        Ok(bytes) if bytes >= memory::BLOCK => Ok(Some(bytes)),
        _ => Err(format!(
            "{name}='{}' is not a number of bytes, at least 2097152",
            value.escape_debug()
        )),
    }
}

fn parse(grant: Option<String>, hbm: Option<String>) -> Result<Option<Grant>, String> {
    let Some(bytes) = read(GRANT, grant)? else {
        return Ok(None);
    };
    Ok(Some(Grant {
        bytes,
        hbm: read(HBM, hbm)?,
    }))
}

/// What the environment grants. Without a grant this library does nothing.
pub(crate) fn grant() -> Option<Grant> {
    static READ: OnceLock<Option<Grant>> = OnceLock::new();
    *READ.get_or_init(|| {
        let grant = parse(std::env::var(GRANT).ok(), std::env::var(HBM).ok()).unwrap_or_else(|error| {
            say(format_args!("{error}: the program runs without gpuos's memory"));
            None
        })?;
        // A client of MPS shares its GPU's context with others: nobody can drain that.
        let pipe = std::env::var("CUDA_MPS_PIPE_DIRECTORY").unwrap_or_else(|_| "/tmp/nvidia-mps".to_string());
        if std::path::Path::new(&pipe).join("control").exists() {
            say(format_args!("an MPS daemon answers in {pipe}, and MPS does not go with memory in tiers: the program runs without it"));
            return None;
        }
        Some(grant)
    })
}

/// A sentence for who runs the program.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    // Nothing can be done where standard error is closed.
    let _ = writeln!(std::io::stderr(), "gpuos: {what}");
}

static PINNED: AtomicBool = AtomicBool::new(false);

/// From now on nothing of this process is moved. Said once.
pub(crate) fn pin(why: fmt::Arguments<'_>) {
    if grant().is_some() && !PINNED.swap(true, Ordering::SeqCst) {
        say(format_args!(
            "{why}: from now on all memory of the process stays where it is"
        ));
    }
}

/// Whether nothing is moved any more.
pub(crate) fn is_pinned() -> bool {
    PINNED.load(Ordering::SeqCst)
}

/// The driver was initialised. From here on a child of `fork` has none.
pub(crate) fn begin() {
    static BEGUN: Once = Once::new();
    if grant().is_none() {
        return;
    }
    BEGUN.call_once(|| {
        extern "C" fn child() {
            if !mutant::is(mutant::Mutant::Fork) {
                gate::off();
            }
        }
        extern "C" fn end() {
            mover::stop();
        }
        // SAFETY: functions without arguments. What runs in the child stores one word, and takes no lock.
        let registered = unsafe { libc::pthread_atfork(None, None, Some(child)) == 0 && libc::atexit(end) == 0 };
        if registered && driver::real(crate::table::index::cuMemAddressReserve) != 0 {
            gate::on();
            mover::begin();
        } else {
            say(format_args!("the driver has no virtual memory, or libc no room for a handler: the program runs without gpuos's memory"));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_a_number_of_bytes() {
        let parse = |grant: Option<&str>, hbm: Option<&str>| {
            super::parse(grant.map(Into::into), hbm.map(Into::into))
        };
        assert_eq!(parse(None, Some("5")), Ok(None));
        let grant = Grant {
            bytes: 1 << 30,
            hbm: None,
        };
        assert_eq!(parse(Some("1073741824"), None), Ok(Some(grant)));
        let hbm = Some(4 << 20);
        assert_eq!(
            parse(Some("1073741824"), Some("4194304")),
            Ok(Some(Grant { hbm, ..grant }))
        );
        for wrong in ["", "1", "-1", "80G", "2097151", "1e9", "\u{1b}[2J"] {
            let error = parse(Some(wrong), None).unwrap_err();
            assert!(
                error.contains("GPUOS_MEM_GRANT") && !error.contains('\u{1b}'),
                "{error}"
            );
            assert!(parse(Some("1073741824"), Some(wrong)).is_err());
        }
    }
}
