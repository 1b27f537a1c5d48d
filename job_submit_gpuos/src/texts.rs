//! Refuses control characters in the texts of a job.
//!
//! Slurm prints a job's texts as they are, and much reads what it prints: a name with a newline can look like a line of
//! another job's record, and one with an escape sequence writes where it likes on the screen of whoever looks.
//! Scripts, environments and command lines have good reason for several lines, and nothing of gpuos takes them for more
//! than text.

use std::ffi::c_void;

use slurm_ffi::layout::Fields;
use slurm_ffi::mem::read_bytes;

use crate::messages::refused;
use crate::refusal::Refusal;

/// Texts of `job_descriptor`, and what users know them by.
const TEXTS: &[(&str, &str)] = &[
    ("name", "--job-name"),
    ("comment", "--comment"),
    ("account", "--account"),
    ("wckey", "--wckey"),
    ("work_dir", "--chdir"),
    ("std_out", "--output"),
    ("std_err", "--error"),
    ("std_in", "--input"),
    ("mail_user", "--mail-user"),
    ("network", "--network"),
    ("features", "--constraint"),
    ("prefer", "--prefer"),
    ("batch_features", "--batch"),
    ("cluster_features", "--constraint"),
    ("licenses", "--licenses"),
    ("extra", "--extra"),
    ("container", "--container"),
    ("container_id", "--container-id"),
    ("dependency", "--dependency"),
    ("reservation", "--reservation"),
    ("partition", "--partition"),
    ("qos", "--qos"),
    ("req_nodes", "--nodelist"),
    ("exc_nodes", "--exclude"),
    ("mcs_label", "--mcs-label"),
    ("acctg_freq", "--acctg-freq"),
    ("array_inx", "--array"),
    ("clusters", "--clusters"),
    ("cpu_bind", "--cpu-bind"),
    ("mem_bind", "--mem-bind"),
    ("cpus_per_tres", "--cpus-per-gpu"),
    ("mem_per_tres", "--mem-per-gpu"),
    ("tres_bind", "--tres-bind"),
    ("tres_freq", "--gpu-freq"),
    ("tres_per_job", "--gpus"),
    ("tres_per_node", "--gres"),
    ("tres_per_socket", "--gpus-per-socket"),
    ("tres_per_task", "--gpus-per-task"),
    ("admin_comment", "AdminComment"),
    ("alloc_node", "the submitting host's name"),
    ("resp_host", "the submitting host's name"),
    ("origin_cluster", "the origin cluster"),
    ("selinux_context", "--context"),
    ("req_context", "--context"),
    ("x11_target", "--x11"),
];

/// A text is read in pieces of this size, which end where a page does: it may end just before an unmapped one.
const PAGE: usize = 4096;
/// The longest text of a job, in bytes. Everybody's screens and programs read them all.
const LONGEST: usize = 64 << 10;
/// The same for a list of jobs or nodes, of which there may be many.
const LONGEST_LIST: usize = 4 << 20;

fn longest(option: &str) -> usize {
    match option {
        "--dependency" | "--nodelist" | "--exclude" | "--array" => LONGEST_LIST,
        _ => LONGEST,
    }
}

/// Where the texts stand in this release.
#[derive(Clone, Debug)]
pub struct Texts {
    /// Offset and what users know it by.
    places: Vec<(usize, &'static str)>,
    /// Up to where the description is read.
    end: usize,
}

impl Texts {
    /// The texts that the table has for the release: each came with one, and some went.
    pub fn of(fields: &Fields) -> Texts {
        let place = |(field, option): &(&str, &'static str)| {
            let offset = fields.offset("job_descriptor", field).ok()?;
            Some((offset, *option))
        };
        let places: Vec<_> = TEXTS.iter().filter_map(place).collect();
        let last = places.iter().map(|(offset, _)| offset + size_of::<usize>());
        Texts {
            end: last.max().unwrap_or(0),
            places,
        }
    }

    /// Refuses a description with a text that is not one line of print. One that cannot be read is let pass.
    pub fn check(&self, description: *mut c_void) -> Result<(), Refusal> {
        let Some(bytes) = read_bytes(description as usize, self.end) else {
            return Ok(());
        };
        for (offset, option) in &self.places {
            let pointer = &bytes[*offset..*offset + size_of::<usize>()];
            let Ok(pointer) = <[u8; size_of::<usize>()]>::try_from(pointer) else {
                continue;
            };
            let at = usize::from_ne_bytes(pointer);
            if at != 0
                && let Some(text) = long_text(at, longest(option))
            {
                one_line(option, &text)?;
            }
        }
        Ok(())
    }
}

/// The text at an address, or the start of one that is longer than any may be.
fn long_text(address: usize, longest: usize) -> Option<Vec<u8>> {
    let mut bytes: Vec<u8> = Vec::new();
    while bytes.len() <= longest {
        let at = address.checked_add(bytes.len())?;
        let piece = read_bytes(
            at,
            (PAGE - at % PAGE).min(if bytes.is_empty() { 256 } else { PAGE }),
        )?;
        if let Some(end) = piece.iter().position(|b| *b == 0) {
            bytes.extend_from_slice(&piece[..end]);
            return Some(bytes);
        }
        bytes.extend_from_slice(&piece);
    }
    Some(bytes)
}

/// Refuses a text with a character that moves the cursor, ends a line or turns the direction of writing.
fn one_line(option: &str, text: &[u8]) -> Result<(), Refusal> {
    let shown = |text: &str| text.chars().take(60).collect::<String>();
    let most = longest(option);
    if text.len() > most {
        let text = String::from_utf8_lossy(&text[..256]);
        let text = gpuos_model::screen::line(&shown(&text)).into_owned();
        return Err(refused::too_long(text, option, most >> 10).into());
    }
    let text = String::from_utf8_lossy(text);
    match text.chars().find(|c| gpuos_model::screen::is_control(*c)) {
        None => Ok(()),
        Some(found) => {
            let code = format!("{:04X}", u32::from(found));
            let text = gpuos_model::screen::line(&shown(&text)).into_owned();
            Err(refused::control_character(text, option, code).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_line_of_print() {
        for sound in [
            "",
            "train-7",
            "naïve Größe 模型 🚀",
            "a b\u{a0}c",
            "\u{200d}",
        ] {
            assert!(
                one_line("--job-name", sound.as_bytes()).is_ok(),
                "{sound:?}"
            );
        }
        for bad in [
            "x\nArrayJobId=7",
            "a\rb",
            "a\tb",
            "\u{1b}[2J",
            "\u{7f}",
            "\u{9b}2J",
            "a\u{202e}b",
            "a\u{2066}b",
            "a\u{2028}b",
        ] {
            let refusal = one_line("--job-name", bad.as_bytes()).unwrap_err();
            let said = &refusal.sentence;
            assert!(said.contains("--job-name") && said.contains("U+"), "{said}");
            assert!(!said.chars().any(gpuos_model::screen::is_control), "{said}");
        }
        let long = vec![b'x'; LONGEST + 1];
        assert!(one_line("--comment", &long).is_err());
    }

    #[test]
    fn texts_are_read_up_to_their_end_wherever_they_lie() {
        for length in [0, 1, 255, 256, 257, 5000, 100_000] {
            let text = std::ffi::CString::new(vec![b'y'; length]).unwrap();
            assert_eq!(
                long_text(text.as_ptr() as usize, LONGEST_LIST).map(|t| t.len()),
                Some(length)
            );
        }
        assert_eq!(long_text(1, LONGEST), None);
    }
}
