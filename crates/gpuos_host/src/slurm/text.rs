//! Records of `scontrol show`: paragraphs of `Key=Value` pairs.

/// Keys whose value is free text to the end of the line. Users write some of them: what looks
/// like a field in there is none.
const FREE: &[&str] = &[
    "JobName",
    "Comment",
    "AdminComment",
    "SystemComment",
    "SubmitLine",
    "Command",
    "WorkDir",
    "StdErr",
    "StdIn",
    "StdOut",
    "OS",
    "Extra",
    "MailUser",
    "Container",
    "ContainerID",
];

/// One record, with its fields in the order of the text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Record {
    fields: Vec<(String, String)>,
}

impl Record {
    /// The records in what `scontrol -d show jobs` or `… nodes` printed: one a paragraph, the
    /// form with several lines, where free text cannot be mistaken for fields.
    pub fn parse_all(text: &str, first_key: &str) -> Vec<Record> {
        let start = format!("{first_key}=");
        let mut records = Vec::new();
        let mut record: Option<Record> = None;
        for line in text.lines() {
            if line.starts_with(&start) {
                records.extend(record.replace(Record::default()));
            }
            if let Some(record) = &mut record {
                record.add_line(line.trim());
            }
        }
        records.extend(record);
        records
    }

    /// The same of nodes. What stands in a reason of several lines is indented further than Slurm's own lines and is no
    /// field; a record that has one of `keys` twice is left out.
    pub(super) fn parse_once(text: &str, first_key: &str, keys: &[&str]) -> Vec<Record> {
        let start = format!("{first_key}=");
        let own = |line: &&str| {
            let indented = line.strip_prefix("   ");
            line.starts_with(&start) || indented.is_some_and(|rest| !rest.starts_with(' '))
        };
        let lines: Vec<&str> = text.lines().filter(own).collect();
        let mut records = Record::parse_all(&lines.join("\n"), first_key);
        records.retain(|record| {
            let count = |key: &&str| record.fields().filter(|(known, _)| known == key).count();
            keys.iter().all(|key| count(key) <= 1)
        });
        records
    }

    fn add_line(&mut self, line: &str) {
        // A node's reason is a line of its own; a job's stands among others, without blanks.
        if let Some(reason) = line.strip_prefix("Reason=") {
            self.push("Reason", reason);
            return;
        }
        let mut rest = line;
        while !rest.is_empty() {
            let word = rest.split(' ').next().unwrap_or("");
            match word.split_once('=') {
                Some((key, _)) if FREE.contains(&key) => {
                    self.push(key, &rest[key.len() + 1..]);
                    return;
                }
                Some((key, value)) => self.push(key, value),
                // A blank inside a value.
                None => {
                    if let (Some((_, value)), false) = (self.fields.last_mut(), word.is_empty()) {
                        value.push(' ');
                        value.push_str(word);
                    }
                }
            }
            rest = rest[word.len()..].strip_prefix(' ').unwrap_or("");
        }
    }

    pub(super) fn push(&mut self, key: &str, value: &str) {
        self.fields.push((key.into(), value.trim().into()));
    }

    /// Puts a value in the place of all that the field had.
    pub(super) fn set(&mut self, key: &str, value: &str) {
        self.fields.retain(|(known, _)| known != key);
        self.push(key, value);
    }

    /// The value of the first field of that name, if it has one that says something.
    pub fn get(&self, key: &str) -> Option<&str> {
        let value = self
            .fields
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())?;
        (!matches!(value, "" | "(null)" | "N/A" | "n/a" | "None" | "Unknown")).then_some(value)
    }

    /// The same as an owned text, empty when there is none.
    pub fn text(&self, key: &str) -> String {
        self.get(key).unwrap_or("").into()
    }

    /// A number; what follows the digits is left out.
    pub fn number(&self, key: &str) -> Option<u64> {
        leading_number(self.get(key)?)
    }

    /// All fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }
}

/// The number that a text starts with.
pub(super) fn leading_number(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    text[..digits].parse().ok()
}

/// MiB of a size as Slurm prints it: `10M`, `1.50G`, `64000`.
pub(in crate::slurm) fn mebibytes(text: &str) -> Option<u64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match text[number.len()..].chars().next() {
        None | Some('M') => 1.0,
        Some('K') => 1.0 / 1024.0,
        Some('G') => 1024.0,
        Some('T') => 1024.0 * 1024.0,
        Some('P') => 1024.0 * 1024.0 * 1024.0,
        Some(_) => return None,
    };
    let value: f64 = number.parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some((value * scale).ceil() as u64)
}
