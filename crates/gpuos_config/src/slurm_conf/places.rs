//! Lines of a file in slurm.conf's form with the places where they stand, for messages about them.
use gpuos_model::hostlist::shorten;

use super::tokens::{self, Pairs};
use super::{MAX_DEPTH, MAX_TEXT, Read};

/// A line with its pairs. Continued lines are one; it stands where its first part does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConfLine {
    /// Name of the file as it was asked for.
    pub file: String,
    /// Number of the line, from 1 on.
    pub line: usize,
    /// `Key=Value`, keys in lower case without the operator of `Key+=Value`, quotes removed.
    pub pairs: Vec<(String, String)>,
    /// The line without its comment, escapes undone.
    pub text: String,
}

impl ConfLine {
    /// The value of a key, which is given in lower case: of several the last one, as for Slurm.
    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.pairs.iter().rev().find(|(name, _)| name == key);
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
    cluster: Option<String>,
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
        for line in tokens::logical_lines(text) {
            match tokens::include(&line.text) {
                Some((path, "")) => self.include((file, line.number), path, read, depth),
                Some((path, rest)) => {
                    let what = format!(
                        "Include {path}: '{rest}' follows the name of the file; a name has no blanks, in quotes neither"
                    );
                    self.fault(file, line.number, what);
                }
                None => self.line(file, line.number, &line.text),
            }
        }
    }

    fn include(&mut self, at: (&str, usize), name: &str, read: Read<'_>, depth: usize) {
        let (file, line) = at;
        let mut path = name.to_owned();
        if path.contains("%c") {
            // Only slurm.conf has the name of the cluster, which has to stand before.
            match &self.cluster {
                Some(cluster) => path = path.replace("%c", &cluster.to_ascii_lowercase()),
                None => {
                    let what = format!(
                        "Include {name}: %c stands for ClusterName, which no line of this file before it has"
                    );
                    return self.fault(file, line, what);
                }
            }
        }
        if path.contains('*') {
            let what = format!("Include {path}: Slurm takes the name of one file, without *");
            return self.fault(file, line, what);
        }
        if depth == MAX_DEPTH || self.total > MAX_TEXT {
            let what = format!("Include nested more than {MAX_DEPTH} times, or too much text");
            return self.fault(file, line, what);
        }
        // Slurm takes a name from the folder of slurm.conf; 22.05 from that of the file that includes.
        let beside = file
            .rsplit_once('/')
            .map(|(folder, _)| format!("{folder}/{path}"));
        let beside = beside.filter(|_| depth > 0 && !path.starts_with('/'));
        let found = match (read(&path), beside) {
            (Ok(None), Some(beside)) => read(&beside),
            (found, _) => found,
        };
        match found {
            Ok(Some(text)) => self.add(&path, &text, read, depth + 1),
            Ok(None) => self.fault(file, line, format!("Include {path}: there is no such file")),
            Err(why) => self.fault(file, line, format!("Include {path}: {why}")),
        }
    }

    fn line(&mut self, file: &str, line: usize, text: &str) {
        let Pairs { pairs, rest } = tokens::pairs(text);
        if !rest.is_empty() {
            let what = format!("'{}' is not Key=Value", shorten(rest));
            self.fault(file, line, what);
        }
        if let Some((_, name)) = pairs.iter().find(|(key, _)| key == "clustername") {
            self.cluster = Some(name.clone());
        }
        self.lines.push(ConfLine {
            file: file.into(),
            line,
            pairs,
            text: text.trim().into(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(files: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let read = |name: &str| {
            let found = files.iter().find(|(file, _)| *file == name);
            Ok(found.map(|(_, text)| text.to_string()))
        };
        let (lines, faults) = conf_lines(files[0].0, &read).unwrap().unwrap();
        let faults = faults.into_iter().map(|fault| fault.message).collect();
        (lines.into_iter().map(|line| line.text).collect(), faults)
    }

    #[test]
    fn an_include_is_taken_as_slurm_takes_it() {
        let more = ("sub/x-test.conf", "Include y.conf\n");
        let conf = ("slurm.conf", "ClusterName=Test\nInclude sub/x-%c.conf\n");
        let (lines, none) = faults(&[conf, more, ("y.conf", "A=1\n"), ("sub/y.conf", "A=2\n")]);
        assert_eq!((lines[1].as_str(), none.len()), ("A=1", 0));
        // 22.05 takes it from the folder of the file that includes.
        let (lines, none) = faults(&[conf, more, ("sub/y.conf", "A=2\n")]);
        assert_eq!((lines[1].as_str(), none.len()), ("A=2", 0));
        for (line, why) in [
            ("Include %c.conf\n", "ClusterName"),
            ("Include *.conf\n", "without *"),
            ("Include a b\n", "follows the name"),
            (" Include a.conf\n", "is not Key=Value"),
            ("A=1 and more\n", "'and more' is not Key=Value"),
        ] {
            let (_, found) = faults(&[("gres.conf", line), ("a.conf", "")]);
            assert!(
                found.len() == 1 && found[0].contains(why),
                "{line}: {found:?}"
            );
        }
    }

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
        // Slurm continues a line with a carriage return at its end, and one after which no line comes.
        let read = |_: &str| Ok(Some("\u{feff}A=1\nB=2 \\\r\nC=3\nD=4 \\".to_string()));
        let (lines, faults) = conf_lines("x", &read).unwrap().unwrap();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(lines[0].get("a"), Some("1"));
        assert_eq!(lines[1].get("c"), Some("3"));
        assert_eq!(lines[2].get("d"), Some("4"));
    }
}
