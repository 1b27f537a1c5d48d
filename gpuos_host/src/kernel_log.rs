//! Xids in the kernel's log: what the driver says also when NVML says nothing any more.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// An Xid as the driver logs it: `NVRM: Xid (PCI:0000:1b:00 GPU-I:05): 94, pid=17, name=python3, …`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelXid {
    /// PCI address without the function, lower case: `0000:1b:00`. [`KernelXid::is_of`] compares it.
    pub pci: String,
    /// Its number.
    pub code: u32,
    /// MIG instance.
    pub gpu_instance: Option<u32>,
    /// MIG compute instance.
    pub compute_instance: Option<u32>,
    /// The process that it names.
    pub pid: Option<u32>,
}

impl KernelXid {
    /// Reads a line of the log, with or without what stands before `NVRM:`. `None` when it is none of an
    /// Xid. Total: no text makes it fail.
    pub fn parse(line: &str) -> Option<KernelXid> {
        let (_, rest) = line.split_once("NVRM: Xid (PCI:")?;
        let (place, rest) = rest.split_once(')')?;
        let mut words = place.split_ascii_whitespace();
        let pci = words.next()?.to_ascii_lowercase();
        let address = pci
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b':');
        if !address || pci.split(':').count() != 3 {
            return None;
        }
        let words: Vec<&str> = words.collect();
        let instance = |name: &str| {
            let id = words.iter().find_map(|word| word.strip_prefix(name))?;
            id.parse().ok()
        };
        let mut parts = rest.strip_prefix(':')?.split(',').map(str::trim);
        let code = parts.next()?.split(' ').next()?.parse().ok()?;
        let pid = parts.next().and_then(|part| part.strip_prefix("pid="));
        Some(KernelXid {
            pci,
            code,
            gpu_instance: instance("GPU-I:"),
            compute_instance: instance("GPU-CI:"),
            // `'<unknown>'` where the process is gone.
            pid: pid.and_then(|pid| pid.parse().ok()),
        })
    }

    /// Whether it is about the GPU at a PCI address in the kernel's form, `0000:1b:00.0`.
    pub fn is_of(&self, address: &str) -> bool {
        let whole = address.split('.').next().unwrap_or(address);
        let number = |part: &str| u32::from_str_radix(part, 16).ok();
        let parts = |text: &str| text.split(':').map(number).collect::<Option<Vec<u32>>>();
        parts(&self.pci).is_some_and(|mine| Some(mine) == parts(whole))
    }
}

/// Where Xids are read from.
pub trait KernelLog: Send {
    /// Those logged since the last call, oldest first; never waits. Error when the log cannot be read.
    fn xids(&mut self) -> io::Result<Vec<KernelXid>>;
}

/// `/dev/kmsg`, from the moment of opening on. Reading wants root or CAP_SYSLOG.
#[derive(Debug)]
pub struct Kmsg {
    file: File,
}

/// No record is longer.
const RECORD: usize = 8192;
/// Records taken in one go: a flood must not keep the caller.
const MOST: usize = 4096;

impl Kmsg {
    /// Opens the log behind its last record.
    pub fn open(path: &Path) -> io::Result<Kmsg> {
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let mut file = File::options()
            .read(true)
            .custom_flags(nonblock)
            .open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Kmsg { file })
    }
}

impl KernelLog for Kmsg {
    fn xids(&mut self) -> io::Result<Vec<KernelXid>> {
        let mut found = Vec::new();
        let mut buffer = vec![0; RECORD];
        for _ in 0..MOST {
            match self.file.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    let text = String::from_utf8_lossy(&buffer[..length]);
                    found.extend(text.lines().filter_map(KernelXid::parse));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Records that were overwritten before they were read: what is left follows.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

/// The twin: lines put in are read once.
#[derive(Clone, Debug, Default)]
pub struct RecordedLog {
    /// Lines that were not read yet.
    pub lines: Vec<String>,
}

impl KernelLog for RecordedLog {
    fn xids(&mut self) -> io::Result<Vec<KernelXid>> {
        let lines = std::mem::take(&mut self.lines);
        Ok(lines
            .iter()
            .filter_map(|line| KernelXid::parse(line))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_drivers() {
        let whole = |pci: &str, code, pid| KernelXid {
            pci: pci.into(),
            code,
            gpu_instance: None,
            compute_instance: None,
            pid,
        };
        for (line, xid) in [
            (
                "4,1203,99887766,-;NVRM: Xid (PCI:0000:1B:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
                whole("0000:1b:00", 79, Some(1234)),
            ),
            (
                "[ 12.5] NVRM: Xid (PCI:0000:00:08): 94, pid='<unknown>', name=<unknown>, Contained: SM (0x1).",
                whole("0000:00:08", 94, None),
            ),
            (
                "kernel: NVRM: Xid (PCI:0000:65:00): 13, Graphics SM Warp Exception on (GPC 0)",
                whole("0000:65:00", 13, None),
            ),
            (
                "NVRM: Xid (PCI:0000:07:00 GPU-I:05 GPU-CI:01): 31, pid=9, name=a",
                KernelXid {
                    gpu_instance: Some(5),
                    compute_instance: Some(1),
                    ..whole("0000:07:00", 31, Some(9))
                },
            ),
        ] {
            assert_eq!(KernelXid::parse(line), Some(xid), "{line}");
        }
        for line in [
            "NVRM: GPU at PCI:0000:00:05: GPU-efbdfde9",
            "NVRM: Xid (PCI:0000:00:05): many",
            "NVRM: Xid (PCI:slot 5): 13",
            "NVRM: Xid (PCI:0000:00:05",
            "",
        ] {
            assert_eq!(KernelXid::parse(line), None, "{line}");
        }
    }

    #[test]
    fn addresses_are_compared_as_numbers() {
        let xid = KernelXid::parse("NVRM: Xid (PCI:0001:1B:00): 79, x").unwrap();
        assert!(xid.is_of("0001:1b:00.0") && xid.is_of("00000001:1b:00.0"));
        assert!(!xid.is_of("0000:1b:00.0") && !xid.is_of("nonsense") && !xid.is_of(""));
    }

    #[test]
    fn a_log_is_read_once_from_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kmsg");
        std::fs::write(&path, "NVRM: Xid (PCI:0000:01:00): 13, old\n").unwrap();
        let mut log = Kmsg::open(&path).unwrap();
        assert_eq!(log.xids().unwrap(), []);
        let mut file = File::options().append(true).open(&path).unwrap();
        io::Write::write_all(&mut file, b"NVRM: Xid (PCI:0000:02:00): 48, new\nother\n").unwrap();
        let found = log.xids().unwrap();
        assert_eq!((found.len(), found[0].code), (1, 48));
        assert_eq!(log.xids().unwrap(), []);
        let mut twin = RecordedLog {
            lines: vec!["NVRM: Xid (PCI:0000:02:00): 48, x".into()],
        };
        assert_eq!(twin.xids().unwrap(), found);
        assert_eq!(twin.xids().unwrap(), []);
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_read_without_panic(text: String, place in "[ -~]{0,40}", rest in "[ -~]{0,40}") {
            KernelXid::parse(&text);
            if let Some(xid) = KernelXid::parse(&format!("NVRM: Xid (PCI:{place}){rest}")) {
                xid.is_of(&text);
                xid.is_of(&place);
            }
        }
    }
}
