//! All functions of CUDA's driver, 12.0 to 13.4, and what is done with each: `data/functions.tsv`, sorted by export. A row has
//! the export, the name that `cuGetProcAddress` is asked for, the CUDA version that brought the form, the class and, where a
//! wrapper is made of it, the number of arguments.
//!
//! It was made of the functions of cudarc 0.19.10 by version and of the table of the simulated driver (tests/cuda), with the forms
//! for a thread's own default stream, and with those for OpenGL, EGL, VDPAU and checkpoints by hand.

/// What is done with a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Goes to the driver; there is no wrapper.
    Pass,
    /// Written by hand, in `exports`: memory, contexts, captures, and what tells of memory.
    Own,
    /// Gives or touches memory: goes through the gate.
    Gate,
    /// The same, with a kernel's arguments.
    Launch,
    /// The same, with an executable graph.
    Graph,
    /// Gives memory away to somebody who does not come through the gate: what its arguments name is pinned.
    Pin,
    /// Makes something that cannot be drained: the process is pinned.
    Stop,
    /// Cannot be done with memory of ours.
    Refuse,
}

/// The address of a wrapper.
pub(crate) struct Wrapper(pub(crate) *const ());

impl Wrapper {
    pub(crate) const NONE: Wrapper = Wrapper(std::ptr::null());

    /// As a number; zero where there is none.
    pub(crate) fn address(&self) -> usize {
        self.0 as usize
    }
}

// SAFETY: it is the address of code, which nothing changes.
unsafe impl Sync for Wrapper {}

/// A function.
pub(crate) struct Row {
    pub(crate) export: &'static std::ffi::CStr,
    pub(crate) base: &'static str,
    /// 1000 × major + 10 × minor.
    pub(crate) since: u32,
    #[cfg_attr(
        not(test),
        allow(dead_code, reason = "what follows of it is in the wrapper")
    )]
    pub(crate) class: Class,
    pub(crate) wrapper: Wrapper,
}

include!(concat!(env!("OUT_DIR"), "/rows.rs"));

/// The newest version that the table knows.
pub(crate) const NEWEST: u32 = 13_049;

/// The numbers of the rows, by export.
#[allow(
    non_upper_case_globals,
    dead_code,
    reason = "C's names; made for all of them"
)]
pub(crate) mod index {
    include!(concat!(env!("OUT_DIR"), "/indices.rs"));
}

/// The row of an export.
pub(crate) fn export(name: &[u8]) -> Option<usize> {
    ROWS.binary_search_by(|row| row.export.to_bytes().cmp(name))
        .ok()
}

/// Whether `cuGetProcAddress` can be asked for this name.
pub(crate) fn is_base(name: &[u8]) -> bool {
    ROWS.iter().any(|row| row.base.as_bytes() == name)
}

/// The form of a function that was current in a version; the one for a thread's own default stream where that is wanted and there is one.
pub(crate) fn form(base: &[u8], version: u32, own_stream: bool) -> Option<usize> {
    let is_own = |row: &Row| {
        row.export.to_bytes().ends_with(b"_ptsz") || row.export.to_bytes().ends_with(b"_ptds")
    };
    let newest = |own: bool| {
        let rows = ROWS.iter().enumerate();
        let fits = rows.filter(|(_, row)| {
            row.base.as_bytes() == base && row.since <= version && is_own(row) == own
        });
        fits.max_by_key(|(_, row)| row.since)
            .map(|(index, _)| index)
    };
    own_stream
        .then(|| newest(true))
        .flatten()
        .or_else(|| newest(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn name(index: Option<usize>) -> Option<&'static str> {
        index.and_then(|index| ROWS[index].export.to_str().ok())
    }

    #[test]
    fn the_table_is_sorted_and_knows_what_the_simulated_driver_knows() {
        assert!(ROWS.windows(2).all(|two| two[0].export < two[1].export));
        let text = include_str!("../../../tests/cuda/data/functions.tsv");
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            assert!(export(fields[2].as_bytes()).is_some(), "{}", fields[2]);
            assert!(is_base(fields[0].as_bytes()), "{}", fields[0]);
        }
    }

    #[test]
    fn forms_are_those_of_the_version() {
        assert_eq!(
            name(form(b"cuMemAlloc", 12_000, false)),
            Some("cuMemAlloc_v2")
        );
        assert_eq!(
            name(form(b"cuCtxCreate", 11_080, false)),
            Some("cuCtxCreate_v3")
        );
        assert_eq!(
            name(form(b"cuLaunchKernel", 12_000, true)),
            Some("cuLaunchKernel_ptsz")
        );
        assert_eq!(
            name(form(b"cuCtxGetDevice", 12_000, true)),
            Some("cuCtxGetDevice")
        );
        assert_eq!(form(b"cuNoSuchThing", 12_000, false), None);
        assert!(is_base(b"cuMemAlloc") && !is_base(b"cuMemAlloc_v2"));
    }

    /// Whatever starts work or touches memory that the program names is behind the gate.
    #[test]
    fn nothing_that_touches_memory_is_passed_on() {
        let touching = [
            "cuMemcpy",
            "cuMemset",
            "cuLaunch",
            "cuGraphLaunch",
            "cuGraphUpload",
            "cuStreamBatch",
            "cuGraphAddMem",
            "cuGraphMem",
            "cuTexObjectCreate",
        ];
        for row in &ROWS {
            let name = row.export.to_str().unwrap();
            let touches = touching.iter().any(|start| name.starts_with(start));
            let gated = matches!(row.class, Class::Gate | Class::Launch | Class::Graph);
            // These name no memory of the program's, or ask.
            let other = ["AllocNode", "FreeNode", "GetParams"]
                .iter()
                .any(|end| name.contains(end));
            assert!(!touches || gated || other, "{name} is {:?}", row.class);
        }
    }

    /// By cudarc's signatures: floats, and a structure of 64 bytes.
    #[test]
    fn functions_whose_arguments_are_no_words_have_no_wrapper() {
        let others = [
            "cuParamSetf",
            "cuTexRefSetMipmapLevelBias",
            "cuTexRefSetMipmapLevelClamp",
            "cuIpcOpenMemHandle",
            "cuIpcOpenMemHandle_v2",
            "cuIpcOpenEventHandle",
        ];
        for name in others {
            let row = &ROWS[export(name.as_bytes()).expect(name)];
            assert_eq!(row.class, Class::Pass, "{name}");
        }
    }

    #[test]
    fn wrappers_are_there_and_different() {
        let wrapped: Vec<&Row> = ROWS.iter().filter(|row| row.class != Class::Pass).collect();
        let addresses: BTreeSet<&str> = wrapped
            .iter()
            .map(|row| row.export.to_str().unwrap())
            .collect();
        assert_eq!(addresses.len(), wrapped.len());
        assert!(wrapped.iter().all(|row| row.wrapper.address() != 0));
    }
}
