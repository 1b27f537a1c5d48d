//! The audit log: one JSON object a line, only ever appended to, in two files that together stay small.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use gpuos_core::health::Audit;
use serde_json::json;

/// Name of the file in the state directory; the one before has `.1` at its end.
pub const NAME: &str = "audit.jsonl";
/// A file that reaches this size becomes the one before.
pub const MOST: u64 = 4 << 20;
/// What is read at most for the newest lines.
const TAIL: u64 = 512 << 10;

/// A line of the log.
pub fn line(node: &str, audit: &Audit) -> String {
    let mut object = json!({
        "schema": "gpuos.audit/1",
        "at_ms": audit.at_ms,
        "node": node,
        "text": audit.text,
    });
    let mut set = |key: &str, value: Option<serde_json::Value>| {
        if let Some(value) = value {
            object[key] = value;
        }
    };
    set("gpu", audit.gpu.map(Into::into));
    set("rule", audit.rule.clone().map(Into::into));
    set("job", audit.job.map(Into::into));
    set("uid", audit.uid.map(Into::into));
    object.to_string()
}

/// Appends lines. What a crash left half written is ended first, so that every line stands alone.
///
/// # Errors
/// The file system's; then some of the lines may stand there.
pub fn append(folder: &Path, lines: &[String]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let path = folder.join(NAME);
    let mut file = open(&path)?;
    let size = file.metadata()?.len();
    if size >= MOST {
        fs::rename(&path, before(folder))?;
        file = open(&path)?;
    } else if size > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    let mut text = lines.join("\n");
    text.push('\n');
    file.write_all(text.as_bytes())?;
    file.sync_data()
}

fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    options.create(true).append(true).read(true).mode(0o600);
    options.open(path)
}

fn before(folder: &Path) -> PathBuf {
    folder.join(format!("{NAME}.1"))
}

/// The newest lines, oldest first.
///
/// # Errors
/// The file system's; a log that is not there yet is empty.
pub fn tail(folder: &Path, most: usize) -> io::Result<Vec<String>> {
    let mut lines = last_lines(&before(folder))?;
    lines.extend(last_lines(&folder.join(NAME))?);
    let skip = lines.len().saturating_sub(most);
    Ok(lines.split_off(skip))
}

fn last_lines(path: &Path) -> io::Result<Vec<String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let size = file.metadata()?.len();
    let from = size.saturating_sub(TAIL);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // The first line may have lost its start.
    let lines = text.lines().skip(usize::from(from > 0));
    let whole = lines.filter(|line| serde_json::from_str::<serde_json::Value>(line).is_ok());
    Ok(whole.map(str::to_string).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(number: u32) -> String {
        line(
            "n1",
            &Audit {
                at_ms: u64::from(number),
                gpu: Some(3),
                text: format!("{number} {}", "x".repeat(2000)),
                ..Audit::default()
            },
        )
    }

    #[test]
    fn the_log_keeps_its_newest_lines_and_stays_small() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(tail(folder.path(), 5).unwrap(), Vec::<String>::new());
        for round in 0..50u32 {
            let lines: Vec<String> = (0..100).map(|n| text(round * 100 + n)).collect();
            append(folder.path(), &lines).unwrap();
        }
        let newest = tail(folder.path(), 150).unwrap();
        let wanted: Vec<String> = (4850..5000).map(text).collect();
        assert_eq!(newest, wanted);
        let size = |name: PathBuf| fs::metadata(name).unwrap().len();
        let all = size(folder.path().join(NAME)) + size(before(folder.path()));
        assert!(all < 2 * MOST + (1 << 20), "{all}");
    }

    #[test]
    fn a_line_that_a_crash_cut_spoils_no_other() {
        let folder = tempfile::tempdir().unwrap();
        append(folder.path(), &[text(1)]).unwrap();
        let path = folder.path().join(NAME);
        let mut bytes = fs::read(&path).unwrap();
        bytes.extend_from_slice(b"{\"schema\":\"gpu");
        fs::write(&path, bytes).unwrap();
        append(folder.path(), &[text(2)]).unwrap();
        assert_eq!(tail(folder.path(), 9).unwrap(), [text(1), text(2)]);
    }
}
