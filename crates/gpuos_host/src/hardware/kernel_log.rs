//! Xids in the kernel's log: what the driver says also when NVML says nothing any more.
//!
//! Users write in that log. Only root can write to `/dev/kmsg`, and what comes that way never has facility 0, the
//! kernel's own; but the kernel itself prints text of users in many of its messages: mount options, names of
//! programs, of devices and of files. So a record counts only if the kernel wrote it in one piece and the driver's
//! own words begin it, in the driver's exact form. What can stand at the beginning of a message all the same:
//!
//! - a program's name (`comm`), as in `NAME[17]: segfault at …` or `NAME invoked oom-killer`: 15 bytes at most, one
//!   too few for `NVRM: Xid (PCI:0`;
//! - a piece of a message that `pr_cont` was to join and did not (names of control groups, lists of modules): the
//!   kernel marks it with the flag `c`, and it is left out here;
//! - the prefix of a rule of nftables or iptables with a log target: up to 127 bytes, and any text. Rules of a network
//!   namespace that a user made are not logged, unless the sysctl `net.netfilter.nf_log_all_netns` is 1.
//!
//! The last shows that no form is proof. So [`gpuos_core::health::Event::Logged`] is believed only where NVML
//! confirms it or is silent.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
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

/// How the driver begins, since its 90th release or so; the address was without `PCI:` at first.
const BEGIN: &str = "NVRM: Xid (";
/// The number of a GPU that has fallen off the bus.
const FELL_OFF: u32 = 79;
/// What the driver says of one beside, or in place of, that number (`osHandleGpuLost` of NVIDIA's open kernel modules) ...
const LOST: [&str; 2] = ["NVRM: GPU ", ": GPU has fallen off the bus."];
/// ... and of one that it finds gone when it is opened (`RmInitAdapter`): one message of three lines, as `/dev/kmsg` writes these.
const GONE: [&str; 3] = [
    "NVRM: The NVIDIA GPU ",
    "NVRM: (PCI ID: ",
    ") installed in this system has\\x0aNVRM: fallen off the bus and is not responding to commands.",
];
/// NVIDIA's catalogue has numbers below 200; one of more digits is none.
const DIGITS: usize = 5;

/// A number of digits and nothing else.
fn number(digits: &str) -> Option<u32> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| plain)
}

/// An address as the driver prints it, `%04x:%02x:%02x`, or with a function.
fn address(text: &str) -> Option<String> {
    let (whole, function) = text.split_once('.').unwrap_or((text, "0"));
    let hex = |part: &str, least: usize, most: usize| {
        (least..=most).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let mut parts = whole.split(':');
    let mut part = |least, most| parts.next().is_some_and(|part| hex(part, least, most));
    let right = part(4, 8) && part(2, 2) && part(2, 2) && hex(function, 1, 1);
    (right && parts.next().is_none()).then(|| whole.to_ascii_lowercase())
}

/// The address of the GPU that a message without an Xid says has fallen off the bus. What the driver itself ends with is the end.
fn lost(message: &str) -> Option<String> {
    let message = message.trim_end_matches("\\x0a");
    let [begin, end] = LOST;
    let place = message
        .strip_prefix(begin)
        .and_then(|rest| rest.strip_suffix(end));
    if let Some(place) = place {
        return address(place);
    }
    let [begin, middle, end] = GONE;
    let (place, rest) = message.strip_prefix(begin)?.split_once("\\x0a")?;
    let id = rest.strip_prefix(middle)?.strip_suffix(end)?;
    let plain = !id.is_empty() && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
    address(place).filter(|_| plain)
}

impl KernelXid {
    /// Reads a record as `/dev/kmsg` has it: `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,…];MESSAGE`, and lines with
    /// ` KEY=value` after it. `None` when it is none that the kernel itself wrote in one piece, or none of an Xid.
    /// Total: no text makes it fail.
    pub fn read(record: &str) -> Option<KernelXid> {
        let line = record.split('\n').next()?;
        let (head, message) = line.split_once(';')?;
        let mut fields = head.split(',');
        let facility = number(fields.next()?)? >> 3;
        let mut digits = || {
            let field = fields.next();
            field
                .is_some_and(|field| !field.is_empty() && field.bytes().all(|b| b.is_ascii_digit()))
        };
        if facility != 0 || !digits() || !digits() || fields.next()? != "-" {
            return None;
        }
        KernelXid::parse(message)
    }

    /// Reads a message, which the driver's words begin. `None` when it is none of an Xid. Total: no text makes it
    /// fail.
    pub fn parse(message: &str) -> Option<KernelXid> {
        if let Some(pci) = lost(message) {
            return Some(KernelXid {
                pci,
                code: FELL_OFF,
                gpu_instance: None,
                compute_instance: None,
                pid: None,
            });
        }
        let rest = message.strip_prefix(BEGIN)?;
        let (place, rest) = rest.split_once(')')?;
        let mut words = place.split(' ');
        let first = words.next()?;
        let pci = address(first.strip_prefix("PCI:").unwrap_or(first))?;
        let (mut gpu_instance, mut compute_instance) = (None, None);
        for word in words {
            match word.split_once(':') {
                Some(("GPU-I", id)) => gpu_instance = Some(number(id)?),
                Some(("GPU-CI", id)) => compute_instance = Some(number(id)?),
                // The GPU's own name, as far as a driver says it.
                None if word.starts_with("GPU-") => {}
                _ => return None,
            }
        }
        let mut parts = rest.strip_prefix(": ")?.split(',');
        let code = parts.next().filter(|code| code.len() <= DIGITS)?;
        let code = number(code)?;
        // The driver always says something after the number.
        let pid = parts.next()?.trim_start().strip_prefix("pid=");
        Some(KernelXid {
            pci,
            code,
            gpu_instance,
            compute_instance,
            // `'<unknown>'` where the process is gone.
            pid: pid.and_then(number),
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

/// `/dev/kmsg`, or a file with records of that form, from the moment of opening on. Reading `/dev/kmsg` wants root or
/// CAP_SYSLOG.
#[derive(Debug)]
pub struct Kmsg {
    file: File,
    /// Each read gives one record; else records are lines.
    device: bool,
    /// The beginning of a line whose end was not there yet.
    begun: Vec<u8>,
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
        let device = file.metadata()?.file_type().is_char_device();
        Ok(Kmsg {
            file,
            device,
            begun: Vec::new(),
        })
    }

    /// What one read gave: whole lines, and the rest of a line that was read before.
    fn take(&mut self, bytes: &[u8], found: &mut Vec<KernelXid>) {
        let mut read =
            |record: &[u8]| found.extend(KernelXid::read(&String::from_utf8_lossy(record)));
        if self.device {
            read(bytes);
            return;
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            // What is longer than any record keeps its beginning: so its rest does not pass as one.
            let room = RECORD.saturating_sub(self.begun.len());
            self.begun
                .extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                read(&self.begun);
                self.begun.clear();
            }
        }
    }
}

impl KernelLog for Kmsg {
    fn xids(&mut self) -> io::Result<Vec<KernelXid>> {
        let mut found = Vec::new();
        let mut buffer = vec![0; RECORD];
        for _ in 0..MOST {
            match self.file.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => self.take(&buffer[..length], &mut found),
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

/// The twin: records put in are read once.
#[derive(Clone, Debug, Default)]
pub struct RecordedLog {
    /// Records that were not read yet.
    pub lines: Vec<String>,
}

impl KernelLog for RecordedLog {
    fn xids(&mut self) -> io::Result<Vec<KernelXid>> {
        let lines = std::mem::take(&mut self.lines);
        Ok(lines
            .iter()
            .filter_map(|line| KernelXid::read(line))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_drivers() {
        let whole = |pci: &str, code, pid| KernelXid {
            pci: pci.into(),
            code,
            gpu_instance: None,
            compute_instance: None,
            pid,
        };
        for (record, xid) in [
            (
                "4,1203,99887766,-;NVRM: Xid (PCI:0000:1B:00): 79, pid=1234, name=python3, GPU has fallen off the bus.\n                  SUBSYSTEM=pci\n DEVICE=+pci:0000:1b:00.0\n",
                whole("0000:1b:00", 79, Some(1234)),
            ),
            (
                "3,9,1,-,caller=T17;NVRM: Xid (PCI:0000:00:08): 94, pid='<unknown>', name=<unknown>, Contained: SM (0x1).",
                whole("0000:00:08", 94, None),
            ),
            (
                "6,0,0,-;NVRM: Xid (PCI:0000:65:00): 13, Graphics SM Warp Exception on (GPC 0)",
                whole("0000:65:00", 13, None),
            ),
            // Drivers of long ago, and one that would tell the function or the GPU's name.
            (
                "4,1,1,-;NVRM: Xid (0000:3b:00): 31, Ch 00000010, engmask 00000101",
                whole("0000:3b:00", 31, None),
            ),
            (
                "4,1,1,-;NVRM: Xid (PCI:00000001:3b:00.0 GPU-efbdfde9-9986-4d16): 48, x",
                whole("00000001:3b:00", 48, None),
            ),
            // Without a number, in the driver's two forms.
            (
                "3,1,1,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.\n SUBSYSTEM=pci\n",
                whole("0000:3b:00", 79, None),
            ),
            (
                "3,1,1,-;NVRM: The NVIDIA GPU 0000:3B:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed in this system has\\x0aNVRM: fallen off the bus and is not responding to commands.",
                whole("0000:3b:00", 79, None),
            ),
            // A program named so that it looks like an end and a number: the driver's number is the first.
            (
                "4,1,1,-;NVRM: Xid (PCI:0000:65:00): 31, pid=9, name=): 79, x",
                whole("0000:65:00", 31, Some(9)),
            ),
            (
                "4,1,1,-;NVRM: Xid (PCI:0000:07:00 GPU-I:05 GPU-CI:01): 31, pid=9, name=a",
                KernelXid {
                    gpu_instance: Some(5),
                    compute_instance: Some(1),
                    ..whole("0000:07:00", 31, Some(9))
                },
            ),
        ] {
            assert_eq!(KernelXid::read(record), Some(xid), "{record}");
        }
    }

    #[test]
    fn what_users_make_the_kernel_print_is_no_xid() {
        let xid = "NVRM: Xid (PCI:0000:00:05): 79, fallen off the bus";
        for record in [
            // Not by the kernel, or not in one piece, or no record at all.
            &format!("12,1,1,-;{xid}"),
            &format!("4,1,1,c;{xid}"),
            &format!("4,1,1,+;{xid}"),
            &format!("4,1,1;{xid}"),
            &format!("+4,1,1,-;{xid}"),
            &format!("4,x,1,-;{xid}"),
            &format!(";{xid}"),
            &format!("<4>{xid}"),
            &format!("[ 12.5] {xid}"),
            xid,
            // The driver's words are not the first.
            &format!("3,1,1,-;tmpfs: Unknown parameter '{xid}'"),
            &format!("3,1,1,-; {xid}"),
            &format!("3,1,1,-;;{xid}"),
            &format!("3,1,1,-;kernel: {xid}"),
            &format!("3,1,1,-;tmpfs: Bad value for 'a\\x0a{xid}'"),
            &format!("3,1,1,-;tmpfs: Bad value\n{xid}"),
            &format!("3,1,1,-;tmpfs: Bad value\n 4,1,1,-;{xid}"),
            // A program's name has 15 bytes.
            "4,1,1,-;NVRM: Xid (PCI:[17]: segfault at 0 ip 00 sp 00 error 4 in a[1,2]",
            "4,1,1,-;NVRM: Xid (0000 invoked oom-killer: gfp_mask=0x0, order=0",
            // Not the driver's form.
            "4,1,1,-;NVRM: GPU at PCI:0000:00:05: GPU-efbdfde9",
            "4,1,1,-;NVRM: GPU 0000:3b:00.0: GPU serial number is 1.",
            "4,1,1,-;NVRM: GPU 0000:3b:00.0: x: GPU has fallen off the bus.",
            "4,1,1,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus. x",
            "4,1,1,c;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
            "12,1,1,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
            "4,1,1,-;NVRM: GPU slot 3: GPU has fallen off the bus.",
            "4,1,1,-; NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
            "4,1,1,-;NVRM: GPU 0000:[17]: GPU has fallen off the bus.",
            "4,1,1,-;GPU has fallen off the bus.",
            "3,1,1,-;NVRM: The NVIDIA GPU 0000:3b:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed in this system has",
            "3,1,1,-;NVRM: The NVIDIA GPU 0000:3b:00.0\\x0aNVRM: (PCI ID: x y) installed in this system has\\x0aNVRM: fallen off the bus and is not responding to commands.",
            "4,1,1,-;NVRM: Xid (PCI:0000:00:05): many, x",
            "4,1,1,-;NVRM: Xid (PCI:0000:00:05): 13",
            "4,1,1,-;NVRM: Xid (PCI:0000:00:05): 123456, x",
            "4,1,1,-;NVRM: Xid (PCI:0000:00:05): +13, x",
            "4,1,1,-;NVRM: Xid (PCI:0000:00:05):13, x",
            "4,1,1,-;NVRM: Xid (PCI:0000:00:05 x): 13, x",
            "4,1,1,-;NVRM: Xid (PCI:0000:00:05 GPU-I:x): 13, x",
            "4,1,1,-;NVRM: Xid (PCI:00:05): 13, x",
            "4,1,1,-;NVRM: Xid (PCI:slot 5): 13, x",
            "4,1,1,-;NVRM: Xid (PCI:0000:00:05",
            "4,1,1,-;NVRM:  Xid (PCI:0000:00:05): 13, x",
            "",
        ] {
            assert_eq!(KernelXid::read(record), None, "{record}");
        }
    }

    #[test]
    fn addresses_are_compared_as_numbers() {
        let xid = KernelXid::parse("NVRM: Xid (PCI:0001:1B:00): 79, x").unwrap();
        assert!(xid.is_of("0001:1b:00.0") && xid.is_of("00000001:1b:00.0"));
        assert!(!xid.is_of("0000:1b:00.0") && !xid.is_of("nonsense") && !xid.is_of(""));
    }

    #[test]
    fn a_log_is_read_once_from_its_end_and_lines_in_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kmsg");
        std::fs::write(&path, "4,1,1,-;NVRM: Xid (PCI:0000:01:00): 13, old\n").unwrap();
        let mut log = Kmsg::open(&path).unwrap();
        assert_eq!(log.xids().unwrap(), []);
        let mut file = File::options().append(true).open(&path).unwrap();
        let mut write = |text: &[u8]| io::Write::write_all(&mut file, text).unwrap();
        write(b"4,2,2,-;NVRM: Xid (PCI:0000:02:00): 48, new\nother\n");
        let found = log.xids().unwrap();
        assert_eq!((found.len(), found[0].code), (1, 48));
        assert_eq!(log.xids().unwrap(), []);
        // A long line ends where it ends, and not where a read does.
        write(&[b'x'; 3 * RECORD]);
        write(b"4,2,2,-;NVRM: Xid (PCI:0000:02:00): 48, not new\n4,3,3,-;NVRM: Xid (PCI:00");
        assert_eq!(log.xids().unwrap(), []);
        write(b"00:02:00): 31, new\n");
        assert_eq!(log.xids().unwrap()[0].code, 31);
        let mut twin = RecordedLog {
            lines: vec!["4,2,2,-;NVRM: Xid (PCI:0000:02:00): 48, x".into()],
        };
        assert_eq!(twin.xids().unwrap(), found);
        assert_eq!(twin.xids().unwrap(), []);
    }

    proptest::proptest! {
        #[test]
        fn any_record_is_read_without_panic(text: String, place in "[ -~]{0,40}", rest in "[ -~]{0,40}") {
            KernelXid::read(&text);
            KernelXid::read(&format!("4,1,1,-;{text}"));
            if let Some(xid) = KernelXid::parse(&format!("NVRM: Xid (PCI:{place}){rest}")) {
                xid.is_of(&text);
                xid.is_of(&place);
            }
        }

        #[test]
        fn a_message_that_begins_with_other_words_is_never_one(words in "[ -~]{1,200}", comm in "[ -~]{0,15}") {
            let xid = "NVRM: Xid (PCI:0000:00:05): 79, x";
            let other = !words.starts_with("NVRM: ");
            let message = format!("{words}{xid}");
            proptest::prop_assert!(!other || KernelXid::parse(&message).is_none());
            let named = format!("4,1,1,-;{comm}[17]: segfault at {xid}");
            proptest::prop_assert!(KernelXid::read(&named).is_none());
        }
    }
}
