//! The process: what its environment grants it, and what stops all moving.

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use gpuos_memory::policy::NAMES;
use gpuos_memory::staging::Staging;
use gpuos_memory::table::BLOCK_MIB;

/// Bytes of a block.
pub(crate) const BLOCK: u64 = BLOCK_MIB << 20;

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
/// What decides which extents leave the GPU.
const POLICY: &str = "GPUOS_MEM_POLICY";

fn read(name: &str, value: Option<String>) -> Result<Option<u64>, String> {
    let Some(value) = value else { return Ok(None) };
    match value.parse::<u64>() {
        Ok(bytes) if bytes >= BLOCK => Ok(Some(bytes)),
        _ => Err(format!(
            "{name}='{}' is not a number of bytes, at least 2097152",
            value.escape_debug()
        )),
    }
}

fn read_grant(grant: Option<String>, hbm: Option<String>) -> Result<Option<Grant>, String> {
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
    *READ.get_or_init(granted)
}

fn granted() -> Option<Grant> {
    let grant =
        read_grant(std::env::var(GRANT).ok(), std::env::var(HBM).ok()).unwrap_or_else(|error| {
            say(format_args!(
                "{error}: the program runs without gpuos's memory"
            ));
            None
        })?;
    // A client of MPS shares its GPU's context with others: nobody can drain that.
    let pipe =
        std::env::var("CUDA_MPS_PIPE_DIRECTORY").unwrap_or_else(|_| "/tmp/nvidia-mps".to_string());
    if std::path::Path::new(&pipe).join("control").exists() {
        say(format_args!(
            "an MPS daemon answers in {pipe}, and MPS does not go with memory in tiers: the program runs without it"
        ));
        return None;
    }
    Some(grant)
}

/// The policy of a name, gpuos's where there is none.
fn read_policy(name: Option<String>) -> Result<&'static str, String> {
    let Some(name) = name else {
        return Ok(NAMES[0]);
    };
    let known = NAMES.into_iter().find(|known| *known == name);
    known.ok_or_else(|| {
        let name = name.escape_debug();
        format!("{POLICY}='{name}' is not one of {}", NAMES.join(", "))
    })
}

/// What is known of a device's kernels: nothing. With `GPUOS_PRELOAD_STAGE`, in tests, nobody looks whether the program is faster: builds without
/// debug assertions always do.
pub(crate) fn staging() -> Staging {
    match cfg!(debug_assertions) && std::env::var_os("GPUOS_PRELOAD_STAGE").is_some() {
        true => Staging::always(),
        false => Staging::new(),
    }
}

/// The name of the policy that the environment names.
pub(crate) fn policy() -> &'static str {
    static READ: OnceLock<&str> = OnceLock::new();
    READ.get_or_init(|| {
        read_policy(std::env::var(POLICY).ok()).unwrap_or_else(|error| {
            say(format_args!("{error}: {} is taken", NAMES[0]));
            NAMES[0]
        })
    })
}

/// A sentence for who runs the program.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    // Nothing can be done where standard error is closed.
    let _ = writeln!(std::io::stderr(), "gpuos: {what}");
}

static ENDING: AtomicBool = AtomicBool::new(false);

/// The process ends: nothing is begun any more.
pub(crate) fn end() {
    ENDING.store(true, Ordering::SeqCst);
}

/// Whether the process ends.
pub(crate) fn is_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_a_number_of_bytes() {
        let parse = |grant: Option<&str>, hbm: Option<&str>| {
            let texts = [grant, hbm].map(|text| text.map(String::from));
            let [grant, hbm] = texts;
            read_grant(grant, hbm)
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

    #[test]
    fn a_policy_is_one_of_those_that_there_are() {
        let read = |name: &str| read_policy(Some(name.to_owned()));
        assert_eq!(read_policy(None), Ok("gpuos"));
        for name in NAMES {
            assert_eq!(read(name), Ok(name));
        }
        for wrong in ["", "LRU", "belady", "\u{1b}[2J"] {
            let error = read(wrong).unwrap_err();
            let names = error.contains("is not one of gpuos, lru, clock, 2q, arc");
            assert!(names && !error.contains('\u{1b}'), "{error}");
        }
    }
}
