//! What the environment says: `GPUOS_CUDA` has settings as `KEY=VALUE,…`, `GPUOS_NVML_STATE` names the
//! state of a simulated node whose GPUs these are, `CUDA_VISIBLE_DEVICES` narrows them.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// The variable with the settings.
pub const VARIABLE: &str = "GPUOS_CUDA";
/// The variable with the state file of the simulated NVML.
pub const STATE: &str = "GPUOS_NVML_STATE";

/// How the process is checkpointed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checkpoint {
    /// Taking it out of its devices takes so long, and bringing it back as well.
    Takes(Duration),
    /// It can be locked, and cannot be taken out.
    Refused,
}

/// The settings of `GPUOS_CUDA`, and where the devices come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// `devices=N`: how many devices there are without a state of NVML. Default 1.
    pub devices: usize,
    /// `memory=SIZE`: bytes of memory of each device. Default: what the board has.
    pub memory: Option<u64>,
    /// `host=SIZE`: bytes of host memory that virtual memory can be backed by. Default 64 GiB, of which
    /// only what is written takes any.
    pub host: u64,
    /// `version=MAJOR.MINOR`: CUDA version of the driver, as 1000 × major + 10 × minor. Default 13.0.
    pub version: u32,
    /// `hbm=RATE`: bytes per second that kernels and copies get from device memory; 0, the default,
    /// for no simulated time.
    pub hbm: u64,
    /// `link=RATE`: bytes per second and direction between a device and the host; 0 as above.
    pub link: u64,
    /// `checkpoint=MS` or `checkpoint=refused`: other processes can checkpoint this one, or only lock it. Without, they find no process.
    pub checkpoint: Option<Checkpoint>,
    /// `newer=NAME`: from 13.5 on `cuGetProcAddress` finds a function of this name, known before or not, that is no export.
    pub newer: Option<String>,
    /// State file of the simulated NVML.
    pub state: Option<PathBuf>,
    /// `CUDA_VISIBLE_DEVICES`.
    pub visible: Option<String>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            devices: 1,
            memory: None,
            host: 64 << 30,
            version: 13_000,
            hbm: 0,
            link: 0,
            checkpoint: None,
            newer: None,
            state: None,
            visible: None,
        }
    }
}

impl Setup {
    /// Reads settings. The error is a sentence.
    pub fn parse(text: &str) -> Result<Setup, String> {
        let mut setup = Setup::default();
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let wrong = |form: &str| format!("{VARIABLE}: '{part}': {form}");
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| wrong("give KEY=VALUE"))?;
            let bytes = || size(value).ok_or_else(|| wrong("give bytes, as 64M or 80G"));
            match key {
                "devices" => {
                    let count = value.parse().ok().filter(|count| (1..=16).contains(count));
                    setup.devices = count.ok_or_else(|| wrong("give a number from 1 to 16"))?;
                }
                "memory" => setup.memory = Some(bytes()?),
                "host" => setup.host = bytes()?,
                "version" => {
                    let version = version(value);
                    setup.version = version.ok_or_else(|| wrong("give 12.0 to 13.9"))?;
                }
                "hbm" => setup.hbm = bytes()?,
                "link" => setup.link = bytes()?,
                "checkpoint" if value == "refused" => setup.checkpoint = Some(Checkpoint::Refused),
                "checkpoint" => {
                    let ms = value.parse().map_err(|_| wrong("give ms, or refused"))?;
                    setup.checkpoint = Some(Checkpoint::Takes(Duration::from_millis(ms)));
                }
                "newer" if value.starts_with("cu") => setup.newer = Some(value.to_owned()),
                "newer" => return Err(wrong("give the name of a function, as cuMemAlloc")),
                _ => {
                    return Err(wrong(
                        "the keys are devices, memory, host, version, hbm, link, checkpoint and newer",
                    ));
                }
            }
        }
        Ok(setup)
    }
}

fn size(text: &str) -> Option<u64> {
    let shift = match text.as_bytes().last()? {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => 0,
    };
    let digits = if shift == 0 {
        text
    } else {
        &text[..text.len() - 1]
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn version(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once('.')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    ((12..=13).contains(&major) && minor <= 9).then_some(major * 1000 + minor * 10)
}

/// The settings of this process, read once. What is wrong with them is said on standard error.
pub(crate) fn setup() -> Option<&'static Setup> {
    static SETUP: OnceLock<Option<Setup>> = OnceLock::new();
    let read = || {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        match Setup::parse(&text) {
            Ok(setup) => Some(Setup {
                state: std::env::var_os(STATE).map(PathBuf::from),
                visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
                ..setup
            }),
            Err(sentence) => {
                eprintln!("simulated libcuda: {sentence}");
                None
            }
        }
    };
    SETUP.get_or_init(read).as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_or_refused_with_a_sentence() {
        let setup = Setup::parse("devices=2,memory=64M,version=12.4,link=25G,hbm=2T").unwrap();
        assert_eq!((setup.devices, setup.memory), (2, Some(64 << 20)));
        assert_eq!((setup.version, setup.link), (12_040, 25 << 30));
        assert_eq!(Setup::parse("").unwrap(), Setup::default());
        for (wrong, word) in [
            ("memory", "KEY=VALUE"),
            ("memory=64X", "bytes"),
            ("devices=17", "1 to 16"),
            ("version=11.8", "12.0"),
            ("checkpoint=soon", "refused"),
            ("newer=malloc", "a function"),
            ("colour=red", "the keys are"),
        ] {
            let sentence = Setup::parse(wrong).unwrap_err();
            assert!(
                sentence.contains(word) && sentence.contains(wrong),
                "{sentence}"
            );
        }
    }
}
