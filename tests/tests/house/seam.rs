//! gpuosd knows its workload manager by the trait alone: what is Slurm's stands behind it, and is chosen in one place.

use super::order::{File, foreign};
use super::*;

/// Where gpuosd chooses its workload manager.
const CHOOSES: [&str; 2] = ["run.rs", "main.rs"];

/// Modules that read Slurm's files or ask Slurm's commands.
const SLURMS: [&[&str]; 3] = [
    &["gpuos_host", "slurm"],
    &["gpuos_config", "slurm_conf"],
    &["gpuos_config", "slurm_topology"],
];

/// Files below `src`, beside those that choose, with the paths in which they name Slurm.
fn namers(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for (file, path) in foreign(files) {
        let slurms = SLURMS.iter().any(|slurms| {
            let same = slurms.iter().zip(&path).all(|(a, b)| a == b);
            same && path.len() >= slurms.len()
        });
        // What is imported with all names, or as a whole and then by a name of its own, is not to be followed.
        let hidden = path == ["gpuos_host", "*"] || path == ["gpuos_config", "*"];
        if (slurms || hidden) && !CHOOSES.contains(&file.as_str()) {
            found.push(format!("{file}: {}", path.join("::")));
        }
    }
    found
}

fn sources_of(name: &str) -> Vec<File> {
    let folder = format!("crates/{name}/src/");
    let all = files(&[".rs"]);
    let own = all.iter().filter_map(|path| {
        let below = path.strip_prefix(&folder)?;
        Some((below.to_string(), read(path)))
    });
    own.collect()
}

#[test]
fn gpuosd_knows_its_workload_manager_by_the_trait_alone() {
    let sources = sources_of("gpuosd");
    assert!(sources.len() > 30, "{} files only", sources.len());
    assert_eq!(namers(&sources), Vec::<String>::new());
    // The one place is found, so the search finds what there is.
    let chosen = foreign(&sources).into_iter();
    let chosen: BTreeSet<String> = chosen
        .filter(|(_, path)| path.starts_with(&["gpuos_host".into(), "slurm".into()]))
        .map(|(file, _)| file)
        .collect();
    assert_eq!(chosen, BTreeSet::from(["run.rs".to_string()]));
}

#[test]
fn the_seam_has_no_slurm_behind_it() {
    let own: Vec<String> = packages()
        .into_iter()
        .find(|package| package.name == "gpuos_workload")
        .expect("the crate of the seam")
        .uses
        .into_iter()
        .filter(|used| used.starts_with("gpuos_") || used.starts_with("slurm"))
        .collect();
    assert_eq!(own, ["gpuos_core", "gpuos_model"]);
}

#[test]
fn a_planted_import_of_slurm_is_found_however_it_is_written() {
    for planted in [
        "use gpuos_host::slurm::Job;",
        "use gpuos_host::slurm;",
        "use gpuos_host::{Machine, slurm};",
        "use gpuos_host::{Machine, slurm::{self, act}};",
        "use gpuos_host::{self as host, slurm as s};",
        "use gpuos_config::slurm_conf::Addresses;",
        "fn f() { gpuos_host::slurm::running(x) }",
        "fn f() { ::gpuos_host::slurm::act::job(x) }",
        "type J = Vec<gpuos_host::slurm::Job>;",
        "use gpuos_host::*;",
    ] {
        let file = |path: &str| vec![(path.to_string(), planted.to_string())];
        assert!(!namers(&file("event_loop/mod.rs")).is_empty(), "{planted}");
        assert_eq!(namers(&file("run.rs")), Vec::<String>::new(), "{planted}");
    }
    for nothing in [
        "// use gpuos_host::slurm::Job;",
        "const T: &str = \"gpuos_host::slurm\";",
        "use gpuos_host::{Machine, steps::job_processes::Proc};",
        "use gpuos_workload::job::Job; mod slurm { }",
    ] {
        let file = vec![("jobs.rs".to_string(), nothing.to_string())];
        assert_eq!(namers(&file), Vec::<String>::new(), "{nothing}");
    }
}
