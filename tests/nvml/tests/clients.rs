//! Clients that others wrote, in Python: nvidia-ml-py (NVIDIA's binding) and nvitop. Where one is not
//! installed its tests say so and pass.

use std::path::Path;
use std::process::Command;

use crate::common::{Site, on, said};

/// A Python that has the module: the one that `scripts/nvml-clients.sh` made, else the system's.
fn python(module: &str) -> Option<String> {
    let made = Path::new(env!("CARGO_BIN_EXE_gpuos-nvml"))
        .ancestors()
        .map(|dir| dir.join("nvml-clients/bin/python"))
        .find(|python| python.exists());
    let made = made.map(|python| python.to_string_lossy().into_owned());
    let known = made.into_iter().chain(["python3".to_string()]);
    let mut known = known.filter(|python| {
        let has = Command::new(python)
            .args(["-c", &format!("import {module}")])
            .output();
        has.is_ok_and(|output| output.status.success())
    });
    let found = known.next();
    if found.is_none() {
        eprintln!(
            "skipped: no python3 with the module {module}: scripts/nvml-clients.sh installs it"
        );
    }
    found
}

/// Runs a script on the node; it fails by raising.
fn script(site: &Site, python: &str, text: &str) -> String {
    let mut command = Command::new(python);
    said(
        &site
            .environment(command.args(["-c", text]))
            .output()
            .expect("python"),
    )
}

#[test]
fn nvidia_ml_py_reads_a_node() {
    on("nvidia_ml_py_reads_a_node", "dgx-h100", |site| {
        let Some(python) = python("pynvml") else {
            return;
        };
        site.run("run gpu1 --pid 4242 --load 50 --memory 2048");
        site.run("fault gpu1 ecc uncorrected 3 sram");
        site.run("fault gpu1 nvlink 2 down");
        script(site, &python, include_str!("clients/read.py"));
    });
}

#[test]
fn nvidia_ml_py_makes_mig_devices() {
    on("nvidia_ml_py_makes_mig_devices", "dgx-a100", |site| {
        let Some(python) = python("pynvml") else {
            return;
        };
        script(
            site,
            &python,
            "import pynvml as n; n.nvmlInit(); \
            assert n.nvmlDeviceSetMigMode(n.nvmlDeviceGetHandleByIndex(0), 1) == n.NVML_ERROR_RESET_REQUIRED",
        );
        site.run("reset gpu0");
        script(site, &python, include_str!("clients/mig.py"));
    });
}

#[test]
fn nvidia_ml_py_hears_events() {
    on("nvidia_ml_py_hears_events", "dgx-h100", |site| {
        let Some(python) = python("pynvml") else {
            return;
        };
        let mut command = Command::new(&python);
        command.args(["-c", include_str!("clients/events.py")]);
        command.arg(env!("CARGO_BIN_EXE_gpuos-nvml"));
        said(&site.environment(&mut command).output().expect("python"));
    });
}

#[test]
fn nvidia_ml_py_finds_every_function_it_knows_of() {
    on(
        "nvidia_ml_py_finds_every_function_it_knows_of",
        "dgx-h100",
        |site| {
            let Some(python) = python("pynvml") else {
                return;
            };
            let missing = script(site, &python, include_str!("clients/symbols.py"));
            // Functions newer than the bindings that this crate has its types from.
            let missing: Vec<&str> = missing.lines().collect();
            assert!(missing.len() < 60, "{missing:?}");
            for name in missing {
                let newer = ["_v1", "_v2", "_v3", "_v4"]
                    .iter()
                    .any(|end| name.ends_with(end));
                assert!(newer || name.contains("Vgpu"), "{name} is missing");
            }
        },
    );
}

#[test]
fn nvitop_shows_the_node() {
    on("nvitop_shows_the_node", "dgx-h200", |site| {
        let Some(python) = python("nvitop") else {
            return;
        };
        // A process that exists, so that nvitop can look at it.
        let pid = std::process::id();
        site.run(&format!("run gpu4 --pid {pid} --load 73 --memory 20480"));
        site.run("fault gpu2 lost");
        let mut command = Command::new(&python);
        command
            .args(["-m", "nvitop", "-1", "--ascii"])
            .env("TERM", "xterm")
            .env("COLUMNS", "120");
        let shown = said(&site.environment(&mut command).output().expect("nvitop"));
        assert_eq!(
            shown.matches("H200").count(),
            7,
            "one GPU is lost:\n{shown}"
        );
        assert!(
            shown.contains("73%") && shown.contains("20.00GiB"),
            "{shown}"
        );
        assert!(shown.contains(&pid.to_string()), "{shown}");
        assert!(shown.contains("580.95.05"), "{shown}");
    });
}

#[test]
fn nvitop_shows_mig_devices() {
    on("nvitop_shows_mig_devices", "dgx-h100", |site| {
        let Some(python) = python("nvitop") else {
            return;
        };
        script(site, &python, include_str!("clients/nvitop_mig.py"));
    });
}

#[test]
fn nvtop_takes_a_snapshot() {
    on("nvtop_takes_a_snapshot", "dgx-a100", |site| {
        // Debian's nvtop from 13 on; before, it draws on a terminal only.
        let mut command = Command::new("nvtop");
        let output = site.environment(command.arg("-s")).output();
        let Some(output) = output.ok().filter(|output| output.status.success()) else {
            eprintln!("skipped: no nvtop that knows -s");
            return;
        };
        let shown = said(&output);
        assert_eq!(shown.matches("NVIDIA A100-SXM4-80GB").count(), 8, "{shown}");
        assert!(
            shown.contains("\"temp\": \"27C\"") && shown.contains("\"60W\""),
            "{shown}"
        );
    });
}
