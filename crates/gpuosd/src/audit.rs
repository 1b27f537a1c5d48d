//! The audit log: one JSON object a line, only ever appended to, in two files that together stay small.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use gpuos_core::health::Audit;
use gpuos_core::job::JobId;
use gpuos_core::wire::names_others;
use serde_json::{Value, json};

/// Name of the file in the state directory; the one before has `.1` at its end.
pub const NAME: &str = "audit.jsonl";
/// A file that reaches this size becomes the one before.
pub const MOST: u64 = 4 << 20;
/// What is read at most for the newest lines.
const TAIL: u64 = 512 << 10;

/// A line of the log. `user` is whose the job is that it is about: numbers of jobs come again, and by then may be somebody else's.
pub fn line(node: &str, audit: &Audit, user: Option<u32>) -> String {
    let mut object = json!({
        "schema": "gpuos.audit/1",
        "at_ms": audit.at_ms,
        "node": node,
        "text": audit.text,
    });
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            object[key] = value;
        }
    };
    set("gpu", audit.gpu.map(|gpu| u8::from(gpu).into()));
    set("rule", audit.rule.clone().map(Into::into));
    let job = audit.job.as_ref();
    set("job", job.and_then(|job| serde_json::to_value(job).ok()));
    set("job_uid", job.and(user).map(Into::into));
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
    let whole = |line: &str| serde_json::from_str::<Value>(line).is_ok();
    newest(folder, most, |line| whole(line).then(|| line.into()))
}

/// The newest lines about a job, oldest first, as far as they are among the newest of the log. `user`: only those that were
/// written while the job was this user's, as he may read them.
///
/// # Errors
/// As of [`tail`].
pub fn of_job(
    folder: &Path,
    most: usize,
    job: &JobId,
    user: Option<u32>,
) -> io::Result<Vec<String>> {
    newest(folder, most, |line| {
        let value = about(line, job)?;
        match user {
            None => Some(line.into()),
            Some(user) => (user_in(&value) == Some(user)).then(|| redacted_line(value)),
        }
    })
}

/// Whose a job was when the newest line about it was written that says so.
///
/// # Errors
/// As of [`tail`].
pub fn user_of(folder: &Path, job: &JobId) -> io::Result<Option<u32>> {
    let users = newest(folder, 1, |line| user_in(&about(line, job)?))?;
    Ok(users.into_iter().next())
}

/// The line as JSON, if it is about this job. What is no line of ours is about none.
fn about(line: &str, job: &JobId) -> Option<Value> {
    // A quick look first: quotes inside of texts are escaped, so nothing else of a line looks so.
    let id = serde_json::to_value(job).ok()?;
    if !line.contains(&format!("\"job\":{id}")) {
        return None;
    }
    let value: Value = serde_json::from_str(line).ok()?;
    (value["job"] == id).then_some(value)
}

fn user_in(line: &Value) -> Option<u32> {
    u32::try_from(line["job_uid"].as_u64()?).ok()
}

/// A line about a user's own job as he may read it: what names others besides is root's.
fn redacted_line(mut line: Value) -> String {
    if let Some(rule) = line["rule"].as_str().filter(|rule| names_others(rule)) {
        line["text"] = format!("{rule}; root is told more").into();
    }
    line.to_string()
}

/// The newest of what is made of lines, oldest first.
fn newest<T>(folder: &Path, most: usize, make: impl Fn(&str) -> Option<T>) -> io::Result<Vec<T>> {
    let mut made = Vec::new();
    for path in [before(folder), folder.join(NAME)] {
        made.extend(last_lines(&path)?.lines().filter_map(&make));
    }
    let skip = made.len().saturating_sub(most);
    Ok(made.split_off(skip))
}

fn last_lines(path: &Path) -> io::Result<String> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(e) => return Err(e),
    };
    let size = file.metadata()?.len();
    let from = size.saturating_sub(TAIL);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // The first line may have lost its start.
    let whole = match from {
        0 => &text[..],
        _ => text.split_once('\n').map_or("", |(_, rest)| rest),
    };
    Ok(whole.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(number: u32) -> String {
        line(
            "n1",
            &Audit {
                at_ms: u64::from(number),
                gpu: Some(3u8.try_into().unwrap()),
                text: format!("{number} {}", "x".repeat(2000)),
                ..Audit::default()
            },
            None,
        )
    }

    /// A line about a job.
    fn of(job: u32, user: Option<u32>, rule: Option<&str>, text: &str) -> String {
        let audit = Audit {
            job: Some(job.into()),
            rule: rule.map(Into::into),
            text: text.into(),
            ..Audit::default()
        };
        line("n1", &audit, user)
    }

    #[test]
    fn a_user_reads_of_a_job_what_was_written_while_it_was_his() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(user_of(folder.path(), &7.into()).unwrap(), None);
        let (alice, bob) = (1001, 1002);
        let forged = r#"x","job":7,"job_uid":1002,"text":"y"#;
        append(
            folder.path(),
            &[
                of(7, Some(alice), None, "job 7 is requeued"),
                of(71, Some(alice), None, "job 71 is requeued"),
                of(8, Some(bob), None, forged),
                of(7, None, None, "nobody knew whose it was"),
                of(7, Some(alice), Some("isolation"), "process 9 of job 8"),
                line("n1", &Audit::default(), Some(alice)),
            ],
        )
        .unwrap();
        let told = |job, user| {
            let lines = of_job(folder.path(), 9, &JobId::from(job), user).unwrap();
            let text = |line: &String| {
                let value: Value = serde_json::from_str(line).unwrap();
                value["text"].as_str().unwrap().to_string()
            };
            lines.iter().map(text).collect::<Vec<_>>()
        };
        let own = ["job 7 is requeued", "isolation; root is told more"];
        assert_eq!(told(7, Some(alice)), own);
        assert_eq!(told(7, Some(bob)), [""; 0]);
        assert_eq!(told(8, Some(bob)), [forged]);
        assert_eq!(told(7, None).len(), 3, "root reads all of it");
        assert_eq!(user_of(folder.path(), &7.into()).unwrap(), Some(alice));
        // The number comes again, as a job of somebody else.
        append(folder.path(), &[of(7, Some(bob), None, "bob's job 7")]).unwrap();
        assert_eq!(user_of(folder.path(), &7.into()).unwrap(), Some(bob));
        assert_eq!(told(7, Some(bob)), ["bob's job 7"]);
        let newest = of_job(folder.path(), 1, &7.into(), None).unwrap();
        assert_eq!(newest, [of(7, Some(bob), None, "bob's job 7")]);
        for job in [0, 1, u32::MAX] {
            assert_eq!(user_of(folder.path(), &JobId::from(job)).unwrap(), None);
        }
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
