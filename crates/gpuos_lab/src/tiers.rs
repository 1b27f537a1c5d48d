//! Memory in tiers and GPUs in turns in a lab: the library that programs of such jobs load, a simulated CUDA driver, and what gpuos.toml has of it.

use std::fs;
use std::iter;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::built::{built_dirs, dir_with};
use crate::daemons::TOOLS;
use crate::error::{Context, LabError};
use crate::spec::LabSpec;
use crate::store::Record;

/// What is built, and under which name programs find it.
const FILES: [(&str, &str); 2] = [
    ("libgpuos_preload.so", "libgpuos_preload.so.0"),
    ("libcuda.so", "libcuda.so.1"),
];

/// Shards of each GPU where nothing else is said: so many jobs may share it.
pub const SHARDS: u32 = 4;

/// The program that runs others over the simulated driver.
const PROGRAM: &str = "cuda";

/// Finds the folder with libgpuos_preload.so and the simulated libcuda.so: `$GPUOS_PROGRAM_DIR`, beside this program, or in cargo's target folder.
///
/// # Errors
/// They are in none of them.
pub fn find_tiers_dir() -> Result<PathBuf, LabError> {
    let files = FILES.map(|(built, _)| built);
    dir_with(
        &files,
        &built_dirs("GPUOS_PROGRAM_DIR"),
        "GPUOS_PROGRAM_DIR",
    )
}

/// The folder of both libraries.
fn folder(record: &Record) -> PathBuf {
    record.path("lib/cuda")
}

/// The library that programs load, as plugstack.conf names it.
pub(crate) fn library(record: &Record) -> PathBuf {
    folder(record).join(FILES[0].1)
}

/// Copies the libraries, and writes the program that runs others over the driver: its GPUs are those of the node.
pub(crate) fn place(record: &Record) -> Result<(), LabError> {
    let Some(from) = &record.spec.tiers else {
        return Ok(());
    };
    let to = folder(record);
    fs::create_dir_all(&to).context(|| format!("cannot make {}", to.display()))?;
    for (built, name) in FILES {
        let file = from.join(built);
        fs::copy(&file, to.join(name))
            .context(|| format!("cannot copy {} to {}", file.display(), to.display()))?;
    }
    let program = record.path(TOOLS).join(PROGRAM);
    let text = format!(
        "#!/bin/sh\n# Runs a program over the simulated CUDA driver of this lab: cuda PROGRAM ARGUMENTS\n\
         LD_LIBRARY_PATH={}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\n\
         GPUOS_NVML_STATE={}\nexport LD_LIBRARY_PATH GPUOS_NVML_STATE\nexec \"$@\"\n",
        to.display(),
        record.path("nvml/$SLURMD_NODENAME/state").display(),
    );
    fs::write(&program, text)
        .and_then(|()| fs::set_permissions(&program, fs::Permissions::from_mode(0o755)))
        .context(|| format!("cannot write {}", program.display()))
}

/// What gpuos.toml has of it, where the lab's own text says nothing.
pub(crate) fn stanza(spec: &LabSpec) -> String {
    let own = spec.gpuos_toml.as_deref().unwrap_or_default();
    if spec.tiers.is_none() || own.contains("[memory]") {
        return String::new();
    }
    let mut text = "[memory]\noversubscribe = true\nturns = 2\n".to_string();
    if !own.contains("[[nodes]]") {
        let names: Vec<String> = spec.nodes.names();
        let groups = spec
            .more_nodes
            .iter()
            .map(|group| (group.names.clone(), group.node_type.clone()));
        for (names, node_type) in iter::once((names, spec.node_type.clone())).chain(groups) {
            if node_type != "cpu" && !names.is_empty() {
                text += &format!(
                    "[[nodes]]\nmatch = \"{}\"\ntype = \"{node_type}\"\n",
                    names.join(",")
                );
            }
        }
    }
    text
}
