//! Names and versions of all functions of CUDA's driver, and what `cuGetProcAddress` answers.
//!
//! `data/functions.tsv` has a row for each export: the name that is asked for, the CUDA version that
//! brought this form of it, and the export. It was made of the lists of functions by version in
//! cudarc 0.19.10 (12.0 to 13.4) and of the versions in the names of `PFN_cu…_vVERSION` in CUDA's
//! cudaTypedefs.h (before 12.0); older forms, and those for OpenGL that programs ask for, were added by hand.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::engine::exports;

/// A form of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// CUDA version that brought it, as 1000 × major + 10 × minor.
    pub since: u32,
    /// The symbol.
    pub export: &'static str,
}

/// Why there is no address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// No function has this name, or none that the driver's version knows.
    Name,
    /// Its first form came after the version that the caller asked for.
    Version,
}

/// Every function's forms, the oldest first.
pub fn functions() -> &'static BTreeMap<&'static str, Vec<Form>> {
    static FUNCTIONS: OnceLock<BTreeMap<&str, Vec<Form>>> = OnceLock::new();
    FUNCTIONS.get_or_init(|| {
        let mut functions = BTreeMap::<&str, Vec<Form>>::new();
        for line in include_str!("../../data/functions.tsv").lines() {
            let mut fields = line.split('\t');
            if let (Some(name), Some(since), Some(export)) =
                (fields.next(), fields.next(), fields.next())
            {
                let since = since.parse().unwrap_or(u32::MAX);
                functions
                    .entry(name)
                    .or_default()
                    .push(Form { since, export });
            }
        }
        functions
    })
}

/// The form of a function that a program gets which was built for CUDA `wanted`, on a driver of version
/// `driver`: the newest that both know.
pub fn form(name: &str, wanted: u32, driver: u32) -> Result<Form, Missing> {
    let forms = functions().get(name).ok_or(Missing::Name)?;
    let mut known = forms.iter().filter(|form| form.since <= driver).peekable();
    if known.peek().is_none() {
        return Err(Missing::Name);
    }
    let found = known.rfind(|form| form.since <= wanted);
    found.copied().ok_or(Missing::Version)
}

/// The address of an export, or of its form for the thread's own default stream where there is one.
pub(crate) fn address(export: &str, per_thread: bool) -> Option<usize> {
    static ADDRESSES: OnceLock<BTreeMap<&str, usize>> = OnceLock::new();
    let addresses = ADDRESSES.get_or_init(|| exports::all().collect());
    if per_thread {
        for ending in ["_ptsz", "_ptds"] {
            if let Some(address) = addresses.get(format!("{export}{ending}").as_str()) {
                return Some(*address);
            }
        }
    }
    addresses.get(export).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_the_form_that_it_was_built_for() {
        let export = |name, wanted, driver| form(name, wanted, driver).map(|form| form.export);
        assert_eq!(export("cuCtxCreate", 3020, 13_000), Ok("cuCtxCreate_v2"));
        assert_eq!(export("cuCtxCreate", 11_080, 13_000), Ok("cuCtxCreate_v3"));
        assert_eq!(export("cuCtxCreate", 13_000, 13_000), Ok("cuCtxCreate_v4"));
        assert_eq!(export("cuCtxCreate", 13_000, 12_040), Ok("cuCtxCreate_v3"));
        assert_eq!(
            export("cuLaunchHostFunc", 10_000, 13_000),
            Ok("cuLaunchHostFunc")
        );
        assert_eq!(export("cuMemAlloc", 12_000, 12_000), Ok("cuMemAlloc_v2"));
        assert_eq!(
            export("cuLibraryLoadData", 11_080, 13_000),
            Err(Missing::Version)
        );
        assert_eq!(
            export("cuStreamGetDevice", 13_000, 12_000),
            Err(Missing::Name)
        );
        assert_eq!(export("cuNoSuchThing", 13_000, 13_000), Err(Missing::Name));
    }

    #[test]
    fn every_function_has_an_address() {
        for (name, forms) in functions() {
            for form in forms {
                assert!(
                    address(form.export, false).is_some(),
                    "{name}: {}",
                    form.export
                );
            }
        }
    }
}
