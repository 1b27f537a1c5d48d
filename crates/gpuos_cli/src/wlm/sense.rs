//! `gpuos wlm sense`: reports without end, until whoever reads them has gone.

use std::collections::BTreeSet;
use std::io::{BufRead, Write};
use std::time::Duration;

use anyhow::{Result, bail};
use gpuos_host::{Machine, host_name};
use gpuos_wlm::sense::Sensed;

use super::{hardware, held};
use crate::cli::{Manager, WlmSenseArgs};

/// Reports whenever Grid Engine writes a line, or again and again to LSF.
///
/// # Errors
/// The manager takes no reports.
pub fn run(machine: &dyn Machine, args: &WlmSenseArgs) -> Result<u8> {
    let name = args.host.hardware.node_name.clone();
    match args.manager {
        Manager::Gridengine => {
            let name = name.or_else(|| host_name(machine)).unwrap_or_default();
            for line in std::io::stdin().lock().lines() {
                if line.is_ok_and(|line| line.trim() == "quit")
                    || !say(&sensed(machine, args).for_gridengine(&name))
                {
                    break;
                }
            }
            Ok(0)
        }
        Manager::Lsf => {
            while say(&sensed(machine, args).for_lsf()) {
                std::thread::sleep(Duration::from_secs(args.interval));
            }
            Ok(0)
        }
        Manager::Torque => {
            bail!("Torque reports GPUs itself (pbs_mom); it takes no reports of gpuos")
        }
    }
}

/// Whether somebody reads it.
fn say(text: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    written.and_then(|()| stdout.flush()).is_ok()
}

fn sensed(machine: &dyn Machine, args: &WlmSenseArgs) -> Sensed {
    let seen = hardware::host(machine, &args.host, hardware::Numbers::Minor).and_then(|host| {
        let held = match args.manager {
            Manager::Gridengine => held::seen(&args.host.state)?,
            // LSF gives GPUs itself: what the host has at most is reported.
            Manager::Lsf | Manager::Torque => BTreeSet::new(),
        };
        Ok(Sensed::of(&host, &held))
    });
    seen.unwrap_or_else(|why| {
        eprintln!("gpuos: {why:#}");
        Sensed::blind()
    })
}
