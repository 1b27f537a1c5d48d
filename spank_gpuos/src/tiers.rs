//! In slurmstepd: memory beyond that of the GPUs, for a step whose job has `--gpuos-mem`, and memory in turns, for one that shares a GPU by
//! `--gpuos-share=timeslice,mem=SIZE`. Its programs load libgpuos_preload.so, which finds in variables what they may use.
//!
//! All of it is in the hands of the job's user from then on, who could load the library himself: what a job really has is for gpuosd to
//! say, by Slurm's record of it. So nothing here has to keep anybody from anything.

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;

use gpuos_config::options::{Inherited, MemoryOption, MemoryPolicy, MemoryTiers};
use gpuos_core::wire::StepMemory;
use gpuos_model::gpuset::GpuSet;
use slurm_ffi::spank::Spank;

use crate::{daemon, limits, messages};

/// The library, unless plugstack.conf names another: `spank_gpuos.so preload=PATH`.
const LIBRARY: &str = "/usr/lib/gpuos/libgpuos_preload.so.0";

/// What the loader of programs reads.
const LD_PRELOAD: &CStr = c"LD_PRELOAD";

/// Bytes that a program may use of each GPU, in all tiers.
const GRANT: &CStr = c"GPUOS_MEM_GRANT";

/// Of these, bytes in the GPU's own memory; absent where it is all that the GPU has.
const HBM: &CStr = c"GPUOS_MEM_HBM";

/// What decides which of it leaves the GPU.
const POLICY: &CStr = c"GPUOS_MEM_POLICY";

/// gpuosd's socket for programs. Nobody but us sets it: by that it is known what a step has inherited from another one.
const SOCKET: &CStr = c"GPUOS_MEM_SOCKET";

/// The library that the plugin's arguments name.
///
/// # Safety
/// As [`daemon::argument`].
pub unsafe fn library(argc: c_int, argv: *const *mut c_char) -> String {
    // SAFETY: promised by the caller.
    let named = unsafe { daemon::argument(argc, argv, "preload") };
    named.unwrap_or_else(|| LIBRARY.to_owned())
}

/// What the programs of a step may use of each GPU, and whether in turns with other jobs. Nothing where it has no GPUs; with whole GPUs what
/// `--gpuos-mem` says, and with a part of one what `--gpuos-share` does.
pub fn of_step(said: &Inherited, gpus: GpuSet, shared: bool) -> Option<(MemoryOption, bool)> {
    let options = said.options();
    if gpus.is_empty() {
        return None;
    }
    match shared {
        false => options.memory.map(|asked| (asked, false)),
        true => {
            let mib = options.share?.in_turns_mib()?;
            let asked = MemoryOption {
                mib,
                // Parked it lies in host memory; while it works, in the GPU's alone.
                tiers: MemoryTiers::Hbm,
                policy: MemoryPolicy::default(),
            };
            Some((asked, true))
        }
    }
}

/// What gpuosd is told of it.
pub fn told((asked, timeslice): &(MemoryOption, bool)) -> StepMemory {
    StepMemory {
        bytes_per_gpu: asked.bytes(),
        timeslice: *timeslice,
    }
}

/// Lets the step's tasks load the library, or not any more what they inherit from a step that did.
pub fn set(spank: Spank<'_>, asked: Option<MemoryOption>, library: &str, socket: &str) {
    let there = daemon::is_path(library) && !library.contains(':') && Path::new(library).is_file();
    if asked.is_some() && !there {
        limits::keep_note(&messages::no_library(library.escape_debug()));
    }
    let asked = asked.filter(|_| there);
    if asked.is_none() && spank.getenv(SOCKET).is_none() {
        return;
    }
    let loaded = spank.getenv(LD_PRELOAD).unwrap_or_default();
    for (name, value) in variables(asked, (library, socket), &loaded) {
        match value {
            Some(value) => spank.setenv(name, &value),
            None => spank.unsetenv(name),
        };
    }
}

/// The variables, and what they are set to; none where they are to be absent. `loaded` is what programs load already.
fn variables(
    asked: Option<MemoryOption>,
    (library, socket): (&str, &str),
    loaded: &str,
) -> [(&'static CStr, Option<String>); 5] {
    let only_gpu = asked.filter(|asked| asked.tiers == MemoryTiers::Hbm);
    let others = without(loaded, library);
    let loaded = match (asked.is_some(), others.is_empty()) {
        (true, true) => library.to_owned(),
        (true, false) => format!("{library}:{others}"),
        (false, _) => others,
    };
    [
        (LD_PRELOAD, Some(loaded).filter(|list| !list.is_empty())),
        (GRANT, asked.map(|asked| asked.bytes().to_string())),
        (HBM, only_gpu.map(|asked| asked.bytes().to_string())),
        (POLICY, asked.map(|asked| asked.policy.name().to_owned())),
        (SOCKET, asked.map(|_| socket.to_owned())),
    ]
}

/// What else is loaded, in its order. The loader takes blanks and colons.
fn without(loaded: &str, library: &str) -> String {
    let is_there = |list: &str| list.split([':', ' ']).any(|one| one == library);
    match is_there(loaded) {
        // As the user has written it.
        false => loaded.to_owned(),
        true => {
            let others = loaded.split([':', ' ']);
            let others = others.filter(|one| *one != library && !one.is_empty());
            others.collect::<Vec<_>>().join(":")
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuos_config::options::parse_memory;

    use super::*;

    const PLACES: (&str, &str) = ("/usr/lib/gpuos/l.so.0", "/run/gpuos/s");

    fn set(asked: &str, loaded: &str) -> Vec<String> {
        let asked = parse_memory(asked).ok();
        let all = variables(asked, PLACES, loaded).into_iter();
        all.map(|(name, value)| {
            let name = name.to_str().unwrap();
            value.map_or_else(|| format!("-{name}"), |value| format!("{name}={value}"))
        })
        .collect()
    }

    #[test]
    fn the_library_comes_before_what_the_user_loads() {
        assert_eq!(
            set("120G", ""),
            [
                "LD_PRELOAD=/usr/lib/gpuos/l.so.0",
                "GPUOS_MEM_GRANT=128849018880",
                "-GPUOS_MEM_HBM",
                "GPUOS_MEM_POLICY=gpuos",
                "GPUOS_MEM_SOCKET=/run/gpuos/s"
            ]
        );
        for (before, after) in [
            ("/x/a.so b.so", "/usr/lib/gpuos/l.so.0:/x/a.so b.so"),
            ("/usr/lib/gpuos/l.so.0", "/usr/lib/gpuos/l.so.0"),
            (
                "/x/a.so:/usr/lib/gpuos/l.so.0 b.so",
                "/usr/lib/gpuos/l.so.0:/x/a.so:b.so",
            ),
            ("evil\nX=1", "/usr/lib/gpuos/l.so.0:evil\nX=1"),
        ] {
            let first = set("120G", before).remove(0);
            assert_eq!(first, format!("LD_PRELOAD={after}"));
        }
        let only = set("40G,tiers=hbm,policy=2q", "");
        assert_eq!(only[2], "GPUOS_MEM_HBM=42949672960");
        assert_eq!(only[3], "GPUOS_MEM_POLICY=2q");
    }

    #[test]
    fn a_step_without_it_loses_what_it_inherits_and_nothing_else() {
        let none = |loaded| set("off", loaded).remove(0);
        assert_eq!(none("/usr/lib/gpuos/l.so.0"), "-LD_PRELOAD");
        assert_eq!(none("/usr/lib/gpuos/l.so.0:/x/a.so"), "LD_PRELOAD=/x/a.so");
        assert_eq!(none("/x/a.so  b.so"), "LD_PRELOAD=/x/a.so  b.so");
        let gone = &set("off", "")[1..];
        assert!(gone.iter().all(|one| one.starts_with("-GPUOS_MEM_")));
    }

    #[test]
    fn whole_gpus_have_the_one_and_parts_of_them_the_other() {
        let said = Inherited::parse("watch=5 mem=120G");
        let gpus = GpuSet::first(1);
        let has = |said: &Inherited, gpus, shared| of_step(said, gpus, shared).is_some();
        assert!(has(&said, gpus, false));
        assert!(!has(&said, GpuSet::EMPTY, false) && !has(&said, gpus, true));
        assert!(!has(&Inherited::parse("mem=off"), gpus, false));
        assert!(!has(&Inherited::parse("watch=5"), gpus, false));
        let told = |said: &str, shared| {
            let told = of_step(&Inherited::parse(said), gpus, shared).map(|given| told(&given));
            told.map(|told| (told.bytes_per_gpu, told.timeslice))
        };
        assert_eq!(told("mem=2M", false), Some((2 << 20, false)));
        let turns = "share=timeslice,mem=60G";
        assert_eq!(told(turns, true), Some((60 << 30, true)));
        assert_eq!(told(turns, false), None, "whole GPUs are nobody else's");
        assert_eq!(told("share=timeslice", true), None);
        assert_eq!(told("share=mps:25%", true), None);
        let (asked, _) = of_step(&Inherited::parse(turns), gpus, true).unwrap();
        assert_eq!(asked.to_string(), "60G,tiers=hbm");
    }
}
