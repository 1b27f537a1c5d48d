//! The Debian mirror that this machine is configured for.

use std::fs;
use std::path::{Path, PathBuf};

/// Names of suites by which a source of the Debian archive is known, besides the machine's
/// own one from os-release.
const SUITES: [&str; 12] = [
    "stable",
    "oldstable",
    "oldoldstable",
    "testing",
    "unstable",
    "sid",
    "buster",
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "duke",
];

/// A source of packages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Source {
    /// Where from.
    pub(crate) uri: String,
    /// Which suites.
    pub(crate) suites: Vec<String>,
    /// Keyring that signs it.
    pub(crate) keyring: Option<PathBuf>,
}

/// The Debian archive among the sources below `/etc/apt` (in another root for tests).
pub(crate) fn debian_archive(etc_apt: &Path, own_suite: &str) -> Option<Source> {
    let mut files = vec![etc_apt.join("sources.list")];
    let mut more: Vec<PathBuf> = fs::read_dir(etc_apt.join("sources.list.d"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    more.sort();
    files.append(&mut more);
    let mut sources = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        match file.extension().and_then(|e| e.to_str()) {
            Some("list") => sources.extend(one_line(&text)),
            Some("sources") => sources.extend(deb822(&text)),
            _ => {}
        }
    }
    sources.into_iter().find(|s| is_archive(s, own_suite))
}

/// `VERSION_CODENAME` of os-release on Debian; empty elsewhere.
pub(crate) fn own_suite(os_release: &str) -> String {
    let value = |key: &str| {
        os_release
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .map(|v| v.trim_matches('"').to_string())
    };
    match value("ID").as_deref() {
        Some("debian") => value("VERSION_CODENAME").unwrap_or_default(),
        _ => String::new(),
    }
}

/// True for the archive itself: not its security part, and nobody else's packages.
fn is_archive(source: &Source, own_suite: &str) -> bool {
    let scheme = ["http://", "https://", "file:/"]
        .iter()
        .any(|scheme| source.uri.starts_with(scheme));
    let suite = source.suites.iter().any(|suite| {
        let base = suite.trim_end_matches("-updates");
        SUITES.contains(&base) || !own_suite.is_empty() && base == own_suite
    });
    // Others name their suites after Debian's, too.
    let debian = source.uri.contains("debian")
        || source
            .keyring
            .as_ref()
            .is_some_and(|k| k.to_string_lossy().contains("debian-archive"));
    scheme && suite && debian && !source.uri.contains("security")
}

/// The old format: `deb [options] URI suite component …`.
fn one_line(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(mut rest) = line
            .strip_prefix("deb")
            .filter(|r| r.starts_with([' ', '\t']))
            .map(str::trim_start)
        else {
            continue;
        };
        let mut keyring = None;
        if let Some(inner) = rest.strip_prefix('[') {
            let Some((options, after)) = inner.split_once(']') else {
                continue;
            };
            keyring = options
                .split_ascii_whitespace()
                .find_map(|option| option.strip_prefix("signed-by="))
                .map(PathBuf::from);
            rest = after.trim_start();
        }
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        if words.len() > 2 && words[2..].contains(&"main") {
            sources.push(Source {
                uri: words[0].to_string(),
                suites: vec![words[1].to_string()],
                keyring,
            });
        }
    }
    sources
}

/// The new format: paragraphs of `Key: value`.
fn deb822(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            sources.extend(paragraph(&fields));
            fields.clear();
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push(' ');
                value.push_str(line.trim());
            }
        } else if let Some((key, value)) = line.split_once(':') {
            fields.push((key.trim().to_ascii_lowercase(), value.trim().to_string()));
        }
    }
    sources
}

fn paragraph(fields: &[(String, String)]) -> Vec<Source> {
    let words = |key: &str| -> Vec<String> {
        let found = fields.iter().find(|(name, _)| name == key);
        let value = found.map(|(_, value)| value.as_str()).unwrap_or_default();
        value.split_ascii_whitespace().map(String::from).collect()
    };
    let off = words("enabled")
        .first()
        .is_some_and(|word| matches!(word.to_ascii_lowercase().as_str(), "no" | "false" | "0"));
    if off
        || !words("types").iter().any(|word| word == "deb")
        || !words("components").iter().any(|word| word == "main")
    {
        return Vec::new();
    }
    // An embedded key is no path.
    let keyring = words("signed-by")
        .into_iter()
        .find(|word| word.starts_with('/'))
        .map(PathBuf::from);
    words("uris")
        .into_iter()
        .map(|uri| Source {
            uri,
            suites: words("suites"),
            keyring: keyring.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn archive(name: &str, text: &str) -> Option<Source> {
        let etc = tempfile::tempdir().expect("tempdir");
        let dir = etc.path().join("sources.list.d");
        fs::create_dir(&dir).expect("mkdir");
        fs::write(
            dir.join("a.list"),
            "deb https://example.org/apt stable main\n",
        )
        .expect("write");
        fs::write(dir.join(name), text).expect("write");
        debian_archive(etc.path(), "bookworm")
    }

    #[test]
    fn new_format() {
        let text = "# comment\nTypes: deb deb-src\nURIs: http://deb.debian.org/debian-security\n\
            Suites: bookworm-security\nComponents: main\n\n\
            Enabled: no\nTypes: deb\nURIs: http://off.example/debian\nSuites: bookworm\nComponents: main\n\n\
            Types: deb\nURIs:\n https://mirror.example/debian\nSuites: bookworm\n  bookworm-updates\n\
            Components: main contrib\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n";
        let found = archive("debian.sources", text).expect("a mirror");
        assert_eq!(found.uri, "https://mirror.example/debian");
        let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
        assert_eq!(found.keyring.as_deref(), Some(Path::new(keyring)));
    }

    #[test]
    fn old_format() {
        let text = "deb-src http://x.example/debian bookworm main\n\
            deb cdrom:[Debian]/ bookworm main\n\
            deb [arch=amd64 signed-by=/k/debian.gpg] http://y.example/debian/ trixie-updates main # all\n";
        let found = archive("z.list", text).expect("a mirror");
        assert_eq!(found.uri, "http://y.example/debian/");
        assert_eq!(found.keyring.as_deref(), Some(Path::new("/k/debian.gpg")));
    }

    #[test]
    fn other_distributions_have_no_debian_archive() {
        let ubuntu = "deb http://archive.ubuntu.com/ubuntu noble main universe\n";
        assert_eq!(archive("u.list", ubuntu), None);
        assert_eq!(own_suite("ID=ubuntu\nVERSION_CODENAME=noble\n"), "");
        assert_eq!(
            own_suite("VERSION_CODENAME=bookworm\nID=debian\n"),
            "bookworm"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(deb|Types:|URIs:|Suites:|\\[|\\]|main|[a-z:/# \n\t])*") {
            one_line(&text);
            deb822(&text);
        }
    }
}
