//! Lines of a file in slurm.conf's form with the places where they stand, for messages about them.
use super::{MAX_DEPTH, MAX_TEXT, Read, keys, without_comment};

/// A line with its pairs. Continued lines are one; it stands where its first part does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConfLine {
    /// Name of the file as it was asked for.
    pub file: String,
    /// Number of the line, from 1 on.
    pub line: usize,
    /// `Key=Value`, keys in lower case without the operator of `Key+=Value`, quotes removed.
    pub pairs: Vec<(String, String)>,
    /// The line without its comment.
    pub text: String,
}

impl ConfLine {
    /// The value of a key, which is given in lower case.
    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.pairs.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }

    /// `slurm.conf:12`.
    pub fn place(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }
}

/// Something in such a file that Slurm does not take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfFault {
    /// Name of the file as it was asked for.
    pub file: String,
    /// Number of the line, from 1 on.
    pub line: usize,
    /// A sentence.
    pub message: String,
}

/// The lines of a file, and what is wrong with them.
pub type ConfText = (Vec<ConfLine>, Vec<ConfFault>);

/// The lines of a file, those of included files in their place, and what is wrong with them. `None`: there is no
/// such file.
///
/// # Errors
/// The file itself cannot be read; the sentence names it.
pub fn conf_lines(file: &str, read: Read<'_>) -> Result<Option<ConfText>, String> {
    let mut found = Reader::default();
    let Some(text) = read(file)? else {
        return Ok(None);
    };
    found.add(file, &text, read, 0);
    Ok(Some((found.lines, found.faults)))
}

#[derive(Default)]
struct Reader {
    lines: Vec<ConfLine>,
    faults: Vec<ConfFault>,
    cluster: String,
    total: usize,
}

impl Reader {
    fn fault(&mut self, file: &str, line: usize, message: String) {
        self.faults.push(ConfFault {
            file: file.into(),
            line,
            message,
        });
    }

    fn add(&mut self, file: &str, text: &str, read: Read<'_>, depth: usize) {
        self.total += text.len();
        let text = match text.strip_prefix('\u{feff}') {
            Some(rest) => {
                let what = "the file starts with a byte-order mark, which Slurm takes for a part of the first key";
                self.fault(file, 1, what.into());
                rest
            }
            None => text,
        };
        if text.lines().count() > 0 && text.split('\n').any(|line| line.ends_with("\\\r")) {
            let nth = text.split('\n').position(|line| line.ends_with("\\\r"));
            let what = "the line is to be continued, but ends with a carriage return (CRLF), so Slurm does not see that";
            self.fault(file, nth.unwrap_or(0) + 1, what.into());
        }
        let (mut joined, mut first) = (String::new(), 0);
        for (nth, line) in text.lines().enumerate() {
            if joined.is_empty() {
                first = nth + 1;
            }
            joined.push_str(without_comment(line));
            if joined.ends_with('\\') {
                joined.pop();
                continue;
            }
            let line = std::mem::take(&mut joined);
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            match line.split_once(char::is_whitespace) {
                Some((word, path)) if word.eq_ignore_ascii_case("include") => {
                    self.include(file, first, path.trim(), read, depth);
                }
                _ => self.line(file, first, line),
            }
        }
        if !joined.trim().is_empty() {
            let what = "the last line ends with a backslash, and no line follows".to_string();
            self.fault(file, first, what);
            self.line(file, first, joined.trim());
        }
    }

    fn include(&mut self, file: &str, line: usize, path: &str, read: Read<'_>, depth: usize) {
        // %c is the name of the cluster, which has to stand before.
        let path = path.trim_matches('"').replace("%c", &self.cluster);
        if depth == MAX_DEPTH || self.total > MAX_TEXT {
            let what = format!("Include nested more than {MAX_DEPTH} times, or too much text");
            return self.fault(file, line, what);
        }
        match read(&path) {
            Ok(Some(text)) => self.add(&path, &text, read, depth + 1),
            Ok(None) => self.fault(file, line, format!("Include {path}: there is no such file")),
            Err(why) => self.fault(file, line, format!("Include {path}: {why}")),
        }
    }

    fn line(&mut self, file: &str, line: usize, text: &str) {
        let mut pairs = keys(text);
        for (key, _) in &mut pairs {
            key.truncate(key.trim_end_matches(['+', '-', '*', '/']).len());
        }
        if pairs.is_empty() {
            let what = format!("'{text}' is not Key=Value");
            self.fault(file, line, what);
        }
        if let Some((_, name)) = pairs.iter().find(|(key, _)| key == "clustername") {
            self.cluster.clone_from(name);
        }
        self.lines.push(ConfLine {
            file: file.into(),
            line,
            pairs,
            text: text.into(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_their_places_through_includes_and_continuations() {
        let read = |name: &str| {
            match name {
            "slurm.conf" => Ok(Some(
                "# head\nCLUSTERNAME=c\ninclude %c.conf\nNodeName=n1 \\\n  Gres=gpu:8 # no\n\nselecttype = select/x\nInclude gone.conf\nrubbish\n"
                    .to_string(),
            )),
            "c.conf" => Ok(Some("SlurmctldParameters+=a,b\r\nFeature=\"a b\"\r\n".into())),
            "bad.conf" => Err("denied".into()),
            _ => Ok(None),
        }
        };
        let (lines, faults) = conf_lines("slurm.conf", &read).unwrap().unwrap();
        let at = |key: &str| {
            let line = lines.iter().find(|line| line.get(key).is_some()).unwrap();
            (line.place(), line.get(key).unwrap().to_string())
        };
        assert_eq!(at("clustername"), ("slurm.conf:2".into(), "c".into()));
        assert_eq!(at("slurmctldparameters"), ("c.conf:1".into(), "a,b".into()));
        assert_eq!(at("feature"), ("c.conf:2".into(), "a b".into()));
        assert_eq!(at("gres"), ("slurm.conf:4".into(), "gpu:8".into()));
        assert_eq!(at("selecttype"), ("slurm.conf:7".into(), "select/x".into()));
        let told: Vec<usize> = faults.iter().map(|fault| fault.line).collect();
        assert_eq!(told, [8, 9]);
        assert!(faults[0].message.contains("gone.conf"));
        assert_eq!(conf_lines("none", &read), Ok(None));
        assert!(conf_lines("bad.conf", &read).is_err());
        let read = |_: &str| Ok(Some("\u{feff}A=1\nB=2 \\\r\nC=3\nD=4 \\".to_string()));
        let (lines, faults) = conf_lines("x", &read).unwrap().unwrap();
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert_eq!(lines[0].get("a"), Some("1"));
    }
}
