//! Whether the kernel can keep jobs to their devices in control groups of version 2: that takes programs (BPF).

use std::io::Read as _;
use std::path::PathBuf;

use gpuos_host::Machine;
use gpuos_host::hardware::device_programs::DevicePrograms;

use super::super::Context;
use super::super::about::{self, About};
use super::super::findings::Findings;
use super::conf::{Conf, since};

const NAME: About = about::DEVICES;

/// What the kernel has to be built with.
const OPTIONS: [&str; 2] = ["CONFIG_BPF_SYSCALL", "CONFIG_CGROUP_BPF"];

/// From this release on a step does not start where its devices cannot be confined.
const CHECKED: [u32; 3] = [25, 5, 0];

/// The options of the running kernel and where they are written; `None`: nowhere that can be read.
fn written(machine: &dyn Machine) -> Option<(PathBuf, String)> {
    let release = machine.read("/proc/sys/kernel/osrelease".as_ref()).ok()?;
    let release = String::from_utf8(release).ok()?;
    let release = release.trim();
    let files = [
        format!("/boot/config-{release}"),
        format!("/lib/modules/{release}/config"),
    ];
    for path in files.into_iter().map(PathBuf::from) {
        if let Ok(bytes) = machine.read(&path) {
            return Some((path, String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    let path = PathBuf::from("/proc/config.gz");
    let packed = machine.read(&path).ok()?;
    let mut text = String::new();
    // A kernel's options are a quarter of a megabyte.
    let mut whole = flate2::read::GzDecoder::new(packed.as_slice()).take(8 << 20);
    whole.read_to_string(&mut text).ok()?;
    Some((path, text))
}

/// Options that a list of them has not as `=y`.
fn lacking(text: &str) -> Vec<&'static str> {
    let has = |option: &str| {
        text.lines()
            .any(|line| line.strip_prefix(option) == Some("=y"))
    };
    OPTIONS.into_iter().filter(|option| !has(option)).collect()
}

/// Looks where slurmd uses cgroup/v2 and ConstrainDevices is yes.
pub fn check(look: &Context, conf: &Conf, findings: &mut Findings) {
    // The kernel itself is asked first: it is what counts.
    let (place, what) = match look.machine.device_programs() {
        DevicePrograms::Yes => {
            findings.ok(
                NAME,
                "the kernel has programs that keep jobs to their devices",
            );
            return;
        }
        DevicePrograms::No => (conf.place("constraindevices"), OPTIONS.join(", ")),
        DevicePrograms::Unknown => match written(look.machine) {
            Some((path, text)) => {
                let lacking = lacking(&text);
                if lacking.is_empty() {
                    findings.ok(
                        NAME,
                        format!(
                            "the kernel is built with what keeps jobs to their devices, by {}",
                            path.display()
                        ),
                    );
                    return;
                }
                (path.display().to_string(), lacking.join(", "))
            }
            None => {
                findings.note(
                    NAME,
                    "whether the kernel can keep jobs to their devices was not seen",
                    "run `gpuos doctor` as root, who may ask it",
                );
                return;
            }
        },
    };
    let then = match since(look, CHECKED) {
        Some(true) => {
            "Slurm cannot load its programs (BPF load error), and no step with GPUs starts"
        }
        Some(false) => {
            "Slurm logs a BPF load error and starts steps all the same: each may open all GPUs of the node"
        }
        None => {
            "Slurm cannot load its programs (BPF load error): steps do not start, or may open all GPUs of the node"
        }
    };
    findings
        .fail(
            NAME,
            format!("ConstrainDevices=yes, and this kernel is built without programs for devices ({what})"),
            format!("boot a kernel with {}, or with control groups of version 1 and CgroupPlugin=cgroup/v1", OPTIONS.join("=y and ") + "=y"),
        )
        .at(place)
        .why(then);
}
